"""Tool calls: whatever a policy wrote, an answer comes back, in order and within limits."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.tools import BaseTool, StructuredTool, ToolException, tool
from langgraph.errors import GraphInterrupt

from agentcore.environment import ToolCall, ToolSpec
from agentcore.errors import SpecError
from agentcore.tools import (
    ToolLimits,
    ToolTimeoutError,
    arun_limited,
    arun_tools,
    check_call,
    check_calls,
    run_limited,
    run_tools,
    tool_spec,
    truncate,
)

SEARCH = ToolSpec(
    name="search",
    description="Search the notes.",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string", "maxLength": 200},
            "limit": {"type": "integer", "minimum": 1},
            "order": {"enum": ["new", "old"]},
            "exact": {"type": "boolean"},
            "ids": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["query"],
    },
)
OPEN = ToolSpec(name="anything", description="Takes anything.", parameters={"type": "object"})


def error_of(args: Any, name: str = "search", **kwargs: Any) -> str:
    checked = check_call(ToolCall("c1", name, args), [SEARCH, OPEN], **kwargs)
    assert checked.error is not None
    return checked.error


# Checks


def test_a_right_call_is_unchanged() -> None:
    call = ToolCall("c1", "search", {"query": "x", "limit": 2, "order": "new", "ids": [1]})
    assert check_call(call, [SEARCH]) == call


def test_lossless_corrections() -> None:
    checked = check_call(ToolCall("c", "search", {"query": "5", "limit": "3", "exact": "true"}), [SEARCH])
    assert checked.error is None
    assert checked.args == {"query": "5", "limit": 3, "exact": True}
    whole = check_call(ToolCall("c", "search", {"query": "5", "limit": 3.0}), [SEARCH]).args["limit"]
    assert isinstance(whole, int)
    assert "must be integer, not string" in error_of({"query": "x", "limit": "3.5"})
    assert "must be integer, not string" in error_of({"query": "x", "limit": "three"})


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "missing argument 'query'"),
        ({"query": 3}, "argument 'query' must be string, not integer 3"),
        ({"query": "x", "ids": [1, "b"]}, "argument 'ids.1' must be integer, not string 'b'"),
        ({"query": "x", "order": "sideways"}, "must be one of 'new', 'old', not 'sideways'"),
        ({"query": "x", "limt": 1}, "unknown argument 'limt', did you mean 'limit'?"),
        ({"query": "x", "zzzz": 1}, "unknown argument 'zzzz' (known: query, limit, order, exact, ids)"),
        ({"query": "x" * 300}, "argument 'query' breaks maxLength 200"),
        ({"query": "x", "limit": 0}, "argument 'limit' breaks minimum 1"),
        ({"query": math.nan}, "NaN or infinity"),
        ({"query": "\ud800"}, "not valid Unicode"),
        ({"query": 10**5000}, "integer of more than"),
        ({"query": b"bytes"}, "hold a bytes"),
        ({1: "x"}, "every argument name must be a string"),
        (["query"], "must be an object, not array"),
        ("query", "must be an object, not string"),
        (None, "must be an object, not null"),
    ],
)
def test_wrong_arguments_are_named(args: Any, said: str) -> None:
    error = error_of(args)
    assert said in error
    assert len(error) < 400


def test_unknown_tools_get_a_near_name() -> None:
    assert "unknown tool 'Serach'; did you mean 'search'?" in error_of({}, "Serach")
    assert "tools: search, anything" in error_of({}, "qqq")
    assert check_call(ToolCall("c", "x"), []).error == "unknown tool 'x'; no tools are on offer"
    assert "did you mean 'search'" in error_of({}, "SEARCH")


def test_oversized_and_deep_arguments_are_dropped_but_the_raw_text_is_kept() -> None:
    big = check_call(ToolCall("c", "search", {"query": "x" * 10_000}, raw="the text"), [SEARCH])
    assert big.error is not None and "longer than 8,000 characters" in big.error
    assert (big.args, big.raw) == ({}, "the text")
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert "levels deep" in error_of(deep, "anything")
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    assert "levels deep" in error_of({"a": cyclic}, "anything")


def test_an_earlier_error_is_kept() -> None:
    assert error_of({"query": 1}) != (kept := check_call(ToolCall("c", "search", {}, error="cut off"), [SEARCH]).error)
    assert kept == "cut off"


def test_a_call_id_counts_once() -> None:
    first, second = check_calls([ToolCall("c", "anything"), ToolCall("c", "anything")], [OPEN])
    assert first.error is None
    assert second.error is not None and "already used" in second.error


def test_a_schema_that_allows_more_arguments_does() -> None:
    spec = ToolSpec("t", "", {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}})
    assert check_call(ToolCall("c", "t", {"b": "x"}), [spec]).error is None
    assert check_call(ToolCall("c", "t", {"b": 1}), [spec]).error is not None
    closed = ToolSpec("t", "", {"type": "object", "properties": {"a": {}}, "additionalProperties": False})
    assert check_call(ToolCall("c", "t", {"b": 1}), [closed]).error == "t: unknown argument 'b' (known: a)"


def test_the_authors_mistakes_raise() -> None:
    with pytest.raises(SpecError, match="not a JSON schema"):
        check_call(ToolCall("c", "t"), [ToolSpec("t", "", {"type": "objet"})])
    with pytest.raises(SpecError, match="References are not fetched"):
        check_call(ToolCall("c", "t"), [ToolSpec("t", "", {"$ref": "http://localhost:9/schema.json"})])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(name=st.text() | st.just("search"), args=st.dictionaries(st.text() | st.sampled_from(["query", "ids"]), JSON))
def test_checking_never_raises_and_its_outcome_can_be_stored(name: str, args: dict[str, Any]) -> None:
    checked = check_call(ToolCall("c", name, args), [SEARCH])
    json.dumps(checked.args, allow_nan=False).encode()
    assert checked.error is None or len(checked.error) < 1_000


# Limits


@given(st.text(max_size=300), st.integers(1, 200))
def test_truncation_keeps_to_the_limit(text: str, limit: int) -> None:
    short = truncate(text, limit)
    assert len(short) <= limit
    assert (short == text) == (len(text) <= limit)


def test_truncation_keeps_both_ends_and_counts_what_is_missing() -> None:
    text = "A" * 5_000 + "B" * 5_000
    short = truncate(text, 1_000)
    assert short.startswith("A" * 500) and short.endswith("B" * 200)
    kept = short.count("A") + short.count("B")
    assert f"[… {10_000 - kept:,} characters left out …]" in short


def test_limits_must_make_sense() -> None:
    for wrong in ({"seconds": 0}, {"seconds": math.inf}, {"seconds": math.nan}, {"output_chars": 0}, {"parallel": 0}):
        with pytest.raises(SpecError, match="must be"):
            ToolLimits(**wrong)


def test_run_limited_gives_the_value_the_error_or_a_timeout() -> None:
    assert run_limited(lambda a, b: a + b, 1, b=2, seconds=5) == 3
    with pytest.raises(ZeroDivisionError):
        run_limited(lambda: 1 / 0, seconds=5)
    started = time.monotonic()
    with pytest.raises(ToolTimeoutError, match=r"no answer within 0\.05 s"):
        run_limited(time.sleep, 5, seconds=0.05)
    assert time.monotonic() - started < 2


async def test_arun_limited_does_the_same_without_blocking() -> None:
    async def double(x: int) -> int:
        return 2 * x

    def stop() -> None:
        raise StopIteration

    assert await arun_limited(double, 4, seconds=5) == 8
    assert await arun_limited(max, 4, 5, seconds=5) == 5
    with pytest.raises(ToolTimeoutError):
        await arun_limited(asyncio.sleep, 5, seconds=0.05)
    with pytest.raises(ToolTimeoutError):
        await arun_limited(time.sleep, 5, seconds=0.05)
    answer = await asyncio.gather(arun_limited(stop, seconds=5), return_exceptions=True)
    assert isinstance(answer[0], RuntimeError | StopIteration)


# Running

WHERE: contextvars.ContextVar[str] = contextvars.ContextVar("WHERE", default="nowhere")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def slow_echo(text: str, seconds: float = 0.0) -> str:
    """Give the text back, later."""
    await asyncio.sleep(seconds)
    return text


@tool
def sleepy(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "awake"


@tool
def broken(how: str) -> str:
    """Fail."""
    if how == "exit":
        sys.exit(3)
    if how == "interrupt":
        raise GraphInterrupt(())
    if how == "tool":
        raise ToolException("said by the tool")
    if how == "where":
        return WHERE.get()
    if how == "long":
        return "x" * 100_000
    if how == "surrogate":
        return "a\ud800b"
    raise ValueError("no such luck")


TOOLS: dict[str, BaseTool] = {t.name: t for t in (add, slow_echo, sleepy, broken)}


def test_results_keep_the_order_of_the_calls() -> None:
    calls = [
        ToolCall("1", "slow_echo", {"text": "last", "seconds": 0.3}),
        ToolCall("2", "add", {"a": 1, "b": "2"}),
        ToolCall("3", "nope"),
        ToolCall("4", "sleepy", {"seconds": 0.3}),
        ToolCall("5", "add", {"a": 1}),
    ]
    started = time.monotonic()
    results = run_tools(calls, TOOLS)
    assert time.monotonic() - started < 0.6, "the calls run side by side"
    assert [(r.call_id, r.ok) for r in results] == [("1", True), ("2", True), ("3", False), ("4", True), ("5", False)]
    assert [r.content for r in results[:2]] == ["last", "3"]
    assert "unknown tool 'nope'" in results[2].content
    assert "missing argument 'b'" in results[4].content


def test_errors_become_results() -> None:
    def content(how: str) -> tuple[str, bool]:
        (result,) = run_tools([ToolCall("c", "broken", {"how": how})], TOOLS)
        return result.content, result.ok

    assert content("x") == ("broken failed: ValueError: no such luck", False)
    assert content("tool") == ("broken failed: ToolException: said by the tool", False)
    assert content("exit") == ("broken failed: SystemExit: 3", False)
    assert content("surrogate") == ("a?b", True)
    text, ok = content("long")
    assert ok and len(text) <= 4_000 and "characters left out" in text


def test_a_hanging_tool_is_left_behind() -> None:
    calls = [ToolCall("1", "sleepy", {"seconds": 5}), ToolCall("2", "slow_echo", {"text": "x", "seconds": 5})]
    started = time.monotonic()
    results = run_tools([*calls, ToolCall("3", "add", {"a": 1, "b": 1})], TOOLS, ToolLimits(seconds=0.2, parallel=1))
    assert time.monotonic() - started < 2
    assert [r.ok for r in results] == [False, False, True]
    assert "no answer within 0.2 s" in results[0].content


def test_a_hanging_tool_does_not_keep_the_program_from_exiting() -> None:
    program = """
        import time
        from langchain_core.tools import tool
        from agentcore.environment import ToolCall
        from agentcore.tools import ToolLimits, run_tools

        @tool
        def hang() -> str:
            "Hang."
            time.sleep(60)
            return ""

        print(run_tools([ToolCall("c", "hang")], {"hang": hang}, ToolLimits(seconds=0.1)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "no answer within" in done.stdout


async def test_inside_a_running_loop() -> None:
    calls = [ToolCall("1", "add", {"a": 1, "b": 1}), ToolCall("2", "slow_echo", {"text": "x"})]
    assert await arun_tools(calls, TOOLS) == run_tools(calls, TOOLS)


def test_context_reaches_the_tool_and_interrupts_pass() -> None:
    token = WHERE.set("here")
    try:
        (result,) = run_tools([ToolCall("c", "broken", {"how": "where"})], TOOLS)
    finally:
        WHERE.reset(token)
    assert result.content == "here"
    with pytest.raises(GraphInterrupt):
        run_tools([ToolCall("c", "broken", {"how": "interrupt"})], TOOLS)


def test_a_tools_own_error_status_counts() -> None:
    handled = StructuredTool.from_function(lambda: 1 / 0, name="handled", description="Fails.")
    handled.handle_tool_error = True

    def refuse() -> str:
        raise ToolException("refused")

    refusing = StructuredTool.from_function(refuse, name="refusing", description="Refuses.", handle_tool_error=True)
    one, two = run_tools(
        [ToolCall("1", "handled"), ToolCall("2", "refusing")], {"handled": handled, "refusing": refusing}
    )
    assert not one.ok and "division by zero" in one.content
    assert not two.ok and two.content == "refused"


def test_no_calls_no_results_and_no_threads_left() -> None:
    before = threading.active_count()
    assert run_tools([], TOOLS) == ()
    run_tools([ToolCall("1", "add", {"a": 1, "b": 1})], TOOLS)
    assert threading.active_count() <= before + 1


def test_spec_of_a_langchain_tool() -> None:
    spec = tool_spec(add)
    assert (spec.name, spec.description) == ("add", "Add two numbers.")
    assert spec.parameters["required"] == ["a", "b"]
