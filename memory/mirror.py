"""What a process keeps in memory of a store: one row per item version, its vectors in FAISS, columns for filters.

The mirror follows the database generation by generation and drops nothing that a pinned generation can see, so a
search as of an older generation gives what it gave then. It can always be rebuilt from the rows.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from memory.columns import FilterColumns, Grown
from memory.embedding import Vectors
from memory.errors import CorruptStoreError
from memory.index import FEW_ROWS, GATHER_SHARE, TRAIN_ROWS, Kind, Metric, VectorIndex
from memory.locks import ReadWriteLock
from memory.rows import Rows
from memory.schema import LIVE, Delta, Reader

Ints = NDArray[np.int64]
SQ8_FROM = 100_000
"""With kind ``auto``, more vectors than this are held as SQ8 (a quarter of the memory, rescored from the rows)."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which rows a read may see."""

    rows: Ints | None
    """The rows, ascending, where they are few."""
    mask: NDArray[np.bool_] | None
    """One flag per row otherwise; both None: every row."""


class Mirror:
    """Columns over item versions and the vector index. Callers hold ``lock`` (``read`` or ``write``)."""

    def __init__(self, rows: Rows, kind: Kind | Literal["auto"], sq8_from: int = SQ8_FROM) -> None:
        self.lock = ReadWriteLock()
        self._rows = rows
        self.kind, self.sq8_from = kind, sq8_from
        self.metric: Metric = "cosine"
        self.dims = 0
        """Dimension of the vectors; set once it is known."""
        self.generation = 0
        self.index: VectorIndex | None = None
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.index = None
        self.names: dict[int, tuple[str, ...]] = {}
        self._prefixes: dict[tuple[str, ...], list[int]] = {}
        self._last_name = 0
        self._clear()

    def _clear(self) -> None:
        self.ids, self.namespace = Grown(np.int64), Grown(np.int32)
        self.born, self.died = Grown(np.int64), Grown(np.int64)
        self.first, self.count = Grown(np.int64), Grown(np.int32)
        self.slot_row = Grown(np.int64)
        self.by_namespace: dict[int, array[int]] = {}
        self.dead = 0
        self.most_vectors = 1
        """Largest number of vectors of one item."""
        self.columns = FilterColumns(self._rows)

    def __len__(self) -> int:
        return len(self.ids)

    # -- following the database ---------------------------------------------------------------------------------

    def apply(self, delta: Delta) -> None:
        """Add a write of this process, if it is the next one."""
        if delta.generation != self.generation + 1:
            return
        self._add_names(delta.namespaces)
        self._append(delta.items, np.full(len(delta.items), delta.generation, np.int64), delta.vectors)
        self._end(delta.died, [delta.generation] * len(delta.died))
        self.generation = delta.generation

    def catch_up(self, db: Reader) -> None:
        """Take over everything that other processes wrote, as this reader sees it."""
        counters = self._rows.counters(db)
        if counters.generation <= self.generation:
            return
        self.load_names(db)
        past = self.generation
        sql = "SELECT id, namespace, vectors, born, died FROM items WHERE born > ? AND born <= ? ORDER BY id"
        found = db.rows(sql, (past, counters.generation))
        self.append_from(db, found)
        sql = "SELECT id, died FROM items WHERE died > ? AND died <= ? AND born <= ?"
        ended = db.rows(sql, (past, counters.generation, past))
        self._end([row[0] for row in ended], [row[1] for row in ended])
        if counters.pruned > past:
            # Some versions died and were removed before we looked; what is missing now is dead.
            kept = np.array([row[0] for row in db.rows("SELECT id FROM items ORDER BY id")], np.int64)
            gone = self.ids.view[(self.died.view == LIVE) & ~np.isin(self.ids.view, kept)].tolist()
            self._end(gone, [counters.pruned] * len(gone))
        self.generation = counters.generation

    def load_names(self, db: Reader) -> None:
        """Learn the namespaces that were added since the last look."""
        found = db.rows("SELECT id, path FROM namespaces WHERE id > ? ORDER BY id", (self._last_name,))
        self._add_names((number, tuple(json.loads(path))) for number, path in found)

    def append_from(self, db: Reader, found: list[Any], chunk: int = 10_000) -> None:
        """Append versions given as (id, namespace, vectors, born, died) rows, reading their vectors."""
        for start in range(0, len(found), chunk):
            part = found[start : start + chunk]
            if not self.dims:
                # Opened to look after the rows only.
                part = [(*row[:2], 0, *row[3:]) for row in part]
            vectors: list[Vectors] = []
            if any(row[2] for row in part):
                stored = self._rows.fetch_vectors(db, [row[0] for row in part if row[2]], self.dims)
                if lost := [row[0] for row in part if row[2] and len(stored.get(row[0], ())) != row[2]]:
                    raise CorruptStoreError(
                        f"{len(lost)} items of {self._rows.path} have lost their vectors (the first has id {lost[0]}). "
                        "The items are there: 'agentcore memory export' them and import them into a new store."
                    )
                vectors = [stored[row[0]] for row in part if row[2]]
            self._append([row[:3] for row in part], np.array([row[3] for row in part], np.int64), vectors)
            ended = [(row[0], row[4]) for row in part if row[4] != LIVE]
            self._end([item for item, _ in ended], [died for _, died in ended])

    def _add_names(self, names: Iterable[tuple[int, tuple[str, ...]]]) -> None:
        for number, path in names:
            if number in self.names:
                continue
            self.names[number] = path
            self._last_name = max(self._last_name, number)
            for depth in range(len(path) + 1):
                self._prefixes.setdefault(path[:depth], []).append(number)

    def _append(self, items: list[tuple[int, int, int]], born: Ints, vectors: list[Vectors]) -> None:
        if not items:
            return
        table = np.array(items, np.int64)
        start, slots = len(self.ids), len(self.slot_row)
        counts = table[:, 2]
        if counts.any():
            stacked = np.concatenate(vectors)
            self._index_for(slots + len(stacked)).add(stacked)
            self.slot_row.extend(np.repeat(np.arange(start, start + len(items)), counts))
            self.most_vectors = max(self.most_vectors, int(counts.max()))
        self.first.extend(slots + np.concatenate([[0], np.cumsum(counts[:-1])]))
        self.ids.extend(table[:, 0])
        self.namespace.extend(table[:, 1])
        self.count.extend(counts)
        self.born.extend(born)
        self.died.extend(np.full(len(items), LIVE, np.int64))
        for row, number in enumerate(table[:, 1].tolist(), start):
            self.by_namespace.setdefault(number, array("q")).append(row)

    def _end(self, ids: list[int], generations: list[int]) -> None:
        if not ids:
            return
        rows, known = self.rows_of(ids)
        died = self.died.view
        self.dead += int((died[rows] == LIVE).sum())
        died[rows] = np.asarray(generations, np.int64)[known]

    def rows_of(self, ids: Collection[int]) -> tuple[Ints, NDArray[np.bool_]]:
        """The rows of those ids that are here, and which of the ids those are."""
        wanted = np.fromiter(ids, np.int64, len(ids))
        places = np.searchsorted(self.ids.view, wanted)
        known = places < len(self.ids)
        known[known] = self.ids.view[places[known]] == wanted[known]
        return places[known], known

    def restore(self, index: VectorIndex, ids: Ints, namespace: Ints, count: Ints, born: Ints, died: Ints) -> None:
        """Take over an index and the rows its slots belong to (slots in order of the rows)."""
        self.index = index
        self._fill_rows(ids, namespace, count, born, died)

    def _fill_rows(self, ids: Ints, namespace: Ints, count: Ints, born: Ints, died: Ints) -> None:
        self.ids.extend(ids)
        self.namespace.extend(namespace)
        self.count.extend(count)
        self.born.extend(born)
        self.died.extend(died)
        self.first.extend(np.concatenate([[0], np.cumsum(count)])[: len(ids)])
        self.slot_row.extend(np.repeat(np.arange(len(ids)), count))
        self.most_vectors = max(1, int(count.max(initial=1)))
        self.dead = int((died != LIVE).sum())
        for row, number in enumerate(namespace.tolist()):
            self.by_namespace.setdefault(number, array("q")).append(row)

    # -- the index ----------------------------------------------------------------------------------------------

    def kind_for(self, vectors: int) -> Kind:
        """The kind of index that holds this many vectors."""
        if self.kind in ("flat", "hnsw"):
            return self.kind
        few = self.sq8_from if self.kind == "auto" else min(self.sq8_from, FEW_ROWS)
        return "sq8" if vectors > few else "flat"

    def accepts(self, kind: Kind) -> bool:
        """Whether a saved index of that kind can be taken over."""
        return self.kind in ("auto", kind) or (self.kind == "sq8" and kind == "flat")

    def expect(self, db: Reader, rows: Ints) -> None:
        """Choose the kind of index for versions (n, 5) that are about to be appended, and train it on all of them."""
        count = int(rows[:, 2].sum())
        if self.index is not None or not count or not self.dims:
            return
        self.index = VectorIndex(self.dims, self.metric, self.kind_for(count))
        if self.index.kind == "sq8":
            holding = rows[rows[:, 2] > 0, 0]
            sample = holding[:: max(1, len(holding) // TRAIN_ROWS)].tolist()
            self.index.train(np.concatenate(list(self._rows.fetch_vectors(db, sample, self.dims).values())))

    def _index_for(self, vectors: int) -> VectorIndex:
        if self.index is None:
            self.index = VectorIndex(self.dims, self.metric, self.kind_for(vectors))
        elif self.index.kind == "flat" and self.kind_for(vectors) == "sq8":
            self.index = self.index.rebuilt(np.arange(len(self.index)), "sq8")
        return self.index

    def compacted(self, horizon: int) -> None:
        """Drop the versions that died up to a generation."""
        keep = self.died.view > horizon
        rows = np.flatnonzero(keep)
        slots = np.flatnonzero(keep[self.slot_row.view]) if len(self.slot_row) else np.zeros(0, np.int64)
        old = (self.ids, self.namespace, self.born, self.died, self.count)
        ids, namespace, born, died, count = (column.view[rows] for column in old)
        columns, index = self.columns, self.index
        self._clear()
        if index is not None:
            # What was chosen for this store stays: turning codes back into floats would need the rows.
            kind = index.kind if index.kind != "flat" else self.kind_for(len(slots))
            self.index = index.rebuilt(slots, kind)
        self._fill_rows(ids, namespace, count, born, died)
        columns.keep(rows)
        self.columns = columns

    # -- reading ------------------------------------------------------------------------------------------------

    def under(self, prefix: tuple[str, ...]) -> list[int]:
        """Numbers of the namespaces at or below a prefix."""
        return self._prefixes.get(tuple(prefix), [])

    def scope(
        self, prefix: tuple[str, ...], condition: dict[str, Any] | None, generation: int, hidden: Collection[int]
    ) -> Scope:
        """The rows under a prefix that meet a filter as of a generation, without the ``hidden`` ids."""
        numbers = self.under(prefix)
        total = sum(len(self.by_namespace.get(number, ())) for number in numbers)
        out = self.rows_of(hidden)[0] if hidden else None
        if total <= max(1024, GATHER_SHARE * len(self)):
            parts = [np.array(self.by_namespace[n], np.int64) for n in numbers if n in self.by_namespace]
            rows = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
            rows = rows[(self.born.view[rows] <= generation) & (self.died.view[rows] > generation)]
            if out is not None:
                rows = rows[~np.isin(rows, out)]
            return Scope(self.columns.select(self.ids.view, rows, condition) if condition else rows, None)
        everything = total == len(self) and generation >= self.generation and not self.dead
        if everything and not condition and out is None:
            return Scope(None, None)
        mask = np.ones(len(self), bool)
        if self.dead or generation < self.generation:
            mask = (self.born.view <= generation) & (self.died.view > generation)
        if total < len(self):
            inside = np.zeros(self._last_name + 1, bool)
            inside[numbers] = True
            mask &= inside[self.namespace.view]
        if out is not None:
            mask[out] = False
        if condition:
            chosen = self.columns.select(self.ids.view, np.flatnonzero(mask), condition)
            if len(chosen) <= max(1024, GATHER_SHARE * len(self)):
                return Scope(chosen, None)
            mask = np.zeros(len(self), bool)
            mask[chosen] = True
        return Scope(None, mask)

    def newest(self, scope: Scope, *, unindexed: bool = False) -> Ints:
        """Rows of a scope, newest first; with ``unindexed`` only those that have no vector."""
        if scope.rows is not None:
            rows = scope.rows
        else:
            rows = np.arange(len(self)) if scope.mask is None else np.flatnonzero(scope.mask)
        if unindexed:
            rows = rows[self.count.view[rows] == 0]
        return rows[::-1]

    def nearest(self, scope: Scope, query: Vectors, k: int) -> tuple[Ints, Vectors]:
        """Up to ``k`` distinct rows of a scope that have vectors, best first, each with its best vector's score."""
        if self.index is None or not len(self.index) or k <= 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        slots = selected = None
        if scope.rows is not None:
            slots = self._slots(scope.rows)
            available = len(slots)
        elif scope.mask is not None:
            selected = scope.mask[self.slot_row.view] if self.most_vectors > 1 or self._gaps() else scope.mask
            available = int(selected.sum())
        else:
            available = len(self.index)
        ask = k if self.most_vectors == 1 else 2 * k
        while True:
            if slots is not None:
                scores, found = self.index.score_slots(query, ask, slots) if len(slots) else _nothing()
            else:
                scores, found = self.index.search(query, ask, selected)
            rows, places = np.unique(self.slot_row.view[found], return_index=True)
            order = np.argsort(places)
            if len(rows) >= k or ask >= available:
                return rows[order][:k], scores[places[order]][:k]
            ask *= 4

    def _gaps(self) -> bool:
        return len(self.slot_row) != len(self.ids)

    def _slots(self, rows: Ints) -> Ints:
        if self.most_vectors == 1:
            return self.first.view[rows[self.count.view[rows] > 0]]
        counts = self.count.view[rows]
        ends = np.cumsum(counts)
        within = np.arange(int(ends[-1]) if len(ends) else 0)
        return np.asarray(within + np.repeat(self.first.view[rows] - (ends - counts), counts), np.int64)

    def memory_use(self) -> dict[str, int]:
        """Bytes of the vectors, of the columns over them (without those of filters), and of both together."""
        columns = (self.ids, self.namespace, self.born, self.died, self.first, self.count, self.slot_row)
        numbers = sum(rows.itemsize * len(rows) for rows in self.by_namespace.values())
        beside = numbers + sum(column.view.nbytes for column in columns)
        vectors = 0 if self.index is None else self.index.bytes_per_vector * len(self.index)
        return {"vector_bytes": vectors, "column_bytes": beside, "bytes": vectors + beside}

    def tally(self, generation: int, hidden: Collection[int]) -> dict[tuple[str, ...], int]:
        """Number of items per namespace as of a generation, without the ``hidden`` ids."""
        mask = (self.born.view <= generation) & (self.died.view > generation)
        if hidden:
            mask[self.rows_of(hidden)[0]] = False
        counts = np.bincount(self.namespace.view[mask], minlength=1)
        return {self.names[int(number)]: int(counts[number]) for number in np.flatnonzero(counts)}


def _nothing() -> tuple[Vectors, Ints]:
    return np.zeros(0, np.float32), np.zeros(0, np.int64)
