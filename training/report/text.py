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
# Names, not the control pictures of U+2400: few fonts have those.
_C0 = (
    "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US"
)
_PLAIN = re.compile(r"[\n\t\x20-\x7e]*\Z")


def visible(text: object) -> Markup:
    """The text, escaped, with control and format characters shown as signs in ``<span class=ctl>``.

    So an ANSI sequence can be read instead of obeyed: its first character shows as ``ESC``, a right-to-left override as
    ``U+202E``.
    """
    value = text if isinstance(text, str) else str(text)
    if _PLAIN.match(value):
        return escape(value)
    return Markup("".join(_span(char) if _is_hidden(char) else str(escape(char)) for char in value))


def plain(text: object) -> str:
    """As :func:`visible`, as plain text: for attributes, and inside SVG, which no ``<span>`` may enter."""
    return "".join(f"⟨{_sign(char)}⟩" if _is_hidden(char) else char for char in str(text))


def _is_hidden(char: str) -> bool:
    return char not in "\n\t" and unicodedata.category(char) in _HIDDEN


def _span(char: str) -> str:
    name = escape(unicodedata.name(char, f"U+{ord(char):04X}"))
    return f'<span class="ctl" title="{name}">{_sign(char)}</span>'


def _sign(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return _C0.split()[code]
    return "DEL" if code == 0x7F else f"U+{code:04X}"


def number(value: float | None, digits: int = 2) -> str:
    """A number with a fixed count of decimals (more for a small one: only zero is ``0.00``) and a true minus sign.

    A dash for None.
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value != 0 and abs(value) < 0.5 * 10**-digits:
        if abs(value) >= 0.5 * 10 ** -(digits + 2):
            return f"{value:.1g}".replace("-", "−")
        return f"{value:.1e}".replace("-", "−")
    if abs(value) >= 1e6:
        return f"{value:.3g}".replace("-", "−")
    return f"{value:.{digits}f}".replace("-", "−") if value else f"{0:.{digits}f}"


def measure(value: float | None, unit: str) -> str:
    """A number with its unit; ``share`` in per cent."""
    if value is None or not math.isfinite(value):
        return number(value)
    if unit == "share":
        return f"{100 * value:.0f} %".replace("-", "−")
    return f"{number(value)} {unit}".rstrip()


def interval(low: float, high: float, unit: str) -> str:
    """Both ends of an interval, without repeating a sign of unit: ``29 – 47 %``."""
    ends = [measure(end, "share" if unit == "share" else "") for end in (low, high)]
    return f"{ends[0].removesuffix(' %')} – {ends[1]}"


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
