"""Reading a store as of one generation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memory.embedding import Vectors
from memory.index import similarity
from memory.schema import Reader, Row

if TYPE_CHECKING:
    from memory.engine import Engine

Ranked = list[tuple[int, float | None]]
"""Item ids with their scores, best first; None where an item has no vector or there was no query."""


class View:
    """The store as of one generation, while a reader is open."""

    def __init__(self, engine: Engine, db: Reader, generation: int, now: int) -> None:
        self.engine, self.db, self.generation, self.now = engine, db, generation, now

    def find(self, namespace: tuple[str, ...], key: str) -> Row | None:
        """The item's version, unless expired ones are omitted and it is expired."""
        number = self.engine.rows.namespace_id(self.db, namespace)
        if number is None:
            return None
        row = self.engine.rows.find(self.db, number, key, self.generation)
        if row is not None and row.ttl is not None and row.id in self.omitted():
            return None
        return row

    def omitted(self) -> set[int]:
        """Ids of the expired items that reads leave out."""
        if not self.engine.omit_expired:
            return set()
        return self.engine.rows.expired(self.db, self.now, self.generation)

    def rank(
        self,
        prefix: tuple[str, ...],
        condition: dict[str, Any] | None,
        query: Vectors | None,
        k: int,
        hidden: Collection[int] = (),
        *,
        rescore: bool = True,
    ) -> Ranked:
        """The ``k`` best items under a prefix that meet a filter: by score, then those without a vector, newest
        first. Without a query: newest first. ``rescore`` corrects what 8-bit vectors rounded."""
        hidden = set(hidden) | self.omitted()
        mirror, ranked = self.engine.mirror, []
        with mirror.lock.read():
            scope = mirror.scope(prefix, condition, self.generation, hidden)
            if query is not None:
                exact = mirror.index is None or mirror.index.exact or not rescore
                found, scores = mirror.nearest(scope, query, k if exact else 4 * k + 32)
                ranked = list(zip(mirror.ids.view[found].tolist(), scores.tolist(), strict=True))
            short = k - len(ranked)
            rest = mirror.newest(scope, unindexed=query is not None)[: max(0, short)]
            unscored = mirror.ids.view[rest].tolist()
        if query is not None and not exact:
            ranked = self._rescored(ranked, query)
        return [*ranked[:k], *((item, None) for item in unscored)][:k]

    def _rescored(self, ranked: list[tuple[int, float]], query: Vectors) -> list[tuple[int, float]]:
        """Scores from the stored floats in place of those from rounded ones."""
        stored = self.engine.rows.fetch_vectors(self.db, [item for item, _ in ranked], len(query))
        metric = self.engine.mirror.metric
        exact = [(item, float(similarity(query, stored[item], metric).max())) for item, _ in ranked if item in stored]
        return sorted(exact, key=lambda pair: -pair[1])

    def tally(self, hidden: Collection[int] = ()) -> dict[tuple[str, ...], int]:
        """Number of items per namespace."""
        hidden = set(hidden) | self.omitted()
        with self.engine.mirror.lock.read():
            return self.engine.mirror.tally(self.generation, hidden)

    def ids(
        self, prefix: tuple[str, ...], condition: dict[str, Any] | None = None, hidden: Collection[int] = ()
    ) -> NDArray[np.int64]:
        """Ids of all items under a prefix that meet a filter, oldest first."""
        hidden = set(hidden) | self.omitted()
        mirror = self.engine.mirror
        with mirror.lock.read():
            rows = mirror.newest(mirror.scope(prefix, condition, self.generation, hidden))
            return np.array(mirror.ids.view[rows][::-1], np.int64)

    def fetch(self, ids: Sequence[int]) -> dict[int, Row]:
        """Item versions by id."""
        return self.engine.rows.fetch(self.db, ids)

    def path(self, row: Row) -> tuple[str, ...]:
        """A row's namespace."""
        return self.engine.mirror.names[row.namespace]
