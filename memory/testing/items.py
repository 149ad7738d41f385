"""Checks of the store kit on items, batches, namespaces, filters and pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
)

from memory.testing.base import NS, WORDS, StoreKit, by_text, raises, scores_of, value_of


class BatchContract(StoreKit):
    """Points 1 to 4."""

    def test_get_returns_what_was_put(self) -> None:
        value = {"text": "tea", "n": 1, "x": 1.5, "ok": True, "none": None, "deep": {"list": [1, {"a": "ü"}]}}
        with self.store() as store:
            store.put(NS, "k", value)
            item = store.get(NS, "k")
            assert item is not None and (item.value, item.key, tuple(item.namespace)) == (value, "k", NS)
            assert store.get(NS, "other") is None and store.get(("other",), "k") is None

    def test_delete(self) -> None:
        with self.store() as store:
            store.put(NS, "k", {"a": 1})
            store.delete(NS, "k")
            store.delete(NS, "never there")
            assert store.get(NS, "k") is None and store.search(NS) == []

    def test_values_are_copied_in(self) -> None:
        with self.store() as store:
            value: dict[str, Any] = {"list": [1]}
            store.put(NS, "k", value)
            value["list"].append(2)
            assert value_of(store, "k") == {"list": [1]}

    def test_values_are_copied_out(self) -> None:
        with self.store() as store:
            store.put(NS, "k", {"list": [1]})
            value_of(store, "k")["list"].append(2)
            store.search(NS)[0].value["list"].append(3)
            assert value_of(store, "k") == {"list": [1]}

    def test_results_in_order_of_operations(self) -> None:
        with self.store() as store:
            store.put(NS, "k", {"a": 1})
            ops: list[Op] = [PutOp(NS, "new", {"a": 2}), GetOp(NS, "k"), ListNamespacesOp(), SearchOp(NS)]
            put, got, names, found, missing = store.batch([*ops, GetOp(NS, "no")])
            assert put is None and missing is None and got.value == {"a": 1}  # type: ignore[union-attr]
            assert names == [NS] and [item.key for item in found] == ["k"]  # type: ignore[union-attr]

    def test_reads_see_the_state_before_the_batch(self) -> None:
        with self.store() as store:
            store.put(NS, "k", {"v": 1})
            results = store.batch([PutOp(NS, "k", {"v": 2}), GetOp(NS, "k"), PutOp(NS, "k", None)])
            assert results[1].value == {"v": 1}  # type: ignore[union-attr]
            assert store.get(NS, "k") is None

    def test_last_put_of_a_key_wins(self) -> None:
        with self.store(by_text()) as store:
            store.batch([PutOp(NS, "k", None), PutOp(NS, "k", {"text": "cat"}), PutOp(NS, "k", {"text": "dog"})])
            assert value_of(store, "k") == {"text": "dog"}
            assert scores_of(store, "dog")["k"] > 0.9

    def test_equal_texts_in_one_batch(self) -> None:
        with self.store(by_text()) as store:
            store.batch([PutOp(NS, key, {"text": text}) for key, text in (("a", "cat"), ("b", "cat"), ("c", "sun"))])
            scores = scores_of(store, "cat")
            assert scores["a"] > 0.9 and scores["b"] > 0.9 and scores["c"] < 0.5

    def test_times(self) -> None:
        with self.store() as store:
            store.put(NS, "k", {"v": 1})
            first = store.get(NS, "k")
            self.advance(1.1)
            store.put(NS, "k", {"v": 2})
            second = store.get(NS, "k")
            assert first is not None and second is not None and second.value == {"v": 2}
            assert first.created_at.tzinfo is not None and second.updated_at.tzinfo is not None
            assert second.created_at == first.created_at, "an update must not reset created_at"
            assert second.updated_at > first.updated_at

    def test_prefix_matches_whole_labels_literally(self) -> None:
        spaces = [("a",), ("a", "b"), ("ab",), ("A",), ("a_",), ("a%",), ("aX",), ("a", "b", "c"), ("ü*",)]
        with self.store() as store:
            for place, space in enumerate(spaces):
                store.put(space, f"k{place}", {"n": place})
            for prefix in [*spaces, ()]:
                wanted = {f"k{place}" for place, space in enumerate(spaces) if space[: len(prefix)] == prefix}
                assert {item.key for item in store.search(prefix, limit=100)} == wanted, f"prefix {prefix}"

    def test_malformed_namespaces_are_refused(self) -> None:
        with self.store() as store:
            for bad in [("a.b",), ("",), ("a", "")]:
                for op in [PutOp(bad, "k", {}), GetOp(bad, "k"), SearchOp(bad)]:
                    raises(InvalidNamespaceError, lambda op=op: store.batch([op]))  # type: ignore[misc]
            raises(InvalidNamespaceError, lambda: store.put((), "k", {}))
            raises(InvalidNamespaceError, lambda: store.put(("langgraph", "x"), "k", {}))


class FilterContract(StoreKit):
    """Points 5, 6 and 9."""

    rows: tuple[dict[str, Any], ...] = (
        {"n": 1, "s": "b", "d": {"x": 1, "y": {"z": 2}}, "l": [1, 2], "b": True},
        {"n": 2.5, "s": "c", "d": {"x": 2}, "l": [1], "b": False},
        {"n": 10, "s": "a", "l": []},
        {"s": None},
        {},
    )

    def _found(self, store: BaseStore, condition: dict[str, Any]) -> set[int]:
        return {int(item.key) for item in store.search(NS, filter=condition, limit=100)}

    def _check(self, cases: Sequence[tuple[dict[str, Any], set[int]]]) -> None:
        with self.store() as store:
            store.batch([PutOp(NS, str(place), row) for place, row in enumerate(self.rows)])
            for condition, wanted in cases:
                assert self._found(store, condition) == wanted, f"filter {condition}"

    def test_equality(self) -> None:
        self._check([({"n": 1}, {0}), ({"s": "a"}, {2}), ({"b": True}, {0}), ({"n": 1, "s": "c"}, set())])
        self._check([({}, {0, 1, 2, 3, 4})])

    def test_operators_on_numbers(self) -> None:
        self._check(
            [
                ({"n": {"$eq": 2.5}}, {1}),
                ({"n": {"$gt": 1}}, {1, 2}),
                ({"n": {"$gte": 1}}, {0, 1, 2}),
                ({"n": {"$lt": 10}}, {0, 1}),
                ({"n": {"$lte": 10}}, {0, 1, 2}),
                ({"n": {"$gt": 1, "$lt": 10}}, {1}),
            ]
        )

    def test_not_equal_holds_for_missing_fields(self) -> None:
        self._check([({"n": {"$ne": 1}}, {1, 2, 3, 4})])

    def test_ordering_on_missing_fields_and_other_types(self) -> None:
        self._check([({"s": {"$gt": 5}}, set()), ({"d": {"$lt": 5}}, set()), ({"missing": {"$gte": 0}}, set())])

    def test_ordering_of_strings(self) -> None:
        self._check([({"s": {"$gt": "a"}}, {0, 1}), ({"s": {"$lte": "b"}}, {0, 2})])

    def test_nested_dicts_and_lists(self) -> None:
        self._check(
            [
                ({"d": {"x": 2}}, {1}),
                ({"d": {"y": {"z": 2}}}, {0}),
                ({"d": {"x": {"$gte": 1}}}, {0, 1}),
                ({"l": [1, 2]}, {0}),
            ]
        )

    def test_operators_with_lists_and_dicts(self) -> None:
        self._check([({"l": {"$eq": [1]}}, {1}), ({"d": {"$eq": {"x": 2}}}, {1}), ({"l": {"$ne": [1]}}, {0, 2, 3, 4})])

    def test_unknown_operator_is_refused(self) -> None:
        with self.store() as store:
            store.put(NS, "k", {"n": 1})
            raises(ValueError, lambda: store.search(NS, filter={"n": {"$near": 1}}))

    def test_filter_with_a_query(self) -> None:
        with self.store(by_text()) as store:
            store.batch([PutOp(NS, str(i), {"text": "cat" if i < 30 else "dog", "n": i}) for i in range(60)])
            found = store.search(NS, query="cat", filter={"n": {"$gte": 55}}, limit=5)
            assert {item.key for item in found} == {"55", "56", "57", "58", "59"}, "filters come before the search"

    def test_pages_partition_the_items(self) -> None:
        with self.store(by_text()) as store:
            store.batch([PutOp(NS, str(i), {"text": WORDS[i % 8], "n": i}) for i in range(23)])
            for query, size in ((None, 5), ("cat", 5), ("cat", 2), ("sun", 23)):
                pages = [store.search(NS, query=query, limit=size, offset=start) for start in range(0, 25, size)]
                keys = [item.key for page in pages for item in page]
                assert sorted(keys, key=int) == [str(i) for i in range(23)], f"query {query!r} in pages of {size}"
            assert store.search(NS, limit=0) == []

    def test_list_namespaces(self) -> None:
        spaces = [("a", "b", "c"), ("a", "b", "d", "e"), ("a", "b", "d", "i"), ("a", "b", "f"), ("a", "c", "f"), ("z",)]
        with self.store() as store:
            for space in spaces:
                store.put(space, "k", {})
            names = store.list_namespaces
            assert names() == sorted(spaces)
            assert names(prefix=("a", "b"), max_depth=3) == [("a", "b", "c"), ("a", "b", "d"), ("a", "b", "f")]
            assert names(suffix=("f",)) == [("a", "b", "f"), ("a", "c", "f")]
            assert names(prefix=("a", "*", "f")) == [("a", "b", "f"), ("a", "c", "f")]
            assert names(suffix=("d", "*")) == [("a", "b", "d", "e"), ("a", "b", "d", "i")]
            conditions = (MatchCondition("prefix", ("a",)), MatchCondition("suffix", ("i",)))
            assert store.batch([ListNamespacesOp(conditions)]) == [[("a", "b", "d", "i")]]
            assert names(limit=2) + names(limit=2, offset=2) + names(offset=4) == sorted(spaces)
            assert names(max_depth=1) == [("a",), ("z",)]

    def test_empty_namespaces_are_not_listed(self) -> None:
        with self.store() as store:
            store.put(("a",), "k", {})
            store.delete(("a",), "k")
            store.get(("b",), "k")
            assert store.list_namespaces() == []
