"""Trace files: JSON lines, append-only. The first line is a header with the schema version and manifest.

Reading streams. A line that is cut or damaged is not a trace: the whole lines around it are used, and what was lost
is said.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from agentcore.errors import TraceFormatError
from agentcore.plain import plain
from agentcore.trace import SCHEMA_VERSION, Trace

TRACE_ADAPTER: TypeAdapter[Trace] = TypeAdapter(Trace)
_HEADER = b'{"type": "header"'
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escape that may be half a character, which no text can hold."""


class TraceWriter:
    """Appends traces to a file. A trace whose ``write`` returned survives the process being killed.

    Raises:
        TraceFormatError: if the file holds traces of another schema, or no traces at all.
    """

    def __init__(self, path: str | Path, manifest: dict[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begun = self._begun()
        self._file = self.path.open("ab")
        if not begun:
            self._line({"type": "header", "schema": SCHEMA_VERSION, "manifest": manifest or {}})

    def _begun(self) -> bool:
        """Whether the file starts with our header. What a killed process left half written is ended, or overwritten."""
        if not self.path.exists() or self.path.stat().st_size == 0:
            return False
        with self.path.open("r+b") as handle:
            first = handle.readline()
            header = _json(first)
            if header is None and not first.endswith(b"\n") and _HEADER.startswith(first[: len(_HEADER)]):
                handle.truncate(0)  # killed while it wrote the header: nothing is lost
                return False
            if not isinstance(header, dict) or header.get("type") not in ("header", "trace"):
                raise TraceFormatError(f"{self.path} is not a trace file; nothing was written. Name another file.")
            if header["type"] == "header":
                _check_schema(self.path, header)
            handle.seek(-1, os.SEEK_END)
            if handle.read(1) != b"\n":
                handle.write(b"\n")
        return True

    def write(self, trace: Trace) -> None:
        """Append one trace; on the disk when this returns."""
        self._line({"type": "trace", "trace": TRACE_ADAPTER.dump_python(trace, mode="json")})

    def _line(self, record: dict[str, Any]) -> None:
        # a lone surrogate (from a tool's broken text) can't be written as UTF-8; it becomes a question mark
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class TraceReader:
    """Iterates over a file's traces; ``problems`` lists the lines that could not be read, with the reason."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Any] = {}
        self.problems: list[str] = []
        if not self.path.is_file():
            raise TraceFormatError(f"No trace file at {self.path}.")

    def __iter__(self) -> Iterator[Trace]:
        self.problems.clear()
        with self.path.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                if not line.strip():
                    continue
                trace = self._read(number, line)
                if trace is not None:
                    yield trace

    def _read(self, number: int, line: bytes) -> Trace | None:
        record = _json(line)
        if record is None:
            cut = "" if line.endswith(b"\n") else " (the file ends in the middle of it)"
            self.problems.append(f"{self.path}: line {number} is not whole JSON{cut}; it was skipped.")
            return None
        kind = record.get("type") if isinstance(record, dict) else None
        if kind == "header":
            _check_schema(self.path, record)
            manifest = record.get("manifest")
            self.manifest = manifest if isinstance(manifest, dict) else {}
            return None
        if kind != "trace":
            self.problems.append(f"{self.path}: line {number} is not a trace record; it was skipped.")
            return None
        try:
            return TRACE_ADAPTER.validate_python(record.get("trace"))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(p) for p in first["loc"]).encode("utf-8", "replace").decode()
            self.problems.append(f"{self.path}: line {number} is not a valid trace ({where}: {first['msg']}); skipped.")
            return None


def _json(line: bytes) -> Any:
    """The JSON value of a line; None if it is not one, or holds a number that is not finite."""
    try:
        value = json.loads(line, parse_float=_finite, parse_constant=_finite)
        return plain(value) if _SURROGATE.search(line) else value
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _check_schema(path: Path, header: dict[str, Any]) -> None:
    if header.get("schema") != SCHEMA_VERSION:
        found = header.get("schema")
        raise TraceFormatError(f"{path} has trace schema {found!r}; this version reads {SCHEMA_VERSION}.")


def read_traces(path: str | Path) -> tuple[list[Trace], list[str]]:
    """All traces of a file, and what could not be read. For large files iterate over :class:`TraceReader`.

    Raises:
        TraceFormatError: if there is no such file, its schema is another, or it holds nothing but damage.
    """
    reader = TraceReader(path)
    traces = list(reader)
    if not traces and reader.problems:
        raise TraceFormatError(f"{path} holds no readable trace. First problem: {reader.problems[0]}")
    return traces, reader.problems
