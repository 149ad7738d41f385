"""The store against a plain dict: random operations, with reopenings, snapshots, overlays and a second handle."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from langgraph.store.base import BaseStore, PutOp, SearchOp

from memory import FaissStore, HashingEmbedder, Overlay, Snapshot
from memory.filters import OPERATORS, matches

EMBEDDER = HashingEmbedder(16)
WORDS = ("red", "green", "apple", "pear", "tree", "")
NAMESPACES = (("a",), ("a", "b"), ("ab",), ("c", "d", "e"))
Model = dict[tuple[tuple[str, ...], str], tuple[dict[str, Any], tuple[str, ...]]]
"""Value and embedded texts by namespace and key."""

namespaces = st.sampled_from(NAMESPACES)
prefixes = st.sampled_from([(), ("a",), ("a", "b"), ("ab",), ("c",), ("zz",)])
keys = st.sampled_from("pqrst")
texts = st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join)
values = st.fixed_dictionaries(
    {"text": texts, "n": st.one_of(st.integers(0, 3), st.none(), st.booleans(), st.just(2.0), st.just("2"))},
    optional={"tags": st.lists(texts, max_size=3)},
)
indexes = st.sampled_from([None, None, None, False, ["tags[*]"], ["text", "tags[0]"]])
puts = st.builds(PutOp, namespaces, keys, st.one_of(values, values, values, st.none()), indexes, st.none())
filters = st.one_of(
    st.none(),
    st.builds(lambda name, n: {"n": {name: n}}, st.sampled_from(OPERATORS), st.integers(0, 3)),
    st.builds(lambda n: {"n": n}, st.one_of(st.integers(0, 3), st.just("2"), st.booleans(), st.none())),
)
searches = st.builds(
    SearchOp, prefixes, filters, st.integers(0, 6), st.integers(0, 4), st.one_of(st.none(), texts), st.just(True)
)


def embedded(value: dict[str, Any], index: Any) -> tuple[str, ...]:
    tags = value.get("tags", [])
    if index is False:
        return ()
    both = [value["text"], *tags[:1]]
    found = both[:1] if index is None else tags if index == ["tags[*]"] else both
    return tuple(text for text in found if text.strip())


def change(model: Model, op: PutOp) -> None:
    name = (op.namespace, op.key)
    if op.value is None:
        model.pop(name, None)
    else:
        model[name] = (dict(op.value), embedded(dict(op.value), op.index))


@lru_cache(maxsize=10_000)
def cosine(query: str, text: str) -> float:
    return float(np.array(EMBEDDER.embed_query(query)) @ np.array(EMBEDDER.embed_query(text)))


def score(query: str, documents: tuple[str, ...]) -> float | None:
    return max((cosine(query, text) for text in documents), default=None)


def check_search(store: BaseStore, model: Model, op: SearchOp) -> None:
    """The page holds the right number of right items, with right scores, best first."""
    prefix = op.namespace_prefix
    pool = {n: e for n, e in model.items() if n[0][: len(prefix)] == prefix and matches(e[0], op.filter)}
    found = store.batch([op])[0]
    assert isinstance(found, list)
    assert len(found) == max(0, min(op.limit, len(pool) - op.offset))
    names = [(item.namespace, item.key) for item in found]  # type: ignore[union-attr]
    assert len(set(names)) == len(names)
    for name, item in zip(names, found, strict=True):
        assert item.value == pool[name][0]  # type: ignore[union-attr]
        wanted = score(op.query, pool[name][1]) if op.query else None
        got = item.score  # type: ignore[union-attr]
        assert (got is None) == (wanted is None) and (wanted is None or abs(got - wanted) < 1e-5)
    if op.query:
        ranked = sorted((score(op.query, entry[1]) for entry in pool.values()), key=lambda s: (s is None, -(s or 0)))
        for place, item in enumerate(found, op.offset):
            best = ranked[place]
            assert (item.score is None) == (best is None)  # type: ignore[union-attr]
            assert best is None or abs(item.score - best) < 1e-5  # type: ignore[union-attr]


class StoreMachine(RuleBasedStateMachine):
    """``model`` says what the store must hold; every snapshot and overlay has a model of its own."""

    @initialize(kind=st.sampled_from(["flat", "sq8", "hnsw", "auto"]), garbage=st.sampled_from([1, 5, 1000]))
    def open(self, kind: str, garbage: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.options: dict[str, Any] = {"kind": kind, "garbage": garbage, "sq8_from": 4, "durability": "normal"}
        self.store = self.make()
        self.other: FaissStore | None = None
        self.model: Model = {}
        self.created: dict[Any, Any] = {}
        self.snapshots: list[tuple[Snapshot, Model]] = []
        self.overlays: list[tuple[Overlay, Model, list[tuple[int, Model]]]] = []

    def make(self) -> FaissStore:
        return FaissStore(self.folder, embedder=EMBEDDER, fields=["text"], **self.options)

    def teardown(self) -> None:
        for store in (getattr(self, "store", None), getattr(self, "other", None)):
            if store is not None:
                store.close()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(ops=st.lists(puts, min_size=1, max_size=6), other=st.booleans())
    def write(self, ops: list[PutOp], other: bool) -> None:
        if other and self.other is None:
            self.other = self.make()
        target = self.other if other and self.other is not None else self.store
        target.batch(ops)
        last = {(op.namespace, op.key): op for op in ops}
        for op in last.values():
            change(self.model, op)

    @rule(op=searches, other=st.booleans())
    def search(self, op: SearchOp, other: bool) -> None:
        check_search(self.other if other and self.other is not None else self.store, self.model, op)

    @rule(op=searches, put=puts)
    def search_and_put(self, op: SearchOp, put: PutOp) -> None:
        found, _ = self.store.batch([op, put])
        assert isinstance(found, list)
        assert all(self.model[item.namespace, item.key][0] == item.value for item in found)  # type: ignore[union-attr]
        change(self.model, put)

    @rule()
    def reopen(self) -> None:
        self.snapshots.clear()
        self.overlays.clear()
        self.store.close()
        self.store = self.make()

    @rule()
    def reopen_without_index_file(self) -> None:
        self.reopen()
        (self.folder / "index.cache").unlink(missing_ok=True)
        self.reopen()

    @rule()
    def compact(self) -> None:
        self.store.compact()

    @precondition(lambda self: len(self.snapshots) < 3)
    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((self.store.snapshot(), copy.deepcopy(self.model)))

    @precondition(lambda self: self.snapshots)
    @rule(op=searches)
    def read_snapshots(self, op: SearchOp) -> None:
        for snapshot, model in self.snapshots:
            check_search(snapshot, model, op)
            check_contents(snapshot, model)

    @precondition(lambda self: self.snapshots)
    @rule()
    def drop_snapshot(self) -> None:
        self.snapshots.pop(0)[0].close()

    @precondition(lambda self: len(self.overlays) < 3)
    @rule()
    def make_overlay(self) -> None:
        overlay = self.store.overlay()
        self.overlays.append((overlay, copy.deepcopy(self.model), [(0, copy.deepcopy(self.model))]))

    @precondition(lambda self: self.overlays)
    @rule(ops=st.lists(puts, min_size=1, max_size=4), op=searches, which=st.integers(0, 2))
    def use_overlay(self, ops: list[PutOp], op: SearchOp, which: int) -> None:
        overlay, model, marks = self.overlays[which % len(self.overlays)]
        overlay.batch(ops)
        for put in {(op.namespace, op.key): op for op in ops}.values():
            change(model, put)
        marks.append((overlay.mark, copy.deepcopy(model)))
        check_search(overlay, model, op)
        check_contents(overlay, model)

    @precondition(lambda self: self.overlays)
    @rule(op=searches, at=st.integers(0, 20))
    def fork_overlay(self, op: SearchOp, at: int) -> None:
        overlay, _, marks = self.overlays[-1]
        mark, model = marks[at % len(marks)]
        fork = overlay.fork(mark)
        check_search(fork, model, op)
        fork.put(("a",), "fork", {"text": "own"})
        assert overlay.get(("a",), "fork") is None

    @precondition(lambda self: self.overlays)
    @rule()
    def merge_overlay(self) -> None:
        overlay, model, _ = self.overlays.pop()
        touched = {(write.namespace, write.key) for write, _ in overlay.writes}
        overlay.merge_into(self.store)
        for name in touched:
            self.model.pop(name, None)
            if name in model:
                self.model[name] = model[name]

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "store"):
            check_contents(self.store, self.model)
            if self.other is not None:
                check_contents(self.other, self.model)
            for snapshot, model in self.snapshots:
                check_contents(snapshot, model)
            for overlay, model, _ in self.overlays:
                check_contents(overlay, model)
            created = {(item.namespace, item.key): item.created_at for item in self.store.search((), limit=99)}
            # What was there before one step and after it was updated at most.
            assert all(created[name] == self.created[name] for name in created.keys() & self.created.keys())
            self.created = created


def check_contents(store: BaseStore, model: Model) -> None:
    for namespace in NAMESPACES:
        for key in "pqrst":
            item = store.get(namespace, key)
            entry = model.get((namespace, key))
            assert (None if item is None else item.value) == (None if entry is None else entry[0])
    assert store.list_namespaces() == sorted({namespace for namespace, _ in model})
    found = {(item.namespace, item.key): json.dumps(item.value, sort_keys=True) for item in store.search((), limit=99)}
    assert found == {name: json.dumps(entry[0], sort_keys=True) for name, entry in model.items()}
    # Every vector and every column, at once.
    check_search(store, model, SearchOp((), None, 99, 0, "red apple pear"))
    check_search(store, model, SearchOp(("a",), {"n": {"$gte": 1}}, 99, 0, "green tree"))


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
