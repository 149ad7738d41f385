"""Turns a LangGraph run into a Trace: a callback handler that sees node runs, model calls, tools and rewards.

Recording never changes a run's result: whatever the handler cannot record is written into ``Trace.problems``.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, adispatch_custom_event, dispatch_custom_event
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphInterrupt

from agentcore.environment import Json, Outcome, Task, ToolCall, ToolResult
from agentcore.trace import NodeRun, Reward, RewardTarget, Step, Tokens, Trace

REWARD_EVENT = "agentcore.reward"
OBSERVATION_EVENT = "agentcore.observation"
CONTEXT_EVENT = "agentcore.context"

_UUID = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")


def policy_id(checkpoint_ns: str, agent_name: str | None = None) -> str:
    """The node path: namespace parts without uuids and integers, e.g. ``team/planner``."""
    names = []
    for part in checkpoint_ns.split("|"):
        name = part.split(":", 1)[0]
        if name and not name.isdigit() and not _UUID.match(name):
            names.append(name)
    path = "/".join(names)
    return f"{agent_name}:{path}" if agent_name else path


def reward_event(component: str, value: float, target: RewardTarget, target_id: str, source: str) -> Json:
    """The payload of one reward event."""
    return {"component": component, "value": float(value), "target": target, "target_id": target_id, "source": source}


def emit_reward(
    component: str,
    value: float,
    *,
    tool_call_id: str | None = None,
    source: str = "environment",
    config: RunnableConfig | None = None,
) -> None:
    """Reward the present node run, or the tool call ``tool_call_id``, from inside a node or a tool."""
    target: RewardTarget = "call" if tool_call_id is not None else "node_run"
    payload = reward_event(component, value, target, tool_call_id or "", source)
    dispatch_custom_event(REWARD_EVENT, payload, config=config)


async def aemit_reward(
    component: str,
    value: float,
    *,
    tool_call_id: str | None = None,
    source: str = "environment",
    config: RunnableConfig | None = None,
) -> None:
    """:func:`emit_reward` for asynchronous code."""
    target: RewardTarget = "call" if tool_call_id is not None else "node_run"
    payload = reward_event(component, value, target, tool_call_id or "", source)
    await adispatch_custom_event(REWARD_EVENT, payload, config=config)


@dataclass(slots=True)
class _Node:
    id: str
    node: str
    ns: str
    superstep: int
    started: float
    ended: float | None = None
    error: str | None = None
    attempt: int = 0


@dataclass(slots=True)
class _Call:
    """A model call under way or finished."""

    id: str
    node: str | None
    thread: str
    ns: str
    name: str | None
    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    started: float
    model: str = ""
    message_id: str | None = None
    ended: float | None = None
    reply: str = ""
    calls: tuple[ToolCall, ...] = ()
    tokens: Tokens | None = None
    error: str | None = None
    context: Json = field(default_factory=dict)
    results: dict[str, ToolResult] = field(default_factory=dict)


class Recorder(BaseCallbackHandler):
    """Collects one episode. Pass it in ``config={"callbacks": [recorder]}`` or use :func:`agentcore.record`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[str, _Node] = {}
        self._calls: dict[str, _Call] = {}
        self._parents: dict[str, str | None] = {}
        self._rewards: list[Reward] = []
        self.problems: list[str] = []
        self.policies: list[Any] = []
        """Chat models that handed over tokens, in order of first use (a trainer can update these)."""

    # -- node runs ------------------------------------------------------------------------------------------

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
        with self._lock:
            self._parents[str(run_id)] = str(parent_run_id) if parent_run_id else None
            meta = metadata or {}
            # the node's own run carries the node's name; runnables inside it carry the same metadata
            if meta.get("langgraph_node") is None or kwargs.get("name") != meta["langgraph_node"]:
                return
            if parent_run_id is not None and self._node_of(str(parent_run_id), str(meta["langgraph_checkpoint_ns"])):
                return
            ns = str(meta["langgraph_checkpoint_ns"])
            attempt = sum(1 for n in self._nodes.values() if n.ns == ns)
            self._nodes[str(run_id)] = _Node(
                str(run_id), meta["langgraph_node"], ns, int(meta["langgraph_step"]), time.time(), attempt=attempt
            )

    def _node_of(self, run: str | None, ns: str | None = None) -> str | None:
        """The node run that ``run`` lies in (with ``ns``: only if that node run has this namespace)."""
        while run is not None:
            node = self._nodes.get(run)
            if node is not None:
                return run if ns is None or node.ns == ns else None
            run = self._parents.get(run)
        return None

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._end_node(str(run_id), None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        # an interrupt ends the node run, but it is not a failure
        self._end_node(str(run_id), "interrupt" if isinstance(error, GraphInterrupt) else _describe(error))

    def _end_node(self, run_id: str, error: str | None) -> None:
        with self._lock:
            node = self._nodes.get(run_id)
            if node is not None:
                node.ended, node.error = time.time(), error

    # -- model calls ----------------------------------------------------------------------------------------

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
        from agentcore.policies.local import to_openai

        with self._lock:
            meta = metadata or {}
            params = kwargs.get("invocation_params") or {}
            self._parents[str(run_id)] = str(parent_run_id) if parent_run_id else None
            self._calls[str(run_id)] = _Call(
                id=str(run_id),
                node=self._node_of(str(parent_run_id) if parent_run_id else None),
                thread=str(meta.get("thread_id", "")),
                ns=str(meta.get("langgraph_checkpoint_ns", "")),
                name=meta.get("lc_agent_name"),
                messages=tuple(to_openai(messages[0])),
                tools=tuple(convert_to_openai_tool(t) for t in params.get("tools") or []),
                started=time.time(),
                model=str(params.get("model") or params.get("model_name") or params.get("_type") or ""),
            )

    def on_tokens(self, run_id: UUID, tokens: Tokens, calls: tuple[ToolCall, ...], policy: Any) -> None:
        """The exact tokens of a model call (:class:`agentcore.policies.sink.TokenSink`)."""
        with self._lock:
            call = self._calls.get(str(run_id))
            if call is None:
                self.problems.append(f"tokens of a model call that was never seen to start ({run_id})")
                return
            call.tokens, call.calls = tokens, calls
            if not any(p is policy for p in self.policies):
                self.policies.append(policy)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            call = self._calls.get(str(run_id))
            if call is None:
                self.problems.append(f"the end of a model call that was never seen to start ({run_id})")
                return
            call.ended = time.time()
            generation = response.generations[0][0] if response.generations and response.generations[0] else None
            message = getattr(generation, "message", None)
            if isinstance(message, AIMessage):
                call.message_id = message.id
                call.reply = message.text if isinstance(message.content, list) else message.content
                if not call.calls:
                    call.calls = calls_of(message)
            elif generation is not None:
                call.reply = generation.text

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            call = self._calls.get(str(run_id))
            if call is not None:
                call.ended, call.error = time.time(), _describe(error)

    # -- tools, rewards, context ----------------------------------------------------------------------------

    def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kw: Any
    ) -> None:
        with self._lock:
            self._parents[str(run_id)] = str(parent_run_id) if parent_run_id else None

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        call_id = getattr(output, "tool_call_id", None)
        if call_id:
            ok = getattr(output, "status", "success") != "error"
            self._result(ToolResult(str(call_id), str(getattr(output, "content", output)), ok))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if kwargs.get("tool_call_id") and not isinstance(error, GraphInterrupt):
            self._result(ToolResult(str(kwargs["tool_call_id"]), _describe(error), ok=False))

    def _by_message(self, message_id: str) -> _Call | None:
        return next((c for c in reversed(self._calls.values()) if c.message_id == message_id), None)

    def _result(self, result: ToolResult) -> None:
        with self._lock:
            for call in reversed(self._calls.values()):
                if any(c.id == result.call_id for c in call.calls):
                    call.results[result.call_id] = result
                    return
            self.problems.append(f"a result for the tool call {result.call_id}, which no recorded reply made")

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            if name == REWARD_EVENT:
                reward = Reward(**data)
                if reward.target == "step":
                    step = self._by_message(reward.target_id)
                    if step is None:
                        self.problems.append(f"reward {reward.component!r} for a message that no recorded call gave")
                    else:
                        reward = replace(reward, target_id=step.id)
                elif reward.target == "node_run" and not reward.target_id:
                    node = self._node_of(str(run_id))
                    reward = replace(reward, target_id=node or "")
                    if node is None:
                        self.problems.append(f"reward {reward.component!r} was given outside any node")
                self._rewards.append(reward)
            elif name == OBSERVATION_EVENT:
                for result in data["results"]:
                    self._result(ToolResult(**result))
            elif name == CONTEXT_EVENT:
                step = self._by_message(data["message_id"])
                if step is None:
                    self.problems.append(f"context for the message {data['message_id']}, which no recorded call gave")
                else:
                    step.context.update(data)

    # -- the trace ------------------------------------------------------------------------------------------

    def last_step_id(self) -> str | None:
        """Id of the last model call that finished."""
        with self._lock:
            done = [c.id for c in self._calls.values() if c.ended is not None and c.error is None]
            return done[-1] if done else None

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
        """What was collected, as a frozen Trace."""
        with self._lock:
            nodes = sorted(self._nodes.values(), key=lambda n: (n.superstep, n.started))
            runs = tuple(_node_run(n, nodes) for n in nodes)
            trace = Trace(
                id=trace_id,
                task=task,
                outcome=outcome,
                steps=self._steps(),
                node_runs=runs,
                fork_of=fork_of,
                problems=tuple(self.problems),
                manifest=dict(manifest or {}),
                meta=dict(meta or {}),
            )
            for reward in self._rewards:
                trace = trace.with_reward(reward)
            return trace

    def _steps(self) -> tuple[Step, ...]:
        ordinals: dict[str, int] = {}
        last_attempt: dict[str, int] = {}
        for node in self._nodes.values():
            last_attempt[node.ns] = max(node.attempt, last_attempt.get(node.ns, 0))
        steps = []
        for call in sorted(self._calls.values(), key=lambda c: c.started):
            ordinal = ordinals.get(call.node or "", 0)
            ordinals[call.node or ""] = ordinal + 1
            node = self._nodes.get(call.node or "")
            attempt = node.attempt if node is not None else 0
            results = tuple(call.results[c.id] for c in call.calls if c.id in call.results)
            steps.append(
                Step(
                    id=call.id,
                    key=(call.thread, call.ns, ordinal),
                    node_run=call.node,
                    policy_id=policy_id(call.ns, call.name),
                    messages=call.messages,
                    reply=call.reply,
                    calls=call.calls,
                    results=results,
                    tools=call.tools,
                    tokens=call.tokens,
                    belief=call.context.get("belief"),
                    memory_ids=tuple(call.context.get("memory_ids", ())),
                    anchor=call.context.get("anchor"),
                    attempt=attempt,
                    superseded=node is not None and attempt < last_attempt.get(node.ns, 0),
                    started=call.started,
                    ended=call.ended,
                    error=call.error,
                )
            )
        return tuple(steps)


