"""The settings a store keeps, and the refusal to open it with others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from memory.embedding import PROBE, Embedder, Vectors
from memory.errors import StoreConfigError
from memory.index import Metric
from memory.rows import Rows
from memory.schema import Reader, pack, unpack

SAME = 0.999
"""Cosine above which two embeddings of one text count as the same embedder's (hardware rounds differently)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a store was made with."""

    dims: int
    """0 where it has no semantic search."""
    embedder: str
    metric: Metric
    fields: tuple[str, ...]


def settle(rows: Rows, embedder: Embedder | None, fields: Sequence[str] | None, metric: Metric | None) -> Settings:
    """The settings of a store: those it has, checked against what was asked for, or those asked for if it is new."""
    probe = None if embedder is None or embedder.async_only else embedder.documents([PROBE])[0]
    dims = 0 if embedder is None else embedder.dims
    if dims is None:
        raise StoreConfigError("An async embedding function cannot be tried out on opening: pass dims=… with it.")
    name = "none" if embedder is None else embedder.name
    asked = Settings(dims, name, metric or "cosine", tuple(fields or ("$",)))
    with rows.transaction() as db:
        meta = rows.meta(Reader(db))
        if "dims" not in meta:
            rows.set_meta(db, _entries(asked, probe))
            return asked
        kept = read_settings(meta)
        # A store may be opened without its embedder only if it never had one: its puts would not be found.
        if kept.dims != dims:
            raise StoreConfigError(_refusal(rows, kept, f"{name!r} with {dims} dimensions"))
        if probe is not None and "probe" in meta and not _same(unpack(bytes.fromhex(meta["probe"]), dims)[0], probe):
            raise StoreConfigError(_refusal(rows, kept, f"{name!r}, whose vectors for the same text differ"))
        for word, old, new in (("metric", kept.metric, metric), ("fields", list(kept.fields), fields)):
            if new is not None and (list(new) if word == "fields" else new) != old:
                raise StoreConfigError(
                    f"The store {rows.path} was made with {word}={old!r}, not {new!r}. Leave {word} out to use the "
                    "store as it is, or export it and import it into a new store."
                )
        if probe is not None and "probe" not in meta:
            rows.set_meta(db, _entries(kept, probe))
    return kept


def read_settings(meta: dict[str, str]) -> Settings:
    """The settings a database holds."""
    return Settings(
        int(meta["dims"]), meta["embedder"], cast(Metric, meta["metric"]), tuple(json.loads(meta["fields"]))
    )


def _entries(settings: Settings, probe: Vectors | None) -> dict[str, str]:
    entries = {
        "dims": str(settings.dims),
        "embedder": settings.embedder,
        "metric": settings.metric,
        "fields": json.dumps(settings.fields),
    }
    return entries if probe is None else {**entries, "probe": pack(probe).hex()}


def _same(old: Vectors, new: Vectors) -> bool:
    norms = float(np.linalg.norm(old) * np.linalg.norm(new))
    return bool(np.array_equal(old, new)) if norms == 0 else float(old @ new) / norms > SAME


def _refusal(rows: Rows, kept: Settings, given: str) -> str:
    had = f"{kept.embedder!r} with {kept.dims} dimensions" if kept.dims else "no embedder"
    return (
        f"The store {rows.path} was made with {had}; it was opened with {given}. Open it with the embedder it was made "
        "with, or move its items: 'agentcore memory export' here, 'agentcore memory import' into a new store."
    )
