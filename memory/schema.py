"""The database's tables and the records that go in and out of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from memory.embedding import Vectors
from memory.errors import CorruptStoreError

LIVE = 2**62
"""``died`` of a version that is still current."""
SCHEMA_VERSION = 1
APPLICATION_ID = 0x6D656D46
"""Marks a SQLite file as one of these stores."""
MINUTE = 60_000_000
"""Times are integer microseconds since 1970, UTC."""

SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (generation INTEGER, pruned INTEGER, next_item INTEGER, next_namespace INTEGER);
INSERT INTO counters VALUES (0, 0, 1, 1);
CREATE TABLE namespaces (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE);
CREATE TABLE items (
  id INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, fields TEXT,
  created INTEGER NOT NULL, updated INTEGER NOT NULL, born INTEGER NOT NULL, died INTEGER NOT NULL DEFAULT {LIVE},
  ttl INTEGER, expires INTEGER, vectors INTEGER NOT NULL);
CREATE UNIQUE INDEX items_key ON items (namespace, key, born);
CREATE INDEX items_born ON items (born);
CREATE INDEX items_died ON items (died) WHERE died < {LIVE};
CREATE INDEX items_expires ON items (expires) WHERE expires IS NOT NULL;
CREATE TABLE vectors (item INTEGER PRIMARY KEY, data BLOB NOT NULL);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


class Counters(NamedTuple):
    """The one row that says where the store stands."""

    generation: int
    pruned: int
    """Versions that died up to this generation may be gone."""
    next_item: int
    next_namespace: int


class Row(NamedTuple):
    """One item version."""

    id: int
    namespace: int
    key: str
    value: str
    created: int
    updated: int
    ttl: int | None


@dataclass(frozen=True, slots=True)
class Write:
    """One put or delete, ready to be written."""

    namespace: tuple[str, ...]
    key: str
    value: str | None
    """JSON text; None deletes."""
    vectors: Vectors | None = None
    """(n, dims), prepared for the store's metric; None or empty where nothing is indexed."""
    fields: str | None = None
    """The put's ``index`` argument as JSON text; None for the store's default."""
    ttl: int | None = None
    """Microseconds."""
    created: int | None = None
    """Creation time to restore (imports); None keeps the old item's or takes the time of the write."""
    updated: int | None = None
    """The same for the time of the last update."""
    expires: int | None = None
    """The same for the end of the time to live; None lets it start with the write."""


@dataclass(slots=True)
class Delta:
    """What one committed write changed."""

    generation: int
    namespaces: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    items: list[tuple[int, int, int]] = field(default_factory=list)
    """New versions as (id, namespace id, number of vectors)."""
    vectors: list[Vectors] = field(default_factory=list)
    """Their vectors, in the same order, for those that have any."""
    died: list[int] = field(default_factory=list)


class Reader:
    """A view of the database in which nothing changes while it is open."""

    def __init__(self, connection: sqlite3.Connection, lock: AbstractContextManager[Any] | None = None) -> None:
        self._connection = connection
        self._lock = lock or nullcontext()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query."""
        with self._lock:
            return self._connection.execute(sql, parameters).fetchall()

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first row of a query, or None."""
        with self._lock:
            return self._connection.execute(sql, parameters).fetchone()


def pack(vectors: Vectors) -> bytes:
    """Little-endian float32, row by row."""
    return np.ascontiguousarray(vectors, "<f4").tobytes()


def unpack(data: bytes, dims: int) -> Vectors:
    """The (n, dims) array that :func:`pack` wrote."""
    if len(data) % (4 * dims):
        raise CorruptStoreError(
            f"A stored vector has {len(data)} bytes, not a multiple of {4 * dims}. Run 'agentcore memory verify'; the "
            "items can still be exported and imported into a new store."
        )
    return np.frombuffer(data, "<f4").reshape(-1, dims).astype(np.float32, copy=False)
