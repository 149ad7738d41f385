"""Check a policy's tool calls against the tools' JSON schemas.

Whatever a policy wrote, checking it does not raise: the call comes back cleaned, or with ``error`` set to one
sentence that the policy is shown as the tool's result, so that it can do better. A tool whose own schema is wrong
does raise, since that is the author's mistake.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from agentcore.environment import Json, ToolCall, ToolSpec
from agentcore.errors import SpecError

MAX_ARGUMENT_CHARS = 8_000
"""Characters of all arguments of one call, keys included."""
MAX_DEPTH = 24
"""Levels of nesting in the arguments of one call."""
MAX_INTEGER_BITS = 1_024
"""Beyond it an integer is neither a float nor, past 4,300 digits, printable."""
_SHOWN_CHARS = 60
_SHOWN_ERRORS = 3
_SHOWN_TOOLS = 12
# Top-level schema words that may allow arguments that `properties` does not name.
_OPENING_WORDS = (
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
)


def check_calls(
    calls: Iterable[ToolCall], tools: Sequence[ToolSpec], *, max_chars: int = MAX_ARGUMENT_CHARS
) -> tuple[ToolCall, ...]:
    """Check every call (see :func:`check_call`), and that no call id is used twice. The order is kept."""
    checked: list[ToolCall] = []
    seen: set[str] = set()
    for call in calls:
        result = check_call(call, tools, max_chars=max_chars)
        if call.id in seen and result.error is None:
            result = replace(result, error=f"the call id {_show(call.id)} is already used by an earlier call")
        seen.add(call.id)
        checked.append(result)
    return tuple(checked)


def check_call(call: ToolCall, tools: Sequence[ToolSpec], *, max_chars: int = MAX_ARGUMENT_CHARS) -> ToolCall:
    """The call, cleaned and ready to run, or with ``error`` set.

    Cleaning only does what loses nothing: a number or truth value that was written as a string becomes one where the
    schema wants one (``"3"`` for an integer), and a whole float becomes an integer. Arguments that are not JSON at
    all (NaN, lone surrogates, cycles), nest too deeply or are too long are dropped, since nothing downstream
    could store them; ``raw`` keeps the text where it is known.

    Args:
        call: as the policy wrote it; a call that already has an error keeps it.
        tools: the tools on offer.
        max_chars: characters that all arguments together may have.

    Raises:
        SpecError: if the called tool's own schema is not a JSON schema.
    """
    problem = _storage_problem(call.args, max_chars)
    if problem is not None:
        return replace(call, args={}, error=call.error or f"{_show(call.name)}: {problem}")
    if call.error is not None:
        return call
    if not isinstance(call.name, str):
        return replace(call, name="", error=f"the tool's name must be a string, not {_type_name(call.name)}")
    by_name = {tool.name: tool for tool in tools}
    tool = by_name.get(call.name)
    if tool is None:
        return replace(call, error=_unknown_tool(call.name, by_name))
    args = _cleaned(call.args, tool.parameters)
    errors = _argument_errors(args, tool)
    if errors:
        more = f" (and {len(errors) - _SHOWN_ERRORS} more)" if len(errors) > _SHOWN_ERRORS else ""
        return replace(call, args=args, error=f"{tool.name}: {'; '.join(errors[:_SHOWN_ERRORS])}{more}")
    return replace(call, args=args)


def _storage_problem(args: object, max_chars: int) -> str | None:
    """Why the arguments cannot be kept as JSON data of reasonable size, or None. Walks without recursion."""
    if not isinstance(args, dict):
        return f"the arguments must be an object, not {_type_name(args)}"
    chars = 0
    pending: list[tuple[Any, int]] = [(args, 0)]
    while pending:
        value, depth = pending.pop()
        if depth > MAX_DEPTH:
            return f"the arguments nest more than {MAX_DEPTH} levels deep"
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                return "every argument name must be a string"
            children: list[Any] = [*value, *value.values()]
        elif isinstance(value, list):
            children = value
        else:
            children = []
            if (problem := _scalar_problem(value)) is not None:
                return problem
        # Counted before the children are visited, so that a huge list is not walked to its end.
        chars += _length(value) + len(children)
        if chars > max_chars:
            return f"the arguments are longer than {max_chars:,} characters; send less"
        pending.extend((child, depth + 1) for child in children)
    return None


def _scalar_problem(value: object) -> str | None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "the arguments hold text that is not valid Unicode"
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return "the arguments hold NaN or infinity, which JSON cannot hold"
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        return "the arguments hold an integer of more than 300 digits"
    if value is None or isinstance(value, bool | int | float):
        return None
    return f"the arguments hold a {type(value).__name__}, which JSON cannot hold"


def _length(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    return 1


def _unknown_tool(name: str, by_name: Mapping[str, ToolSpec]) -> str:
    if not by_name:
        return f"unknown tool {_show(name)}; no tools are on offer"
    names = list(by_name)
    listed = ", ".join(names[:_SHOWN_TOOLS]) + (", …" if len(names) > _SHOWN_TOOLS else "")
    near = _nearest(name, names)
    hint = f"; did you mean {near!r}?" if near else ";"
    return f"unknown tool {_show(name)}{hint} tools: {listed}"


def _nearest(name: str, names: Iterable[str]) -> str | None:
    """The known name that is meant, probably; None if nothing is near."""
    folded = {known.casefold().replace("-", "_"): known for known in names}
    wanted = name[:200].casefold().replace("-", "_").strip()
    found = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def _cleaned(args: Json, schema: Json) -> Json:
    """A copy of the arguments with lossless type corrections at the top level."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return dict(args)
    return {name: _coerced(value, properties.get(name)) for name, value in args.items()}


