"""The kit finds faults: what it says of LangGraph's own stores, and of a store that is broken on purpose."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from langgraph.store.base import BaseStore, IndexConfig, TTLConfig
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memory import FaissStore
from memory.testing import StoreContract, report


class InMemoryKit(StoreContract):
    def make_store(self, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None) -> BaseStore:
        if ttl is not None:
            raise NotImplementedError("InMemoryStore has no time to live")
        return InMemoryStore(index=index)


class SqliteKit(StoreContract):
    has_async = False

    def make_store(self, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None) -> BaseStore:
        connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        store = SqliteStore(connection, index=index, ttl=ttl)  # type: ignore[arg-type]
        store.setup()
        return store

    def close(self, store: BaseStore) -> None:
        store.conn.close()  # type: ignore[attr-defined]


class ForgetsCreation(FaissStore):
    """Deletes before it puts, as a careless upsert does."""

    def put(self, namespace: tuple[str, ...], key: str, value: Any, index: Any = None, **more: Any) -> None:
        self.delete(namespace, key)
        super().put(namespace, key, value, index, **more)


class BrokenKit(StoreContract):
    now = 1_700_000_000.0

    def make_store(self, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None) -> BaseStore:
        config: dict[str, Any] = dict(index or {"embed": False})
        return ForgetsCreation(embedder=config["embed"], fields=config.get("fields"), ttl=ttl, clock=lambda: self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds


def test_a_broken_store_is_caught() -> None:
    found = {check: error for check, error in report(BrokenKit).items() if error is not None}
    assert list(found) == ["test_times"] and "created_at" in found["test_times"]


def test_inmemorystore_fails_what_is_known() -> None:
    found = report(InMemoryKit)
    assert found["test_get_returns_what_was_put"] is None and found["test_nearest_first"] is None
    known = (
        "test_equal_texts_in_one_batch",
        "test_times",
        "test_values_are_copied_out",
        "test_shrunk_list_leaves_no_vector",
    )
    assert all(found[name] for name in known), "a release of langgraph mended one of these: update the documentation"


@pytest.mark.slow
def test_sqlitestore_fails_what_is_known() -> None:
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        pytest.skip("this Python's sqlite3 cannot load the vector extension that SqliteStore needs")
    found = report(SqliteKit)
    assert found["test_get_returns_what_was_put"] is None
    assert found["test_times"] and found["test_omit_expired"] and found["test_nested_dicts_and_lists"]
