"""Plain JSON data: what a trace, a checkpoint or a file can hold, whatever came in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """The value as JSON data; what JSON has no form for becomes text."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # lone surrogates
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {plain(str(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    return plain(str(value))
