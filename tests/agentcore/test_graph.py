"""The agent graph: every capability can be off, nobody peeks at the hidden state, and what is drawn is what runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.messages.tool import invalid_tool_call
from langgraph.checkpoint.memory import InMemorySaver

from agentcore.capabilities import CAPABILITIES
from agentcore.environment import Environment, HasOracle, Task
from agentcore.environment_node import agent_input
from agentcore.environments import make_environment
from agentcore.environments.assistant import AssistantEnvironment
from agentcore.environments.assistant_tasks import Difficulty
from agentcore.errors import PolicyError, SpecError
from agentcore.graph import build_agent
from agentcore.policies.local import EPISODE_ID
from agentcore.policies.scripted import ExpertPolicy, ScriptedChatModel, expert_actions
from agentcore.runner import episodes, rollout
from agentcore.trace import Trace
from memory import FaissStore

HIDDEN = {"env_state", "env_task", "env_key"}


def without(*names: str) -> list[str]:
    return [c for c in CAPABILITIES if c not in names]


def expert_traces(
    environment: Environment, count: int = 2, capabilities: Collection[str] = CAPABILITIES, **options: Any
) -> list[Trace]:
    planned = episodes(environment.tasks("train", count))
    expert = ExpertPolicy()
    for episode in planned:
        expert.prepare(episode.id, environment, episode.task, episode.key)
    graph = build_agent(expert, environment, capabilities=capabilities, **options)
    return rollout(graph, planned, memory=FaissStore(None, embedder=False)).traces


def shown(trace: Trace) -> list[str]:
    """What was new in each prompt."""
    return [str(step.messages[-1]["content"]) for step in trace.steps]


# Capabilities


@pytest.mark.parametrize("off", [*([c] for c in CAPABILITIES), list(CAPABILITIES), []], ids=lambda off: "-".join(off))
def test_an_episode_runs_with_any_capability_off(off: list[str]) -> None:
    for trace in expert_traces(AssistantEnvironment("hard"), 2, without(*off)):
        assert trace.outcome == "terminated" and trace.problems == ()
        assert trace.component_totals()["success"] == 1.0
        ran = {r.node for r in trace.node_runs}
        assert ran == {"environment", *without(*off), *(["act"] if "reasoning" in off else [])}
        for step in trace.steps:
            text = " ".join(str(m["content"]) for m in step.messages)
            assert "Messages to come" in text, "the news are shown whoever shows them"
            assert ("Plan:" in text) <= ("planning" not in off)


def test_a_reactive_agent_sees_the_task_and_the_present_turn_only() -> None:
    (trace,) = expert_traces(AssistantEnvironment("easy", mixture=[Difficulty(facts=2)]), 1, without("reasoning"))
    assert [len(s.messages) for s in trace.steps] == [2] * len(trace.steps)
    prices = [r.content for s in trace.steps for r in s.results]
    last = shown(trace)[-1]
    assert trace.task.instruction in last and prices[-2] in last and prices[0] not in last


@pytest.mark.parametrize("off", [[], ["memory"], ["reasoning", "self_improvement"], list(CAPABILITIES)])
def test_the_drawing_shows_what_is_on(off: list[str]) -> None:
    drawn = build_agent(ExpertPolicy(), AssistantEnvironment(), capabilities=without(*off)).get_graph().draw_mermaid()
    for capability in CAPABILITIES:
        assert (f"{capability}(" in drawn) == (capability not in off)
    assert "environment(" in drawn and ("act(" in drawn) == ("reasoning" in off)
    assert "goes on" in drawn or "goes&nbsp;on" in drawn


def test_an_unknown_capability_is_refused() -> None:
    with pytest.raises(SpecError, match=r"Unknown capability \['telepathy'\]; choose from perception, memory"):
        build_agent(ExpertPolicy(), AssistantEnvironment(), capabilities=["memory", "telepathy"])


def test_a_second_environment_runs_in_the_same_graph() -> None:
    lake = make_environment("frozen-lake", size=4)
    for trace in expert_traces(lake, 3):
        assert trace.outcome == "terminated" and trace.problems == ()
        assert trace.component_totals()["success"] == 1.0
        assert {r.target for r in trace.rewards} == {"call"}, "this one rewards single calls"
        assert [s.anchor is not None for s in trace.steps] == [True] * len(trace.steps)


def test_the_step_limit_ends_an_episode_and_not_the_graphs_own() -> None:
    lake = make_environment("frozen-lake", map="8x8", step_limit=60)
    idle = ScriptedChatModel(script=lambda messages, metadata: AIMessage("hm"))
    (trace,) = rollout(build_agent(idle, lake), episodes(lake.tasks("train", 1))).traces
    assert (trace.outcome, len(trace.steps), trace.problems) == ("truncated", 60, ())


# What a graph comes with


def test_no_checkpointer_and_no_store_unless_asked() -> None:
    plain = build_agent(ExpertPolicy(), AssistantEnvironment())
    assert plain.checkpointer is None and plain.store is None
    saver, store = InMemorySaver(), FaissStore(None, embedder=False)
    asked = build_agent(ExpertPolicy(), AssistantEnvironment(), checkpointer=saver, store=store, name="clerk")
    assert asked.checkpointer is saver and asked.store is store and asked.name == "clerk"


def test_sync_and_async_runs_are_the_same() -> None:
    environment = AssistantEnvironment("hard")
    task = environment.tasks("train", 3)[2]

    def fresh() -> Any:
        expert = ExpertPolicy()
        expert.prepare("e", environment, task, 5)
        return build_agent(expert, environment)

    config: Any = {"metadata": {EPISODE_ID: "e"}}
    one = fresh().invoke(agent_input(task, 5), config)
    two = asyncio.run(fresh().ainvoke(agent_input(task, 5), config))
    for final in (one, two):
        final["messages"] = [(m.type, m.content) for m in final["messages"]]
        final["results"] = [r["content"] for r in final["results"]]
    assert one == two
    assert one["outcome"] == "terminated" and one["turn"] > 2 and one["feedback"]["success"] == 1.0


def test_a_run_may_start_from_a_public_task_or_none() -> None:
    environment = AssistantEnvironment("easy")
    idle = ScriptedChatModel(script=lambda messages, metadata: AIMessage("hm"))
    graph = build_agent(idle, environment)
    listed = environment.tasks("heldout", 20)
    assert graph.invoke({})["task"]["id"] == listed[0].id
    assert graph.invoke({"task": {"id": listed[3].id}})["task"]["instruction"] == listed[3].instruction
    with pytest.raises(SpecError, match="No task 'other': give the whole task as 'env_task'"):
        graph.invoke({"task": {"id": "other"}})


# Nobody peeks


def canary(environment: AssistantEnvironment, key: int) -> Task:
    """A task whose hidden data holds words that no call asks for."""
    task = environment.tasks("train", 1)[0]
    task.data["registry"]["unicorn"] = "unicorn costs CANARY."
    task.data["secret"] = "CANARY"
    assert str(key) not in str(task)
    return task


@pytest.mark.parametrize("off", [[], ["reasoning"], ["memory", "perception"]])
def test_only_the_environment_reads_the_hidden_channels(off: list[str]) -> None:
    graph = build_agent(ExpertPolicy(), AssistantEnvironment(), capabilities=without(*off))
    reads = {name: set(node.channels) for name, node in graph.nodes.items() if name != "__start__"}
    assert reads["environment"] >= HIDDEN
    assert len(reads) == 7 - len([c for c in off if c != "reasoning"])
    for name, channels in reads.items():
        assert name == "environment" or not channels & HIDDEN, f"{name} can peek"


class Inputs(BaseCallbackHandler):
    """Every input of every node, and of every runnable in it."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {}

    def on_chain_start(self, serialized: Any, inputs: Any, *, metadata: Any = None, **kwargs: Any) -> None:
        node = (metadata or {}).get("langgraph_node")
        if node is not None:
            self.seen.setdefault(node, []).append(repr((inputs, metadata, kwargs)))


