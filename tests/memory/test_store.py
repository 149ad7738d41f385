"""FaissStore beyond the conformance kit: what it refuses, what it keeps, how it recovers."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import multiprocessing
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp

from memory import (
    BadValueError,
    CorruptStoreError,
    EmbedderError,
    FaissStore,
    HashingEmbedder,
    StoreClosedError,
    StoreConfigError,
)
from memory.care import export, verify

NS = ("t",)


def open_store(path: Path | None = None, dims: int = 16, **options: Any) -> FaissStore:
    options.setdefault("durability", "normal")
    return FaissStore(path, embedder=HashingEmbedder(dims), fields=options.pop("fields", ["text"]), **options)


def texts(store: FaissStore, query: str, limit: int = 5) -> list[str]:
    return [item.value["text"] for item in store.search(NS, query=query, limit=limit)]


def test_three_lines_give_a_persistent_semantic_store(tmp_path: Path) -> None:
    with FaissStore(tmp_path / "memories") as store:
        store.put(("anna",), "1", {"text": "Anna moved to Oslo in May."})
        store.put(("anna",), "2", {"text": "The printer is out of ink."})
    with FaissStore(tmp_path / "memories") as store:
        assert store.search(("anna",), query="Where does Anna live?")[0].key == "1"


@pytest.mark.parametrize(
    "other", [HashingEmbedder(8), lambda texts: [[float(len(t)), *[1.0] * 15] for t in texts], False]
)
def test_another_dimension_or_embedder_is_refused(tmp_path: Path, other: Any) -> None:
    with open_store(tmp_path) as store:
        store.put(NS, "k", {"text": "red"})
    with pytest.raises(StoreConfigError, match=r"was made with 'hashing-16' with 16 dimensions.*export"):
        FaissStore(tmp_path, embedder=other)
    with open_store(tmp_path) as store:
        assert store.get(NS, "k") is not None


def test_the_same_embedder_under_another_name_is_accepted(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    with FaissStore(tmp_path, embedder=HashingEmbedder(16).embed_documents) as store:
        assert store.fields == ("text",)


@pytest.mark.parametrize(("option", "value"), [("metric", "l2"), ("fields", ["title"])])
def test_other_settings_are_refused(tmp_path: Path, option: str, value: Any) -> None:
    open_store(tmp_path).close()
    with pytest.raises(StoreConfigError, match=option):
        open_store(tmp_path, **{option: value})


def test_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreConfigError, match="'auto'"):
        open_store(kind="ivf")
    with pytest.raises(StoreConfigError, match="cosine"):
        open_store(metric="manhattan")
    with pytest.raises(StoreConfigError, match="not both"):
        FaissStore(embedder=HashingEmbedder(4), index={"dims": 4, "embed": HashingEmbedder(4)})
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreConfigError, match="folder of its own"):
        open_store(tmp_path / "file")
    (tmp_path / "store.db").write_bytes(b"")
    other = tmp_path / "other"
    other.mkdir()
    sqlite3.connect(other / "store.db").execute("CREATE TABLE theirs (x)").connection.commit()
    with pytest.raises(StoreConfigError, match="another program"):
        open_store(other)


@pytest.mark.parametrize(
    "value",
    [
        {"x": math.nan},
        {"x": {1: 2}},
        {"x": {1, 2}},
        {"x": b"bytes"},
        ["no", "dict"],
        {"x": object()},
    ],
)
def test_values_that_json_would_change_are_refused(value: Any) -> None:
    store = open_store()
    with pytest.raises(BadValueError, match="t/k"):
        store.put(NS, "k", value)
    assert store.get(NS, "k") is None


def test_odd_but_sound_values_come_back() -> None:
    store = open_store()
    value = {
        "text": "lone \ud800 surrogate",
        "": {"": [[], {}]},
        "big": 2**70,
        "tuple": (1, 2),
        "nul": "a\0b",
        "é": "ß",
    }
    store.put(NS, "ké\0y/.", value)
    item = store.get(NS, "ké\0y/.")
    assert item is not None and item.value == {**value, "tuple": [1, 2]}
    assert store.search(NS, query="surrogate", filter={"big": 2**70})[0].value == item.value


@pytest.mark.parametrize("ttl", [0, -1, math.inf])
def test_impossible_ttl_is_refused(ttl: float) -> None:
    with pytest.raises(BadValueError, match="positive"):
        open_store().put(NS, "k", {}, ttl=ttl)


def test_a_batch_with_one_bad_operation_changes_nothing() -> None:
    store = open_store()
    for bad in (
        PutOp(NS, "b", {"x": math.nan}),
        PutOp((), "b", {}),
        SearchOp(NS, {"n": {"$in": [1]}}),
        SearchOp(NS, None, -1),
    ):
        with pytest.raises(ValueError):
            store.batch([PutOp(NS, "a", {"text": "x"}), bad])
    assert store.search(()) == []


class Broken(HashingEmbedder):
    """Returns something wrong on demand."""

    answer: Any = None

    def embed_documents(self, texts: list[str]) -> Any:
        return super().embed_documents(texts) if self.answer is None else self.answer


@pytest.mark.parametrize(
    "answer", [[[1.0] * 16] * 3, [[1.0] * 15], [[math.nan] * 16], [["a"] * 16], [1.0] * 16, [[]], [[1.0], [1.0, 2.0]]]
)
def test_a_broken_embedder_is_noticed(answer: Any) -> None:
    embedder = Broken(16)
    store = FaissStore(embedder=embedder, fields=["text"])
    embedder.answer = answer
    with pytest.raises(EmbedderError):
        store.put(NS, "k", {"text": "red"})
    embedder.answer = None
    assert store.get(NS, "k") is None
    store.put(NS, "k", {"text": "red"})
    assert texts(store, "red") == ["red"]


def test_async_function_as_embedder(tmp_path: Path) -> None:
    async def embed(found: Sequence[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return HashingEmbedder(16).embed_documents(list(found))

    async def use(store: FaissStore) -> None:
        await store.aput(NS, "k", {"text": "red apple"})
        await store.aput(NS, "l", {"text": "blue"})
        assert (await store.asearch(NS, query="apple"))[0].key == "k"

    with pytest.raises(StoreConfigError, match="dims"):
        FaissStore(tmp_path, embedder=embed)
    store = FaissStore(tmp_path, embedder=embed, dims=16, fields=["text"])
    asyncio.run(use(store))
    with pytest.raises(EmbedderError, match="async methods"):
        store.put(NS, "k", {"text": "red"})


def test_equal_texts_of_a_batch_are_embedded_once() -> None:
    seen: list[str] = []

    def embed(found: list[str]) -> Any:
        seen.extend(found)
        return np.ones((len(found), 4), np.float32)

    store = FaissStore(embedder=embed, fields=["text"])
    seen.clear()
    store.batch([PutOp(NS, str(i), {"text": "same"}) for i in range(10)])
    assert seen == ["same"]


def test_without_embedder_search_lists_newest_first() -> None:
    store = FaissStore(embedder=False)
    for i in range(5):
        store.put(NS, str(i), {"n": i})
    assert [item.key for item in store.search(NS, query="whatever", limit=3)] == ["4", "3", "2"]


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("kind", ["flat", "sq8", "hnsw"])
def test_scores_and_order_are_those_of_the_metric(metric: Any, kind: Any) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((3000, 12)).astype(np.float32) * rng.uniform(0.5, 2, (3000, 1)).astype(np.float32)

    def embed(found: list[str]) -> Any:
        return vectors[[int(text) for text in found]] if found[0].isdigit() else np.ones((len(found), 12))

    store = FaissStore(embedder=embed, fields=["text"], metric=metric, kind=kind)
    store.batch([PutOp(NS, str(i), {"text": str(i)}) for i in range(2999)])
    query = vectors[2999]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    true = {
        "cosine": unit[:2999] @ unit[2999],
        "dot": vectors[:2999] @ query,
        "l2": -np.linalg.norm(vectors[:2999] - query, axis=1),
    }[metric]
    found = store.search(NS, query="2999", limit=10)
    assert [item.score for item in found] == pytest.approx([true[int(item.key)] for item in found], abs=1e-4)
    wanted = np.argsort(-true)[:10]
    if kind == "hnsw":
        assert len({int(item.key) for item in found} & set(wanted.tolist())) >= 9
    else:
        assert [int(item.key) for item in found] == wanted.tolist()


def test_pages_of_ties_neither_repeat_nor_miss() -> None:
    store = open_store(kind="flat")
    store.batch([PutOp(NS, str(i), {"text": "same words" if i % 2 else f"w{i} same"}) for i in range(3000)])
    keys = [item.key for page in range(30) for item in store.search(NS, query="same words", limit=50, offset=50 * page)]
    assert len(set(keys)) == 1500 and all(int(key) % 2 for key in keys)


def test_auto_switches_to_sq8_and_answers_exactly() -> None:
    store = open_store(sq8_from=100, dims=32)
    flat = open_store(kind="flat", dims=32)
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(40)]
    ops = [PutOp(NS, str(i), {"text": " ".join(rng.choice(words, 6))}) for i in range(400)]
    for start in range(0, 400, 37):
        store.batch(ops[start : start + 37])
        flat.batch(ops[start : start + 37])
    assert store.memory_use()["vector_bytes"] == 400 * 32 and flat.memory_use()["vector_bytes"] == 400 * 32 * 4
    for query in words[:10]:
        ours, theirs = store.search(NS, query=query, limit=5), flat.search(NS, query=query, limit=5)
        assert [item.score for item in ours] == pytest.approx([item.score for item in theirs], abs=1e-5)


def damage_truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def damage_flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(bytes(data))


def damage_empty(file: Path) -> None:
    file.write_bytes(b"")


def damage_remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_empty, damage_remove])
@pytest.mark.parametrize("kind", ["flat", "sq8", "hnsw"])
def test_a_damaged_index_file_is_rebuilt(tmp_path: Path, damage: Any, kind: Any) -> None:
    with open_store(tmp_path, kind=kind) as store:
        store.batch([PutOp(NS, str(i), {"text": f"word{i}"}) for i in range(50)])
    damage(tmp_path / "index.cache")
    assert verify(tmp_path) == []
    with open_store(tmp_path, kind=kind) as store:
        assert texts(store, "word7", 1) == ["word7"]


def test_an_index_file_of_an_older_database_is_ignored(tmp_path: Path) -> None:
    """Restoring a backup of the database only: item ids come again, with other vectors."""
    with open_store(tmp_path) as store:
        store.put(NS, "a", {"text": "apple"})
    backup = (tmp_path / "store.db").read_bytes()
    with open_store(tmp_path) as store:
        store.put(NS, "b", {"text": "pear"})
    newer = (tmp_path / "index.cache").read_bytes()
    (tmp_path / "store.db").write_bytes(backup)
    store = open_store(tmp_path)
    store.put(NS, "c", {"text": "plum"})
    store._engine.close(save=False)
    (tmp_path / "index.cache").write_bytes(newer)
    with open_store(tmp_path) as store:
        assert sorted(texts(store, "plum")) == ["apple", "plum"] and texts(store, "plum")[0] == "plum"
    assert verify(tmp_path) == []


def test_the_index_file_spares_reading_the_vectors(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.batch([PutOp(NS, str(i), {"text": f"word{i}"}) for i in range(50)])
    database = sqlite3.connect(tmp_path / "store.db")
    database.execute("DELETE FROM vectors").connection.commit()
    database.close()
    with open_store(tmp_path) as store:
        assert texts(store, "word7", 1) == ["word7"]
    assert "fewer or more vectors" in verify(tmp_path)[0]
    (tmp_path / "index.cache").unlink()
    with pytest.raises(CorruptStoreError, match=r"50 items.*export"):
        open_store(tmp_path)
    assert len(list(export(tmp_path))) == 50


def test_writes_of_another_handle_are_seen_at_once(tmp_path: Path) -> None:
    one, two = open_store(tmp_path, garbage=1), open_store(tmp_path, garbage=1)
    for i in range(40):
        one.put(NS, "k", {"text": f"word{i}"})
        assert texts(two, f"word{i}", 1) == [f"word{i}"]
        two.put(NS, str(i % 3), {"text": "other"})
        assert len(one.search(NS)) == len(two.search(NS)) == 1 + min(i + 1, 3)
        two.delete(NS, "k")
        assert one.get(NS, "k") is None
    one.close()
    two.close()
    assert verify(tmp_path) == []


def test_superseded_versions_are_removed(tmp_path: Path) -> None:
    with open_store(tmp_path, garbage=10) as store:
        for i in range(200):
            store.put(NS, "k", {"text": f"word{i}"})
        assert store.memory_use()["vector_bytes"] < 30 * 4 * 16
        with store._engine.rows.reader() as db:
            assert db.row("SELECT count(*) FROM items")[0] < 30


def test_a_snapshot_keeps_what_it_sees_from_pruning(tmp_path: Path) -> None:
    store, other = open_store(tmp_path, garbage=1), open_store(tmp_path, garbage=1)
    store.put(NS, "k", {"text": "first"})
    snapshot = store.snapshot()
    for i in range(50):
        other.put(NS, "k", {"text": f"word{i}"})
        store.put(NS, "k", {"text": f"again{i}"})
    assert other.compact() == store.compact() == 0
    assert snapshot.search(NS, query="first")[0].value == {"text": "first"}
    del snapshot
    gc.collect()
    assert store.compact() > 50
    store.close()
    other.close()
    assert verify(tmp_path) == []


def test_closed_store_says_so(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.close()
    store.close()
    with pytest.raises(StoreClosedError, match="Open it again"):
        store.get(NS, "k")
    with pytest.raises(StoreClosedError):
        store.put(NS, "k", {})
    with pytest.raises(StoreClosedError):
        store.snapshot()


def _child(store: FaissStore, queue: Any) -> None:
    try:
        store.get(NS, "k")
    except StoreClosedError as error:
        queue.put(str(error))


def test_a_store_inherited_by_a_fork_says_so(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(store, queue))
    child.start()
    assert "parent process" in queue.get(timeout=30)
    child.join()


def test_import_loads_no_torch() -> None:
    code = (
        "import sys, memory, memory.cli, memory.testing\n"
        "from memory import FaissStore, HashingEmbedder\n"
        "FaissStore(embedder=HashingEmbedder(4)).put(('a',), 'b', {})\n"
        "print([name for name in ('torch', 'transformers', 'agentcore', 'training', 'demos') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "[]", done.stderr


def test_ttl_is_refreshed_across_handles_and_kept(tmp_path: Path) -> None:
    now = [1000.0]
    options: dict[str, Any] = {"clock": lambda: now[0], "ttl": {"omit_expired": True}}
    store = open_store(tmp_path, **options)
    store.put(NS, "k", {"text": "red"}, ttl=1)
    other = open_store(tmp_path, **options)
    for _ in range(5):
        now[0] += 50
        assert other.get(NS, "k") is not None
    now[0] += 59
    assert store.get(NS, "k", refresh_ttl=False) is not None
    now[0] += 2
    assert store.get(NS, "k") is None and texts(other, "red") == []
    assert other.sweep_ttl() == 1 and store.sweep_ttl() == 0


def test_sweeper_runs_in_the_background() -> None:
    store = open_store(ttl={"sweep_interval_minutes": 1})
    store.stop_ttl_sweeper()
    store.put(NS, "k", {}, ttl=1e-6)
    store.start_ttl_sweeper(0.001)
    for _ in range(100):
        if store.get(NS, "k", refresh_ttl=False) is None:
            break
        threading.Event().wait(0.02)
    assert store.get(NS, "k") is None
    store.close()
    assert store._sweeper is None


def test_many_asyncio_tasks() -> None:
    async def work(store: FaissStore) -> None:
        async def one(i: int) -> None:
            await store.aput(NS, str(i), {"text": f"word{i % 7}", "n": i})
            got = await store.abatch([GetOp(NS, str(i)), SearchOp(NS, {"n": i}, 3, 0, f"word{i % 7}")])
            assert got[0].value["n"] == i and [hit.key for hit in got[1]] == [str(i)]  # type: ignore[union-attr]

        await asyncio.gather(*(one(i) for i in range(200)))

    store = open_store()
    asyncio.run(work(store))
    assert len(store.search(NS, limit=1000)) == 200


def test_values_are_json_text_in_the_database(tmp_path: Path) -> None:
    """Nothing is pickled: the database can be read by anything that knows SQLite and JSON."""
    with open_store(tmp_path) as store:
        store.put(NS, "k", {"text": "red", "n": 1})
        with store._engine.rows.reader() as db:
            assert json.loads(db.row("SELECT value FROM items")[0]) == {"text": "red", "n": 1}
            assert db.row("SELECT path FROM namespaces")[0] == '["t"]'
