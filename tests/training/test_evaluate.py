"""Evaluation: the intervals against other ways to compute them; splits and memory kept apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from agentcore import Task, build_agent, episodes, make_environment
from agentcore.environment import RewardSpec
from agentcore.errors import SpecError
from agentcore.policies.scripted import ScriptedChatModel
from agentcore.trace import Reward
from memory import FaissStore, HashingEmbedder
from tests.training.tiny import trace
from training.evaluate import evaluate, outcome_scale, paired_difference, success_of, wilson

# Intervals ---------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 400), st.data())
def test_wilson_holds_the_proportions_that_a_z_test_does_not_reject(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    low, high = wilson(k, n)
    assert 0.0 <= low <= k / n <= high <= 1.0
    for p in (low, high):  # the ends are where |k/n - p| is just 1.96 standard errors of p
        if 0.0 < p < 1.0:
            assert abs(k / n - p) == pytest.approx(1.96 * math.sqrt(p * (1 - p) / n), abs=1e-9)
    assert wilson(n - k, n) == pytest.approx((1 - high, 1 - low))


def test_wilson_knows_nothing_of_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Newcombe 1998, method 3


def test_the_paired_interval_is_the_bootstrap_one() -> None:
    generator = np.random.default_rng(4)
    a = {f"t{i}": float(generator.random() < 0.6) for i in range(300)}
    b = {k: float(generator.random() < 0.4) for k in reversed(a)}
    mean, low, high = paired_difference(a, b)
    d = [a[k] - b[k] for k in a]
    assert mean == pytest.approx(sum(d) / 300)
    half = 1.96 * float(np.std(d)) / math.sqrt(300)  # the normal limit of the bootstrap
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.15 * half)
    assert paired_difference(a, b) == (mean, low, high)
    back = paired_difference(b, a, seed=1)
    assert back == pytest.approx((-mean, -high, -low), abs=0.15 * half)
    # pairing matters: equal differences leave no doubt
    assert paired_difference({k: v + 0.25 for k, v in a.items()}, a) == pytest.approx((0.25, 0.25, 0.25))


def test_a_small_paired_interval_is_that_of_all_resamples() -> None:
    a, b = {"x": 1.0, "y": 1.0, "z": 0.0}, {"x": 0.0, "y": 1.0, "z": 0.0}
    every = sorted(np.mean([i, j, k]) for i in (1, 0, 0) for j in (1, 0, 0) for k in (1, 0, 0))
    low, high = np.percentile(every, [2.5, 97.5], method="inverted_cdf")
    assert paired_difference(a, b) == pytest.approx((1 / 3, low, high), abs=1e-9)


@pytest.mark.parametrize(("a", "b"), [({"x": 1.0}, {"y": 1.0}), ({"x": 1.0, "y": 0.0}, {"x": 1.0}), ({}, {})])
def test_what_was_not_measured_on_the_same_tasks_is_not_compared(a: dict[str, float], b: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="same tasks"):
        paired_difference(a, b)


# What counts as success --------------------------------------------------------------------------------------------


def outcome(low: float, high: float, name: str = "outcome") -> RewardSpec:
    return RewardSpec(name, low, high, "")


@pytest.mark.parametrize(
    ("specs", "value", "success"),
    [
        ([outcome(0, 1)], 1.0, 1.0),
        ([outcome(0, 1)], 0.25, 0.25),  # a graded outcome counts as far as it got
        ([outcome(0, 10)], 5.0, 0.5),
        ([outcome(-1, 1)], -1.0, 0.0),
        ([outcome(-1, 1)], 1.0, 1.0),
        ([outcome(-4, 0)], -1.0, 0.75),  # a cost
        ([outcome(-4, 0)], None, 0.0),  # never judged
        ([outcome(0, 1)], None, 0.0),
        ([outcome(-1, 0, "late"), outcome(0, 2)], 2.0, 1.0),
        ([RewardSpec("shape", 0, 9, "", "progress"), outcome(0, 1)], 1.0, 1.0),
    ],
)
def test_success_is_the_outcome_on_a_scale_from_zero_to_one(
    specs: list[RewardSpec], value: float | None, success: float
) -> None:
    component, scale = outcome_scale(specs)
    assert component == "outcome"
    episode = trace("t", [])
    if value is not None:
        episode = replace(episode, rewards=(Reward("outcome", value, "trace", "t"),))
    assert success_of(episode, component, scale) == pytest.approx(success)


# Episodes ----------------------------------------------------------------------------------------------------------


def parrot() -> Any:
    """A graph of one model call that says the task's number; the reward function judges it."""
    policy = ScriptedChatModel(script=lambda messages, _: AIMessage(str(messages[-1].content)))
    graph = StateGraph(MessagesState).add_node("say", lambda s: {"messages": [policy.invoke(s["messages"])]})
    return graph.add_edge(START, "say").compile()


