"""Answers to reading operations, as LangGraph wants them: fresh copies, aware times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from langgraph.store.base import GetOp, Item, ListNamespacesOp, Op, Result, SearchItem, SearchOp

from memory.embedding import Vectors
from memory.filters import namespace_matches
from memory.view import View

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read(view: View, op: Op, queries: Mapping[str, Vectors], used: list[int]) -> Result:
    """The result of one reading operation; ids whose time to live the read restarts are added to ``used``."""
    if isinstance(op, GetOp):
        row = view.find(tuple(op.namespace), op.key)
        if row is None:
            return None
        if row.ttl is not None and op.refresh_ttl:
            used.append(row.id)
        return item(tuple(op.namespace), row.key, row.value, row.created, row.updated)
    if isinstance(op, ListNamespacesOp):
        return list_page(op, view.tally())
    if not isinstance(op, SearchOp):
        return None
    query = queries.get(op.query) if op.query else None
    page = view.rank(tuple(op.namespace_prefix), op.filter, query, op.offset + op.limit)[op.offset :]
    rows = view.fetch([number for number, _ in page])
    found = [(rows[number], score) for number, score in page if number in rows]
    if op.refresh_ttl:
        used.extend(row.id for row, _ in found if row.ttl is not None)
    return [search_item(view.path(row), row.key, row.value, row.created, row.updated, score) for row, score in found]


def moment(microseconds: int) -> datetime:
    """A stored time as an aware UTC datetime."""
    return _EPOCH + timedelta(microseconds=microseconds)


def item(namespace: tuple[str, ...], key: str, value: str, created: int, updated: int) -> Item:
    """What ``get`` returns; the value is a fresh copy."""
    return Item(
        value=json.loads(value), key=key, namespace=namespace, created_at=moment(created), updated_at=moment(updated)
    )


def search_item(
    namespace: tuple[str, ...], key: str, value: str, created: int, updated: int, score: float | None
) -> SearchItem:
    """What ``search`` returns; the value is a fresh copy."""
    return SearchItem(namespace, key, json.loads(value), moment(created), moment(updated), score)


def list_page(op: ListNamespacesOp, namespaces: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The namespaces an operation asks for, sorted."""
    conditions = op.match_conditions or ()
    found = {path for path in namespaces if all(namespace_matches(condition, path) for condition in conditions)}
    if op.max_depth is not None:
        found = {path[: op.max_depth] for path in found}
    return sorted(found)[op.offset : op.offset + op.limit]
