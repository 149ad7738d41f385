"""A persistent LangGraph store: truth in SQLite, search in FAISS, nothing acknowledged is lost."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from langgraph.store.base import IndexConfig, PutOp, Result, TTLConfig

from memory.corpus import Fields, Part, gather_view, shelf_of
from memory.embedding import Embedder, EmbedderLike, Vectors, default_embedder
from memory.engine import Engine
from memory.errors import StoreConfigError
from memory.index import Kind, Metric, check_kind, check_metric
from memory.mirror import SQ8_FROM
from memory.ops import BatchStore, Plan, as_write
from memory.reading import read
from memory.schema import Write
from memory.settings import settle
from memory.snapshot import Overlay, Snapshot


class FaissStore(BatchStore):
    """A LangGraph ``BaseStore`` with semantic search, on one folder or in memory.

    >>> store = FaissStore("memories")
    >>> store.put(("anna",), "1", {"text": "Anna moved to Oslo in May."})
    >>> store.search(("anna",), query="Where does Anna live?")[0].key
    '1'

    Safe from many threads, asyncio tasks and processes on one folder (a local file system). A ``put`` that returned
    survives ``kill -9``. Scores are cosine similarities in [-1, 1] by default; with ``metric="dot"`` inner products,
    with ``metric="l2"`` minus the Euclidean distance: higher is always better. Items without a vector follow with
    the score None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        embedder: EmbedderLike | Literal[False] | None = None,
        dims: int | None = None,
        fields: Sequence[str] | None = None,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        metric: Metric | None = None,
        kind: Kind | Literal["auto"] = "auto",
        sq8_from: int = SQ8_FROM,
        garbage: int = 1024,
        durability: Literal["full", "normal"] = "full",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the store in a folder, making it where there is none.

        Args:
            path: The folder; None for a private store in memory.
            embedder: A LangChain ``Embeddings`` or a function of texts, sync or async; None for the offline default
                (wordllama, 256 dimensions); False for a store without semantic search.
            dims: Dimension of the vectors; needed only with an async function.
            fields: Paths that are embedded by default (``["$"]``: the whole value); kept with the store.
            index: LangGraph's index configuration, in place of ``embedder``, ``dims`` and ``fields``.
            ttl: LangGraph's time-to-live configuration (minutes).
            metric: ``cosine`` (default), ``dot`` or ``l2``; kept with the store.
            kind: ``auto`` holds up to ``sq8_from`` vectors as they are and more as 8-bit codes, rescored from the
                rows; ``sq8`` does so from 10,000 on (it learns its ranges from them); ``flat`` and ``hnsw`` choose
                for good.
            garbage: Superseded versions that are kept, besides a quarter of the live ones (HNSW: as many as live ones),
                before they are removed.
            durability: ``full`` survives a power cut, ``normal`` only the death of the process, and is faster.
            clock: Seconds since 1970, for tests.

        Raises:
            StoreConfigError: The settings do not fit what the folder holds.
            EmbedderError: The embedder does not work.
        """
        if index is not None:
            embedder, dims, fields = _from_index(index, embedder, dims, fields)
        check_kind(kind)
        if metric is not None:
            check_metric(metric)
        folder = None if path is None else Path(path)
        if folder is not None:
            _make_folder(folder)
        wrapped = None if embedder is False else Embedder(default_embedder() if embedder is None else embedder, dims)
        self.path = folder
        self._engine = Engine(
            folder,
            kind=kind,
            sq8_from=sq8_from,
            garbage=garbage,
            durability=durability,
            clock=clock,
            omit_expired=bool((ttl or {}).get("omit_expired")),
        )
        try:
            settings = settle(self._engine.rows, wrapped, fields, metric)
            super().__init__(wrapped, settings.fields, settings.metric, ttl)
            self._engine.load(settings.dims, settings.metric)
        except BaseException:
            self._engine.close()
            raise
        self._sweeper: threading.Event | None = None
        if interval := (ttl or {}).get("sweep_interval_minutes"):
            self.start_ttl_sweeper(interval)

    def _run(self, plan: Plan, queries: Mapping[str, Vectors], documents: Sequence[Vectors]) -> list[Result]:
        results: list[Result] = []
        if any(not isinstance(op, PutOp) for op in plan.ops):
            used: list[int] = []
            with self._engine.view() as view:
                results = [read(view, op, queries, used) for op in plan.ops]
            if used:
                self._engine.refresh(used)
        if plan.puts:
            self._engine.write([as_write(put, documents) for put in plan.puts])
        return results or [None] * len(plan.ops)

    def prepare_writes(self, ops: Sequence[PutOp]) -> list[Write]:
        """Puts, checked and embedded, as the rows they become (for imports that set times)."""
        plan = self._plan(ops)
        if self.embedder is None:
            return [as_write(put, []) for put in plan.puts]
        _, documents = self._prepared(plan, np.zeros((0, 0), np.float32), self.embedder.documents(plan.texts))
        return [as_write(put, documents) for put in plan.puts]

    def commit(self, writes: Sequence[Write]) -> None:
        """Write prepared rows (one per key) in one transaction."""
        self._engine.write(writes)

    # -- views --------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The store as it is now, frozen. Costs no copy; it keeps what it can see from being pruned until it is
        closed or goes out of use."""
        return Snapshot(self._engine, self.embedder, self.fields, self.metric, self.ttl_config)

    def overlay(self) -> Overlay:
        """A private store on top of a snapshot taken now."""
        return self.snapshot().overlay()

    def gather(
        self,
        fields: Fields,
        prefix: tuple[str, ...],
        condition: dict[str, Any] | None,
        query: Vectors | None,
        pool: int,
    ) -> list[Part]:
        """What a :class:`memory.Retriever` ranks."""
        with self._engine.view() as view:
            return [gather_view(view, shelf_of(self._engine, fields), prefix, condition, query, pool, set())]

    # -- expiry -------------------------------------------------------------------------------------------------

    def sweep_ttl(self) -> int:
        """Delete the items whose time to live has run out; returns how many."""
        return self._engine.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float = 5) -> None:
        """Sweep in the background until :meth:`stop_ttl_sweeper` or :meth:`close`."""
        if self._sweeper is None:
            self._sweeper = threading.Event()
            arguments = (weakref.ref(self), self._sweeper, sweep_interval_minutes * 60)
            threading.Thread(target=_sweep, args=arguments, name="memory-ttl-sweeper", daemon=True).start()

    def stop_ttl_sweeper(self) -> None:
        """Stop sweeping in the background."""
        if self._sweeper is not None:
            self._sweeper.set()
            self._sweeper = None

    # -- care ---------------------------------------------------------------------------------------------------

    def memory_use(self) -> dict[str, int]:
        """Bytes in memory: of the vectors as FAISS holds them, of the columns beside them, and of both."""
        with self._engine.mirror.lock.read():
            return self._engine.mirror.memory_use()

    def save_index(self) -> None:
        """Write the index file now (``close`` does it too), so that the next opening is fast."""
        self._engine.save_cache()

    def compact(self) -> int:
        """Remove superseded versions and give their space back; returns how many went."""
        return self._engine.compact()

    def close(self) -> None:
        """Stop sweeping, save the index and close the files. Closing twice is harmless."""
        self.stop_ttl_sweeper()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _from_index(
    index: IndexConfig, embedder: Any, dims: int | None, fields: Sequence[str] | None
) -> tuple[Any, int | None, Sequence[str] | None]:
    if embedder is not None or dims is not None or fields is not None:
        raise StoreConfigError("Give either index=… or embedder, dims and fields, not both.")
    embed = index.get("embed")
    if isinstance(embed, str):
        from langgraph.store.base import ensure_embeddings

        embed = ensure_embeddings(embed)
    return embed, index.get("dims"), index.get("fields")


def _make_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise StoreConfigError(f"{folder} is a file; a store lives in a folder of its own.")
    folder.mkdir(parents=True, exist_ok=True)


def _sweep(owner: weakref.ref[FaissStore], stop: threading.Event, seconds: float) -> None:
    while not stop.wait(seconds):
        store = owner()
        if store is None:
            return
        store.sweep_ttl()
        del store