def _coerced(value: Any, schema: object) -> Any:
    wanted = schema.get("type") if isinstance(schema, dict) else None
    if wanted == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if wanted not in ("integer", "number", "boolean") or not isinstance(value, str) or len(value) > 40:
        return value
    try:
        parsed = json.loads(value.strip())
    except (ValueError, RecursionError):
        return value
    if wanted == "boolean":
        return parsed if isinstance(parsed, bool) else value
    if isinstance(parsed, bool) or not isinstance(parsed, int | float) or not math.isfinite(parsed):
        return value
    if wanted == "integer" and isinstance(parsed, float):
        return int(parsed) if parsed.is_integer() else value
    return parsed


def _argument_errors(args: Json, tool: ToolSpec) -> list[str]:
    schema = tool.parameters
    properties = schema.get("properties")
    messages: list[str] = []
    if isinstance(properties, dict) and not any(word in schema for word in _OPENING_WORDS):
        # JSON Schema allows unnamed properties unless told otherwise; for a tool they are a mistake.
        messages += _extra_arguments(args, properties)
    validator = _validator(tool.name, json.dumps(schema, sort_keys=True))
    try:
        errors = sorted(validator.iter_errors(args), key=lambda e: [str(part) for part in e.absolute_path])
    except Unresolvable as missing:
        raise SpecError(
            f"The parameters of tool {tool.name!r} refer to a schema that is not in them ({missing.ref}). "
            "References are not fetched: put the definition under '$defs'."
        ) from missing
    for error in errors:
        messages += _describe(error, args)
    return list(dict.fromkeys(messages))


def _extra_arguments(args: Json, properties: Json) -> Iterator[str]:
    for name in args:
        if name not in properties:
            near = _nearest(name, properties)
            known = ", ".join(properties) or "none"
            yield f"unknown argument {_show(name)}" + (f", did you mean {near!r}?" if near else f" (known: {known})")


@lru_cache(maxsize=256)
def _validator(name: str, schema_json: str) -> Draft202012Validator:
    schema = json.loads(schema_json)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise SpecError(
            f"The parameters of tool {name!r} are not a JSON schema: {error.message}. Correct ToolSpec.parameters."
        ) from error
    # An empty registry: a schema's reference never makes us fetch anything.
    return Draft202012Validator(schema, registry=Registry())


def _describe(error: ValidationError, args: Json) -> Iterator[str]:
    """One short sentence per problem; jsonschema's own messages repeat the whole value."""
    path = ".".join(str(part) for part in error.absolute_path)
    where = f"argument {_show(path)}" if path else "the arguments"
    wanted: Any = error.validator_value
    value: Any = error.instance
    if error.validator == "required":
        inside = f" in {path}" if path else ""
        yield from (f"missing argument {name!r}{inside}" for name in wanted if name not in value)
    elif error.validator == "type":
        named = wanted if isinstance(wanted, str) else " or ".join(str(w) for w in wanted)
        yield f"{where} must be {named}, not {_type_name(value)} {_show(value)}"
    elif error.validator == "enum":
        options = ", ".join(_show(option) for option in wanted[:_SHOWN_TOOLS])
        yield f"{where} must be one of {options}, not {_show(value)}"
    elif error.validator == "additionalProperties" and isinstance(error.schema, dict) and not path:
        yield from _extra_arguments(args, error.schema.get("properties", {}))
    else:
        yield f"{where} breaks {error.validator} {_show(wanted)}"


def _type_name(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _show(value: object) -> str:
    """The value as JSON-like text, control characters escaped, cut to a short length."""
    text = repr(value[: _SHOWN_CHARS + 1] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN_CHARS + 2 else text[:_SHOWN_CHARS] + "…"
