"""What every store here does with a batch of LangGraph operations before it touches data."""

from __future__ import annotations

import asyncio
import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
    get_text_at_path,
    validate_op_namespace,
)

from memory.embedding import Embedder, Vectors
from memory.errors import BadValueError
from memory.filters import check_filter
from memory.index import Metric, prepare
from memory.schema import MINUTE, Write


@dataclass(slots=True)
class Put:
    """One put or delete, checked, with the texts it indexes."""

    namespace: tuple[str, ...]
    key: str
    value: str | None
    fields: str | None = None
    ttl: int | None = None
    texts: list[int] = field(default_factory=list)
    """Positions in :attr:`Plan.texts`."""


@dataclass(slots=True)
class Plan:
    """A batch, checked, with everything that has to be embedded."""

    ops: list[Op]
    puts: list[Put] = field(default_factory=list)
    """The last put of each key, in order."""
    texts: list[str] = field(default_factory=list)
    """Distinct texts to embed as documents."""
    queries: list[str] = field(default_factory=list)
    """Distinct texts to embed as queries."""


class BatchStore(BaseStore):
    """A LangGraph store whose operations all go through :meth:`_run`, sync and async alike.

    Within a batch reads see the state before its puts, and the last put of a key wins.
    """

    supports_ttl = True

    def __init__(self, embedder: Embedder | None, fields: Sequence[str], metric: Metric, ttl: TTLConfig | None) -> None:
        self.embedder = embedder
        self.fields = tuple(fields)
        self.metric = metric
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations; one result per operation, in order."""
        plan = self._plan(ops)
        if self.embedder is None:
            return self._run(plan, {}, [])
        queries, documents = self.embedder.queries(plan.queries), self.embedder.documents(plan.texts)
        return self._run(plan, *self._prepared(plan, queries, documents))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations without blocking the event loop; one result per operation, in order."""
        plan = self._plan(ops)
        if self.embedder is None:
            return await asyncio.to_thread(self._run, plan, {}, [])
        queries = await self.embedder.aqueries(plan.queries)
        documents = await self.embedder.adocuments(plan.texts)
        return await asyncio.to_thread(self._run, plan, *self._prepared(plan, queries, documents))

    @abstractmethod
    def _run(self, plan: Plan, queries: Mapping[str, Vectors], documents: Sequence[Vectors]) -> list[Result]:
        """Execute a checked batch, given its queries' and texts' vectors, prepared for the metric."""

    def _plan(self, ops: Iterable[Op]) -> Plan:
        plan = Plan(list(ops))
        puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
        queries: dict[str, None] = {}
        for op in plan.ops:
            validate_op_namespace(op)
            if isinstance(op, PutOp):
                _check_key(op)
                puts.pop((tuple(op.namespace), op.key), None)
                puts[(tuple(op.namespace), op.key)] = op
            elif isinstance(op, SearchOp):
                _check_page(op.limit, op.offset)
                check_filter(op.filter)
                if op.query and self.embedder is not None:
                    queries[op.query] = None
            elif isinstance(op, ListNamespacesOp):
                _check_page(op.limit, op.offset)
            elif not isinstance(op, GetOp):
                raise BadValueError(f"Unknown operation {type(op).__name__}; LangGraph has Get, Put, Search and List.")
        places: dict[str, int] = {}
        plan.puts = [self._put(op, places) for op in puts.values()]
        plan.texts, plan.queries = list(places), list(queries)
        return plan

    def _put(self, op: PutOp, places: dict[str, int]) -> Put:
        if op.value is None:
            return Put(tuple(op.namespace), op.key, None)
        where = f"{'/'.join(op.namespace)}/{op.key}"
        put = Put(tuple(op.namespace), op.key, encode(op.value, where), ttl=_microseconds(op.ttl, where))
        if op.index is not None:
            put.fields = json.dumps(op.index)
        if op.index is False or self.embedder is None:
            return put
        value = json.loads(put.value or "{}")
        for path in self.fields if op.index is None else op.index:
            for text in get_text_at_path(value, path):
                # An empty text has no meaning to be near to.
                if text.strip() and (place := places.setdefault(text, len(places))) not in put.texts:
                    put.texts.append(place)
        return put

    def _prepared(self, plan: Plan, queries: Vectors, documents: Vectors) -> tuple[dict[str, Vectors], list[Vectors]]:
        by_query = dict(zip(plan.queries, prepare(queries, self.metric), strict=True)) if plan.queries else {}
        return by_query, list(prepare(documents, self.metric)) if plan.texts else []


def as_write(put: Put, documents: Sequence[Vectors]) -> Write:
    """The row a put becomes."""
    vectors = np.stack([documents[place] for place in put.texts]) if put.texts else None
    return Write(put.namespace, put.key, put.value, vectors, put.fields, put.ttl)


def encode(value: Any, where: str) -> str:
    """A put's value as JSON text; raises :class:`BadValueError` where JSON would lose something."""
    if not isinstance(value, Mapping):
        raise BadValueError(f"The value of {where} is a {type(value).__name__}; a store holds dicts.")
    try:
        return json.dumps(_plain(value, where), allow_nan=False)
    except ValueError:
        raise BadValueError(f"The value of {where} holds NaN or infinity, which JSON has no word for.") from None


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise BadValueError(f"The value of {where} has the key {key!r}; JSON keys are strings.")
        return {key: _plain(inner, where) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, where) for inner in value]
    raise BadValueError(
        f"The value of {where} holds a {type(value).__name__}, which is not JSON. Store str, int, float, bool, None, "
        "lists and dicts."
    )


def _check_key(op: PutOp) -> None:
    if not op.namespace:
        raise InvalidNamespaceError("Namespace cannot be empty: name at least one label to put an item under.")
    if not isinstance(op.key, str):
        raise BadValueError(f"The key {op.key!r} under {op.namespace} is a {type(op.key).__name__}; keys are strings.")
    try:
        "".join((op.key, *op.namespace)).encode()
    except UnicodeEncodeError:
        raise BadValueError(f"The key {op.key!r} under {op.namespace} holds a lone surrogate, so is no text.") from None


def _check_page(limit: int, offset: int) -> None:
    if limit < 0 or offset < 0:
        raise BadValueError(f"limit and offset must not be negative, got limit={limit}, offset={offset}.")


def _microseconds(ttl: float | None, where: str) -> int | None:
    if ttl is None:
        return None
    if not (ttl > 0 and math.isfinite(ttl)):
        raise BadValueError(f"The ttl of {where} is {ttl} minutes; it must be positive and finite, or None for ever.")
    # 70,000 years; a longer one must not overflow the database's integers.
    return max(1, min(int(ttl * MINUTE), 2**61))
