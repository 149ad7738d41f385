"""The index file: a cache of what the rows say, so that opening a large store does not read every vector.

One file, written beside the old one and moved over it, with a checksum and a nonce that the database knows. A file that
is torn, older than a restored database or of another make is ignored and the index is rebuilt from the rows.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from memory.errors import BadValueError
from memory.index import VectorIndex
from memory.mirror import Mirror
from memory.rows import Rows
from memory.schema import LIVE, Reader

MAGIC = b"memidx01"
_BLOCK = 1 << 20


def save(mirror: Mirror, rows: Rows, path: Path) -> None:
    """Write the mirror's live rows and index; the caller holds the mirror's lock."""
    if mirror.index is None:
        return
    nonce = secrets.token_hex(16)
    head = {"nonce": nonce, "kind": mirror.index.kind, "metric": mirror.metric, "dims": mirror.dims}
    head["rows"] = len(mirror)
    part = path.with_name(f"{path.name}.{os.getpid()}.{nonce[:8]}.part")
    try:
        with part.open("wb") as file:
            checksum = _Checksum(file.write)
            header = json.dumps(head).encode()
            for data in (MAGIC, len(header).to_bytes(4, "little"), header):
                checksum(data)
            checksum(mirror.ids.view.astype("<i8").tobytes())
            checksum(mirror.count.view.astype("<i4").tobytes())
            mirror.index.write(checksum)
            file.write(checksum.value.to_bytes(4, "little"))
            file.flush()
            os.fsync(file.fileno())
        # One transaction for the move and the nonce, so that two processes cannot mix theirs.
        with rows.transaction() as db:
            os.replace(part, path)
            sync_folder(path.parent)
            rows.set_meta(db, {"cache": nonce})
    finally:
        part.unlink(missing_ok=True)


def load(mirror: Mirror, db: Reader, path: Path) -> bool:
    """Fill an empty mirror from the file; False (and the mirror left empty) where it cannot be used."""
    nonce = Rows.meta(db).get("cache")
    if nonce is None or not path.exists() or not _intact(path):
        return False
    try:
        with path.open("rb") as file:
            file.seek(len(MAGIC))
            head = json.loads(file.read(int.from_bytes(file.read(4), "little")))
            wanted = {"nonce": nonce, "metric": mirror.metric, "dims": mirror.dims}
            if {name: head.get(name) for name in wanted} != wanted or not mirror.accepts(head["kind"]):
                return False
            ids = np.frombuffer(file.read(8 * head["rows"]), "<i8").astype(np.int64)
            counts = np.frombuffer(file.read(4 * head["rows"]), "<i4").astype(np.int64)
            index = VectorIndex.read(file.read, mirror.dims, mirror.metric, head["kind"])
    except (BadValueError, RuntimeError, ValueError, KeyError, OSError):
        return False
    if len(index) != int(counts.sum()):
        return False
    return _restore(mirror, db, index, ids, counts)


def _restore(mirror: Mirror, db: Reader, index: VectorIndex, ids: NDArray[np.int64], counts: NDArray[np.int64]) -> bool:
    # Rows that died while the file was not looked at are not current, whatever the file says.
    live = current_rows(db, Rows.counters(db).generation, until=int(ids[-1]) if len(ids) else 0)
    places = np.searchsorted(ids, live[:, 0])
    known = ids[np.minimum(places, len(ids) - 1)] == live[:, 0]
    if not known.all() or (counts[places] != live[:, 2]).any():
        return False
    namespace, born, died = (np.zeros(len(ids), np.int64) for _ in range(3))
    namespace[places], born[places], died[places] = live[:, 1], live[:, 3], live[:, 4]
    mirror.restore(index, ids, namespace, counts, born, died)
    return True


def current_rows(
    db: Reader, generation: int, after: int = 0, until: int = LIVE, chunk: int = 50_000
) -> NDArray[np.int64]:
    """(n, 5) array of id, namespace, number of vectors, birth and death of the versions that are visible at or after a
    generation, ids in (after, until]."""
    parts = [np.zeros((0, 5), np.int64)]
    sql = (
        "SELECT id, namespace, vectors, born, died FROM items WHERE id > ? AND id <= ? AND died > ? ORDER BY id LIMIT ?"
    )
    while found := db.rows(sql, (after, until, generation, chunk)):
        parts.append(np.array(found, np.int64))
        after = found[-1][0]
    return np.concatenate(parts)


def _intact(path: Path) -> bool:
    """Whether the file is complete: FAISS's reader must not be fed damaged bytes."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size < len(MAGIC) + 8 or file.read(len(MAGIC)) != MAGIC:
                return False
            file.seek(0)
            return _crc(file, size - 4) == int.from_bytes(file.read(4), "little")
    except OSError:
        return False


def _crc(file: BinaryIO, left: int) -> int:
    value = 0
    while left > 0 and (data := file.read(min(left, _BLOCK))):
        value = zlib.crc32(data, value)
        left -= len(data)
    return value


class _Checksum:
    """Writes bytes on and keeps their CRC-32."""

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        self._write = write
        self.value = 0

    def __call__(self, data: Any) -> int:
        data = bytes(data)
        self.value = zlib.crc32(data, self.value)
        self._write(data)
        return len(data)


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
