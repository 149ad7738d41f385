"""Tool calls as text: what is written is read back equal, what can't be read is kept, and nothing ever raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcore.environment import ToolCall
from agentcore.policies.toolformat import FORMATS, CompactFormat, HermesFormat, ToolFormat


def tool(name: str, *parameters: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {p: {"type": "string"} for p in parameters}}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}


TOOLS = [tool("lookup", "name"), tool("search_notes", "query"), tool("get-weather", "city", "days")]
COMPACT, HERMES = CompactFormat(), HermesFormat()

# any text UTF-8 can hold
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
formats = st.sampled_from(list(FORMATS.values()))
_PIECES = [
    *(
        "lookup(",
        "get-weather(",
        "nope(",
        "name=",
        "x",
        "1e999",
        '"',
        "'",
        "(",
        ")",
        "[",
        "{",
        "}",
        "**{",
        "*",
        "=",
        ",",
    ),
    *("<tool_call>", "</tool_call>", '"name": ', '"lookup"', '"arguments": ', "\\", "\n", "\x00", "é", "𝛑", " "),
]
snippets = st.lists(st.sampled_from(_PIECES), max_size=12).map("".join)


def read(written: ToolFormat, text: str) -> list[ToolCall]:
    return [p.call for p in written.parse(text, TOOLS, "c")]


@settings(max_examples=150, deadline=None)
@given(formats, st.sampled_from(["lookup", "search_notes", "get-weather"]), st.dictionaries(texts, values, max_size=4))
def test_what_is_written_is_read_back(written: ToolFormat, name: str, args: dict[str, Any]) -> None:
    text = written.write(name, args)
    (call,) = read(written, text)
    assert (call.name, call.args, call.error) == (name, args, None)
    # and amid other text, twice
    calls = read(written, f"I will look.\n{text}\n{text}\nDone.")
    assert [(c.args, c.error) for c in calls] == [(args, None)] * 2
    assert [c.id for c in calls] == ["c-0", "c-1"]


@settings(max_examples=200, deadline=None)
@given(formats, texts | snippets)
def test_arbitrary_text_never_raises_and_what_is_found_can_be_stored(written: ToolFormat, text: str) -> None:
    end = 0
    for parsed in written.parse(text, TOOLS, "c"):
        assert end <= parsed.start < parsed.end <= len(text), "stretches are in order and don't overlap"
        end = parsed.end
        assert parsed.call.raw is not None
        json.dumps(parsed.call.args, allow_nan=False).encode()


@pytest.mark.parametrize(
    "text",
    [
        "lookup(name=amber)",
        'lookup(name="amber"',
        "lookup(name='amber's price')",
        "lookup(name=open('/etc/passwd').read())",
        "lookup(name=__import__('os'))",
        "lookup(name=1e999)",
        "lookup(name=float('nan'))",
        r"lookup(name='\ud800')",
        "lookup(name=b'x')",
        "lookup(name={1, 2})",
        "lookup(name=[x for x in 'ab'])",
        "lookup('a', 'b')",
        "lookup('a', name='b')",
        "lookup(name='a', name='b')",
        "lookup(*['a'])",
        "lookup(**'a')",
        "lookup(name=" + "[" * 5000 + "]" * 5000 + ")",
        "lookup(name=" + "-" * 15_000 + "1)",
        "lookup(name=0x" + "f" * 9000 + ")",
    ],
)
def test_a_compact_call_that_cannot_be_run_is_kept_with_an_error(text: str) -> None:
    (call,) = read(COMPACT, text)
    assert (call.name, call.args, call.raw) == ("lookup", {}, text)
    assert call.error is not None and len(call.error) < 100


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "not valid JSON"),
        ('{"name": "lookup"', "not valid JSON"),
        ("[" * 50_000, "not valid JSON"),
        ('{"name": "lookup", "arguments": {"name": NaN}}', "not valid JSON"),
        ('{"name": "lookup", "arguments": {"name": 1e999}}', "not valid JSON"),
        ('{"name": "lookup", "arguments": {"name": "\\ud800"}}', "not valid JSON"),
        ('["lookup"]', "a call must be"),
        ('{"arguments": {}}', "a call must be"),
        ('{"name": "lookup", "arguments": [1]}', "must be a JSON object"),
        ('{"name": "lookup", "arguments": "amber"}', "must be a JSON object"),
        ('{"name": "lookup", "arguments": "' + "[" * 50_000 + '"}', "must be a JSON object"),
        ('{"name": "nope", "arguments": {}}', "there is no tool 'nope'"),
    ],
)
def test_a_hermes_call_that_cannot_be_run_is_kept_with_an_error(body: str, said: str) -> None:
    (call,) = read(HERMES, f"Well.<tool_call>{body}</tool_call>")
    assert said in str(call.error)
    assert call.raw == body


def test_an_unknown_tool_is_a_call_with_an_error() -> None:
    (call,) = read(COMPACT, "  price_of(item='amber') please")
    assert (call.name, call.args) == ("price_of", {"item": "amber"})
    assert call.error == "there is no tool 'price_of'"


def test_forms_that_models_use_besides_the_one_asked_for() -> None:
    assert read(COMPACT, "lookup('amber')")[0].args == {"name": "amber"}
    assert read(COMPACT, "I call lookup( name = 'amber' ).")[0].args == {"name": "amber"}
    assert read(COMPACT, "get-weather('Lyon', days=2)")[0].args == {"city": "Lyon", "days": 2}
    assert read(COMPACT, "lookup(name=('a', 'b'))")[0].args == {"name": ["a", "b"]}
    assert read(HERMES, '<tool_call>{"name": "lookup", "arguments": "{\\"name\\": 1}"}')[0].args == {"name": 1}
    assert read(HERMES, '<tool_call>{"name": "lookup"}</tool_call>')[0].args == {}


def test_calls_keep_their_order_and_a_broken_one_does_not_swallow_the_next() -> None:
    text = "lookup(name='a\nsearch_notes(query='b')\nnope()\nlookup(name='lookup(name=1)')"
    assert [(c.name, c.error is None) for c in read(COMPACT, text)] == [
        ("lookup", False),
        ("search_notes", True),
        ("nope", False),
        ("lookup", True),
    ]
    text = '<tool_call>{"name": "lookup"<tool_call>{"name": "lookup", "arguments": {}}</tool_call>'
    assert [c.error is None for c in read(HERMES, text)] == [False, True]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_tool_is_described(name: str) -> None:
    text = FORMATS[name].describe(TOOLS)
    assert all(t["function"]["name"] in text for t in TOOLS)
    assert "city" in text and "days" in text
