"""The truth of a store: item versions, their vectors and a generation number, in one SQLite database.

Every committed write raises the generation. A write never changes a row: an update ends the old version
(``died``) and adds a new one (``born``), so the store as of any generation can be read until :meth:`Rows.prune` removes
versions that nobody needs. Item ids grow with the generation and are never used twice, even after pruning.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from memory.embedding import Vectors
from memory.errors import StoreConfigError
from memory.schema import (
    APPLICATION_ID,
    LIVE,
    SCHEMA,
    SCHEMA_VERSION,
    Counters,
    Delta,
    Reader,
    Row,
    Write,
    pack,
    unpack,
)


class Rows:
    """The database of one store; safe to use from many threads."""

    def __init__(self, path: Path | None, durability: Literal["full", "normal"]) -> None:
        self.path = path
        self._durability = durability
        self._shared = threading.RLock()
        """In memory there is one connection; it is used by one thread at a time."""
        self._pool: list[sqlite3.Connection] = []
        self._writer = self._connect()
        self._known: dict[tuple[str, ...], int] = {}

    # -- connections --------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        name = ":memory:" if self.path is None else str(self.path)
        connection = sqlite3.connect(name, timeout=60, check_same_thread=False, isolation_level=None)
        if self.path is not None:
            connection.execute("PRAGMA page_size = 8192")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._durability.upper()}")
        return connection

    def prepare(self) -> None:
        """Create the tables where the database is empty; refuse a database of another kind or a newer version."""
        with self.transaction() as db:
            application, version = db.execute("PRAGMA application_id").fetchone()[0], self._user_version(db)
            if application == 0 and version == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in SCHEMA.split(";\n"):
                    db.execute(statement)
                return
            if application != APPLICATION_ID:
                raise StoreConfigError(f"{self.path} is a SQLite database of another program; choose another folder.")
            if version != SCHEMA_VERSION:
                raise StoreConfigError(
                    f"{self.path} has schema version {version}, this release reads {SCHEMA_VERSION}. Export it with "
                    "the release that wrote it ('agentcore memory export') and import it here."
                )

    @staticmethod
    def _user_version(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """A view of one state of the database. In memory it is the current one; versions keep that consistent."""
        if self.path is None:
            yield Reader(self._writer, self._shared)
            return
        try:
            connection = self._pool.pop()
        except IndexError:
            connection = self._connect()
        try:
            connection.execute("BEGIN")
            yield Reader(connection)
        finally:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            self._pool.append(connection)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction; the caller serialises the threads of this process, SQLite the processes."""
        with self._shared:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
            except BaseException:
                self._writer.execute("ROLLBACK")
                raise
            try:
                self._writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close all connections; the last process to do so folds the write-ahead log into the database."""
        while self._pool:
            self._pool.pop().close()
        self._writer.close()

    # -- reading ------------------------------------------------------------------------------------------------

    @staticmethod
    def counters(db: Reader) -> Counters:
        """Where the store stands in this connection's view."""
        return Counters(*db.row("SELECT generation, pruned, next_item, next_namespace FROM counters"))

    @staticmethod
    def meta(db: Reader) -> dict[str, str]:
        """The store's settings."""
        return dict(db.rows("SELECT key, value FROM meta"))

    @staticmethod
    def set_meta(db: sqlite3.Connection, entries: dict[str, str]) -> None:
        """Write settings, inside a transaction."""
        db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(entries.items()))

    @staticmethod
    def find(db: Reader, namespace: int, key: str, generation: int) -> Row | None:
        """The version of a key as of a generation."""
        row = db.row(
            "SELECT id, namespace, key, value, created, updated, ttl FROM items "
            "WHERE namespace = ? AND key = ? AND born <= ? AND died > ? ORDER BY born DESC LIMIT 1",
            (namespace, key, generation, generation),
        )
        return Row(*row) if row else None

    @staticmethod
    def fetch(db: Reader, ids: Sequence[int]) -> dict[int, Row]:
        """Versions by id; those that are gone are missing."""
        found: dict[int, Row] = {}
        for part in _parts(ids):
            marks = ",".join("?" * len(part))
            sql = f"SELECT id, namespace, key, value, created, updated, ttl FROM items WHERE id IN ({marks})"
            found.update((row[0], Row(*row)) for row in db.rows(sql, part))
        return found

    @staticmethod
    def fetch_vectors(db: Reader, ids: Sequence[int], dims: int) -> dict[int, Vectors]:
        """The stored vectors (n, dims) of versions by id."""
        found: dict[int, Vectors] = {}
        for part in _parts(ids):
            sql = f"SELECT item, data FROM vectors WHERE item IN ({','.join('?' * len(part))})"
            for item, data in db.rows(sql, part):
                found[item] = unpack(data, dims)
        return found

    @staticmethod
    def expired(db: Reader, now: int, generation: int) -> set[int]:
        """Ids of the versions, current as of a generation, whose time to live has run out."""
        sql = "SELECT id FROM items WHERE expires <= ? AND born <= ? AND died > ?"
        return {row[0] for row in db.rows(sql, (now, generation, generation))}

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, writes: Iterable[Write], now: int) -> Delta | None:
        """Commit puts and deletes as one generation; None where nothing changed. Durable when it returns."""
        with self.transaction() as db:
            counters = self.counters(Reader(db))
            delta = Delta(counters.generation + 1)
            batch = _Batch(self, db, delta, counters, now)
            for write in writes:
                batch.add(write)
            if not delta.items and not delta.died:
                return None
            batch.flush()
        self._known.update((path, number) for number, path in delta.namespaces)
        return delta

    def retire(self, ids: Sequence[int], now: int) -> Delta | None:
        """Delete versions by id where they are current and have expired by ``now``, as one generation."""
        with self.transaction() as db:
            delta = Delta(self.counters(Reader(db)).generation + 1)
            for part in _parts(ids):
                marks = ",".join("?" * len(part))
                sql = f"SELECT id FROM items WHERE id IN ({marks}) AND died = {LIVE} AND expires <= ?"
                delta.died.extend(row[0] for row in db.execute(sql, (*part, now)).fetchall())
            if not delta.died:
                return None
            _end(db, delta)
            db.execute("UPDATE counters SET generation = ?", (delta.generation,))
        return delta

    def refresh(self, ids: Sequence[int], now: int) -> None:
        """Restart the time to live of versions; skipped where less than a hundredth of it has passed."""
        for part in _parts(ids):
            marks = ",".join("?" * len(part))
            where = f"id IN ({marks}) AND ttl IS NOT NULL AND expires < ? + ttl - ttl / 100"
            with self.reader() as db:
                if not db.row(f"SELECT 1 FROM items WHERE {where}", (*part, now)):
                    continue
            with self.transaction() as db:
                db.execute(f"UPDATE items SET expires = ? + ttl WHERE {where}", (now, *part, now))

    def prune(self, horizon: int, limit: int) -> int:
        """Remove up to ``limit`` versions that died up to a generation; returns how many went."""
        with self.transaction() as db:
            sql = "SELECT id FROM items WHERE died <= ? LIMIT ?"
            ids = db.execute(sql, (horizon, limit)).fetchall()
            if ids:
                db.executemany("DELETE FROM vectors WHERE item = ?", ids)
                db.executemany("DELETE FROM items WHERE id = ?", ids)
                db.execute("UPDATE counters SET pruned = max(pruned, ?)", (horizon,))
        return len(ids)

    def shrink(self) -> None:
        """Give the space of removed rows back to the file system."""
        with self._shared:
            self._writer.execute("VACUUM")
            if self.path is not None:
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def namespace_id(self, db: Reader, namespace: tuple[str, ...]) -> int | None:
        """The number of a namespace; None where it was never written."""
        if (known := self._known.get(namespace)) is None:
            row = db.row("SELECT id FROM namespaces WHERE path = ?", (json.dumps(namespace),))
            known = row[0] if row else None
        return known