@pytest.mark.parametrize("layout", ["append", "rewrite"])
def test_no_policy_and_no_capability_sees_the_hidden_state(layout: Any) -> None:
    environment = AssistantEnvironment("hard")
    key = 8_888_777_766_665_555
    task = canary(environment, key)
    actions = expert_actions(environment, task, key)
    prompts: list[str] = []

    def spy(messages: Any, metadata: Any) -> AIMessage:
        prompts.append(repr((messages, metadata)))
        (call,) = actions[len(prompts) - 1].calls
        return AIMessage("", tool_calls=[{"id": call.id, "name": call.name, "args": call.args}])

    inputs = Inputs()
    graph = build_agent(ScriptedChatModel(script=spy), environment, layout=layout, context_budget=150)
    final = graph.invoke(agent_input(task, key), {"callbacks": [inputs]})
    assert final["feedback"]["success"] == 1.0 and len(prompts) == len(actions)
    assert set(inputs.seen) >= {"environment", *CAPABILITIES}
    assert any("CANARY" in text for text in inputs.seen["environment"]), "the spy would see it"
    for name, texts in [("policy", prompts), *inputs.seen.items()]:
        for text in texts:
            assert name == "environment" or ("CANARY" not in text and str(key) not in text), name


# Prompts


def test_the_append_layout_only_adds_to_what_was_prompted() -> None:
    for trace in expert_traces(AssistantEnvironment("hard"), 4, context_budget=10_000):
        for earlier, later in pairwise(trace.steps):
            assert later.messages[: len(earlier.messages)] == earlier.messages
            assert later.messages[len(earlier.messages)]["content"] == earlier.reply
            assert len(later.messages) == len(earlier.messages) + 2