def numbers(count: int, split: Any = "heldout") -> list[Task]:
    return [Task(f"n{i}", split, i, str(i)) for i in range(count)]


OPTIONS: dict[str, Any] = {
    "stage": "test",
    "weights": {"success": 1.0, "bonus": 0.5},
    "to_input": lambda task, key: {"messages": [("user", task.instruction)]},
    "reward": lambda t, final: {"success": float(int(final["messages"][-1].content) % 4 == 0), "bonus": 1.0},
}


def test_figures_are_counted_over_the_episodes() -> None:
    seen: list[str] = []
    result, traces = evaluate(parrot(), numbers(8), on_trace=lambda t: seen.append(t.id), **OPTIONS)
    assert (result.split, result.stage, result.episodes, result.success) == ("heldout", "test", 8, 0.25)
    assert (result.low, result.high) == wilson(2, 8)
    assert result.mean_return == pytest.approx(0.75) and result.mean_steps == 1.0
    assert result.outcomes == {"terminated": 8}
    assert result.by_task == {f"n{i}": float(i % 4 == 0) for i in range(8)}
    assert sorted(seen) == sorted(t.id for t in traces)
    again, _ = evaluate(parrot(), numbers(8), **OPTIONS)
    assert again == result


def test_several_episodes_of_a_task_all_count() -> None:
    tasks = numbers(2)
    planned = episodes(tasks, 3)
    result, traces = evaluate(parrot(), tasks, planned=planned, **OPTIONS)
    assert (result.episodes, len(traces), result.success) == (6, 6, 0.5)
    assert result.by_task == {"n0": 1.0, "n1": 0.0} and result.mean_return == pytest.approx(1.0)


@pytest.mark.parametrize("tasks", [[], [*numbers(1), *numbers(1, "train")], [*numbers(1), *numbers(1, "adversarial")]])
def test_splits_are_not_mixed(tasks: Sequence[Task]) -> None:
    with pytest.raises(SpecError, match=r"one split|no tasks"):
        evaluate(parrot(), tasks, **OPTIONS)
    if tasks:
        with pytest.raises(SpecError, match="one split"):
            evaluate(parrot(), tasks[:1], planned=episodes(tasks), **OPTIONS)


@pytest.mark.parametrize("split", ["train", "heldout", "adversarial"])
def test_evaluating_never_changes_the_memory(split: Any) -> None:
    environment = make_environment("assistant", level="medium", step_limit=4)
    policy = ScriptedChatModel(script=lambda *_: AIMessage("answer(value=1)"))
    store = FaissStore(None, embedder=HashingEmbedder(32))
    store.put(("lessons",), "old", {"text": "check each value before answering."})
    before = [(i.namespace, i.key, i.value) for i in store.search((), limit=100)]
    tasks = environment.tasks(split, 3)
    result, traces = evaluate(build_agent(policy, environment), tasks, stage="test", weights={}, memory=store)
    assert result.success < 1.0 and all(t.live_steps for t in traces)
    assert "check each value" in str(traces[0].live_steps[0].messages), "what the memory holds is read"
    assert [(i.namespace, i.key, i.value) for i in store.search((), limit=100)] == before
