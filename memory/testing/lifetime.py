"""Checks of the store kit on expiry, concurrency and reopening."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from langgraph.store.base import BaseStore

from memory.testing.base import NS, WORDS, StoreKit, by_text, gone, scores_of


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
                    assert (store.get(("t", str(thread)), str(i)) or gone()).value["n"] == i
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
            assert scores_of(again, "sun")["b"] > 0.9 and scores_of(again, "dog")["b"] < 0.5
        finally:
            self.close(again)
