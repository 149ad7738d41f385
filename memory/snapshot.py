"""Frozen snapshots and private overlays, so that concurrent episodes and forks do not see each other's writes."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from memory.corpus import Fields, Part, Shelf, Source, gather_view, shelf_of
from memory.embedding import Embedder, Vectors
from memory.engine import Engine
from memory.errors import BadValueError, ReadOnlyError
from memory.filters import matches
from memory.index import Metric, similarity
from memory.ops import BatchStore, Plan, as_write
from memory.reading import item, list_page, read, search_item
from memory.schema import MINUTE, Row, Write
from memory.view import View


class Snapshot(BatchStore):
    """A store as it was at one moment: read-only, time stands still in it, reads restart no time to live."""

    def __init__(
        self,
        engine: Engine,
        embedder: Embedder | None,
        fields: Sequence[str],
        metric: Metric,
        ttl: TTLConfig | None,
    ) -> None:
        super().__init__(embedder, fields, metric, ttl)
        self.engine = engine
        self.at = engine.pin()
        """Generation of the store and time (microseconds since 1970)."""
        self._release = weakref.finalize(self, engine.release, self.at[0])

    @property
    def generation(self) -> int:
        """Number of writes the store had seen; equal generations of one store hold the same items."""
        return self.at[0]

    def overlay(self) -> Overlay:
        """A private store on top of this snapshot; costs next to nothing."""
        return Overlay(self)

    def close(self) -> None:
        """Let the store prune what only this snapshot could see. The snapshot must not be read afterwards."""
        self._release()
        self.engine.collect()

    def gather(
        self,
        fields: Fields,
        prefix: tuple[str, ...],
        condition: dict[str, Any] | None,
        query: Vectors | None,
        pool: int,
    ) -> list[Part]:
        """What a :class:`memory.Retriever` ranks."""
        with self.engine.view(self.at) as view:
            return [gather_view(view, shelf_of(self.engine, fields), prefix, condition, query, pool, set())]

    def _run(self, plan: Plan, queries: Mapping[str, Vectors], documents: Sequence[Vectors]) -> list[Result]:
        if plan.puts:
            put = plan.puts[0]
            raise ReadOnlyError(
                f"A snapshot is frozen; {'/'.join(put.namespace)}/{put.key} was not written. Write to "
                "snapshot.overlay(), or to the store itself."
            )
        with self.engine.view(self.at) as view:
            return [read(view, op, queries, []) for op in plan.ops]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Own:
    """The overlay's last word on one key."""

    write: Write
    created: int
    updated: int
    order: int

    def source(self) -> Source:
        """The item as retrieval reads it."""
        write = self.write
        return Source(write.namespace, write.key, json.loads(write.value or "{}"), self.updated / 1e6)


