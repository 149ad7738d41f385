"""Growing arrays, and values of filtered fields as columns, so that a filter costs no JSON parsing per search."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory.filters import compare
from memory.rows import Rows

EXACT = 2**53
"""Up to here a float holds every integer."""
_ORDER: dict[str, Any] = {
    "$gt": np.greater,
    "$gte": np.greater_equal,
    "$lt": np.less,
    "$lte": np.less_equal,
}


class Grown:
    """A one-dimensional array that grows at its end in amortised constant time."""

    def __init__(self, dtype: Any) -> None:
        self._data: NDArray[Any] = np.empty(16, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> NDArray[Any]:
        """The filled part; writing to it writes to the array. Not to be kept across :meth:`extend`."""
        return self._data[: self._size]

    def extend(self, values: Any) -> None:
        """Append values."""
        values = np.asarray(values, self._data.dtype)
        size = self._size + len(values)
        if size > len(self._data):
            data = np.empty(max(size, 2 * len(self._data)), self._data.dtype)
            data[: self._size] = self._data[: self._size]
            self._data = data
        self._data[self._size : size] = values
        self._size = size


class _Column:
    """One top-level field of every row: a code per row, and the distinct value each code stands for."""

    def __init__(self) -> None:
        self.codes = Grown(np.int32)
        self.values: list[Any] = [None]
        """Code 0 is a missing field or null."""
        self._lookup: dict[str, int] = {"null": 0}
        self._numbers = Grown(np.float64)
        """The distinct values as floats, NaN where they are no numbers that a float holds exactly."""
        self._numbers.extend([np.nan])
        self._inexact = False

    def append(self, values: list[Any]) -> None:
        codes = []
        for value in values:
            text = _canonical(value)
            if (code := self._lookup.get(text)) is None:
                code = self._lookup[text] = len(self.values)
                self.values.append(value)
                self._numbers.extend([self._number(value)])
            codes.append(code)
        self.codes.extend(codes)

    def _number(self, value: Any) -> float:
        if _is_exact(value):
            return float(value)
        self._inexact = self._inexact or (isinstance(value, (int, float)) and not isinstance(value, bool))
        return float("nan")

    def passing(self, wanted: Any, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each row, whether its value satisfies a condition; a distinct value is compared once at most."""
        codes = self.codes.view[rows]
        operands = wanted if isinstance(wanted, dict) else {"$eq": wanted}
        if set(operands) == {"$eq"} and isinstance(operands["$eq"], (str, bool, int, float)):
            return np.asarray(codes == self._lookup.get(_canonical(operands["$eq"]), -1))
        ordered = bool(operands) and set(operands) <= _ORDER.keys() and not self._inexact
        if ordered and all(_is_exact(operand) for operand in operands.values()):
            passing = np.ones(len(self.values), bool)
            for name, operand in operands.items():
                passing &= _ORDER[name](self._numbers.view, operand)
            return np.asarray(passing[codes])
        if len(self.values) <= 2 * len(rows) + 16:
            passing = np.fromiter((compare(value, wanted) for value in self.values), bool, len(self.values))
            return np.asarray(passing[codes])
        present, inverse = np.unique(codes, return_inverse=True)
        return np.asarray(np.array([compare(self.values[code], wanted) for code in present], bool)[inverse])


def _is_exact(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= EXACT


def _canonical(value: Any) -> str:
    # 2.0 and 2 are the same number, so they share a code.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


class FilterColumns:
    """Columns for the fields that filters have asked for, filled from the rows on first use."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._columns: dict[str, _Column] = {}
        # Readers of the mirror run together; only one of them may fill a column.
        self._lock = threading.Lock()

    def select(self, ids: NDArray[np.int64], rows: NDArray[np.int64], condition: dict[str, Any]) -> NDArray[np.int64]:
        """Those of ``rows`` (positions in ``ids``) whose values meet every entry of the filter."""
        if not len(rows):
            return rows
        with self._lock:
            self._fill(ids, list(condition))
            for key, wanted in condition.items():
                rows = rows[self._columns[key].passing(wanted, rows)]
                if not len(rows):
                    break
        return rows

    def _fill(self, ids: NDArray[np.int64], keys: list[str], chunk: int = 20_000) -> None:
        behind: dict[int, list[str]] = {}
        for key in keys:
            column = self._columns.setdefault(key, _Column())
            if len(column.codes) < len(ids):
                behind.setdefault(len(column.codes), []).append(key)
        for start, names in behind.items():
            for begin in range(start, len(ids), chunk):
                part = ids[begin : begin + chunk]
                # A fresh view, not the search's own: rows that other threads have just mirrored must be found.
                with self._rows.reader() as db:
                    sql = "SELECT id, value FROM items WHERE id BETWEEN ? AND ?"
                    found = {item: text for item, text in db.rows(sql, (int(part[0]), int(part[-1])))}
                values = [json.loads(found[item]) if item in found else {} for item in part.tolist()]
                for name in names:
                    self._columns[name].append([value.get(name) for value in values])

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Follow a compaction that keeps only ``rows``."""
        for column in self._columns.values():
            codes = column.codes.view
            kept = codes[rows[rows < len(codes)]].copy()
            column.codes = Grown(np.int32)
            column.codes.extend(kept)
