"""Finding what matters to a query, by parts that can each be switched off.

own   = dense · minmax(similarity) + bm25 · minmax(BM25)             over all candidates
score = own + neighbour · Σ own of the items up to ``window`` places away in the same episode
            + episode · minmax(BM25 of the item's whole episode)
            + named · (the query names the item's speaker)
            + recency · 2^(-age / half-life) + importance · importance
            - repeat · (largest overlap in words with an item already chosen; MMR, Carbonell & Goldstein 1998)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from langgraph.store.base import BaseStore, GetOp, Item, Op
from numpy.typing import NDArray

from memory.corpus import Fields, Gathering, Listed, Part
from memory.embedding import Vectors
from memory.errors import BadValueError
from memory.index import prepare
from memory.lexical import Floats, bm25, minmax, words
from memory.ops import BatchStore


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each part counts; 0 switches it off."""

    dense: float = 0.4
    bm25: float = 0.4
    neighbour: float = 0.22
    """For the own match of each of the items around it in its episode."""
    episode: float = 0.2
    named: float = 0.3
    recency: float = 0.0
    importance: float = 0.1
    """Items without the field have importance 0, so it changes nothing where it is not used."""
    repeat: float = 0.05
    window: int = 2
    """How many places before and after count as neighbours."""
    half_life: float = 86_400.0
    """Age, in the unit of the items' time, at which recency has halved."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not value >= 0 or (entry.name == "half_life" and not value > 0):
                raise BadValueError(f"Retrieval weight {entry.name}={value}: it must not be negative, half_life not 0.")


@dataclass(frozen=True, slots=True)
class Hit:
    """One item that was found."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    score: float
    why: Mapping[str, float]
    """The parts that add up to the score: those of :data:`PARTS`, and ``repeat`` (not positive)."""


DIVERSE = 100
"""Places for which repetition is looked at; comparing further down costs more than it helps."""
PARTS = ("dense", "bm25", "neighbour", "episode", "named", "recency", "importance")


class Retriever:
    """Searches a store. Ours (FaissStore, Snapshot, Overlay) are read incrementally; any other is listed each time."""

    def __init__(
        self,
        store: BaseStore,
        *,
        weights: Weights | None = None,
        text: str | Sequence[str] | None = None,
        fields: Fields | None = None,
        pool: int = 2000,
    ) -> None:
        """Make a retriever.

        Args:
            store: Any LangGraph store.
            weights: How much each part counts.
            text: Path or paths of the text to match by words; default: what the store embeds, or the whole value.
            fields: Names of the other fields used.
            pool: Items whose similarity is looked at; the others have the lowest.
        """
        self.store = store
        self.weights = weights or Weights()
        base = fields or Fields()
        paths = (text,) if isinstance(text, str) else tuple(text or getattr(store, "fields", None) or base.text)
        self.fields = Fields(paths, base.episode, base.position, base.time, base.importance)
        self.pool = pool
        self._listed = Listed(store, self.fields)

    def search(
        self, namespace: tuple[str, ...], query: str, k: int = 5, *, filter: dict[str, Any] | None = None
    ) -> list[Hit]:
        """The ``k`` items under a namespace that matter most to the query, best first."""
        vector = None
        if self._embeds(query) and isinstance(self.store, BatchStore) and self.store.embedder is not None:
            vector = prepare(self.store.embedder.queries([query]), self.store.metric)[0]
        return self._search(namespace, query, k, filter, vector)

    async def asearch(
        self, namespace: tuple[str, ...], query: str, k: int = 5, *, filter: dict[str, Any] | None = None
    ) -> list[Hit]:
        """Like :meth:`search`, without blocking the event loop."""
        vector = None
        if self._embeds(query) and isinstance(self.store, BatchStore) and self.store.embedder is not None:
            vector = prepare(await self.store.embedder.aqueries([query]), self.store.metric)[0]
        return await asyncio.to_thread(self._search, namespace, query, k, filter, vector)

    def _embeds(self, query: str) -> bool:
        return bool(query.strip()) and self.weights.dense > 0

    def _search(
        self, namespace: tuple[str, ...], query: str, k: int, condition: dict[str, Any] | None, vector: Vectors | None
    ) -> list[Hit]:
        if k <= 0:
            return []
        if isinstance(self.store, Gathering):
            parts = self.store.gather(self.fields, namespace, condition, vector, self.pool)
        else:
            parts = self._listed.gather(namespace, condition, query if self._embeds(query) else "", self.pool)
        table = self._parts(parts, query)
        chosen = _choose(table.sum(0), _stems(parts), k, self.weights.repeat)
        names = [part.shelf.names[place] for part in parts for place in part.places.tolist()]
        ops: list[Op] = [GetOp(names[row][0], names[row][1], False) for row, _ in chosen]
        hits = []
        for (row, repeat), item in zip(chosen, self.store.batch(ops), strict=True):
            # Deleted by someone else since the candidates were gathered.
            if isinstance(item, Item):
                why = dict(zip(PARTS, table[:, row].tolist(), strict=True)) | {"repeat": repeat}
                hits.append(Hit(names[row][0], names[row][1], item.value, sum(why.values()), why))
        return hits

    def _parts(self, parts: Sequence[Part], query: str) -> Floats:
        """(7, n) weighted parts of the score of every candidate, in order of :data:`PARTS`."""
        weights, terms = self.weights, words(query)
        lexicons = [(part.shelf.lexicon, part.places) for part in parts]
        dense = np.concatenate([part.dense for part in parts])
        table = np.zeros((len(PARTS), len(dense)))
        if not len(dense):
            return table
        known = ~np.isnan(dense)
        table[0, known] = weights.dense * minmax(dense[known])
        table[1] = weights.bm25 * minmax(bm25(terms, lexicons))
        _, episode = np.unique(_column(parts, "episode"), return_inverse=True)
        if weights.neighbour:
            around = beside(table[0] + table[1], episode, _column(parts, "position"), weights.window)
            table[2] = weights.neighbour * around
        if weights.episode:
            table[3] = weights.episode * minmax(bm25(terms, lexicons, episode))[episode]
        if weights.named:
            meant = np.concatenate([_meant(part, frozenset(terms)) for part in parts])
            # A name that all items share tells nothing apart.
            table[4] = weights.named * meant * (not meant.all())
        if weights.recency:
            time = _column(parts, "time")
            table[5] = weights.recency * np.exp2((time - time.max()) / weights.half_life)
        table[6] = weights.importance * _column(parts, "importance")
        return table


