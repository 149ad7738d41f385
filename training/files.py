"""Files that outlive a killed process: written whole, appended line by line, folders put in place in one go."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write atomically."""
    partial = partial_of(path)
    with partial.open("w") as handle:
        json.dump(dict(data), handle, indent=2, default=str)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(partial, path)


def append_json(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line and see it on disk. A line that a killed process left half written stays a line of its own."""
    with path.open("ab+") as handle:
        if handle.tell():
            handle.seek(-1, os.SEEK_END)
            if handle.read(1) != b"\n":
                handle.write(b"\n")
        handle.write(json.dumps(dict(record), default=str).encode() + b"\n")
        handle.flush()
        os.fsync(handle.fileno())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a file that may have been cut; an absent file has none."""
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue  # the line a killed process was writing
    return records


def cut_back(path: Path, size: int, aside: Path) -> None:
    """Shorten a file of lines to ``size`` bytes; what came after is kept in ``aside``."""
    if not path.exists() or path.stat().st_size <= size:
        return
    with path.open("rb+") as handle:
        handle.seek(size)
        aside.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("ab") as kept:
            shutil.copyfileobj(handle, kept)
            kept.write(b"\n")
            kept.flush()
            os.fsync(kept.fileno())
        handle.truncate(size)


def partial_of(path: Path) -> Path:
    """A hidden name beside ``path`` for what is not finished; :func:`mend` removes what a killed process left there."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")


def put_in_place(source: Path, target: Path) -> None:
    """Make the finished folder ``source`` the folder ``target``, in place of an earlier one."""
    old = _old(target)
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(source, target)  # killed just before this, the earlier one is brought back by mend()
    shutil.rmtree(old, ignore_errors=True)


def copy_in_place(source: Path, target: Path) -> None:
    """Make ``target`` a copy of the folder ``source``, whole or not at all."""
    partial = partial_of(target)
    shutil.copytree(source, partial)
    put_in_place(partial, target)


def mend(folder: Path) -> None:
    """Tidy what a killed process left in ``folder``: what is half written goes, what was being replaced comes back."""
    for path in sorted(folder.glob(".*")):
        if path.name.endswith(".old"):
            target = folder / path.name.removeprefix(".").removesuffix(".old")
            if target.exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.replace(path, target)
        elif path.name.endswith(".partial"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _old(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")
