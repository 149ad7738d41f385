"""Filters on values and match conditions on namespaces, with LangGraph's operators and no surprises.

Comparison is by JSON type: a number is ordered only against a number, a string only against a string (so ISO dates
order as text), and ``true`` is not ``1``. A missing field satisfies ``$ne`` and equality with ``None``, and no
ordering.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from langgraph.store.base import MatchCondition

from memory.errors import BadValueError

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
OPERATORS = ("$eq", "$ne", *_ORDER)


def check_filter(condition: object) -> None:
    """Raise :class:`BadValueError` for an operator that does not exist, before any item is looked at."""
    if not isinstance(condition, Mapping):
        return
    named = [key for key in condition if isinstance(key, str) and key.startswith("$")]
    for key, inner in condition.items():
        if named and key not in OPERATORS:
            raise BadValueError(f"Unknown filter operator {key!r}. Use one of {', '.join(OPERATORS)}.")
        if not named:
            check_filter(inner)


def matches(value: Mapping[str, Any], condition: Mapping[str, Any] | None) -> bool:
    """Whether a stored value satisfies every entry of a filter (checked by :func:`check_filter` before)."""
    return all(compare(value.get(key), wanted) for key, wanted in (condition or {}).items())


def compare(value: Any, wanted: Any) -> bool:
    """Whether one field's value (None where missing) satisfies its condition."""
    if isinstance(wanted, Mapping):
        if any(isinstance(key, str) and key.startswith("$") for key in wanted):
            return all(_operate(value, name, operand) for name, operand in wanted.items())
        return isinstance(value, Mapping) and all(compare(value.get(key), inner) for key, inner in wanted.items())
    if isinstance(wanted, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(wanted):
            return False
        return all(compare(item, inner) for item, inner in zip(value, wanted, strict=True))
    return json_equal(value, wanted)


def json_equal(left: Any, right: Any) -> bool:
    """Equality of JSON values: numbers by value, booleans only with booleans."""
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool) and left == right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(json_equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(json_equal(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


def _operate(value: Any, name: str, operand: Any) -> bool:
    if name == "$eq":
        return json_equal(value, operand)
    if name == "$ne":
        return not json_equal(value, operand)
    if name not in _ORDER:
        raise BadValueError(f"Unknown filter operator {name!r}. Use one of {', '.join(OPERATORS)}.")
    both_numbers = _is_number(value) and _is_number(operand)
    both_strings = isinstance(value, str) and isinstance(operand, str)
    return (both_numbers or both_strings) and _ORDER[name](value, operand)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def namespace_matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    """Whether a namespace meets one prefix or suffix condition; ``*`` stands for any one label."""
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    if condition.match_type == "prefix":
        part = namespace[: len(path)]
    elif condition.match_type == "suffix":
        part = namespace[len(namespace) - len(path) :]
    else:
        raise BadValueError(f"Unknown namespace match type {condition.match_type!r}. Use 'prefix' or 'suffix'.")
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
