"""Limits on what a tool may take and give back: wall-clock time, and characters of output."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import queue
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

from agentcore.errors import AgentCoreError, SpecError

T = TypeVar("T")


class ToolTimeoutError(AgentCoreError, TimeoutError):
    """A tool took longer than its limit."""


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What one tool call may take and give back."""

    seconds: float = 20.0
    """Wall-clock time of one call."""
    output_chars: int = 4_000
    """Characters of one result; the middle of a longer one is left out, with a note that says so."""
    argument_chars: int = 8_000
    """Characters of all arguments of one call together."""
    parallel: int = 8
    """Calls of one action that run at the same time."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise SpecError(f"ToolLimits.seconds is {self.seconds}; it must be a finite number above 0.")
        for name in ("output_chars", "argument_chars", "parallel"):
            if getattr(self, name) < 1:
                raise SpecError(f"ToolLimits.{name} is {getattr(self, name)}; it must be at least 1.")


def truncate(text: str, limit: int) -> str:
    """The text in at most ``limit`` characters; a longer one keeps its ends, with a note on what is missing.

    Where not even the note fits, the text's first ``limit`` characters are given.
    """
    if len(text) <= limit:
        return text
    # The note's own length depends on the number in it; the full length is an upper bound of it.
    room = limit - len(_note(len(text)))
    if room < 0:
        return text[:limit]
    tail = room // 3
    head = room - tail
    return text[:head] + _note(len(text) - room) + (text[-tail:] if tail else "")


def _note(count: int) -> str:
    return f"\n[… {count:,} characters left out …]\n"


def run_limited(function: Callable[..., T], /, *args: Any, seconds: float, **kwargs: Any) -> T:
    """Call ``function(*args, **kwargs)`` and give its value, or raise after ``seconds``.

    It runs in a thread of its own, with the caller's context variables. Python cannot stop a thread: a function that
    overstays goes on until it returns by itself, unheard, and does not keep the interpreter from exiting. What
    must really be stopped belongs in a process.

    Raises:
        ToolTimeoutError: if it took longer. Whatever the function raises is raised unchanged.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    _start(lambda: function(*args, **kwargs), lambda value, error: answers.put((value, error)))
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise ToolTimeoutError(_timeout_message(seconds)) from None
    if error is not None:
        raise error
    return cast(T, value)


@overload
async def arun_limited(
    function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, seconds: float, **kwargs: Any
) -> T: ...


@overload
async def arun_limited(function: Callable[..., T], /, *args: Any, seconds: float, **kwargs: Any) -> T: ...


async def arun_limited(function: Callable[..., Any], /, *args: Any, seconds: float, **kwargs: Any) -> Any:
    """As :func:`run_limited`, without blocking the event loop; coroutine functions run on the loop.

    A coroutine that overstays is cancelled, and not waited for.
    """
    if inspect.iscoroutinefunction(function):
        task: asyncio.Future[Any] = asyncio.ensure_future(function(*args, **kwargs))
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        finally:
            task.cancel()  # does nothing to a finished one
        if not done:
            raise ToolTimeoutError(_timeout_message(seconds))
        return task.result()

    loop = asyncio.get_running_loop()
    # The outcome is a value, not the future's exception: a future refuses to hold a StopIteration.
    answer: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result((value, error))

    def report(value: Any, error: BaseException | None) -> None:
        if not loop.is_closed():  # closed: the function overstayed, and nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    _start(lambda: function(*args, **kwargs), report)
    done_answers, _ = await asyncio.wait({answer}, timeout=seconds)
    if not done_answers:
        answer.cancel()
        raise ToolTimeoutError(_timeout_message(seconds))
    value, error = answer.result()
    if error is not None:
        raise error
    return value


def _start(work: Callable[[], T], report: Callable[[T | None, BaseException | None], None]) -> None:
    context = contextvars.copy_context()

    def body() -> None:
        try:
            value = context.run(work)
        except BaseException as error:  # SystemExit too: a tool must not end a thread unheard
            report(None, error)
        else:
            report(value, None)

    # Daemon: a pool's threads would be waited for at exit.
    threading.Thread(target=body, name="agentcore-tool", daemon=True).start()


def _timeout_message(seconds: float) -> str:
    return f"no answer within {seconds:g} s"
