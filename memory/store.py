"""First cut of the store (in memory only); the API stays, the engine is being replaced."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable
from typing import Any

from langgraph.store.base import BaseStore, Op, PutOp, Result
from langgraph.store.memory import InMemoryStore

from memory.embedding import EmbedderLike, default_embedder
from memory.errors import ReadOnlyError


class _Wrapped(BaseStore):
    def __init__(self, inner: InMemoryStore) -> None:
        self.inner = inner
        self.lock = threading.RLock()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        with self.lock:
            return copy.deepcopy(self.inner.batch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return self.batch(ops)

    def _copy(self) -> InMemoryStore:
        new = InMemoryStore(index=None)
        new.index_config, new.embeddings = self.inner.index_config, self.inner.embeddings
        with self.lock:
            for ns, items in self.inner._data.items():
                new._data[ns].update(items)
            for ns, vectors in self.inner._vectors.items():
                new._vectors[ns].update(vectors)
        return new


class FaissStore(_Wrapped):
    """A persistent semantic store."""

    def __init__(self, path: Any = None, *, embedder: EmbedderLike | None = None, **_: Any) -> None:
        super().__init__(InMemoryStore(index={"dims": 0, "embed": embedder or default_embedder()}))

    def snapshot(self) -> Snapshot:
        """A frozen read view."""
        return Snapshot(self._copy())

    def close(self) -> None:
        """Release files."""


class Snapshot(_Wrapped):
    """A frozen read view of a store."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        ops = list(ops)
        if any(isinstance(op, PutOp) for op in ops):
            raise ReadOnlyError("A snapshot is frozen. Write to snapshot.overlay(), or to the store itself.")
        return super().batch(ops)

    def overlay(self) -> Overlay:
        """A private store on top of this snapshot."""
        return Overlay(self._copy())


class Overlay(_Wrapped):
    """A private store on top of a snapshot."""

    def __init__(self, inner: InMemoryStore) -> None:
        super().__init__(inner)
        self.log: list[PutOp] = []

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        ops = list(ops)
        result = super().batch(ops)
        self.log.extend(op for op in ops if isinstance(op, PutOp))
        return result

    @property
    def mark(self) -> int:
        """How many writes it holds; ``fork(mark)`` goes back to this moment."""
        return len(self.log)

    def merge_into(self, store: BaseStore) -> int:
        """Write its puts and deletes to ``store``; returns how many."""
        store.batch(list(self.log))
        return len(self.log)