class _Batch:
    """Collects the rows of one write, so that they are inserted with few statements."""

    def __init__(self, rows: Rows, db: sqlite3.Connection, delta: Delta, counters: Counters, now: int) -> None:
        self.rows, self.db, self.delta, self.now = rows, db, delta, now
        self.reader = Reader(db)
        self.next_item, self.next_namespace = counters.next_item, counters.next_namespace
        self.fresh: dict[tuple[str, ...], int] = {}
        self.items: list[tuple[Any, ...]] = []
        self.vectors: list[tuple[int, bytes]] = []

    def add(self, write: Write) -> None:
        number = self.fresh.get(write.namespace) or self.rows.namespace_id(self.reader, write.namespace)
        old = self.rows.find(self.reader, number, write.key, self.delta.generation) if number is not None else None
        if old is not None:
            self.delta.died.append(old.id)
        if write.value is None:
            return
        if number is None:
            number, self.next_namespace = self.next_namespace, self.next_namespace + 1
            self.fresh[write.namespace] = number
            self.delta.namespaces.append((number, write.namespace))
        item, self.next_item = self.next_item, self.next_item + 1
        count = 0 if write.vectors is None else len(write.vectors)
        created = write.created or (old.created if old is not None else self.now)
        updated = write.updated or self.now
        expires = None if write.ttl is None else write.expires or self.now + write.ttl
        stamps = (created, updated, self.delta.generation, write.ttl, expires)
        self.items.append((item, number, write.key, write.value, write.fields, *stamps, count))
        self.delta.items.append((item, number, count))
        if write.vectors is not None and count:
            self.vectors.append((item, pack(write.vectors)))
            self.delta.vectors.append(write.vectors)

    def flush(self) -> None:
        paths = [(number, json.dumps(path)) for path, number in self.fresh.items()]
        self.db.executemany("INSERT INTO namespaces VALUES (?, ?)", paths)
        _end(self.db, self.delta)
        self.db.executemany(
            "INSERT INTO items (id, namespace, key, value, fields, created, updated, born, ttl, expires, vectors) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            self.items,
        )
        self.db.executemany("INSERT INTO vectors VALUES (?, ?)", self.vectors)
        sql = "UPDATE counters SET generation = ?, next_item = ?, next_namespace = ?"
        self.db.execute(sql, (self.delta.generation, self.next_item, self.next_namespace))


def _end(db: sqlite3.Connection, delta: Delta) -> None:
    db.executemany("UPDATE items SET died = ? WHERE id = ?", [(delta.generation, item) for item in delta.died])


def _parts(ids: Sequence[int], size: int = 500) -> Iterator[list[int]]:
    for start in range(0, len(ids), size):
        yield [int(item) for item in ids[start : start + size]]
