"""Trace files: JSON lines, append-only. The first line is a header with the schema version and manifest.

Reading streams. A line that is cut or damaged is not a trace: the whole lines around it are used, and what was lost is said.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from agentcore.errors import TraceFormatError
from agentcore.trace import SCHEMA_VERSION, Trace

TRACE_ADAPTER: TypeAdapter[Trace] = TypeAdapter(Trace)


class TraceWriter:
    """Appends traces to a file. A trace whose ``write`` returned survives the process being killed."""

    def __init__(self, path: str | Path, manifest: dict[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab")
        if self._file.tell() == 0:
            self._line({"type": "header", "schema": SCHEMA_VERSION, "manifest": manifest or {}})
        else:
            self._mend()

    def _mend(self) -> None:
        """End a line that an earlier process left half written, so that it does not swallow the next one."""
        with self.path.open("rb") as handle:
            handle.seek(-1, os.SEEK_END)
            if handle.read(1) != b"\n":
                self._file.write(b"\n")

    def write(self, trace: Trace) -> None:
        self._line({"type": "trace", "trace": TRACE_ADAPTER.dump_python(trace, mode="json")})

    def _line(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n")
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
        cut = "" if line.endswith(b"\n") else " (the file ends in the middle of it)"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            self.problems.append(f"{self.path}: line {number} is not whole JSON{cut}; it was skipped.")
            return None
        kind = record.get("type") if isinstance(record, dict) else None
        if kind == "header":
            if record.get("schema") != SCHEMA_VERSION:
                raise TraceFormatError(
                    f"{self.path} has trace schema {record.get('schema')!r}; this version reads {SCHEMA_VERSION}."
                )
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
            where = ".".join(str(p) for p in first["loc"])
            self.problems.append(f"{self.path}: line {number} is not a valid trace ({where}: {first['msg']}); skipped.")
            return None


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
