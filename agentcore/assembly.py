"""What a recorder saw, put together: node runs with their parents, and steps with their attempts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langgraph.types import Command

from agentcore.environment import Json, ToolCall, ToolResult
from agentcore.plain import plain
from agentcore.trace import NodeRun, Step, Tokens

_UUID = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")

CALL_ORDER = "call_order"
"""Field of a message's response metadata: ids of its calls in the order they were written. LangChain keeps calls that
can't be run apart from the others."""


@dataclass(slots=True)
class NodeSeen:
    """A node run under way or ended."""

    id: str
    node: str
    ns: str
    superstep: int
    started: float
    outer: str | None = None
    """The node run whose subgraph this one lies in."""
    ended: float | None = None
    error: str | None = None
    attempt: int = 0

    @property
    def scope(self) -> str:
        """Namespace of the graph that this is a node of."""
        return self.ns.rpartition("|")[0]


@dataclass(slots=True)
class CallSeen:
    """A model call under way or ended."""

    id: str
    node: str | None
    thread: str
    ns: str
    name: str | None
    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    started: float
    repeat: int = 0
    """How many earlier calls of this node, in any attempt, had the same prompt."""
    message_id: str | None = None
    ended: float | None = None
    reply: str = ""
    calls: tuple[ToolCall, ...] = ()
    tokens: Tokens | None = None
    error: str | None = None
    context: Json = field(default_factory=dict)
    results: dict[str, ToolResult] = field(default_factory=dict)


def policy_id(checkpoint_ns: str, agent_name: str | None = None) -> str:
    """The node path: namespace parts without uuids and integers, e.g. ``team/planner``."""
    names = []
    for part in checkpoint_ns.split("|"):
        name = part.split(":", 1)[0]
        if name and not name.isdigit() and not _UUID.match(name):
            names.append(name)
    path = "/".join(names)
    return f"{agent_name}:{path}" if agent_name else path


def superseded(nodes: Iterable[NodeSeen]) -> set[str]:
    """Ids of the node runs that a later attempt replaced.

    A node run is replaced by a later one of its namespace. Inside a subgraph, a later attempt at the outer node either
    starts over, with namespaces of its own, or resumes: it replaces what lies at its own first superstep or after it.
    """
    listed = list(nodes)
    by_id = {n.id: n for n in listed}
    last = {n.ns: n.attempt for n in listed}  # attempts are counted up, in order
    first: dict[str, int] = {}
    """By outer node run: the earliest superstep of what lies in it."""
    for n in listed:
        if n.outer is not None:
            first[n.outer] = min(n.superstep, first.get(n.outer, n.superstep))

    def replaced(n: NodeSeen) -> bool:
        if n.attempt < last[n.ns]:
            return True
        outer = by_id.get(n.outer or "")
        if outer is None:
            return False
        later = (m for m in listed if m.ns == outer.ns and m.attempt > outer.attempt)
        again = any(first.get(m.id, math.inf) <= n.superstep for m in later)
        return again or (outer.outer is not None and replaced(outer))

    return {n.id for n in listed if replaced(n)}


def node_runs(nodes: Sequence[NodeSeen], gone: set[str]) -> tuple[NodeRun, ...]:
    """Node runs with edges by superstep: each one of a graph's previous superstep could have triggered this one.

    Siblings don't see each other and a join sees all, but two independent branches are joined at each superstep;
    ``Trace.edges`` says so.
    """
    ordered = sorted(nodes, key=lambda n: n.superstep)  # stable: in the order they started
    return tuple(_node_run(n, ordered, gone) for n in ordered)


def _node_run(node: NodeSeen, nodes: Sequence[NodeSeen], gone: set[str]) -> NodeRun:
    replaced = node.id in gone
    level = [n for n in nodes if n.scope == node.scope and (n.outer == node.outer if replaced else n.id not in gone)]
    before = max((n.superstep for n in level if n.superstep < node.superstep), default=None)
    parents = tuple(n.id for n in level if n.superstep == before)
    if before is None and node.outer is not None:  # the first node of a subgraph follows the node that called it
        parents = (node.outer,)
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


def steps(calls: Iterable[CallSeen], nodes: Mapping[str, NodeSeen], gone: set[str]) -> tuple[Step, ...]:
    """One step per model call, in the order they started."""
    ordinals: dict[str | None, int] = {}
    listed = []
    for call in calls:
        ordinal = ordinals.get(call.node, 0)
        ordinals[call.node] = ordinal + 1
        node = nodes.get(call.node or "")
        listed.append(
            Step(
                id=call.id,
                key=(call.thread, call.ns, ordinal),
                node_run=call.node,
                policy_id=policy_id(call.ns, call.name),
                messages=call.messages,
                reply=call.reply,
                calls=call.calls,
                results=tuple(call.results[c.id] for c in call.calls if c.id in call.results),
                tools=call.tools,
                tokens=call.tokens,
                belief=call.context.get("belief"),
                memory_ids=tuple(call.context.get("memory_ids", ())),
                anchor=call.context.get("anchor"),
                attempt=node.attempt if node is not None else 0,
                superseded=call.node in gone,
                started=call.started,
                ended=call.ended,
                error=call.error,
            )
        )
    return tuple(listed)


def calls_of(message: AIMessage) -> tuple[ToolCall, ...]:
    """The calls of a message, those that can't be run included, in the order they were written."""
    calls = []
    for i, c in enumerate(message.tool_calls):
        args = plain(c["args"])
        same = args == c["args"]
        error = None if same else "the arguments hold what is not JSON"
        calls.append(ToolCall(c["id"] or f"{message.id}-{i}", c["name"], args, error=error))
    for i, bad in enumerate(message.invalid_tool_calls):
        error = bad.get("error") or "the call can't be read"
        calls.append(
            ToolCall(bad.get("id") or f"{message.id}-bad-{i}", bad.get("name") or "", error=error, raw=bad.get("args"))
        )
    order = message.response_metadata.get(CALL_ORDER)
    if isinstance(order, list):
        calls.sort(key=lambda c: order.index(c.id) if c.id in order else len(order))
    return tuple(calls)


def to_openai(messages: Sequence[BaseMessage]) -> list[Json]:
    """LangChain messages as OpenAI ones; what LangChain can't convert is kept as text."""
    try:
        converted: list[Json] = convert_to_openai_messages(list(messages))
    except Exception:  # content blocks that it does not know
        converted = [_one_to_openai(m) for m in messages]
    return [plain(m) for m in converted]


def _one_to_openai(message: BaseMessage) -> Json:
    try:
        converted = convert_to_openai_messages([message])
        return dict(converted[0])
    except Exception:
        roles = {"human": "user", "ai": "assistant"}
        return {"role": roles.get(message.type, message.type), "content": message.text or str(message.content)}


def tool_messages(output: Any, depth: int = 3) -> list[ToolMessage]:
    """The tool messages in what a node or a tool returned: in lists, under state keys, in commands."""
    if isinstance(output, ToolMessage):
        return [output]
    if isinstance(output, Command):
        return tool_messages(output.update, depth)
    if depth == 0:
        return []
    if isinstance(output, Mapping):
        return [m for value in output.values() for m in tool_messages(value, depth - 1)]
    if isinstance(output, list | tuple):
        return [m for value in output for m in tool_messages(value, depth - 1)]
    return []
