"""build_agent: the six capabilities and an environment as one LangGraph graph. The topology on one screen."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore

from agentcore.capabilities import (
    CAPABILITIES,
    MemoryNode,
    PerceptionNode,
    PlanningNode,
    ReasoningNode,
    SelfImprovementNode,
    ToolUseNode,
)
from agentcore.capabilities.reasoning import Layout
from agentcore.environment import Environment
from agentcore.environment_node import EnvironmentNode, EnvironmentView
from agentcore.errors import SpecError
from agentcore.state import AgentState, AgentView

SYSTEM = "Answer the question. A correction replaces what was said before."


def build_agent(
    policy: BaseChatModel,
    environment: Environment,
    *,
    capabilities: Collection[str] = CAPABILITIES,
    store: BaseStore | None = None,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    system: str = SYSTEM,
    layout: Layout = "append",
    context_budget: int = 512,
    belief_budget: int = 128,
    memory_budget: int = 96,
    planner: BaseChatModel | None = None,
    name: str = "agent",
) -> CompiledStateGraph[AgentState, None, Any, Any]:
    """An agent acting in ``environment`` with ``policy``, as a compiled graph.

    Start it with :func:`agentcore.runner.agent_input`, or let :func:`agentcore.runner.rollout` run it.

    Args:
        policy: any LangChain chat model; one that hands over tokens (``LocalChatModel``) can be trained.
        capabilities: which of ``perception, memory, planning, reasoning, tool_use, self_improvement`` are on. Without
            ``reasoning`` the policy is reactive (node ``act``): it sees only the task and the present turn.
        store: where memory is kept; None leaves it to whoever runs the graph (``runtime.store``).
        checkpointer: a saver, if wanted; None compiles without one, as ``langgraph dev`` demands.
        layout: ``append`` or ``rewrite``, see :mod:`agentcore.capabilities.reasoning`.
        context_budget, belief_budget, memory_budget: tokens of a whole prompt, of a rendered belief, and of what
            memory may show per turn.
        planner: a chat model that writes the plan (policy id ``planning``); None plans by rules. It may be ``policy``
            itself, with an adapter of its own.

    Raises:
        SpecError: for an unknown capability.
    """
    unknown = set(capabilities) - set(CAPABILITIES)
    if unknown:
        raise SpecError(f"Unknown capability {sorted(unknown)}; choose from {', '.join(CAPABILITIES)}.")
    on = [c for c in CAPABILITIES if c in capabilities]
    count = token_counter(policy)
    tools = environment.spec.actions
    reason = ReasoningNode(
        policy,
        tools,
        system=system,
        count_tokens=count,
        layout=layout,
        context_budget=context_budget,
        belief_budget=belief_budget,
        history="reasoning" in on,
    )
    plan = PlanningNode(planner)
    nodes: dict[str, Any] = {
        "perception": PerceptionNode(),
        "memory": MemoryNode(store, count_tokens=count, budget=memory_budget),
        "planning": RunnableLambda(plan, afunc=plan.acall, name="plan") if planner else plan,
        "tool_use": ToolUseNode(tools),
        "self_improvement": SelfImprovementNode(store),
    }
    decide = "reasoning" if "reasoning" in on else "act"

    graph = StateGraph(AgentState)
    graph.add_node("environment", EnvironmentNode(environment), input_schema=EnvironmentView)
    graph.add_node(decide, RunnableLambda(reason, afunc=reason.acall, name="decide"), input_schema=AgentView)
    for capability in on:
        if capability != "reasoning":
            graph.add_node(capability, nodes[capability], input_schema=AgentView)

    # perceive -> remember -> plan -> decide -> check -> act, and again; reflect at the end
    before = [c for c in ("perception", "memory", "planning") if c in on] + [decide]
    after = [decide] + [c for c in ("tool_use",) if c in on] + ["environment"]
    last = "self_improvement" if "self_improvement" in on else END
    graph.add_edge(START, "environment")
    graph.add_conditional_edges("environment", _ended, {"ended": last, "goes on": before[0]})
    for chain in (before, after):
        for source, target in pairwise(chain):
            graph.add_edge(source, target)
    if last != END:
        graph.add_edge(last, END)
    compiled = graph.compile(checkpointer=checkpointer, store=store, name=name)
    # the environment's step limit ends an episode, not the graph's
    return compiled.with_config(recursion_limit=(len(on) + 2) * (environment.spec.step_limit + 2))


def _ended(state: AgentView) -> str:
    return "ended" if state.get("outcome") else "goes on"


def token_counter(policy: BaseChatModel) -> Callable[[str], int]:
    """The policy's own token count; a quarter of the characters where it has none."""
    codec = getattr(policy, "codec", None)
    if codec is not None:
        counter: Callable[[str], int] = codec.count
        return counter
    return lambda text: len(text) // 4 + 1


def make_graph() -> CompiledStateGraph[AgentState, None, Any, Any]:
    """The default agent, for ``langgraph dev`` (see langgraph.json): the built-in environment and model."""
    from agentcore.environments import make_environment
    from agentcore.policies.local import LocalChatModel

    return build_agent(LocalChatModel.load(), make_environment("assistant"))
