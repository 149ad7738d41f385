"""How tools are described to a model, and how the calls it writes are read back.

Two formats: ``CompactFormat`` writes a call as ``lookup(name="amber")``, a third of the tokens of JSON and easy for a
small model; ``HermesFormat`` writes JSON inside ``<tool_call>`` tags, as Hermes and Qwen models do. Reading
never raises and never drops a call: what cannot be run is kept as a :class:`ToolCall` with an error.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentcore.environment import Json, ToolCall

_LONGEST_CALL = 20_000
"""Characters after which a call that has not been closed is given up."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call found in a reply, with the characters ``[start, end)`` it was read from."""

    call: ToolCall
    start: int
    end: int


class ToolFormat(Protocol):
    """Describes tools, writes calls, reads calls."""

    name: str

    def describe(self, tools: Sequence[Json]) -> str:
        """System prompt text that offers ``tools`` (OpenAI format)."""
        ...

    def write(self, name: str, args: Mapping[str, Any]) -> str:
        """One call as the model should write it."""
        ...

    def parse(self, text: str, tools: Sequence[Json], call_prefix: str) -> list[ParsedCall]:
        """The calls in a reply, in order; call ids are ``{call_prefix}-{i}``."""
        ...


def _function(tool: Json) -> Json:
    function: Json = tool.get("function", tool)
    return function


def _properties(tool: Json) -> Json:
    properties: Json = _function(tool).get("parameters", {}).get("properties", {})
    return properties


class CompactFormat:
    """``name(argument=value)``, one call a line."""

    name = "compact"

    def describe(self, tools: Sequence[Json]) -> str:
        lines = ["Use tools. Write one call per turn and nothing else."]
        for tool in tools:
            function = _function(tool)
            arguments = ", ".join(_properties(tool))
            lines.append(f"{function['name']}({arguments}): {function.get('description', '')}")
        return "\n".join(lines)

    def write(self, name: str, args: Mapping[str, Any]) -> str:
        parts = [f"{k}={_literal(v)}" for k, v in args.items() if _is_plain(k)]
        odd = {k: v for k, v in args.items() if not _is_plain(k)}
        return f"{name}({', '.join([*parts, f'**{odd!r}'] if odd else parts)})"

    def parse(self, text: str, tools: Sequence[Json], call_prefix: str) -> list[ParsedCall]:
        by_name = {_function(t)["name"]: t for t in tools}
        known = "|".join(re.escape(n) for n in sorted(by_name, key=len, reverse=True))
        # a known tool's name anywhere, or a line that starts like a call of something
        pattern = re.compile((rf"(?<![\w-])(?:{known})\(|" if known else "") + r"^[ \t]*[A-Za-z_]\w*\(", re.MULTILINE)
        found: list[ParsedCall] = []
        position = 0
        while (match := pattern.search(text, position)) is not None:
            start = match.start() + len(match.group()) - len(match.group().lstrip())
            end = _closing(text, match.end())
            raw = text[start : end if end is not None else _line_end(text, start)]
            call = self._read(raw, by_name, f"{call_prefix}-{len(found)}", closed=end is not None)
            found.append(ParsedCall(call, start, start + len(raw)))
            position = start + len(raw)
        return found

    @staticmethod
    def _read(raw: str, by_name: Mapping[str, Json], call_id: str, *, closed: bool) -> ToolCall:
        name = raw.split("(", 1)[0]
        if not closed:
            return ToolCall(call_id, name, error=f"the call of {name} has no closing parenthesis", raw=raw)
        known = name in by_name
        parameters = list(_properties(by_name[name])) if known else []
        try:
            args = _storable(_arguments(raw[len(name) :], parameters))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            if not known:
                return ToolCall(call_id, name, error=f"there is no tool {name[:40]!r}", raw=raw)
            form = f"{name}({', '.join(f'{p}=…' for p in parameters)})"
            return ToolCall(call_id, name, error=f"the arguments can't be read; write {form}", raw=raw)
        return ToolCall(call_id, name, args, error=None if known else f"there is no tool {name[:40]!r}", raw=raw)


