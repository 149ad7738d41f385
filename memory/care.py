"""Looking after a store without its embedder: inspect, verify, rebuild, export, import."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from langgraph.store.base import PutOp

from memory.engine import Engine
from memory.errors import BadValueError, StoreConfigError
from memory.reading import moment
from memory.rows import Rows
from memory.schema import LIVE, MINUTE, Reader, Row
from memory.settings import Settings, read_settings
from memory.store import FaissStore


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a store holds."""

    path: str
    settings: Settings
    items: int
    namespaces: int
    superseded: int
    """Versions that an update or delete replaced and that are not removed yet."""
    vectors: int
    index: str
    """Kind of index in memory."""
    generation: int
    file_bytes: int
    """Bytes on disk, all files of the folder."""
    largest: tuple[tuple[str, int], ...]
    """The namespaces with most items."""


@contextmanager
def opened(folder: Path, *, use_cache: bool = True, vectors: bool = True) -> Iterator[tuple[Engine, Settings]]:
    """The engine of an existing store, without its vectors if they are not needed; no embedder is needed."""
    if not (folder / "store.db").is_file():
        raise StoreConfigError(f"{folder} holds no store (no store.db). Give the folder that FaissStore was given.")
    engine = Engine(folder)
    try:
        with engine.rows.reader() as db:
            meta = Rows.meta(db)
        # Without settings its making was interrupted; it holds nothing yet.
        settings = read_settings(meta) if "dims" in meta else Settings(0, "none", "cosine", ("$",))
        engine.load(settings.dims if vectors else 0, settings.metric, use_cache=use_cache)
        yield engine, settings
    finally:
        engine.close(save=False)


def inspect(folder: Path) -> Inspection:
    """What a store holds, by its rows."""
    with opened(folder) as (engine, settings), engine.view() as view:
        tally = view.tally()
        superseded = view.db.row("SELECT count(*) FROM items WHERE died < ?", (LIVE,))[0]
        mirror = engine.mirror
        largest = sorted(tally.items(), key=lambda entry: (-entry[1], entry[0]))[:10]
        return Inspection(
            path=str(folder),
            settings=settings,
            items=sum(tally.values()),
            namespaces=len(tally),
            superseded=superseded,
            vectors=int(mirror.count.view[mirror.died.view == LIVE].sum()),
            index="none" if mirror.index is None else mirror.index.kind,
            generation=view.generation,
            file_bytes=sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
            largest=tuple(("/".join(name), count) for name, count in largest),
        )


def verify(folder: Path) -> list[str]:
    """What is wrong with a store, as sentences; empty where the rows are sound and the index agrees with them."""
    with opened(folder, vectors=False) as (engine, settings), engine.view() as view:
        problems = _check_rows(view.db, settings)
    if problems:
        return problems
    with opened(folder) as (engine, settings), engine.view() as view:
        return _check_index(engine, view.db, settings)


def _check_rows(db: Reader, settings: Settings) -> list[str]:
    problems = [f"SQLite: {row[0]}" for row in db.rows("PRAGMA integrity_check") if row[0] != "ok"]
    checks = {
        "keys have more than one current version": (
            "SELECT count(*) FROM "
            f"(SELECT 1 FROM items WHERE died = {LIVE} GROUP BY namespace, key HAVING count(*) > 1)"
        ),
        "items have a namespace that does not exist": (
            "SELECT count(*) FROM items WHERE namespace NOT IN (SELECT id FROM namespaces)"
        ),
        "items have fewer or more vectors than they say": (
            "SELECT count(*) FROM items LEFT JOIN vectors ON item = id "
            f"WHERE vectors * {4 * settings.dims} != coalesce(length(data), 0)"
        ),
        "vectors belong to no item": "SELECT count(*) FROM vectors WHERE item NOT IN (SELECT id FROM items)",
        "items are newer than the store's generation": (
            "SELECT count(*) FROM items, counters "
            f"WHERE born > generation OR (died > generation AND died < {LIVE}) OR id >= next_item"
        ),
    }
    for what, sql in checks.items():
        if count := db.row(sql)[0]:
            problems.append(f"{count} {what}.")
    broken, last = 0, 0
    while rows := db.rows("SELECT id, value FROM items WHERE id > ? ORDER BY id LIMIT 5000", (last,)):
        broken += sum(not _is_object(value) for _, value in rows)
        last = rows[-1][0]
    return [*problems, f"{broken} values are not JSON objects."] if broken else problems


