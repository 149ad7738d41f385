"""Episodes by the dozen: a bad one is data, a broken contract raises, and concurrent ones don't see each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np
import pytest
from langchain_core.messages import AIMessage
from langgraph.config import get_store
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from agentcore import emit_reward
from agentcore.environment import Action, EnvironmentSpec, Json, RewardSpec, Split, Task, ToolResult, Transition
from agentcore.errors import DuplicateRewardError, SpecError, UndeclaredRewardError
from agentcore.graph import build_agent
from agentcore.policies.scripted import ScriptedChatModel
from agentcore.runner import episodes, rollout
from agentcore.trace import Trace
from agentcore.tracefile import TraceWriter, read_traces
from memory import FaissStore

MODEL = ScriptedChatModel(script=lambda messages, metadata: AIMessage(f"re: {messages[-1].content}"))


class State(TypedDict, total=False):
    number: int
    seen: list[str]
    outcome: str


def tasks(count: int, split: Split = "train") -> list[Task]:
    return [Task(f"t{i}", split, i, "do", {"number": i}) for i in range(count)]


def to_input(task: Task, key: int) -> State:
    return {"number": task.data["number"]}


def graph_of(node: Any, **options: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile(**options)


def go(node: Any, count: int = 3, *, split: Split = "train", **options: Any) -> list[Trace]:
    planned = episodes(tasks(count, split))
    return rollout(graph_of(node), planned, to_input=to_input, **options).traces


# Order and keys


def test_episodes_have_keys_of_their_own_that_depend_on_nothing_else() -> None:
    planned = episodes(tasks(3), 2, seed=1, iteration=4, purpose="train")
    assert [(e.task.id, e.rollout) for e in planned] == [(f"t{i}", r) for i in range(3) for r in range(2)]
    assert len({e.key for e in planned}) == len({e.id for e in planned}) == 6
    assert episodes(tasks(9), 2, seed=1, iteration=4, purpose="train")[:6] == planned
    for seed, iteration, purpose in ((2, 4, "train"), (1, 5, "train"), (1, 4, "run")):
        others = episodes(tasks(3), 2, seed=seed, iteration=iteration, purpose=purpose)
        assert not {e.key for e in others} & {e.key for e in planned}


async def late_first(state: State) -> State:
    await MODEL.ainvoke("x")
    await asyncio.sleep(0.05 * (3 - state["number"]))
    return {}


def test_traces_come_back_in_order_whatever_ends_first() -> None:
    ended: list[str] = []
    traces = go(late_first, 4, on_trace=lambda t: ended.append(t.task.id), meta={"iteration": 3}, manifest={"m": 1})
    assert [t.task.id for t in traces] == ["t0", "t1", "t2", "t3"]
    assert ended == ["t3", "t2", "t1", "t0"], "on_trace is told at once"
    assert len({t.id for t in traces}) == 4
    assert traces[2].meta["iteration"] == 3 and traces[2].meta["rollout"] == 0 and traces[2].manifest == {"m": 1}


def test_no_more_episodes_than_allowed_run_at_once() -> None:
    now, most = [0], [0]

    async def node(state: State) -> State:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.01)
        now[0] -= 1
        return {}

    go(node, 9, concurrency=3)
    assert most[0] == 3


async def test_it_works_inside_a_running_event_loop() -> None:
    assert [t.outcome for t in go(late_first, 2)] == ["terminated"] * 2


def test_nothing_planned_is_nothing_done() -> None:
    assert go(late_first, 0) == []


# Bad episodes are data


def test_an_exception_in_a_node_fails_its_episode_and_no_other(tmp_path: Any) -> None:
    def node(state: State) -> State:
        MODEL.invoke("x")
        if state["number"] == 1:
            raise KeyError("lost\nmy keys")
        return {}

    traces = go(node)
    assert [t.outcome for t in traces] == ["terminated", "failed", "terminated"]
    assert traces[1].problems == (r"KeyError: 'lost\nmy keys'",)
    assert traces[1].steps[0].reply == "re: x" and "KeyError" in str(traces[1].node_runs[0].error)
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        for trace in traces:
            writer.write(trace)
    assert read_traces(tmp_path / "t.jsonl") == (traces, [])


@pytest.mark.parametrize("how", ["library", "standard library", "numbers", "langgraph"])
def test_whatever_a_users_node_calls_that_fails_is_the_nodes_failure(how: str) -> None:
    def node(state: State) -> Any:
        if how == "library":
            np.zeros(2).reshape(3)
        if how == "standard library":
            json.loads("{")
        if how == "numbers":
            return {"seen": 1 / 0}
        return "not an update"

    assert [t.outcome for t in go(node, 2)] == ["failed", "failed"]


def test_a_models_failure_inside_our_node_is_data_too() -> None:
    def script(messages: Any, metadata: Any) -> AIMessage:
        raise ConnectionError("the server is gone")

    environment = Counter()
    graph = build_agent(ScriptedChatModel(script=script), environment)
    (trace,) = rollout(graph, episodes(environment.tasks("train", 1))).traces
    assert (trace.outcome, trace.problems) == ("failed", ("ConnectionError: the server is gone",))
    assert trace.steps[0].error == "ConnectionError: the server is gone"


def test_the_recursion_limit_truncates() -> None:
    graph = StateGraph(State)
    graph.add_node("node", lambda state: {"number": state["number"] + len(str(MODEL.invoke("x").content)) * 0})
    graph.add_edge(START, "node")
    graph.add_edge("node", "node")
    compiled = graph.compile()
    (trace,) = rollout(compiled, episodes(tasks(1)), to_input=to_input, recursion_limit=7).traces
    assert trace.outcome == "truncated" and len(trace.steps) == 7
    assert trace.problems == ("the graph's recursion limit of 7 was reached",)
    limited = compiled.with_config(recursion_limit=4)
    (trace,) = rollout(limited, episodes(tasks(1)), to_input=to_input).traces
    assert len(trace.steps) == 4, "a graph may bring its own limit"


def test_an_interrupt_that_nobody_answers_abandons_the_episode() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    graph = graph_of(lambda state: {"seen": [interrupt("really?")]}, checkpointer=InMemorySaver())
    (trace,) = rollout(graph, episodes(tasks(1)), to_input=to_input).traces
    assert trace.outcome == "abandoned" and "interrupted" in trace.problems[0]


@pytest.mark.parametrize("outcome", ["terminated", "truncated", "failed", "abandoned"])
def test_the_graph_may_say_how_it_ended(outcome: str) -> None:
    assert [t.outcome for t in go(lambda state: {"outcome": outcome}, 1)] == [outcome]
    assert [t.outcome for t in go(lambda state: {"outcome": "fine"}, 1)] == ["terminated"]


# Errors of contract raise


class Counter:
    """An environment of two steps; ``wrong`` breaks its contract."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong

    @property
    def spec(self) -> EnvironmentSpec:
        reward = RewardSpec("success", 0.0, 1.0, "1 at the end")
        return EnvironmentSpec("counter", "1", "a number", "it", (), "at 2", 5, (reward,))

    def tasks(self, split: Split, count: int, *, seed: int = 0) -> list[Task]:
        return [Task(f"counter/{split}/{i}", split, i, "count") for i in range(count)]

    def reset(self, task: Task, key: int) -> Transition:
        return Transition({"n": 0}, "0")

    def step(self, state: Json, action: Action, key: int) -> Transition:
        if self.wrong == "crash":
            raise LookupError("a bug of this environment")
        n = state["n"] + 1
        rewards = {"success": 7.0 if self.wrong == "range" else 1.0} if n == 2 else {}
        if self.wrong == "undeclared":
            rewards["charm"] = 0.5
        results = (ToolResult("x", ""),) if self.wrong == "results" else ()
        return Transition({"n": n}, str(n), results, rewards, outcome="terminated" if n == 2 else None)

    def anchor(self, state: Json) -> str:
        return str(state["n"])


