"""From components to one reward per step: by identity, declared, and never silently 0."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcore.environment import EnvironmentSpec, RewardSpec
from agentcore.errors import DuplicateRewardError, SpecError, UndeclaredRewardError
from agentcore.trace import NodeRun, Reward, RewardTarget, Trace
from tests.golden.credit_traces import DECLARED, graph, line, step, task
from training.credit import CreditError, MissingRewardError
from training.rewards import RewardConfig, step_rewards


def scored(*rewards: tuple[str, float, RewardTarget, str], size: int = 2) -> Trace:
    trace, _ = line("a", [0.0] * size)
    steps = tuple(replace(s, calls=step("", calls=[f"{s.id}.c0", f"{s.id}.c1"]).calls) for s in trace.steps)
    return replace(trace, steps=steps, rewards=tuple(Reward(*r) for r in rewards))


def test_weighted_sum_of_the_components_on_a_step_and_its_calls() -> None:
    trace = scored(
        ("score", 1.0, "trace", "a"),
        ("progress", 0.5, "step", "a.0"),
        ("call_ok", -1.0, "call", "a.0.c0"),
        ("call_ok", 0.25, "call", "a.0.c1"),
    )
    assert step_rewards(trace, DECLARED) == {"a.0": 0.25 - 2.0 + 0.5, "a.1": 1.0}
    weights = {"call_ok": 0.0, "progress": 10.0}
    assert step_rewards(trace, DECLARED, RewardConfig(weights)) == {"a.0": 5.0, "a.1": 1.0}


def test_a_specification_of_an_environment_declares_too() -> None:
    spec = EnvironmentSpec("e", "1", "s", "o", (), "when done", 3, DECLARED)
    assert step_rewards(scored(("score", 1.0, "trace", "a")), spec) == {"a.0": 0.0, "a.1": 1.0}


def test_a_node_run_without_steps_rewards_the_step_before_it() -> None:
    trace = graph(
        "g",
        {"p": (), "env": ("p",), "q": ("env",), "end": ("q",)},
        silent=("env", "end"),
        rewards=[Reward("score", 1.0, "node_run", "g.run.env"), Reward("score", 2.0, "node_run", "g.run.q")],
    )
    assert step_rewards(trace, DECLARED) == {"g.p": 1.0, "g.q": 2.0}


def test_a_node_run_with_several_steps_rewards_its_last() -> None:
    steps = (step("x", "r"), step("y", "r", ordinal=1))
    reward = Reward("score", 3.0, "node_run", "r")
    trace = Trace("a", task(), "terminated", steps, (NodeRun("r", "n", "n:1", 0),), (reward,))
    assert step_rewards(trace, DECLARED) == {"x": 0.0, "y": 3.0}


@pytest.mark.parametrize("outcome", ["terminated", "truncated", "failed", "abandoned"])
def test_a_trace_without_an_outcome_component_is_an_error_not_zero(outcome: str) -> None:
    trace = replace(scored(("progress", 0.5, "step", "a.0")), outcome=outcome)
    with pytest.raises(MissingRewardError, match=f"ended as '{outcome}'"):
        step_rewards(trace, DECLARED)
    assert step_rewards(trace, DECLARED, RewardConfig(missing="none")) == {"a.0": None, "a.1": None}


def test_an_ungraded_outcome_has_the_value_declared_for_it() -> None:
    config = RewardConfig(ungraded={"truncated": -0.3})
    trace = replace(scored(("progress", 0.5, "step", "a.0")), outcome="truncated")
    assert step_rewards(trace, DECLARED, config) == {"a.0": 0.25, "a.1": -0.3}
    graded = replace(scored(("score", -1.0, "trace", "a")), outcome="truncated")
    assert step_rewards(graded, DECLARED, config) == {"a.0": 0.0, "a.1": -1.0}
    with pytest.raises(MissingRewardError):
        step_rewards(replace(trace, outcome="failed"), DECLARED, config)


def test_zero_is_a_reward() -> None:
    assert step_rewards(scored(("score", 0.0, "trace", "a")), DECLARED) == {"a.0": 0.0, "a.1": 0.0}


def test_undeclared_components_are_refused() -> None:
    with pytest.raises(UndeclaredRewardError, match="style"):
        step_rewards(scored(("score", 1.0, "trace", "a"), ("style", 1.0, "step", "a.0")), DECLARED)
    with pytest.raises(UndeclaredRewardError, match="style"):
        step_rewards(scored(("score", 1.0, "trace", "a")), DECLARED, RewardConfig({"style": 1.0}))
    with pytest.raises(SpecError, match="twice"):
        step_rewards(scored(("score", 1.0, "trace", "a")), [*DECLARED, RewardSpec("score", 0, 1, "again")])


def test_values_out_of_range_twice_or_on_nothing_are_refused() -> None:
    with pytest.raises(SpecError, match="range"):
        step_rewards(scored(("score", 101.0, "trace", "a")), DECLARED)
    with pytest.raises(SpecError, match="range"):
        step_rewards(scored(("score", float("nan"), "trace", "a")), DECLARED)
    with pytest.raises(DuplicateRewardError):
        step_rewards(scored(("score", 1.0, "trace", "a"), ("score", 2.0, "trace", "a")), DECLARED)
    for target, name in (("trace", "b"), ("step", "a.9"), ("call", "c"), ("node_run", "r")):
        with pytest.raises(CreditError, match="not"):
            step_rewards(scored(("score", 1.0, target, name)), DECLARED)


def test_rewards_of_superseded_attempts_do_not_count_and_shared_call_ids_are_refused() -> None:
    trace = scored(("score", 1.0, "trace", "a"), ("progress", 1.0, "step", "a.0"), ("call_ok", 1.0, "call", "a.0.c0"))
    retried = replace(trace, steps=(replace(trace.steps[0], superseded=True), trace.steps[1]))
    assert step_rewards(retried, DECLARED) == {"a.1": 1.0}
    shared = replace(trace, steps=(trace.steps[0], replace(trace.steps[1], calls=trace.steps[0].calls)))
    with pytest.raises(CreditError, match="2 live steps"):
        step_rewards(shared, DECLARED)


def test_a_rewarded_attempt_of_a_node_run_that_was_retried_does_not_count() -> None:
    steps = (step("x", "r1", superseded=True), step("y", "r2"))
    runs = (NodeRun("r1", "n", "n:1", 0), NodeRun("r2", "n", "n:1", 0, attempt=1))
    rewards = (Reward("score", 3.0, "node_run", "r1"), Reward("score", 1.0, "node_run", "r2"))
    assert step_rewards(Trace("a", task(), "terminated", steps, runs, rewards), DECLARED) == {"y": 1.0}


def test_a_trace_without_steps_keeps_its_reward_for_its_peers() -> None:
    trace = Trace("a", task(), "failed", (), rewards=(Reward("score", -1.0, "trace", "a"),))
    assert step_rewards(trace, DECLARED) == {"a": -1.0}


def test_a_configuration_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="gamma"):
        RewardConfig(gamma=1.5)
    with pytest.raises(ValueError, match="finite"):
        RewardConfig(ungraded={"failed": float("nan")})