def _node_run(node: _Node, nodes: Sequence[_Node]) -> NodeRun:
    """Edges by superstep: every node run of the previous superstep of the same graph could have triggered this one.

    Siblings don't see each other and a join sees all, but two independent branches are joined at each superstep;
    ``Trace.edges`` says so.
    """
    scope = node.ns.rsplit("|", 1)[0] if "|" in node.ns else ""
    level = [n for n in nodes if (n.ns.rsplit("|", 1)[0] if "|" in n.ns else "") == scope]
    before = max((n.superstep for n in level if n.superstep < node.superstep), default=None)
    parents = tuple(n.id for n in level if n.superstep == before)
    if before is None and "|" in node.ns:  # the first node of a subgraph follows the node that called it
        parents = tuple(n.id for n in nodes if n.ns == scope)
    return NodeRun(
        node.id,
        node.node,
        node.ns,
        node.superstep,
        parents=parents,
        attempt=node.attempt,
        started=node.started,
        ended=node.ended,
        error=node.error,
    )


def calls_of(message: AIMessage) -> tuple[ToolCall, ...]:
    good = [ToolCall(c["id"] or f"{message.id}-{i}", c["name"], dict(c["args"])) for i, c in enumerate(message.tool_calls)]
    bad = [
        ToolCall(
            c.get("id") or f"{message.id}-bad-{i}",
            c.get("name") or "",
            error=c.get("error") or "the call can't be read",
            raw=c.get("args"),
        )
        for i, c in enumerate(message.invalid_tool_calls)
    ]
    return (*good, *bad)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"
