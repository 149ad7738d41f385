"""Untrusted text as HTML: escaped, and with everything made visible that would otherwise act or hide."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup, escape

# Categories: Cc control, Cf format (direction marks, zero width, tags), Cs lone surrogates, Co private use,
# Zl and Zp line and paragraph separators. Line feeds and tabs are ordinary text.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_PLAIN = re.compile(r"[\n\t\x20-\x7e]*\Z")


def visible(text: object) -> Markup:
    """The text, escaped, with control and format characters shown as signs in ``<span class=ctl>``.

    ESC becomes ␛, so that an ANSI sequence can be read instead of obeyed; a right-to-left override becomes ``U+202E``.
    """
    value = text if isinstance(text, str) else str(text)
    if _PLAIN.match(value):
        return escape(value)
    parts: list[str] = []
    for char in value:
        if char not in "\n\t" and unicodedata.category(char) in _HIDDEN:
            parts.append(f'<span class="ctl" title="{_name(char)}">{_sign(char)}</span>')
        else:
            parts.append(str(escape(char)))
    return Markup("".join(parts))


def _sign(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode's control pictures
    return "␡" if code == 0x7F else f"U+{code:04X}"


def _name(char: str) -> Markup:
    return escape(unicodedata.name(char, f"U+{ord(char):04X}"))


def number(value: float | None, digits: int = 2) -> str:
    """A number with a fixed count of decimals, a true minus sign, and no ``-0.00``; a dash for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value != 0 and abs(value) < 0.5 * 10**-digits:
        return f"{value:.1e}".replace("-", "−")
    if abs(value) >= 1e6:
        return f"{value:.3g}".replace("-", "−")
    return f"{value:.{digits}f}".replace("-", "−") if value else f"{0:.{digits}f}"


def measure(value: float | None, unit: str) -> str:
    """A number with its unit; ``share`` in per cent."""
    if value is None or not math.isfinite(value):
        return number(value)
    if unit == "share":
        return f"{100 * value:.0f} %"
    return f"{number(value)} {unit}".rstrip()


def message_parts(message: Mapping[str, Any]) -> tuple[str, str]:
    """Role and text of a message in OpenAI format; tool calls and anything unusual follow as JSON."""
    role = message.get("role")
    content = message.get("content")
    lines = [content if isinstance(content, str) else as_json(content)] if content is not None else []
    lines += [f"{key}: {as_json(value)}" for key, value in message.items() if key not in ("role", "content") and value]
    return (role if isinstance(role, str) else "message", "\n".join(lines))


def as_json(value: object) -> str:
    """JSON on one line; whatever JSON cannot hold as its text."""
    return json.dumps(value, ensure_ascii=False, default=str)


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, value as text) of nested mappings, in order."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, value if isinstance(value, str) else as_json(value)
