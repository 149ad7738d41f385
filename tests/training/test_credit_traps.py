"""What goes wrong in public frameworks, each pinned by a test.

1. A baseline per turn index with returns summed forward gives a gradient of 0.000 where the truth is 0.250.
2. A baseline that counts rows, not rollouts, judges a long failure and a short success unequally.
3. Turn boundaries found by "reward is not 0": turns with zero reward vanish, and a zero final reward crashes.
4. Parallel branches discounted in insertion order take each other's rewards.
5. Rewards matched to model calls by time order swap between parallel branches.
6. A reward is trained on every turn, ``per_step`` becomes ``broadcast``, or a missing reward becomes 0.
7. Dense rewards and truncation: what is paid along the way never hides what the end was worth.
8. Control edges alone give a gradient of 0.000 where one branch reads what the other wrote.

Gradients are exact: all groups of two rollouts of a policy that acts 0 or 1 with probability ½ (a sigmoid at 0, so that
∇ log π(a) = a - ½), averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, product

import pytest

from agentcore.trace import Reward, Trace
from tests.golden.credit_traces import DECLARED, graph, line, lines, step
from training.credit import ESTIMATORS, Estimator, MissingRewardError, estimate, returns
from training.rewards import RewardConfig, step_rewards

Rewards = dict[str, float | None]
Rollout = tuple[Trace, Rewards]


def gradient(
    estimator: str | Estimator, rollout: Callable[[str, int], Rollout], where: str, **options: object
) -> float:
    """Exact expected gradient at step ``where``: E[1/G Σ_i A_i (a_i - ½)] over all groups of two."""
    judge = ESTIMATORS[estimator] if isinstance(estimator, str) else estimator
    total = 0.0
    for actions in product((0, 1), repeat=2):
        made = [rollout(f"r{i}", a) for i, a in enumerate(actions)]
        got = judge([t for t, _ in made], made[0][1] | made[1][1], **options)
        total += sum(float(got[f"r{i}.{where}"] or 0.0) * (a - 0.5) for i, a in enumerate(actions)) / 2
    return total / 4


def delayed(id: str, action: int) -> Rollout:
    """What is done at step 0 is paid at step 1."""
    return line(id, [0.0, float(action)], replies=[str(action), ""])


def forward_sums(traces: Sequence[Trace], rewards: Rewards) -> Rewards:
    """The trap: what had been paid up to a turn, minus the other rollout's at the same turn."""
    paid = [list(accumulate(float(rewards[s.id] or 0.0) for s in t.steps)) for t in traces]
    return {s.id: paid[i][k] - paid[1 - i][k] for i, t in enumerate(traces) for k, s in enumerate(t.steps)}


def test_1_return_to_go_finds_the_gradient_that_forward_sums_miss() -> None:
    assert gradient(forward_sums, delayed, "0") == 0.0
    assert gradient("step-rloo", delayed, "0") == 0.25


@pytest.mark.parametrize("name", ["step-rloo", "rloo"])
def test_1_leave_one_out_estimators_are_unbiased(name: str) -> None:
    assert gradient(name, delayed, "0") == 0.25


def test_1_a_baseline_that_holds_the_own_rollout_shrinks_the_gradient() -> None:
    assert gradient("dr-grpo", delayed, "0") == 0.125  # (G - 1) / G of the truth


def lengths() -> tuple[list[Trace], Rewards]:
    return lines([0.0] * 9, [1.0])


@pytest.mark.parametrize("name", ["dr-grpo", "gigpo", "node-group"])
def test_2_a_baseline_counts_rollouts_not_rows(name: str) -> None:
    traces, rewards = lengths()
    extra = {} if name == "dr-grpo" else {"normalise": False}
    if name == "gigpo":
        extra["omega"] = 0.0
    got = estimate(name, traces, rewards, **extra)
    assert [got["a.0"], got["a.8"], got["b.0"]] == [-0.5, -0.5, 0.5]


def test_2_whitening_counts_rollouts_too() -> None:
    traces, rewards = lengths()
    got = estimate("reinforce++", traces, rewards)
    assert got["a.0"] == pytest.approx(-float(got["b.0"] or 0.0))
    rows = estimate("reinforce++", traces, rewards, count="rows")
    assert float(rows["b.0"] or 0.0) / -float(rows["a.0"] or 1.0) == pytest.approx(9.0)  # +0.9 and -0.1


@pytest.mark.parametrize("name", [n for n in ESTIMATORS if n != "gae"])
def test_3_turns_are_steps_whatever_their_reward(name: str) -> None:
    traces, zero = lines([0.0, 0.0, 1.0], [0.0, 0.0, 0.0])
    tiny = zero | {"a.0": 1e-9, "a.1": 1e-9, "b.2": 1e-9}
    got, near = estimate(name, traces, zero), estimate(name, traces, tiny)
    assert set(got) == {s.id for t in traces for s in t.steps}
    assert got == pytest.approx(near, abs=1e-3)


