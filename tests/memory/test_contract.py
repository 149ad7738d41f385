"""The store conformance kit on our stores: on a folder, in memory, with each kind of index, and on an overlay."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from langgraph.store.base import BaseStore, IndexConfig, TTLConfig

from memory import FaissStore
from memory.testing import StoreContract


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def __call__(self) -> float:
        return self.time


class FaissKit(StoreContract):
    """Our store under the kit."""

    l2: ClassVar[dict[str, Any] | None] = {"metric": "l2"}
    options: ClassVar[dict[str, Any]] = {}

    def setup_method(self) -> None:
        self.clock = Clock()
        self.folders: list[str] = []

    def teardown_method(self) -> None:
        for folder in self.folders:
            shutil.rmtree(folder)

    def advance(self, seconds: float) -> None:
        self.clock.time += seconds

    def path(self) -> Path | None:
        self.folders.append(tempfile.mkdtemp())
        return Path(self.folders[-1])

    def make_store(self, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None) -> BaseStore:
        config: dict[str, Any] = dict(index or {})
        self.settings = {
            "embedder": config.get("embed", False),
            "fields": config.get("fields"),
            "metric": config.get("metric"),
            "ttl": ttl,
            "clock": self.clock,
            **self.options,
        }
        self.folder = self.path()
        return FaissStore(self.folder, **self.settings)

    def reopen(self, store: BaseStore) -> BaseStore | None:
        if self.folder is None:
            return None
        store.close()  # type: ignore[attr-defined]
        return FaissStore(self.folder, **self.settings)


class TestOnAFolder(FaissKit):
    pass


class TestInMemory(FaissKit):
    def path(self) -> Path | None:
        return None


class TestSq8(FaissKit):
    options: ClassVar[dict[str, Any]] = {"kind": "sq8"}


class TestHnsw(FaissKit):
    options: ClassVar[dict[str, Any]] = {"kind": "hnsw"}


class TestGrowingIntoSq8(FaissKit):
    options: ClassVar[dict[str, Any]] = {"sq8_from": 5}


class TestOverlay(FaissKit):
    """Everything but sweeping, which is the store's business."""

    test_sweep_deletes_what_expired = None  # type: ignore[assignment]
    test_read_refreshes = None  # type: ignore[assignment]

    def path(self) -> Path | None:
        return None

    def make_store(self, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None) -> BaseStore:
        return super().make_store(index=index, ttl=ttl).overlay()  # type: ignore[attr-defined, no-any-return]

    def close(self, store: BaseStore) -> None:
        pass
