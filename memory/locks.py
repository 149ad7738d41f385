"""A reader-writer lock for threads and a shared-or-exclusive file lock for processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: one process per folder there
    fcntl = None  # type: ignore[assignment]


class ReadWriteLock:
    """Many readers or one writer; a waiting writer goes before new readers, so searches cannot starve writes.

    Not reentrant: a reader that asks again while a writer waits would wait for ever.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._writing = False
        self._waiting = 0

    @contextmanager
    def read(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        with self._condition:
            while self._writing or self._waiting:
                self._condition.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                if not self._readers:
                    self._condition.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._condition:
            self._waiting += 1
            try:
                while self._writing or self._readers:
                    self._condition.wait()
            finally:
                # An interrupted wait must not keep readers out for ever.
                self._waiting -= 1
                self._condition.notify_all()
            self._writing = True
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()


class FileLock:
    """An advisory lock on a file, released by the kernel when its process dies, however it dies."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def share(self) -> None:
        """Hold it together with other processes, waiting for an exclusive holder to finish."""
        if fcntl is not None:
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """Hold it alone if nobody else holds it; never waits. Must not be called while sharing it."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let it go."""
        if fcntl is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let it go and close the file."""
        os.close(self._file)
