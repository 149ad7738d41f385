"""Run a policy's tool calls on LangChain tools; whatever goes wrong becomes a result that says so."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphBubbleUp

from agentcore.environment import ToolCall, ToolResult, ToolSpec
from agentcore.tools.checks import check_calls
from agentcore.tools.limits import ToolLimits, ToolTimeoutError, arun_limited, truncate

T = TypeVar("T")


def tool_spec(tool: BaseTool) -> ToolSpec:
    """How a LangChain tool is offered to a policy (injected arguments are left out)."""
    function = convert_to_openai_tool(tool)["function"]
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(name=tool.name, description=function.get("description", ""), parameters=parameters)


def run_tools(
    calls: Iterable[ToolCall], tools: Mapping[str, BaseTool], limits: ToolLimits | None = None
) -> tuple[ToolResult, ...]:
    """Check and run the calls side by side; one result per call, in the order of the calls.

    An unknown tool, wrong arguments, an exception, a time-out: each is a result with ``ok=False`` whose content
    says what was wrong. Output beyond the limit is shortened visibly. LangGraph's own signals (an interrupt that
    asks a human) are passed on, and a coroutine's SystemExit ends the program as anywhere in asyncio. Works inside
    a running event loop too, which it blocks; use :func:`arun_tools` there.

    Args:
        calls: as the policy wrote them, checked or not.
        tools: by the name under which they are offered.
        limits: of each call; the defaults of :class:`ToolLimits` if None.

    Raises:
        SpecError: if a tool's own schema is wrong.
    """
    return _run_to_end(arun_tools(calls, tools, limits))


async def arun_tools(
    calls: Iterable[ToolCall], tools: Mapping[str, BaseTool], limits: ToolLimits | None = None
) -> tuple[ToolResult, ...]:
    """As :func:`run_tools`, without blocking the event loop. Tools without a coroutine run in threads."""
    limits = limits or ToolLimits()
    specs = [_named(tool_spec(tool), name) for name, tool in tools.items()]
    checked = check_calls(calls, specs, max_chars=limits.argument_chars)
    slots = asyncio.Semaphore(limits.parallel)

    async def one(call: ToolCall) -> ToolResult:
        if call.error is not None:
            return ToolResult(call.id, truncate(_clean(call.error), limits.output_chars), ok=False)
        async with slots:
            return await _run_one(call, tools[call.name], limits)

    tasks = [asyncio.ensure_future(one(call)) for call in checked]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _run_one(call: ToolCall, tool: BaseTool, limits: ToolLimits) -> ToolResult:
    message = {"type": "tool_call", "name": tool.name, "args": call.args, "id": call.id}
    runner: Callable[..., Any] = tool.ainvoke if _is_async(tool) else tool.invoke
    try:
        answer = await arun_limited(runner, message, seconds=limits.seconds)
    except GraphBubbleUp:
        raise
    except ToolTimeoutError as error:
        return ToolResult(call.id, f"{call.name}: {error}; try a smaller request", ok=False)
    except (Exception, SystemExit) as error:
        text = f"{call.name} failed: {type(error).__name__}: {_text_of(error)}"
        return ToolResult(call.id, truncate(_clean(text), limits.output_chars), ok=False)
    if not isinstance(answer, ToolMessage):
        kind = type(answer).__name__
        return ToolResult(call.id, f"{call.name} gave back a {kind}, not a message; nothing was done with it", ok=False)
    return ToolResult(call.id, truncate(_clean(answer.text), limits.output_chars), ok=answer.status != "error")


def _is_async(tool: BaseTool) -> bool:
    """Whether the tool has a coroutine of its own (LangChain's stand-in would block a pool thread at exit)."""
    if hasattr(tool, "coroutine"):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun


def _named(spec: ToolSpec, name: str) -> ToolSpec:
    return ToolSpec(name=name, description=spec.description, parameters=spec.parameters)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message could not be read)"


def _clean(text: str) -> str:
    """Text that can be written as UTF-8; lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def _run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, in this thread, or in another if this one's loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_on_new_loop(work)
    context = contextvars.copy_context()
    answers: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            answers.append(context.run(_run_on_new_loop, work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="agentcore-tools", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


def _run_on_new_loop(work: Coroutine[Any, Any, T]) -> T:
    # Not asyncio.run: it waits at its end for threads that a tool started and that may never return.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))  # lets cancelled coroutines run their clean-up
        loop.close()
