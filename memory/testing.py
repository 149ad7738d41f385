"""A conformance kit for LangGraph stores: subclass :class:`StoreContract` and say how a store is made.

    class TestMyStore(StoreContract):
        def make_store(self, *, index=None, ttl=None):
            return MyStore(index=index, ttl=ttl)

pytest collects the methods; ``report(TestMyStore)`` runs them without pytest. What a store must do:

 1. ``get`` returns what was put; values are copied both ways; results come in the order of the operations.
 2. Reads of a batch see the state before its puts; the last put of a key wins; equal texts in a batch are fine.
 3. An update keeps ``created_at`` and moves ``updated_at`` forward; both are aware times.
 4. A namespace prefix matches whole labels, literally; malformed namespaces are refused on every path.
 5. Filters: all operators, on missing fields and other types too; nested dicts and lists compare as values.
 6. Pages partition the results, however far one pages.
 7. Search: nearest first, a higher score is better, ``fields`` and ``index`` decide what is embedded, an item appears
    once with its best vector, and no vector outlives the text it was made from.
 8. Queries are embedded as queries.
 9. Namespaces are listed while they hold items, by prefix, suffix, wildcard and depth.
10. Time to live: expiry, refresh on read, sweeping, ``omit_expired``.
11. Threads and asyncio tasks may use one store together; what was put is there after reopening.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
    TTLConfig,
)

WORDS = ("cat", "dog", "sun", "moon", "tea", "rain", "oak", "salt")
NS = ("kit",)


class WordEmbedder(Embeddings):
    """One axis per word of :data:`WORDS`; a query ``about cat`` is a vector only if it is embedded as a query."""

    def _axes(self, text: str) -> list[float]:
        return [0.01] + [float(word in text) for word in WORDS]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """``about …`` means nothing in a document."""
        return [self._axes("" if text.startswith("about ") else text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The axes of its words."""
        return self._axes(text)


def by_text(fields: Sequence[str] = ("text",), **more: Any) -> IndexConfig:
    """An index configuration with the kit's embedder."""
    config: dict[str, Any] = {"dims": len(WORDS) + 1, "embed": WordEmbedder(), "fields": list(fields), **more}
    return config  # type: ignore[return-value]


