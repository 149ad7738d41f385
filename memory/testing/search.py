"""Checks of the store kit on semantic search."""

from __future__ import annotations

import asyncio

from langgraph.store.base import PutOp

from memory.testing.base import NS, WORDS, StoreKit, by_text, scores_of, value_of


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
            assert scores_of(store, "dog")["k"] > 0.9 and scores_of(store, "cat")["k"] < 0.5

    def test_index_false_has_no_vector(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "no", {"text": "cat"}, index=False)
            store.put(NS, "k", {"text": "dog"})
            assert scores_of(store, "cat").get("no") is None and value_of(store, "no") == {"text": "cat"}

    def test_index_false_removes_the_old_vector(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"text": "cat"})
            store.put(NS, "k", {"text": "sun"}, index=False)
            assert scores_of(store, "cat").get("k") is None

    def test_fields_of_the_store(self) -> None:
        with self.store(by_text(["title"])) as store:
            store.put(NS, "k", {"title": "cat", "text": "dog"})
            assert scores_of(store, "cat")["k"] > 0.9 and scores_of(store, "dog")["k"] < 0.5

    def test_whole_value_by_default(self) -> None:
        config = by_text()
        del config["fields"]
        with self.store(config) as store:
            store.put(NS, "k", {"anything": ["cat"]})
            assert scores_of(store, "cat")["k"] > 0.9

    def test_fields_of_one_put(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"text": "dog", "deep": {"name": "cat"}}, index=["deep.name"])
            assert scores_of(store, "cat")["k"] > 0.9 and scores_of(store, "dog")["k"] < 0.5
            store.put(NS, "k", {"list": [{"w": "sun"}, {"w": "tea"}]}, index=["list[*].w", "list[-1].w"])
            assert scores_of(store, "sun")["k"] > 0.9 and scores_of(store, "tea")["k"] > 0.9

    def test_missing_field_has_no_vector(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"title": "cat"})
            assert scores_of(store, "cat").get("k") is None

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
            assert scores_of(store, "sun")["k"] < 0.5

    def test_deleted_item_is_not_found(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"text": "cat"})
            store.delete(NS, "k")
            assert store.search(NS, query="cat") == []
            store.put(NS, "k", {"text": "dog"})
            assert scores_of(store, "cat")["k"] < 0.5, "the deleted item's vector must be gone"

    def test_queries_are_embedded_as_queries(self) -> None:
        with self.store(by_text()) as store:
            store.put(NS, "k", {"text": "cat"})
            assert scores_of(store, "about cat")["k"] > 0.9
            if self.has_async:
                found = asyncio.run(store.asearch(NS, query="about cat"))
                assert (found[0].score or 0) > 0.9

    def test_search_stays_under_its_prefix(self) -> None:
        with self.store(by_text()) as store:
            store.batch([PutOp(("t", str(i % 3)), str(i), {"text": "cat"}) for i in range(30)])
            found = store.search(("t", "1"), query="cat", limit=30)
            assert {int(item.key) % 3 for item in found} == {1} and len(found) == 10
