"""Snapshots and overlays: frozen reads, private writes, forks, merging, and that they cost next to nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from memory import BadValueError, FaissStore, HashingEmbedder, Overlay, ReadOnlyError

NS = ("s",)


def make(path: Path | None = None, **options: Any) -> FaissStore:
    store = FaissStore(path, embedder=HashingEmbedder(256), fields=["text"], durability="normal", **options)
    store.batch([PutOp(NS, str(i), {"text": f"word{i}", "n": i}) for i in range(10)])
    return store


def test_a_snapshot_is_frozen() -> None:
    store = make()
    snapshot = store.snapshot()
    store.put(NS, "0", {"text": "changed", "n": 100})
    store.put(NS, "new", {"text": "word1 word1"})
    store.delete(NS, "1")
    assert {item.key for item in snapshot.search(NS, limit=100)} == {str(i) for i in range(10)}
    assert snapshot.search(NS, query="word1", limit=1)[0].key == "1"
    item = snapshot.get(NS, "0")
    assert item is not None and item.value == {"text": "word0", "n": 0}
    assert snapshot.search(NS, filter={"n": 100}) == [] and len(snapshot.search(NS, filter={"n": 0})) == 1
    assert snapshot.list_namespaces() == [NS]


def test_writing_to_a_snapshot_is_refused() -> None:
    store = make()
    snapshot = store.snapshot()
    for write in (lambda: snapshot.put(NS, "x", {}), lambda: snapshot.delete(NS, "1")):
        with pytest.raises(ReadOnlyError, match=r"overlay\(\)"):
            write()
    with pytest.raises(ReadOnlyError):
        asyncio.run(snapshot.aput(NS, "x", {}))
    assert store.get(NS, "x") is None


def test_time_stands_still_in_a_snapshot() -> None:
    now = [0.0]
    store = FaissStore(embedder=False, ttl={"omit_expired": True}, clock=lambda: now[0])
    store.put(NS, "k", {}, ttl=1)
    snapshot = store.snapshot()
    now[0] = 61
    assert store.get(NS, "k") is None and snapshot.get(NS, "k") is not None
    assert store.sweep_ttl() == 1
    assert snapshot.get(NS, "k") is not None and len(snapshot.search(NS)) == 1


def test_an_overlay_is_private() -> None:
    store = make()
    one, two = store.overlay(), store.overlay()
    one.put(NS, "0", {"text": "mine", "n": 0})
    one.put(("own",), "x", {"text": "word5 word5"})
    one.delete(NS, "1")
    two.put(NS, "2", {"text": "yours"})
    assert {item.key for item in one.search((), limit=100)} == {*map(str, range(10)), "x"} - {"1"}
    assert one.search((), query="mine", limit=1)[0].key == "0"
    assert one.search((), query="word1", limit=1)[0].key != "1"
    assert one.list_namespaces() == [("own",), NS] and two.list_namespaces() == [NS]
    item = two.get(NS, "0")
    assert item is not None and item.value["text"] == "word0"
    assert store.list_namespaces() == [NS] and store.get(("own",), "x") is None
    store_item = store.get(NS, "2")
    assert store_item is not None and store_item.value["text"] == "word2"


def test_dropping_an_overlay_loses_nothing_else() -> None:
    store = make()
    overlay = store.overlay()
    overlay.delete(NS, "0")
    del overlay
    gc.collect()
    assert len(store.search(NS, limit=100)) == 10


def test_merging() -> None:
    store = make()
    overlay = store.overlay()
    overlay.put(NS, "0", {"text": "better"}, index=False)
    overlay.put(NS, "temporary", {"text": "x"})
    overlay.delete(NS, "temporary")
    overlay.delete(NS, "1")
    overlay.put(NS, "brief", {"text": "brief"}, ttl=5)
    created = store.get(NS, "0")
    assert overlay.merge_into(store) == 4 and overlay.merge_into(store) == 0
    after = store.get(NS, "0")
    assert created is not None and after is not None
    assert after.value == {"text": "better"} and after.created_at == created.created_at
    assert store.get(NS, "1") is None and store.get(NS, "temporary") is None
    scores = {item.key: item.score for item in store.search(NS, query="better", limit=100)}
    assert scores["0"] is None, "index=False is merged too"
    overlay.put(NS, "later", {"text": "later"})
    assert overlay.merge_into(store) == 1 and store.get(NS, "later") is not None


def test_merging_into_another_kind_of_store() -> None:
    overlay = make().overlay()
    overlay.put(NS, "a", {"text": "x"})
    overlay.delete(NS, "0")
    other = InMemoryStore()
    assert overlay.merge_into(other) == 2 and other.get(NS, "a") is not None


def test_a_fork_sees_the_past_only() -> None:
    overlay = make().overlay()
    overlay.put(NS, "a", {"text": "first"})
    mark = overlay.mark
    overlay.put(NS, "a", {"text": "second"})
    overlay.delete(NS, "0")
    fork = overlay.fork(mark)
    assert [fork.get(NS, key) is not None for key in ("a", "0")] == [True, True]
    assert fork.search(NS, query="first", limit=1)[0].value == {"text": "first"}
    fork.put(NS, "b", {"text": "fork"})
    assert overlay.get(NS, "b") is None
    item = overlay.get(NS, "a")
    assert item is not None and item.value == {"text": "second"} and overlay.fork().get(NS, "0") is None
    with pytest.raises(BadValueError, match="3 writes"):
        overlay.fork(4)


def test_an_overlay_ranks_its_own_items_among_the_others() -> None:
    store = make()
    overlay = store.overlay()
    overlay.put(NS, "own", {"text": "word3 word3 extra", "n": 50})
    keys = [item.key for item in overlay.search(NS, query="word3", limit=3)]
    assert keys[:2] == ["3", "own"]
    pages = [overlay.search(NS, query="word3", limit=4, offset=start) for start in range(0, 12, 4)]
    assert sorted(item.key for page in pages for item in page) == sorted([*map(str, range(10)), "own"])
    assert [item.key for item in overlay.search(NS, query="word3", filter={"n": {"$gte": 9}})] != []
    assert {item.key for item in overlay.search(NS, filter={"n": {"$gte": 9}})} == {"9", "own"}


def test_many_concurrent_episodes(tmp_path: Path) -> None:
    """Threads with an overlay each, while the store itself is written and pruned."""
    store = make(tmp_path, garbage=1)
    snapshot = store.snapshot()
    errors: list[BaseException] = []

    def episode(number: int) -> None:
        try:
            overlay: Overlay = snapshot.overlay()
            for step in range(10):
                overlay.put(NS, f"e{step}", {"text": f"episode{number} word{step}", "n": number})
                own = overlay.search(NS, query=f"episode{number}", filter={"n": number}, limit=50)
                assert len([item for item in own if item.key.startswith("e")]) == step + 1
                assert len(overlay.search(NS, limit=100)) == 11 + step
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=episode, args=(number,)) for number in range(100, 132)]
    for thread in threads:
        thread.start()
    for i in range(60):
        store.put(NS, str(i % 10), {"text": f"new{i}"})
    for thread in threads:
        thread.join()
    assert errors == []
    store.close()


def test_making_a_thousand_is_cheap(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.batch([PutOp(NS, f"m{i}", {"text": f"word{i % 50}"}) for i in range(5000)])
    snapshot = store.snapshot()
    start = time.perf_counter()
    overlays = [snapshot.overlay() for _ in range(1000)]
    assert time.perf_counter() - start < 1.0
    overlays[7].put(NS, "x", {"text": "x"})
    assert overlays[8].get(NS, "x") is None
    snapshots = [store.snapshot() for _ in range(1000)]
    assert len({taken.generation for taken in snapshots}) == 1
    del snapshots, overlays, snapshot
    gc.collect()
    store.put(NS, "0", {"text": "again"})
    assert store.compact() >= 1, "nothing is pinned any more"
    store.close()