BRANCHES = {"p": (), "left": ("p",), "right": ("p",)}


def test_4_parallel_branches_have_their_own_rewards_and_the_parent_both() -> None:
    trace = graph("g", BRANCHES)
    rewards = {"g.p": 0.0, "g.left": -1.0, "g.right": 3.0}
    assert returns(trace, rewards, 0.5) == {"g.p": 1.0, "g.left": -1.0, "g.right": 3.0}
    turned = replace(trace, steps=trace.steps[::-1], node_runs=trace.node_runs[::-1])
    assert returns(turned, rewards, 0.5) == returns(trace, rewards, 0.5)


def test_5_rewards_reach_their_target_by_identity_not_by_time() -> None:
    given = (
        Reward("score", 1.0, "step", "g.right"),
        Reward("score", -1.0, "step", "g.left"),
        Reward("call_ok", 1.0, "call", "left-call"),
    )
    for first, second in (("left", "right"), ("right", "left")):
        trace = graph("g", BRANCHES, rewards=given)
        started = {"p": 0.0, first: 1.0, second: 2.0}
        calls = {"p": (), "left": ("left-call",), "right": ("right-call",)}
        steps = tuple(
            replace(s, started=started[s.anchor or ""], calls=step("", calls=calls[s.anchor or ""]).calls)
            for s in sorted(trace.steps, key=lambda s: started[s.anchor or ""])
        )
        got = step_rewards(replace(trace, steps=steps), DECLARED)
        assert got == {"g.p": 0.0, "g.left": 1.0, "g.right": 1.0}


def test_6_a_reward_counts_once_and_step_estimators_do_not_broadcast() -> None:
    traces, rewards = lines([1.0, 0.0], [0.0, 0.0])
    got = estimate("step-rloo", traces, rewards)
    assert got == {"a.0": 1.0, "a.1": 0.0, "b.0": -1.0, "b.1": 0.0}
    assert estimate("rloo", traces, rewards)["a.1"] == 1.0


def test_6_a_missing_reward_is_refused_and_not_zero() -> None:
    trace = graph("g", BRANCHES, rewards=[Reward("progress", 1.0, "step", "g.p")])
    with pytest.raises(MissingRewardError):
        step_rewards(trace, DECLARED)
    assert set(step_rewards(trace, DECLARED, RewardConfig(missing="none")).values()) == {None}


def test_7_shaping_by_a_potential_cancels_along_the_way() -> None:
    """With γ = 1 and a potential of 0 at the end, every return-to-go only moves by the potential of its state."""
    plain, base = line("a", [0.0, 0.0, 1.0])
    potential = [0.0, 0.3, 0.8, 0.0]  # of the states before each step, and after the last
    shaped = {f"a.{k}": float(base[f"a.{k}"] or 0.0) + potential[k + 1] - potential[k] for k in range(3)}
    before, after = returns(plain, base), returns(plain, shaped)
    for k in range(3):
        assert after[f"a.{k}"] == pytest.approx(float(before[f"a.{k}"] or 0.0) - potential[k])


def test_7_a_truncated_episode_needs_a_reward_of_its_own() -> None:
    """Small rewards on the way and none for running out of steps: never a return of their sum."""
    paid = tuple(Reward("progress", 1.0, "step", f"a.{k}") for k in range(3))
    trace = replace(line("a", [0.0] * 3)[0], outcome="truncated", rewards=paid)
    with pytest.raises(MissingRewardError, match="truncated"):
        step_rewards(trace, DECLARED)
    got = step_rewards(trace, DECLARED, RewardConfig(ungraded={"truncated": -1.0}))
    assert list(got.values()) == [0.5, 0.5, -0.5]


def written(id: str, action: int) -> Rollout:
    """Branch b writes a note in its first step; branch c reads it one superstep later and is paid for it."""
    runs = {"p": (), "b1": ("p",), "c1": ("p",), "b2": ("b1",), "c2": ("c1",)}
    trace = graph(id, runs, data={"c2": ("b1",)})
    return trace, {s.id: float(action) if s.id.endswith("c2") else 0.0 for s in trace.steps}


def test_8_data_edges_find_the_gradient_that_control_edges_miss() -> None:
    assert gradient("step-rloo", written, "b1") == 0.25
    assert gradient("step-rloo", written, "b1", edges="control") == 0.0
    assert gradient("step-rloo", written, "b2") == 0.0