class Overlay(BatchStore):
    """A private, writable view of a snapshot: reads fall through, writes stay here until they are merged.

    ``mark`` numbers the writes; ``fork(mark)`` gives another overlay as of that moment, for a fork of an episode.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot.embedder, snapshot.fields, snapshot.metric, snapshot.ttl_config)
        self.snapshot = snapshot
        self._log: list[tuple[Write, int]] = []
        self._own: dict[tuple[tuple[str, ...], str], _Own] = {}
        self._hidden: set[int] = set()
        self._shelves: dict[Fields, Shelf] = {}
        self._merged = 0
        self._lock = threading.RLock()

    @property
    def mark(self) -> int:
        """Number of writes so far."""
        return len(self._log)

    @property
    def writes(self) -> tuple[tuple[Write, int], ...]:
        """Every put and delete, in order, with its time (microseconds since 1970)."""
        return tuple(self._log)

    def fork(self, mark: int | None = None) -> Overlay:
        """An independent overlay on the same snapshot with the first ``mark`` writes (None: all)."""
        with self._lock:
            count = len(self._log) if mark is None else mark
            if not 0 <= count <= len(self._log):
                raise BadValueError(f"The overlay has {len(self._log)} writes; it cannot be forked at {mark}.")
            log = self._log[:count]
        fork = Overlay(self.snapshot)
        with self.snapshot.engine.view(self.snapshot.at) as view:
            for write, now in log:
                fork._apply(view, write, now)
        return fork

    def merge_into(self, store: BaseStore) -> int:
        """Write what was put and deleted here to a store, in one batch; returns how many items that were.

        The last write wins: an item that the store changed since the snapshot is overwritten. A second merge writes
        only what came after the first.
        """
        with self._lock:
            fresh = {(write.namespace, write.key): write for write, _ in self._log[self._merged :]}
            upto = len(self._log)
        if fresh:
            store.batch([_as_op(write) for write in fresh.values()])
        with self._lock:
            self._merged = max(self._merged, upto)
        return len(fresh)

    def gather(
        self,
        fields: Fields,
        prefix: tuple[str, ...],
        condition: dict[str, Any] | None,
        query: Vectors | None,
        pool: int,
    ) -> list[Part]:
        """What a :class:`memory.Retriever` ranks."""
        engine = self.snapshot.engine
        with self._lock, engine.view(self.snapshot.at) as view:
            base = gather_view(view, shelf_of(engine, fields), prefix, condition, query, pool, self._hidden)
            found = self._matching(prefix, condition)
            shelf = self._shelves.setdefault(fields, Shelf(fields))
            by_order = {own.order: own for own in found}
            places = shelf.places(
                np.array(sorted(by_order), np.int64), lambda numbers: [by_order[number].source() for number in numbers]
            )
            scores = [self._score(by_order[order], query) for order in sorted(by_order)]
        dense = np.array([np.nan if score is None else score for score in scores], np.float64)
        return [base, Part(shelf, places, dense)]

    # -- operations ---------------------------------------------------------------------------------------------

    def _run(self, plan: Plan, queries: Mapping[str, Vectors], documents: Sequence[Vectors]) -> list[Result]:
        engine = self.snapshot.engine
        with self._lock, engine.view(self.snapshot.at) as view:
            results = [self._read(view, op, queries) for op in plan.ops]
            now = engine.now()
            for put in plan.puts:
                self._apply(view, as_write(put, documents), now)
        return results

    def _apply(self, view: View, write: Write, now: int) -> None:
        name = (write.namespace, write.key)
        old, base = self._own.get(name), view.find(*name)
        created = now
        if old is not None:
            created = old.created if old.write.value is not None else now
        elif base is not None:
            created = base.created
        if base is not None:
            self._hidden.add(base.id)
        self._log.append((write, now))
        self._own[name] = _Own(write, created, now, len(self._log))

    def _live(self, own: _Own) -> bool:
        if own.write.value is None:
            return False
        expired = own.write.ttl is not None and own.updated + own.write.ttl <= self.snapshot.engine.now()
        return not (expired and self.snapshot.engine.omit_expired)

    def _read(self, view: View, op: Op, queries: Mapping[str, Vectors]) -> Result:
        if isinstance(op, GetOp):
            return self._get(view, tuple(op.namespace), op.key)
        if isinstance(op, SearchOp):
            return self._search(view, op, queries.get(op.query) if op.query else None)
        if isinstance(op, ListNamespacesOp):
            own = {own.write.namespace for own in self._own.values() if self._live(own)}
            return list_page(op, own | view.tally(self._hidden).keys())
        return None

    def _get(self, view: View, namespace: tuple[str, ...], key: str) -> Item | None:
        own = self._own.get((namespace, key))
        if own is not None:
            if not self._live(own):
                return None
            return item(namespace, key, own.write.value or "", own.created, own.updated)
        row = view.find(namespace, key)
        return None if row is None else item(namespace, key, row.value, row.created, row.updated)

    def _search(self, view: View, op: SearchOp, query: Vectors | None) -> list[SearchItem]:
        prefix, count = tuple(op.namespace_prefix), op.offset + op.limit
        ranked: list[tuple[float | None, int, _Own | int]] = []
        for own in self._matching(prefix, op.filter):
            ranked.append((self._score(own, query), own.order, own))
        for score, number in ((s, n) for n, s in view.rank(prefix, op.filter, query, count, self._hidden)):
            ranked.append((score, 0, number))
        # By score; then what has none, newest first. The snapshot's own order is kept by the stable sort.
        ranked.sort(key=lambda entry: (entry[0] is None, -(entry[0] or 0.0), -entry[1]))
        page = ranked[op.offset : count]
        rows = view.fetch([entry for _, _, entry in page if isinstance(entry, int)])
        return [self._item(view, entry, score, rows) for score, _, entry in page]

    def _matching(self, prefix: tuple[str, ...], condition: dict[str, Any] | None) -> list[_Own]:
        own = [o for o in self._own.values() if o.write.namespace[: len(prefix)] == prefix and self._live(o)]
        return [o for o in own if matches(json.loads(o.write.value or ""), condition)] if condition else own

    def _score(self, own: _Own, query: Vectors | None) -> float | None:
        if query is None or own.write.vectors is None:
            return None
        return float(similarity(query, own.write.vectors, self.metric).max())

    def _item(self, view: View, entry: _Own | int, score: float | None, rows: dict[int, Row]) -> SearchItem:
        if isinstance(entry, int):
            row = rows[entry]
            return search_item(view.path(row), row.key, row.value, row.created, row.updated, score)
        write = entry.write
        return search_item(write.namespace, write.key, write.value or "", entry.created, entry.updated, score)


def _as_op(write: Write) -> PutOp:
    value: dict[str, Any] | None = None if write.value is None else json.loads(write.value)
    fields = None if write.fields is None else json.loads(write.fields)
    return PutOp(write.namespace, write.key, value, fields, None if write.ttl is None else write.ttl / MINUTE)