class StoreKit:
    """What a subclass fills in."""

    has_async = True
    """Whether ``abatch`` works on the store that ``make_store`` gives."""
    l2: ClassVar[dict[str, Any] | None] = None
    """Index configuration entries that choose the Euclidean distance, where the store has one."""

    def make_store(self, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None) -> BaseStore:
        """A new, empty store."""
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Let time pass for the store; override it where the store takes a clock."""
        time.sleep(seconds)

    def reopen(self, store: BaseStore) -> BaseStore | None:
        """The same store opened again, or None where it does not persist."""
        return None

    def close(self, store: BaseStore) -> None:
        """Let a store go."""
        close = getattr(store, "close", None)
        if callable(close):
            close()

    @contextlib.contextmanager
    def store(self, index: IndexConfig | None = None, ttl: TTLConfig | None = None) -> Iterator[BaseStore]:
        """A new store, closed afterwards."""
        store = self.make_store(index=index, ttl=ttl)
        try:
            yield store
        finally:
            self.close(store)


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
            assert _value(store, "k") == {"list": [1]}

    def test_values_are_copied_out(self) -> None:
        with self.store() as store:
            store.put(NS, "k", {"list": [1]})
            _value(store, "k")["list"].append(2)
            store.search(NS)[0].value["list"].append(3)
            assert _value(store, "k") == {"list": [1]}

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
            assert _value(store, "k") == {"text": "dog"}
            assert _scores(store, "dog")["k"] > 0.9

    def test_equal_texts_in_one_batch(self) -> None:
        with self.store(by_text()) as store:
            store.batch([PutOp(NS, key, {"text": text}) for key, text in (("a", "cat"), ("b", "cat"), ("c", "sun"))])
            scores = _scores(store, "cat")
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
                    _raises(InvalidNamespaceError, lambda op=op: store.batch([op]))  # type: ignore[misc]
            _raises(InvalidNamespaceError, lambda: store.put((), "k", {}))
            _raises(InvalidNamespaceError, lambda: store.put(("langgraph", "x"), "k", {}))


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
            _raises(ValueError, lambda: store.search(NS, filter={"n": {"$near": 1}}))

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


class SearchContract(StoreKit):
    """Points 7 and 8."""

    def test_nearest_first(self) -> None:
        with self.store(by_text()) as store:
            for word in WORDS:
                store.put(NS, word, {"text": word})
            store.put(NS, "both", {"text": "cat dog"})
            found = store.search(NS, query="cat", limit=3)
            assert [item.key for item in found[:2]] == ["cat", "both"]
            scores = [item.score for item in found]
            assert None not in scores and scores == sorted(scores, reverse=True)  # type: ignore[type-var]

    def test_euclidean_nearest_first(self) -> None:
        if self.l2 is None:
            return
        with self.store(by_text(**self.l2)) as store:
            for word in WORDS:
                store.put(NS, word, {"text": word})
            found = store.search(NS, query="cat", limit=8)
            assert found[0].key == "cat" and (found[0].score or 0) >= (found[-1].score or 0)

    def test_update_replaces_the_vector(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"text": "cat"})
            store.put(NS, "k", {"text": "dog"})
            assert _scores(store, "dog")["k"] > 0.9 and _scores(store, "cat")["k"] < 0.5

    def test_index_false_has_no_vector(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "no", {"text": "cat"}, index=False)
            store.put(NS, "k", {"text": "dog"})
            assert _scores(store, "cat").get("no") is None and _value(store, "no") == {"text": "cat"}

    def test_index_false_removes_the_old_vector(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"text": "cat"})
            store.put(NS, "k", {"text": "sun"}, index=False)
            assert _scores(store, "cat").get("k") is None

    def test_fields_of_the_store(self) -> None:
        with self.store(by_text(["title"])) as store:
            store.put(NS, "k", {"title": "cat", "text": "dog"})
            assert _scores(store, "cat")["k"] > 0.9 and _scores(store, "dog")["k"] < 0.5

    def test_whole_value_by_default(self) -> None:
        config = by_text()
        del config["fields"]
        with self.store(config) as store:
            store.put(NS, "k", {"anything": ["cat"]})
            assert _scores(store, "cat")["k"] > 0.9

    def test_fields_of_one_put(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"text": "dog", "deep": {"name": "cat"}}, index=["deep.name"])
            assert _scores(store, "cat")["k"] > 0.9 and _scores(store, "dog")["k"] < 0.5
            store.put(NS, "k", {"list": [{"w": "sun"}, {"w": "tea"}]}, index=["list[*].w", "list[-1].w"])
            assert _scores(store, "sun")["k"] > 0.9 and _scores(store, "tea")["k"] > 0.9

    def test_missing_field_has_no_vector(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"title": "cat"})
            assert _scores(store, "cat").get("k") is None

    def test_item_appears_once_with_its_best_vector(self) -> None:
        with self.store(by_text(["parts[*]"])) as store:
            store.put(NS, "many", {"parts": ["dog", "cat", "cat sun", "cat tea"]})
            store.put(NS, "one", {"parts": ["cat moon"]})
            found = store.search(NS, query="cat", limit=10)
            assert [item.key for item in found] == ["many", "one"] and (found[0].score or 0) > 0.9

    def test_shrunk_list_leaves_no_vector(self) -> None:
        with self.store(by_text(["parts[*]"])) as store:
            store.put(NS, "k", {"parts": ["dog", "cat", "sun"]})
            store.put(NS, "k", {"parts": ["dog"]})
            assert _scores(store, "sun")["k"] < 0.5

    def test_deleted_item_is_not_found(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"text": "cat"})
            store.delete(NS, "k")
            assert store.search(NS, query="cat") == []
            store.put(NS, "k", {"text": "dog"})
            assert _scores(store, "cat")["k"] < 0.5, "the deleted item's vector must be gone"

    def test_queries_are_embedded_as_queries(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"text": "cat"})
            assert _scores(store, "about cat")["k"] > 0.9
            if self.has_async:
                found = asyncio.run(store.asearch(NS, query="about cat"))
                assert (found[0].score or 0) > 0.9

    def test_search_stays_under_its_prefix(self) -> None:
        with self.store(by_text()) as store:
            store.batch([PutOp(("t", str(i % 3)), str(i), {"text": "cat"}) for i in range(30)])
            found = store.search(("t", "1"), query="cat", limit=30)
            assert {int(item.key) % 3 for item in found} == {1} and len(found) == 10


class TtlContract(StoreKit):
    """Point 10; times in minutes."""

    short = 2 / 60

    def _later(self) -> None:
        # A store may keep whole seconds.
        self.advance(self.short * 60 + 1.1)

    def test_sweep_deletes_what_expired(self) -> None:
        with self.store(ttl={"refresh_on_read": False}) as store:
            store.put(NS, "brief", {}, ttl=self.short)
            store.put(NS, "long", {}, ttl=60)
            store.put(NS, "ever", {})
            self._later()
            assert store.sweep_ttl() == 1  # type: ignore[attr-defined]
            assert {item.key for item in store.search(NS)} == {"long", "ever"}

    def test_omit_expired(self) -> None:
        with self.store(by_text(), ttl={"omit_expired": True}) as store:
            store.put(NS, "k", {"text": "cat"}, ttl=self.short)
            assert store.get(NS, "k", refresh_ttl=False) is not None
            self._later()
            assert store.get(NS, "k") is None
            assert store.search(NS) == [] and store.search(NS, query="cat") == []
            assert store.list_namespaces() == []

    def test_read_refreshes(self) -> None:
        with self.store(ttl={"refresh_on_read": True, "omit_expired": True}) as store:
            store.put(NS, "get", {}, ttl=self.short)
            store.put(("other",), "search", {}, ttl=self.short)
            for _ in range(3):
                self.advance(self.short * 60 * 0.6)
                assert store.get(NS, "get") is not None
                assert len(store.search(("other",))) == 1
            self._later()
            assert store.sweep_ttl() == 2  # type: ignore[attr-defined]

    def test_refresh_can_be_declined(self) -> None:
        with self.store(ttl={"refresh_on_read": True, "omit_expired": True}) as store:
            store.put(NS, "k", {}, ttl=self.short)
            for _ in range(3):
                self.advance(self.short * 60 * 0.4)
                store.get(NS, "k", refresh_ttl=False)
            assert store.get(NS, "k") is None

    def test_default_ttl(self) -> None:
        with self.store(ttl={"default_ttl": self.short, "omit_expired": True, "refresh_on_read": False}) as store:
            store.put(NS, "k", {})
            store.put(NS, "ever", {}, ttl=None)
            self._later()
            assert store.get(NS, "k") is None and store.get(NS, "ever") is not None


class ConcurrencyContract(StoreKit):
    """Point 11."""

    def test_threads(self) -> None:
        with self.store(by_text()) as store:
            barrier = threading.Barrier(8)

            def work(thread: int) -> None:
                barrier.wait()
                for i in range(20):
                    store.put(("t", str(thread)), str(i), {"text": WORDS[i % 8], "n": i})
                    assert (store.get(("t", str(thread)), str(i)) or _gone()).value["n"] == i
                    store.search(("t",), query=WORDS[thread], limit=5)
                    if i % 3 == 0:
                        store.delete(("t", str(thread)), str(i))

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(work, range(8)))
            assert len(store.search(("t",), limit=1000)) == 8 * 13

    def test_async(self) -> None:
        if not self.has_async:
            return

        async def work(store: BaseStore) -> None:
            await asyncio.gather(*(store.aput(NS, str(i), {"text": WORDS[i % 8]}) for i in range(40)))
            found = await asyncio.gather(*(store.asearch(NS, query=word, limit=5) for word in WORDS))
            for word, items in zip(WORDS, found, strict=True):
                assert {item.value["text"] for item in items} == {word}
            await store.adelete(NS, "0")
            assert await store.aget(NS, "0") is None and await store.aget(NS, "1") is not None
            assert await store.alist_namespaces() == [NS]

        with self.store(by_text()) as store:
            asyncio.run(work(store))

    def test_reopening(self) -> None:
        store = self.make_store(index=by_text())
        store.put(NS, "a", {"text": "cat"})
        store.put(NS, "b", {"text": "dog"})
        store.put(NS, "b", {"text": "sun"})
        store.delete(NS, "a")
        before = store.get(NS, "b")
        again = self.reopen(store)
        if again is None:
            self.close(store)
            return
        try:
            assert again.get(NS, "b") == before and again.get(NS, "a") is None
            assert _scores(again, "sun")["b"] > 0.9 and _scores(again, "dog")["b"] < 0.5
        finally:
            self.close(again)


class StoreContract(BatchContract, FilterContract, SearchContract, TtlContract, ConcurrencyContract):
    """The whole kit."""


def report(contract: type[StoreKit]) -> dict[str, str | None]:
    """Run the kit without pytest: what failed and how, None for what passed, by name of the check."""
    results: dict[str, str | None] = {}
    for name in sorted(name for name in dir(contract) if name.startswith("test_")):
        try:
            getattr(contract(), name)()
            results[name] = None
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            line = [frame.line for frame in where if frame.filename == __file__][-1] or ""
            text = str(error).splitlines()[0] if str(error) else line
            results[name] = f"{type(error).__name__}: {text}"[:200]
    return results


def _value(store: BaseStore, key: str) -> dict[str, Any]:
    return (store.get(NS, key) or _gone()).value


def _scores(store: BaseStore, query: str) -> dict[str, Any]:
    return {item.key: item.score for item in store.search(NS, query=query, limit=100)}


def _gone() -> Any:
    raise AssertionError("the item is not there")


def _raises(kind: type[Exception], action: Callable[[], object]) -> None:
    try:
        action()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