def _check_index(engine: Engine, db: Reader, settings: Settings) -> list[str]:
    mirror = engine.mirror
    current = {row[0]: row[1] for row in db.rows(f"SELECT id, vectors FROM items WHERE died = {LIVE}")}
    live = mirror.died.view == LIVE
    held = dict(zip(mirror.ids.view[live].tolist(), mirror.count.view[live].tolist(), strict=True))
    if held != current:
        return [f"The index holds {len(held)} items where the rows hold {len(current)}."]
    wrong = 0
    for start in range(0, len(mirror), 2000):
        rows = np.arange(start, min(start + 2000, len(mirror)))
        rows = rows[live[rows] & (mirror.count.view[rows] > 0)]
        ids = mirror.ids.view[rows].tolist()
        stored = engine.rows.fetch_vectors(db, ids, settings.dims)
        for row, item in zip(rows.tolist(), ids, strict=True):
            slots = mirror.first.view[row] + np.arange(mirror.count.view[row])
            wrong += mirror.index is None or item not in stored or not mirror.index.holds(slots, stored[item])
    return [f"The index holds other vectors than the rows for {wrong} items."] if wrong else []


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def rebuild(folder: Path) -> int:
    """Write the index file anew from the rows; returns the number of vectors."""
    with opened(folder, use_cache=False) as (engine, _):
        engine.save_cache()
        return len(engine.mirror.slot_row)


def compact(folder: Path) -> int:
    """Remove superseded versions and give their space back; returns how many went."""
    with opened(folder) as (engine, _):
        return engine.compact()


def export(folder: Path) -> Iterator[dict[str, Any]]:
    """Every current item as a JSON object, oldest first. Vectors are left out: an import embeds anew."""
    with opened(folder, vectors=False) as (engine, _), engine.view() as view:
        ids = view.ids(()).tolist()
        for start in range(0, len(ids), 500):
            part = ids[start : start + 500]
            rows = view.fetch(part)
            marks = ",".join("?" * len(part))
            sql = f"SELECT id, fields, expires FROM items WHERE id IN ({marks})"
            more = {row[0]: row[1:] for row in view.db.rows(sql, part)}
            for item in part:
                yield _record(view.path(rows[item]), rows[item], *more[item])


def _record(path: tuple[str, ...], row: Row, fields: str | None, expires: int | None) -> dict[str, Any]:
    record = {"namespace": list(path), "key": row.key, "value": json.loads(row.value)}
    record["created_at"], record["updated_at"] = moment(row.created).isoformat(), moment(row.updated).isoformat()
    if fields is not None:
        record["index"] = json.loads(fields)
    if row.ttl is not None and expires is not None:
        record["ttl"], record["expires_at"] = row.ttl / MINUTE, moment(expires).isoformat()
    return record


def restore(store: FaissStore, records: Iterable[dict[str, Any]], batch: int = 256) -> int:
    """Put exported records into a store, with their times; returns how many. A key that exists is overwritten."""
    count, part = 0, []
    for number, record in enumerate(records, 1):
        part.append(_checked(record, number))
        if len(part) == batch:
            count += _restore(store, part)
            part = []
    return count + _restore(store, part)


def _checked(record: Any, number: int) -> dict[str, Any]:
    known = {"namespace", "key", "value", "created_at", "updated_at", "index", "ttl", "expires_at"}
    if not isinstance(record, dict) or not {"namespace", "key", "value"} <= record.keys() <= known:
        found = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise BadValueError(f"Record {number} is not an exported item: it needs namespace, key and value, has {found}.")
    labels = record["namespace"]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise BadValueError(f"Record {number}: the namespace must be a list of strings, got {labels!r}.")
    return record


def _restore(store: FaissStore, records: list[dict[str, Any]]) -> int:
    times = {(tuple(record["namespace"]), record["key"]): record for record in records}
    ops = [PutOp(name, key, r["value"], r.get("index"), r.get("ttl")) for (name, key), r in times.items()]
    writes = []
    for write in store.prepare_writes(ops):
        record = times[write.namespace, write.key]
        created, updated, expires = (_stamp(record.get(f"{word}_at"), write.key) for word in _TIMES)
        writes.append(replace(write, created=created, updated=updated, expires=expires))
    store.commit(writes)
    return len(records)


_TIMES = ("created", "updated", "expires")


def _stamp(text: Any, key: str) -> int | None:
    if text is None:
        return None
    try:
        return (datetime.fromisoformat(text) - moment(0)) // timedelta(microseconds=1)
    except (TypeError, ValueError):
        raise BadValueError(f"The item {key!r} has the time {text!r}; write it as ISO 8601 with a zone.") from None
