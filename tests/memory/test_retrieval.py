"""Retrieval: every part does what it says, adds up to the score, and can be switched off; any store will do."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.memory import InMemoryStore

from memory import BadValueError, FaissStore, HashingEmbedder, Retriever
from memory.retrieval import PARTS, Hit, Weights, beside

NS = ("r",)
ITEMS = {
    "a0": {"text": "I painted the fence green", "speaker": "Ann", "episode": 1, "position": 0},
    "a1": {"text": "How long did that take?", "speaker": "Bob", "episode": 1, "position": 1},
    "a2": {"text": "Two whole days", "speaker": "Ann", "episode": 1, "position": 2},
    "b0": {"text": "The soup needs salt", "speaker": "Bob", "episode": 2, "position": 0},
    "b1": {"text": "And a fence of croutons", "speaker": "Ann", "episode": 2, "position": 1, "importance": 1.0},
}
OFF = Weights(0, 0, 0, 0, 0, 0, 0, 0)


def ours() -> FaissStore:
    return FaissStore(embedder=HashingEmbedder(256), fields=["text"])


def theirs() -> InMemoryStore:
    return InMemoryStore(index={"dims": 256, "embed": HashingEmbedder(256), "fields": ["text"]})


def fill(store: BaseStore) -> BaseStore:
    # One by one: InMemoryStore cannot take equal texts in a batch.
    for key, value in ITEMS.items():
        store.put(NS, key, value)
    return store


def keys(hits: list[Hit]) -> list[str]:
    return [hit.key for hit in hits]


@pytest.mark.parametrize("make", [ours, lambda: ours().overlay(), theirs])
def test_the_right_item_is_first_and_why_adds_up(make: Any) -> None:
    retriever = Retriever(fill(make()), text="text")
    hits = retriever.search(NS, "Who painted the fence?", k=5)
    assert hits[0].key == "a0" and hits[0].value == ITEMS["a0"] and hits[0].namespace == NS
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for hit in hits:
        assert hit.score == pytest.approx(sum(hit.why.values())) and set(hit.why) == {*PARTS, "repeat"}
    assert keys(asyncio.run(retriever.asearch(NS, "Who painted the fence?", k=5))) == keys(hits)


def test_all_kinds_of_store_agree() -> None:
    store = fill(ours())
    overlay = ours().overlay()
    half = ours()
    for key in ("a0", "b0", "b1"):
        half.put(NS, key, ITEMS[key])
    mixed = half.overlay()
    for key in ("a1", "a2"):
        mixed.put(NS, key, ITEMS[key])
    half.put(NS, "later", {"text": "the fence is painted over"})
    stores: list[BaseStore] = [store, store.snapshot(), fill(overlay), mixed, fill(theirs())]  # type: ignore[attr-defined]
    weights = Weights(recency=0.0)
    wanted = {
        hit.key: dict(hit.why) for hit in Retriever(stores[0], weights=weights, text="text").search(NS, "fence", 9)
    }
    for other in stores[1:]:
        found = {
            hit.key: dict(hit.why) for hit in Retriever(other, weights=weights, text="text").search(NS, "fence", 9)
        }
        assert found.keys() == wanted.keys()
        for key, why in found.items():
            assert why == pytest.approx(wanted[key], abs=1e-5), (type(other), key)


def only(**parts: float) -> Weights:
    return Weights(
        **{"dense": 0, "bm25": 0, "neighbour": 0, "episode": 0, "named": 0, "importance": 0, "repeat": 0} | parts
    )  # type: ignore[arg-type]


def test_each_part_alone() -> None:
    store = fill(ours())

    def scores(query: str, weights: Weights) -> dict[str, float]:
        return {hit.key: round(hit.score, 6) for hit in Retriever(store, weights=weights).search(NS, query, 5)}

    assert scores("soup salt", only(dense=1))["b0"] == 1
    assert scores("soup salt", only(bm25=2)) == {"a0": 0, "a1": 0, "a2": 0, "b0": 2, "b1": 0}
    assert scores("days", only(bm25=1, neighbour=0.5, window=1)) == {"a0": 0, "a1": 0.5, "a2": 1, "b0": 0, "b1": 0}
    assert scores("days", only(bm25=1, neighbour=0.5, window=2))["a0"] == 0.5
    assert scores("salt", only(episode=1)) == {"a0": 0, "a1": 0, "a2": 0, "b0": 1, "b1": 1}
    assert scores("What did Bob say?", only(named=1)) == {"a0": 0, "a1": 1, "a2": 0, "b0": 1, "b1": 0}
    assert scores("anything", only(importance=0.5)) == {"a0": 0, "a1": 0, "a2": 0, "b0": 0, "b1": 0.5}
    assert set(scores("anything", OFF).values()) == {0.0}


def test_recency_halves_with_age() -> None:
    store = ours()
    for age in range(4):
        store.put(NS, str(age), {"text": "same", "time": 100 - 10 * age})
    hits = Retriever(store, weights=only(recency=1, half_life=10)).search(NS, "same", 4)
    assert {hit.key: hit.why["recency"] for hit in hits} == pytest.approx({"0": 1, "1": 0.5, "2": 0.25, "3": 0.125})


def test_repeats_make_room_for_others() -> None:
    store = ours()
    for i in range(3):
        store.put(NS, f"same{i}", {"text": "the red door is locked"})
    store.put(NS, "other", {"text": "the red key hangs by the stove"})
    plain = Retriever(store, weights=only(bm25=1)).search(NS, "red door locked", 2)
    diverse = Retriever(store, weights=only(bm25=1, repeat=2)).search(NS, "red door locked", 2)
    assert {hit.key[:4] for hit in plain} == {"same"} and keys(diverse)[1] == "other"
    assert diverse[0].why["repeat"] == 0 and diverse[1].why["repeat"] < 0


def test_a_name_that_all_share_tells_nothing() -> None:
    store = ours()
    for i in range(3):
        store.put(NS, str(i), {"text": f"word{i}", "speaker": "Ann"})
    assert {hit.score for hit in Retriever(store, weights=only(named=1)).search(NS, "Ann", 3)} == {0.0}


def test_filters_prefixes_and_limits() -> None:
    store = fill(ours())
    store.put(("r", "deep"), "x", {"text": "fence fence"})
    store.put(("other",), "y", {"text": "fence"})
    retriever = Retriever(store)
    assert "x" in keys(retriever.search(NS, "fence", 10)) and "y" not in keys(retriever.search((), "fence", 1))
    assert set(keys(retriever.search(NS, "fence", 10, filter={"episode": 2}))) == {"b0", "b1"}
    assert retriever.search(NS, "fence", 0) == [] and retriever.search(("none",), "fence", 5) == []
    assert len(retriever.search((), "", 3)) == 3
    with pytest.raises(BadValueError, match="bm25"):
        Weights(bm25=-1)
    with pytest.raises(BadValueError, match="half_life"):
        Weights(half_life=0)


def test_changes_are_seen() -> None:
    for store in (ours(), ours().overlay(), theirs()):
        fill(store)
        retriever = Retriever(store, text="text")
        retriever.search(NS, "fence", 5)
        store.put(NS, "a0", {"text": "nothing left"})
        store.put(NS, "new", {"text": "a purple gate"})
        store.delete(NS, "b0")
        found = retriever.search(NS, "purple gate", 10)
        assert found[0].key == "new" and "b0" not in keys(found)
        assert next(hit for hit in found if hit.key == "a0").value == {"text": "nothing left"}


def test_snapshots_rank_by_what_they_hold() -> None:
    store = fill(ours())
    snapshot = store.snapshot()
    before = Retriever(snapshot).search(NS, "fence", 5)
    for i in range(50):
        store.put(NS, f"noise{i}", {"text": f"fence number {i}"})
    assert Retriever(snapshot).search(NS, "fence", 5) == before


def test_many_items_beyond_the_pool() -> None:
    store = ours()
    store.batch([PutOp(NS, str(i), {"text": f"word{i % 97} word{i % 89} filler"}) for i in range(3000)])
    hits = Retriever(store, pool=50).search(NS, "word5 word7", 5)
    assert hits[0].value["text"].startswith("word5 word7 ") or {"word5", "word7"} & set(hits[0].value["text"].split())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), st.one_of(st.none(), st.integers(0, 5))), max_size=12),
    st.integers(1, 3),
)
def test_neighbours(rows: list[tuple[float, int, int | None]], window: int) -> None:
    """Against the plain definition: sort each episode by position, sum the scores up to ``window`` places away."""
    scores = np.array([row[0] for row in rows])
    episode = np.array([row[1] for row in rows], np.int64)
    position = np.array([np.nan if row[2] is None else row[2] for row in rows], np.float64)
    wanted = np.zeros(len(rows))
    for group in set(episode.tolist()):
        line = sorted(
            (i for i, row in enumerate(rows) if row[1] == group and row[2] is not None), key=lambda i: rows[i][2]
        )
        for place, i in enumerate(line):
            around = line[max(0, place - window) : place] + line[place + 1 : place + 1 + window]
            wanted[i] = sum(scores[j] for j in around)
    assert beside(scores, episode, position, window) == pytest.approx(wanted)
