"""Turns a LangGraph run into a Trace: a callback handler that sees node runs, model calls, tools and rewards.

Recording never changes a run's result: whatever the handler cannot record is written into ``Trace.problems``.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphBubbleUp

from agentcore.assembly import (
    CallSeen,
    NodeSeen,
    calls_of,
    node_runs,
    steps,
    superseded,
    to_openai,
    tool_messages,
)
from agentcore.environment import Json, Outcome, Task, ToolCall, ToolResult
from agentcore.events import CONTEXT_EVENT, OBSERVATION_EVENT, REWARD_EVENT
from agentcore.plain import plain
from agentcore.trace import Reward, Tokens, Trace

F = TypeVar("F", bound=Callable[..., None])


def _noted(handler: F) -> F:
    """What goes wrong in a handler becomes a problem of the trace; LangChain would only log it."""

    @functools.wraps(handler)
    def wrapped(self: Recorder, *args: Any, **kwargs: Any) -> None:
        with self._lock:
            try:
                handler(self, *args, **kwargs)
            except Exception as error:
                self.problems.append(f"{handler.__name__} could not be recorded ({describe(error)})")

    return cast(F, wrapped)


class Recorder(BaseCallbackHandler):
    """Collects one episode. Pass it in ``config={"callbacks": [recorder]}``, then ask it for the :meth:`trace`."""

    run_inline = True
    """Under asyncio handlers run where the call was made, not in a pool of threads: in order, and faster."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[str, NodeSeen] = {}
        self._calls: dict[str, CallSeen] = {}
        self._parents: dict[str, str | None] = {}
        self._tools: dict[str, str] = {}
        """Tool call ids by the tool's run id."""
        self._rewards: list[tuple[Reward, str | None]] = []
        """With the node run that gave it."""
        self.problems: list[str] = []
        self.policies: list[Any] = []
        """Chat models that handed over tokens, in order of first use (a trainer can update these)."""

    # -- node runs ------------------------------------------------------------------------------------------

    @_noted
    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._begin(run_id, parent_run_id)
        meta = metadata or {}
        # the node's own run carries the node's name; runnables inside it carry the same metadata
        if meta.get("langgraph_node") is None or kwargs.get("name") != meta["langgraph_node"]:
            return
        ns = str(meta["langgraph_checkpoint_ns"])
        outer = self._node_of(parent_run_id)
        if outer is not None and self._nodes[outer].ns == ns:
            return
        attempt = sum(1 for n in self._nodes.values() if n.ns == ns)
        self._nodes[str(run_id)] = NodeSeen(
            str(run_id), meta["langgraph_node"], ns, int(meta["langgraph_step"]), time.time(), outer, attempt=attempt
        )

    def _begin(self, run_id: UUID, parent_run_id: UUID | None) -> None:
        self._parents[str(run_id)] = str(parent_run_id) if parent_run_id else None

    def _node_of(self, run_id: UUID | None) -> str | None:
        """The innermost node run that a run lies in, or is."""
        run = str(run_id) if run_id else None
        while run is not None and run not in self._nodes:
            run = self._parents.get(run)
        return run

    @_noted
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        node = self._nodes.get(str(run_id))
        if node is None:
            return
        node.ended = time.time()
        # a call to a tool that does not exist runs no tool: its message is all there is
        for message in tool_messages(outputs):
            self._result(ToolResult(message.tool_call_id, _text(message), message.status != "error"), known=False)

    @_noted
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        node = self._nodes.get(str(run_id))
        if node is not None:
            # an interrupt ends the node run, but it is not a failure
            node.ended, node.error = time.time(), "interrupt" if isinstance(error, GraphBubbleUp) else describe(error)

    # -- model calls ----------------------------------------------------------------------------------------

    @_noted
    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        tools = (kwargs.get("invocation_params") or {}).get("tools") or []
        self._call(run_id, parent_run_id, metadata or {}, to_openai(messages[0]), [_tool(t) for t in tools])

    @_noted
    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._call(run_id, parent_run_id, metadata or {}, [{"role": "user", "content": plain(prompts[0])}], [])

    def _call(
        self, run_id: UUID, parent: UUID | None, meta: dict[str, Any], messages: list[Json], tools: list[Json]
    ) -> None:
        self._begin(run_id, parent)
        ns, prompt = str(meta.get("langgraph_checkpoint_ns", "")), tuple(messages)
        self._calls[str(run_id)] = CallSeen(
            id=str(run_id),
            node=self._node_of(parent),
            thread=str(meta.get("thread_id", "")),
            ns=ns,
            name=meta.get("lc_agent_name"),
            messages=prompt,
            tools=tuple(tools),
            started=time.time(),
            repeat=sum(1 for c in self._calls.values() if c.ns == ns and c.messages == prompt),
        )

    def repeat_of(self, run_id: UUID) -> int:
        """How many earlier calls of the same node asked the very same; part of the random key of a sampled reply."""
        call = self._calls.get(str(run_id))
        return call.repeat if call is not None else 0

    @_noted
    def on_tokens(self, run_id: UUID, tokens: Tokens, calls: tuple[ToolCall, ...], policy: Any) -> None:
        """The exact tokens of a model call (:class:`agentcore.policies.sink.TokenSink`)."""
        call = self._calls.get(str(run_id))
        if call is None:
            self.problems.append(f"tokens of a model call that was never seen to start ({run_id})")
            return
        call.tokens, call.calls = tokens, calls
        if not any(p is policy for p in self.policies):
            self.policies.append(policy)

    @_noted
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        call = self._calls.get(str(run_id))
        if call is None:
            self.problems.append(f"the end of a model call that was never seen to start ({run_id})")
            return
        call.ended = time.time()
        generation = response.generations[0][0] if response.generations and response.generations[0] else None
        message = getattr(generation, "message", None)
        if isinstance(message, AIMessage):
            call.message_id = message.id
            call.reply = _text(message)
            if not call.calls:
                call.calls = calls_of(message)
        elif generation is not None:
            call.reply = plain(generation.text)

    @_noted
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        call = self._calls.get(str(run_id))
        if call is not None:
            call.ended, call.error = time.time(), describe(error)

    # -- tools, retrievers ----------------------------------------------------------------------------------

    @_noted
    def on_retriever_start(
        self, serialized: dict[str, Any], query: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kw: Any
    ) -> None:
        self._begin(run_id, parent_run_id)

    @_noted
    def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kw: Any
    ) -> None:
        self._begin(run_id, parent_run_id)
        if kw.get("tool_call_id"):
            self._tools[str(run_id)] = str(kw["tool_call_id"])

    @_noted
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        messages = tool_messages(output)
        for message in messages:
            self._result(ToolResult(message.tool_call_id, _text(message), message.status != "error"))
        if not messages and str(run_id) in self._tools:
            self._result(ToolResult(self._tools[str(run_id)], plain(str(output))))

    @_noted
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        call_id = kwargs.get("tool_call_id") or self._tools.get(str(run_id))
        if call_id and not isinstance(error, GraphBubbleUp):
            self._result(ToolResult(str(call_id), describe(error), ok=False))

    def _result(self, result: ToolResult, *, known: bool = True) -> None:
        """Attach a result to the call it answers; without ``known`` only where there is none yet, or a failure."""
        for call in reversed(self._calls.values()):
            if any(c.id == result.call_id for c in call.calls):
                old = call.results.get(result.call_id)
                if known or old is None or not old.ok:
                    call.results[result.call_id] = result
                return
        if known:
            self.problems.append(f"a result for the tool call {result.call_id}, which no recorded reply made")

    # -- rewards, context -----------------------------------------------------------------------------------

    @_noted
    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if name == REWARD_EVENT:
            self._reward(Reward(**data), self._node_of(run_id))
        elif name == OBSERVATION_EVENT:
            for result in data["results"]:
                self._result(ToolResult(**result))
        elif name == CONTEXT_EVENT:
            step = self._by_message(data["message_id"])
            if step is None:
                self.problems.append(f"context for the message {data['message_id']}, which no recorded call gave")
            else:
                step.context.update(data)

    def _reward(self, reward: Reward, node: str | None) -> None:
        what = f"reward {reward.component!r}"
        if reward.target == "step":
            step = self._by_message(reward.target_id)
            if step is None:
                self.problems.append(f"{what} for a message that no recorded call gave")
            else:
                reward = replace(reward, target_id=step.id)
        elif reward.target == "node_run" and not reward.target_id:
            reward = replace(reward, target_id=node or "")
            if node is None:
                self.problems.append(f"{what} was given outside any node")
        elif reward.target == "call" and not any(
            k.id == reward.target_id for c in self._calls.values() for k in c.calls
        ):
            self.problems.append(f"{what} for the tool call {reward.target_id}, which no recorded reply made")
        self._rewards.append((reward, node))

    def _call_ids(self) -> set[str]:
        return {made.id for call in self._calls.values() for made in call.calls}

    def _by_message(self, message_id: str) -> CallSeen | None:
        return next((c for c in reversed(self._calls.values()) if c.message_id == message_id), None)

    # -- the trace ------------------------------------------------------------------------------------------

    def trace(
        self,
        task: Task,
        outcome: Outcome,
        *,
        trace_id: str,
        manifest: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        fork_of: str | None = None,
    ) -> Trace:
        """What was collected, as a frozen Trace. What a replaced attempt was rewarded for is left out.

        Raises:
            DuplicateRewardError: if two writers set the same component on the same target.
        """
        with self._lock:
            nodes: Sequence[NodeSeen] = list(self._nodes.values())
            gone = superseded(nodes)
            trace = Trace(
                id=trace_id,
                task=task,
                outcome=outcome,
                steps=steps(self._calls.values(), self._nodes, gone),
                node_runs=node_runs(nodes, gone),
                fork_of=fork_of,
                problems=tuple(self.problems),
                manifest=dict(manifest or {}),
                meta=dict(meta or {}),
            )
            return trace.with_rewards(reward for reward, node in self._rewards if node not in gone)


def _tool(tool: Any) -> Json:
    """A tool in OpenAI format; one that LangChain can't convert (a provider's own) as it is."""
    try:
        converted: Json = plain(convert_to_openai_tool(tool))
    except Exception:
        return {"type": "function", "function": {"name": plain(str(tool)), "description": "", "parameters": {}}}
    return converted


def _text(message: BaseMessage) -> str:
    text: str = plain(str(message.text) if isinstance(message.content, list) else message.content)
    return text


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text: str = plain(f"{type(error).__name__}: {str(error)[:500]}")
    return text
