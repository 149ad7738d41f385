"""The documents of a store as retrieval sees them: words, place in an episode, time and importance of every item.

A document belongs to one version of an item and never changes, so it is read once per process, however many snapshots,
overlays and namespaces show it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from langgraph.store.base import BaseStore, get_text_at_path
from numpy.typing import NDArray

from memory.columns import Grown
from memory.embedding import Vectors
from memory.engine import Engine
from memory.lexical import Lexicon, words
from memory.view import View

Ints = NDArray[np.int64]
EVERYTHING = 1_000_000
"""Limit with which all items of a store are listed."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Where retrieval finds what it needs in an item's value; a missing field only switches its part off."""

    text: tuple[str, ...] = ("$",)
    """Paths of the texts to match, as in LangGraph's ``index``."""
    episode: str = "episode"
    """Items of one namespace with equal values here are neighbours by position."""
    position: str = "position"
    """A number that orders the items of an episode."""
    time: str = "time"
    """A number (any unit) that says how recent an item is; without it, the time of its last update in seconds."""
    importance: str = "importance"
    """A number in [0, 1]."""
    name: str = "speaker"
    """A person or thing the item is from or about; a query that names it means its items."""


@dataclass(frozen=True, slots=True)
class Source:
    """An item as a store gives it."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    updated: float
    """Seconds since 1970."""


class Shelf:
    """Documents under growing numbers, looked up by the ids of their items."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.lexicon = Lexicon()
        self.names: list[tuple[tuple[str, ...], str]] = []
        self.stems: list[frozenset[str]] = []
        self.episode, self.position = Grown(np.int64), Grown(np.float64)
        self.time, self.importance = Grown(np.float64), Grown(np.float64)
        self.name = Grown(np.int64)
        self.named: list[frozenset[str]] = [frozenset()]
        """Words of each distinct name; the first stands for none."""
        self._name_numbers: dict[str, int] = {}
        self._places = Grown(np.int64)
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.names)

    def places(self, ids: Ints, load: Callable[[list[int]], Sequence[Source]]) -> Ints:
        """The documents of items, reading those that are new; ``load`` gives items by id, in order."""
        with self._lock:
            short = int(ids.max(initial=-1)) + 1 - len(self._places)
            if short > 0:
                self._places.extend(np.full(short, -1, np.int64))
            missing = ids[self._places.view[ids] < 0]
            for start in range(0, len(missing), 1000):
                part = missing[start : start + 1000]
                sources = load(part.tolist())
                self._places.view[part] = len(self) + np.arange(len(sources))
                self._add(sources)
            return np.array(self._places.view[ids], np.int64)

    def _add(self, sources: Sequence[Source]) -> None:
        documents = []
        for source in sources:
            texts = [text for path in self.fields.text for text in get_text_at_path(source.value, path)]
            documents.append(words("\n".join(texts)))
            self.names.append((source.namespace, source.key))
            self.stems.append(frozenset(documents[-1]))
        values = [source.value for source in sources]
        episodes = [(s.namespace, json.dumps(s.value.get(self.fields.episode), sort_keys=True)) for s in sources]
        self.episode.extend(np.array([hash(episode) for episode in episodes], np.int64))
        self.position.extend([_number(value.get(self.fields.position), np.nan) for value in values])
        self.time.extend([_number(s.value.get(self.fields.time), s.updated) for s in sources])
        importance = np.array([_number(value.get(self.fields.importance), 0.0) for value in values])
        self.importance.extend(np.clip(importance, 0, 1))
        self.name.extend([self._name_number(value.get(self.fields.name)) for value in values])
        self.lexicon.add(documents)

    def _name_number(self, name: Any) -> int:
        if not isinstance(name, str) or not words(name):
            return 0
        number = self._name_numbers.setdefault(name, len(self.named))
        if number == len(self.named):
            self.named.append(frozenset(words(name)))
        return number


@dataclass(frozen=True, slots=True)
class Part:
    """Candidates of one search that lie on one shelf."""

    shelf: Shelf
    places: Ints
    """(n,) documents."""
    dense: NDArray[np.float64]
    """(n,) similarity to the query; NaN where an item has no vector or was not among the nearest."""


@runtime_checkable
class Gathering(Protocol):
    """A store that keeps shelves itself."""

    def gather(
        self,
        fields: Fields,
        prefix: tuple[str, ...],
        condition: dict[str, Any] | None,
        query: Vectors | None,
        pool: int,
    ) -> list[Part]:
        """All items under a prefix that meet a filter, with the similarities of the ``pool`` nearest."""
        ...


def gather_view(
    view: View,
    shelf: Shelf,
    prefix: tuple[str, ...],
    condition: dict[str, Any] | None,
    query: Vectors | None,
    pool: int,
    hidden: set[int],
) -> Part:
    """The candidates of a view of one of our stores."""
    ids = view.ids(prefix, condition, hidden)

    def load(numbers: list[int]) -> list[Source]:
        rows = view.fetch(numbers)
        return [
            Source(view.path(row), row.key, json.loads(row.value), row.updated / 1e6)
            for row in (rows[number] for number in numbers)
        ]

    dense = np.full(len(ids), np.nan)
    if query is not None:
        ranked = [entry for entry in view.rank(prefix, condition, query, min(pool, len(ids)), hidden, rescore=False)]
        scores = [np.nan if score is None else score for _, score in ranked]
        dense[np.searchsorted(ids, np.array([number for number, _ in ranked], np.int64))] = scores
    return Part(shelf, shelf.places(ids, load), dense)


@dataclass(slots=True)
class Listed:
    """Shelves for a store that can only list its items: whatever is listed for the first time is read."""

    store: BaseStore
    fields: Fields
    shelf: Shelf = field(init=False)
    _ids: dict[tuple[tuple[str, ...], str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shelf = Shelf(self.fields)

    def gather(self, prefix: tuple[str, ...], condition: dict[str, Any] | None, query: str, pool: int) -> list[Part]:
        """All items under a prefix that meet a filter, with the store's own scores for the ``pool`` nearest."""
        listed = self.store.search(prefix, filter=condition, limit=EVERYTHING, refresh_ttl=False)
        if len(self._ids) > 4096 + 2 * len(listed):
            self.shelf, self._ids = Shelf(self.fields), {}
        names = [(tuple(item.namespace), item.key, item.updated_at.isoformat()) for item in listed]
        ids = np.array([self._ids.setdefault(name, len(self._ids)) for name in names], np.int64)
        by_id = dict(zip(ids.tolist(), listed, strict=True))
        places = self.shelf.places(
            ids,
            lambda numbers: [
                Source(tuple(item.namespace), item.key, item.value, item.updated_at.timestamp())
                for item in (by_id[number] for number in numbers)
            ],
        )
        dense = np.full(len(ids), np.nan)
        if query:
            found = self.store.search(prefix, query=query, filter=condition, limit=pool, refresh_ttl=False)
            scores = {(tuple(item.namespace), item.key): item.score for item in found}
            for place, name in enumerate(names):
                if (score := scores.get(name[:2])) is not None:
                    dense[place] = score
        return [Part(self.shelf, places, dense)]


def shelf_of(engine: Engine, fields: Fields) -> Shelf:
    """The shelf that all views of a store share; begun anew when most of it is superseded versions."""
    shelf: Shelf = engine.extras.setdefault(fields, Shelf(fields))
    if len(shelf) > 4096 + 3 * len(engine.mirror):
        shelf = engine.extras[fields] = Shelf(fields)
    return shelf


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default