def beside(scores: Floats, episode: NDArray[np.int64], position: Floats, window: int = 1) -> Floats:
    """(n,) sum of the scores of the items up to ``window`` places before and after in the same episode; items without
    a position (NaN) have no neighbours."""
    found = np.zeros_like(scores)
    placed = np.flatnonzero(~np.isnan(position))
    order = placed[np.lexsort((position[placed], episode[placed]))]
    for distance in range(1, window + 1):
        left, right = order[:-distance], order[distance:]
        together = episode[left] == episode[right]
        left, right = left[together], right[together]
        found[right] += scores[left]
        found[left] += scores[right]
    return found


def _meant(part: Part, terms: frozenset[str]) -> NDArray[np.bool_]:
    """(n,) whether the query holds all words of an item's name."""
    meant = np.array([bool(name) and name <= terms for name in part.shelf.named], bool)
    return np.asarray(meant[part.shelf.name.view[part.places]])


def _column(parts: Sequence[Part], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(part.shelf, name).view[part.places] for part in parts])


def _stems(parts: Sequence[Part]) -> list[frozenset[str]]:
    return [part.shelf.stems[place] for part in parts for place in part.places.tolist()]


def _choose(scores: Floats, stems: Sequence[frozenset[str]], k: int, repeat: float) -> list[tuple[int, float]]:
    """Up to ``k`` candidates, best first, with what repetition cost each (at most 0)."""
    order = np.argsort(-scores, kind="stable")
    if not repeat:
        return [(int(row), 0.0) for row in order[:k]]
    # Greedy: the cost of a candidate only grows, so one whose plain score is too low need not be looked at.
    chosen: list[tuple[int, float]] = []
    cost: dict[int, tuple[float, int]] = {}
    """Largest overlap of a candidate so far, and with how many of the chosen it was compared."""
    pending = [int(row) for row in order]
    while pending and len(chosen) < min(k, DIVERSE):
        best, best_score = -1, -np.inf
        for place, row in enumerate(pending):
            if scores[row] <= best_score:
                break
            overlap, compared = cost.get(row, (0.0, 0))
            overlap = max([overlap, *(_overlap(stems[row], stems[other]) for other, _ in chosen[compared:])])
            cost[row] = overlap, len(chosen)
            if scores[row] - repeat * overlap > best_score:
                best, best_score = place, float(scores[row] - repeat * overlap)
        row = pending.pop(best)
        chosen.append((row, -repeat * cost[row][0]))
    return chosen + [(row, 0.0) for row in pending[: k - len(chosen)]]


def _overlap(left: frozenset[str], right: frozenset[str]) -> float:
    """Jaccard index of two sets of words."""
    union = len(left | right)
    return len(left & right) / union if union else 0.0