def _arguments(text: str, parameters: Sequence[str]) -> Json:
    """The arguments written in ``text``, a parenthesis with Python literals; positional ones by ``parameters``.

    Raises:
        ValueError, SyntaxError, TypeError, RecursionError, MemoryError: if it holds anything else.
    """
    node = ast.parse(f"f{text}", mode="eval").body
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    if len(node.args) > len(parameters):
        raise ValueError("too many arguments")
    pairs = [(parameters[i], ast.literal_eval(a)) for i, a in enumerate(node.args)]
    for word in node.keywords:
        value = ast.literal_eval(word.value)
        if word.arg is not None:
            pairs.append((word.arg, value))
        elif isinstance(value, dict):  # how write() gives names that are no identifiers
            pairs += value.items()
        else:
            raise ValueError("** needs an object")
    args = dict(pairs)
    if len(args) < len(pairs):
        raise ValueError("an argument is given twice")
    return args


def _storable(value: Any) -> Any:
    """The value as plain JSON data.

    Raises:
        ValueError, TypeError, RecursionError: if it holds what no trace can store: NaN, bytes, a lone surrogate.
    """
    return json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"


def _literal(value: Any) -> str:
    """A JSON value as a Python literal, strings in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _closing(text: str, start: int) -> int | None:
    """Index after the parenthesis that closes the one before ``start``, quotes respected; None if there is none."""
    depth, quote, i = 1, "", start
    while i < min(len(text), start + _LONGEST_CALL):
        ch = text[i]
        if quote:
            if ch == "\\":
                i += 1
            elif ch == quote:
                quote = ""
        elif ch in "\"'":
            quote = ch
        elif ch in "([{":
            depth += 1
        elif ch in ")]}":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return None


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


class HermesFormat:
    """JSON inside ``<tool_call>`` tags."""

    name = "hermes"
    _block = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)

    def describe(self, tools: Sequence[Json]) -> str:
        listed = "\n".join(json.dumps(t, ensure_ascii=False) for t in tools)
        return (
            "You may call functions. They are described in <tools></tools>:\n"
            f"<tools>\n{listed}\n</tools>\n"
            'For each call write: <tool_call>\n{"name": <name>, "arguments": <arguments object>}\n</tool_call>'
        )

    def write(self, name: str, args: Mapping[str, Any]) -> str:
        body = json.dumps({"name": name, "arguments": dict(args)}, ensure_ascii=False)
        if "tool_call>" in body:  # an argument that quotes the tags must not end the block
            body = body.replace("<", "\\u003c")
        return f"<tool_call>\n{body}\n</tool_call>"

    def parse(self, text: str, tools: Sequence[Json], call_prefix: str) -> list[ParsedCall]:
        names = {_function(t)["name"] for t in tools}
        found = []
        for i, match in enumerate(self._block.finditer(text)):
            call = self._read(match.group(1), names, f"{call_prefix}-{i}")
            found.append(ParsedCall(call, match.start(), match.end()))
        return found

    @staticmethod
    def _read(body: str, names: set[str], call_id: str) -> ToolCall:
        try:
            data = _storable(json.loads(body))
        except (ValueError, RecursionError):
            return ToolCall(call_id, "", error="the call is not valid JSON", raw=body)
        if not isinstance(data, dict) or not isinstance(data.get("name"), str):
            return ToolCall(call_id, "", error='a call must be {"name": …, "arguments": {…}}', raw=body)
        name, args = data["name"], data.get("arguments", {})
        if isinstance(args, str):  # some models write the arguments as a JSON string
            try:
                args = _storable(json.loads(args))
            except (ValueError, RecursionError):
                args = None
        if not isinstance(args, dict):
            return ToolCall(call_id, name, error="arguments must be a JSON object", raw=body)
        if name not in names:
            return ToolCall(call_id, name, args, error=f"there is no tool {name[:40]!r}", raw=body)
        return ToolCall(call_id, name, args, raw=body)


FORMATS: dict[str, ToolFormat] = {"compact": CompactFormat(), "hermes": HermesFormat()}