def test_beyond_the_context_budget_the_prompt_is_rendered_from_the_belief() -> None:
    environment = AssistantEnvironment("long")
    budget = 300
    for trace in expert_traces(environment, 2, context_budget=budget):
        assert trace.component_totals()["success"] == 1.0
        lengths = [len(s.messages) for s in trace.steps]
        assert 2 in lengths[1:], "the history was given up at least once"
        rendered = next(s for n, s in list(zip(lengths, trace.steps, strict=True))[1:] if n == 2)
        assert trace.task.instruction in str(rendered.messages[-1]["content"])
        held = [line for line in str(rendered.belief).splitlines() if "costs" in line]
        assert any(line in str(rendered.messages[-1]["content"]) for line in held)


def test_the_rewrite_layout_renders_every_turn_anew() -> None:
    for trace in expert_traces(AssistantEnvironment("hard"), 2, layout="rewrite"):
        assert {len(s.messages) for s in trace.steps} == {2}
        assert trace.component_totals()["success"] == 1.0


def test_tools_are_offered_and_unreadable_calls_come_back_as_results() -> None:
    environment = AssistantEnvironment("easy")
    many = [{"id": f"c{i}", "name": "compute", "args": {"expression": "1"}} for i in range(6)]
    replies = iter(
        [
            AIMessage("", tool_calls=[{"id": "a", "name": "lokup", "args": {}}]),
            AIMessage("", invalid_tool_calls=[invalid_tool_call(id="b", name="lookup", args="{", error="no JSON")]),
            AIMessage("", tool_calls=many),
            AIMessage("", tool_calls=[{"id": "d", "name": "answer", "args": {"value": "0"}}]),
        ]
    )

    def script(messages: Any, metadata: Any) -> AIMessage:
        return next(replies)

    (task,) = environment.tasks("train", 1)
    (trace,) = rollout(build_agent(ScriptedChatModel(script=script), environment), episodes([task])).traces
    assert {t["function"]["name"] for t in trace.steps[0].tools} == {"lookup", "compute", "search_notes", "answer"}
    results = [[(r.call_id, r.ok) for r in s.results] for s in trace.steps]
    assert results[0] == [("a", False)] and results[1] == [("b", False)]
    assert results[2] == [(f"c{i}", i < 4) for i in range(6)], "at most 4 calls per turn"
    assert "did you mean 'lookup'" in shown(trace)[1] and "no JSON" in shown(trace)[2]
    penalties = {r.target_id for r in trace.rewards if r.component == "invalid_call"}
    assert penalties == {"a", "b", "c4", "c5"}


# Experts


def test_an_expert_that_was_not_prepared_says_so() -> None:
    environment = AssistantEnvironment("easy")
    assert isinstance(environment, HasOracle)
    with pytest.raises(PolicyError, match=r"nothing \(more\) to do in episode"):
        rollout(build_agent(ExpertPolicy(), environment), episodes(environment.tasks("train", 1)))
    assert ExpertPolicy().plans is not ExpertPolicy().plans