def play(wrong: str = "") -> list[Trace]:
    environment = Counter(wrong)
    return rollout(build_agent(MODEL, environment), episodes(environment.tasks("train", 3))).traces


def test_an_environment_of_ones_own_is_played() -> None:
    for trace in play():
        assert trace.outcome == "terminated" and len(trace.steps) == 2 and trace.problems == ()
        assert [s.anchor for s in trace.steps] == ["0", "1"]
        assert [(r.component, r.value, r.target_id) for r in trace.rewards] == [("success", 1.0, trace.steps[1].id)]


def test_an_undeclared_reward_raises_and_is_named() -> None:
    with pytest.raises(UndeclaredRewardError, match=r"emitted the reward component 'charm'.*declared: success"):
        play("undeclared")


@pytest.mark.parametrize(("wrong", "said"), [("range", "outside its declared range"), ("results", "1 results for 0")])
def test_a_broken_contract_raises(wrong: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        play(wrong)


def test_a_crash_of_an_environment_is_a_failed_episode() -> None:
    assert [t.problems for t in play("crash")] == [("LookupError: a bug of this environment",)] * 3


def test_a_bug_in_our_own_code_raises() -> None:
    environment = Counter()
    given = {"task": 1, "env_task": {"no": "task"}}
    with pytest.raises(TypeError):
        rollout(build_agent(MODEL, environment), episodes(tasks(1)), to_input=lambda task, key: given)


# Reward functions


def test_a_reward_function_grades_the_trace() -> None:
    def graded(trace: Trace, final: Any) -> Mapping[str, Any]:
        return {"right": float(final["number"] == 1), "short": np.float32(-len(trace.steps))}

    def node(state: State) -> State:
        MODEL.invoke("x")
        emit_reward("own", 0.5)
        return {}

    traces = go(node, 2, reward=graded)
    assert [t.component_totals() for t in traces] == [
        {"own": 0.5, "right": 0.0, "short": -1.0},
        {"own": 0.5, "right": 1.0, "short": -1.0},
    ]
    assert {(r.target, r.source) for r in traces[0].rewards} == {("node_run", "environment"), ("trace", "graded")}
    assert go(node, 1, reward=lambda trace, final: 3)[0].component_totals()["reward"] == 3.0


@pytest.mark.parametrize("value", [None, float("nan"), "good", {"x": None}])
def test_a_reward_function_must_give_numbers(value: Any) -> None:
    with pytest.raises(SpecError, match="it must return a finite number"):
        go(lambda state: {}, 1, reward=lambda trace, final: value)


def test_a_component_given_twice_is_an_error() -> None:
    def node(state: State) -> State:
        emit_reward("good", 1.0)
        emit_reward("good", 2.0)
        return {}

    with pytest.raises(DuplicateRewardError, match="'good'"):
        go(node, 1)


# Memory


def remember(state: State) -> State:
    """Notes what the store holds, then writes to it."""
    store = get_store()
    seen = sorted(item.key for item in store.search(("notes",), limit=100))
    store.put(("notes",), f"n{state['number']}", {"text": "x"})
    return {"seen": seen}


def test_concurrent_episodes_see_one_snapshot_and_not_each_other() -> None:
    store = FaissStore(None, embedder=False)
    store.put(("notes",), "old", {"text": "x"})
    finals: list[Any] = []

    def keep(trace: Trace, final: Any) -> float:
        finals.append(final["seen"])
        return 0.0

    go(remember, 4, memory=store, reward=keep)
    assert finals == [["old"]] * 4
    assert [i.key for i in store.search(("notes",))] == ["old"], "nothing is merged unless asked for"
    go(remember, 4, memory=store, learn=True)
    assert sorted(i.key for i in store.search(("notes",))) == ["n0", "n1", "n2", "n3", "old"]


@pytest.mark.parametrize("split", ["heldout", "adversarial"])
def test_other_episodes_than_training_ones_never_merge(split: Split) -> None:
    store = FaissStore(None, embedder=False)
    go(remember, 2, split=split, memory=store, learn=True)
    assert store.search(("notes",)) == []
    mixed = [replace(t, split="train") if i == 0 else t for i, t in enumerate(tasks(3, split))]
    rollout(graph_of(remember), episodes(mixed), to_input=to_input, memory=store, learn=True)
    assert [i.key for i in store.search(("notes",))] == ["n0"]


def test_a_snapshot_can_be_given_and_stays_the_callers() -> None:
    store = FaissStore(None, embedder=False)
    with store.snapshot() as snapshot:
        for _ in range(2):
            go(remember, 2, memory=snapshot, learn=True)
        assert snapshot.search(("notes",)) == []
    assert store.search(("notes",)) == []


def test_a_policy_is_not_told_the_key_that_the_environment_draws_from() -> None:
    """With it, a policy of its own making could compute which way the ice will slip."""
    told: list[int] = []

    def reply(messages: Any, metadata: Mapping[str, Any]) -> AIMessage:
        told.append(metadata["agentcore_key"])
        return AIMessage("x")

    policy = ScriptedChatModel(script=reply)
    planned = episodes(tasks(2))
    rollout(graph_of(lambda state: {"seen": [policy.invoke("hi").content]}), planned, to_input=to_input)
    assert len(set(told)) == 2 and not set(told) & {episode.key for episode in planned}
