"""A store's database and mirror working together: views, writes, pins, pruning, expiry."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from memory import cache
from memory.errors import StoreClosedError
from memory.index import Kind, Metric
from memory.locks import FileLock
from memory.mirror import SQ8_FROM, Mirror
from memory.rows import Rows
from memory.schema import Reader, Write
from memory.view import View

PRUNE_STEP = 4000
"""Versions removed at most after one write, so that no single write waits long."""


class Engine:
    """The database, the mirror and the rules that keep them together, for one folder or for memory alone."""

    def __init__(
        self,
        folder: Path | None,
        *,
        kind: Kind | Literal["auto"] = "auto",
        sq8_from: int = SQ8_FROM,
        garbage: int = 1024,
        durability: Literal["full", "normal"] = "full",
        clock: Callable[[], float] = time.time,
        omit_expired: bool = False,
    ) -> None:
        self.folder, self.clock, self.omit_expired, self.garbage = folder, clock, omit_expired, garbage
        self._pid = os.getpid()
        self._closed = False
        self.rows = Rows(None if folder is None else folder / "store.db", durability)
        self.rows.prepare()
        self.mirror = Mirror(self.rows, kind, sq8_from)
        self._write_lock = threading.RLock()
        self._pins: Counter[int] = Counter()
        self._pin_lock = threading.Lock()
        self._snapshot_lock = threading.Lock()
        """Guards the number of snapshots and the lock that shows other processes that there are some."""
        self._snapshots = 0
        self._dropped: deque[int] = deque()
        """Generations whose snapshots were garbage-collected: a finalizer may run anywhere, so it only notes them."""
        self._process_lock = None if folder is None else FileLock(folder / "snapshots.lock")
        self._saved = 0
        self._stale = False
        self.extras: dict[Any, Any] = {}
        """What readers keep per store (retrieval's documents), so that it lives as long as the store."""

    # -- opening and closing ------------------------------------------------------------------------------------

    @property
    def cache_path(self) -> Path | None:
        """The index file."""
        return None if self.folder is None else self.folder / "index.cache"

    def load(self, dims: int, metric: Metric, *, use_cache: bool = True) -> None:
        """Fill the mirror from the index file and the rows; with vectors of ``dims`` dimensions (0: none)."""
        with self._write_lock, self.rows.reader() as db, self.mirror.lock.write():
            mirror, horizon = self.mirror, min([self.rows.counters(db).generation, *self._pinned()])
            mirror.reset()
            mirror.dims, mirror.metric = dims, metric
            mirror.load_names(db)
            path = self.cache_path
            loaded = use_cache and path is not None and dims > 0 and cache.load(mirror, db, path)
            after = int(mirror.ids.view[-1]) if loaded and len(mirror) else 0
            fresh = cache.current_rows(db, horizon, after)
            mirror.expect(db, fresh)
            mirror.append_from(db, fresh.tolist())
            mirror.generation = self.rows.counters(db).generation
            self._saved = len(mirror.slot_row) if loaded else 0
            self._stale = False

    def check_open(self) -> None:
        """Raise :class:`StoreClosedError` if the store was closed or belongs to another process."""
        if self._closed:
            raise StoreClosedError("This store is closed. Open it again with FaissStore(path).")
        if os.getpid() != self._pid:
            raise StoreClosedError(
                "This store was opened by the parent process. SQLite connections and FAISS threads do not survive a "
                "fork: open the store in each process (several processes may share a folder)."
            )

    def now(self) -> int:
        """Microseconds since 1970."""
        return int(self.clock() * 1_000_000)

    def save_cache(self) -> None:
        """Write the index file."""
        if self.cache_path is not None:
            with self._write_lock, self.mirror.lock.read():
                cache.save(self.mirror, self.rows, self.cache_path)
                self._saved = len(self.mirror.slot_row)

    def close(self, *, save: bool = True) -> None:
        """Save the index where it changed and let the files go; closing twice is harmless."""
        if self._closed or os.getpid() != self._pid:
            return
        if save and len(self.mirror.slot_row) != self._saved and not self._stale:
            self.save_cache()
        self._closed = True
        self.rows.close()
        if self._process_lock is not None:
            self._process_lock.close()

    # -- reading ------------------------------------------------------------------------------------------------

    @contextmanager
    def view(self, at: tuple[int, int] | None = None) -> Iterator[View]:
        """The store now, or at a pinned ``(generation, time)``. Nothing it can see is pruned while it is open."""
        self.check_open()
        with self._pin_lock:
            # Whatever is read below lies at or after this generation.
            pinned = self.mirror.generation if at is None else at[0]
            self._pins[pinned] += 1
        try:
            with self.rows.reader() as db:
                generation = self._current(db)
                yield View(self, db, generation if at is None else at[0], self.now() if at is None else at[1])
        finally:
            self._unpin(pinned)

    def _current(self, db: Reader) -> int:
        generation = self.rows.counters(db).generation
        if self._stale:
            self.load(self.mirror.dims, self.mirror.metric, use_cache=False)
        if generation > self.mirror.generation:
            with self.mirror.lock.write():
                self.mirror.catch_up(db)
        return generation

    def pin(self) -> tuple[int, int]:
        """Keep the present state readable until :meth:`release`; returns its generation and time."""
        self.check_open()
        self.collect()
        with self._snapshot_lock:
            if self._snapshots == 0 and self._process_lock is not None:
                # Before the generation is read: another process may be pruning.
                self._process_lock.share()
            self._snapshots += 1
        with self.view() as view:
            with self._pin_lock:
                self._pins[view.generation] += 1
            return view.generation, view.now

    def release(self, generation: int) -> None:
        """Let a pinned state go. Does no more than note it, so that a finalizer may call it."""
        self._dropped.append(generation)

    def collect(self) -> None:
        """Forget the pins of the snapshots that were released."""
        while self._dropped:
            try:
                generation = self._dropped.popleft()
            except IndexError:
                return
            self._unpin(generation)
            with self._snapshot_lock:
                self._snapshots -= 1
                if self._snapshots == 0 and self._process_lock is not None and not self._closed:
                    self._process_lock.release()

    def _unpin(self, generation: int) -> None:
        with self._pin_lock:
            self._pins[generation] -= 1
            if self._pins[generation] <= 0:
                del self._pins[generation]

    def _pinned(self) -> list[int]:
        with self._pin_lock:
            return list(self._pins)

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, writes: Sequence[Write]) -> None:
        """Commit puts and deletes (one per key) as one generation; durable when it returns."""
        self.check_open()
        with self._write_lock:
            self._take_over(self.rows.write(writes, self.now()))
            self._tidy()

    def refresh(self, ids: Sequence[int]) -> None:
        """Restart the time to live of items that were read."""
        self.rows.refresh(ids, self.now())

    def sweep(self) -> int:
        """Delete the items whose time to live has run out; returns how many."""
        self.check_open()
        with self._write_lock:
            now = self.now()
            with self.view() as view:
                ids = sorted(self.rows.expired(view.db, now, view.generation))
            delta = self.rows.retire(ids, now) if ids else None
            self._take_over(delta)
            return 0 if delta is None else len(delta.died)

    def _take_over(self, delta: Any) -> None:
        if delta is None:
            return
        try:
            with self.mirror.lock.write():
                self.mirror.apply(delta)
        except BaseException:
            # The rows are committed; a half-updated mirror must not answer, so the next view rebuilds it.
            self._stale = True
            raise

    def _horizon(self) -> int:
        self.collect()
        return min([self.mirror.generation, *self._pinned()])

    def _tidy(self) -> None:
        mirror = self.mirror
        slots = len(mirror.slot_row)
        if self.cache_path is not None and slots >= 20_000 and slots > 2 * self._saved:
            self.save_cache()
        patience = 1.0 if mirror.index is not None and mirror.index.kind == "hnsw" else 0.25
        if mirror.dead <= self.garbage + patience * (len(mirror) - mirror.dead):
            return
        horizon = self._horizon()
        self.prune(horizon, PRUNE_STEP)
        gone = int(np.count_nonzero(mirror.died.view <= horizon))
        if gone > mirror.dead // 2:
            with mirror.lock.write():
                mirror.compacted(horizon)

    def prune(self, horizon: int, limit: int) -> int:
        """Remove superseded versions from the database, unless a snapshot in some process may need them."""
        with self._snapshot_lock:
            if self._snapshots or (self._process_lock is not None and not self._process_lock.try_exclusive()):
                return 0
            try:
                return self.rows.prune(horizon, limit)
            finally:
                if self._process_lock is not None:
                    self._process_lock.release()

    def compact(self) -> int:
        """Remove every superseded version that no snapshot needs, shrink the files; returns how many went."""
        self.check_open()
        with self._write_lock:
            with self.view():
                pass
            horizon, removed = self._horizon(), 0
            while step := self.prune(horizon, 50_000):
                removed += step
            with self.mirror.lock.write():
                self.mirror.compacted(horizon)
            self.rows.shrink()
            self.save_cache()
            return removed
