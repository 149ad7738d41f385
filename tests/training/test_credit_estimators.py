"""Every estimator against numbers worked out by hand, its single-step form, and the edge cases it documents."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from agentcore.trace import Trace
from tests.golden.credit_traces import graph, line, lines, step, task
from training.credit import ESTIMATORS, CreditError, MissingAnchorError, MissingRewardError, estimate
from training.credit.arrays import (
    dr_grpo_advantages,
    gae_advantages,
    grpo_advantages,
    lstd_values,
    rloo_advantages,
    whiten,
)

TRAJECTORY = ("grpo", "dr-grpo", "rloo")
CRITIC_FREE = [name for name in ESTIMATORS if name != "gae"]


def options(name: str, rewards: dict[str, float | None]) -> dict[str, object]:
    return {"values": dict.fromkeys(rewards, 0.0)} if name == "gae" else {}


# By hand -----------------------------------------------------------------------------------------------------------


def test_step_rloo_by_hand() -> None:
    # returns to go: a 3 2 2, b 5, c 1 1; baselines per visit: 0: (5+1)/2 (3+1)/2 (3+5)/2; 1: (0+1)/2, -, (2+0)/2; 2: 0
    traces, rewards = lines([1.0, 0.0, 2.0], [5.0], [0.0, 1.0])
    assert estimate("step-rloo", traces, rewards) == {
        "a.0": 0.0, "a.1": 1.5, "a.2": 2.0, "b.0": 3.0, "c.0": -3.0, "c.1": 0.0,
    }  # fmt: skip


def test_step_rloo_averages_parallel_steps_of_one_visit_within_the_rollout_first() -> None:
    runs = {"plan": (), "w1": ("plan",), "w2": ("plan",), "w3": ("plan",)}
    policies = {"w1": "worker", "w2": "worker", "w3": "worker"}
    a = graph("a", runs, policies=policies)
    b = graph("b", {"plan": (), "w1": ("plan",)}, policies=policies)
    rewards = {"a.plan": 0.0, "a.w1": 1.0, "a.w2": 2.0, "a.w3": 6.0, "b.plan": 0.0, "b.w1": 4.0}
    got = estimate("step-rloo", [a, b], rewards)
    assert got == {"a.plan": 5.0, "a.w1": -3.0, "a.w2": -2.0, "a.w3": 2.0, "b.plan": -5.0, "b.w1": 1.0}


def test_step_rloo_compares_only_the_same_policy() -> None:
    a, ra = line("a", [0.0, 4.0], policy=["plan", "act"])
    b, rb = line("b", [0.0, 1.0, 1.0], policy=["plan", "act", "plan"])
    got = estimate("step-rloo", [a, b], ra | rb)
    assert got == {"a.0": 2.0, "a.1": 2.0, "b.0": -2.0, "b.1": -2.0, "b.2": 1.0}


def test_trajectory_estimators_by_hand() -> None:
    traces, rewards = lines([1.0, 0.0, 2.0], [5.0], [0.0, 1.0])  # totals 3 5 1, mean 3, std 2
    assert estimate("dr-grpo", traces, rewards) == {
        "a.0": 0.0, "a.1": 0.0, "a.2": 0.0, "b.0": 2.0, "c.0": -2.0, "c.1": -2.0,
    }  # fmt: skip
    assert estimate("rloo", traces, rewards)["b.0"] == 3.0
    assert estimate("grpo", traces, rewards, eps=0.0)["c.1"] == -1.0


def test_reinforce_pp_by_hand_counts_rollouts_or_rows() -> None:
    traces, rewards = lines([0.0, 2.0], [0.0])  # returns 2 2 | 0
    rows = estimate("reinforce++", traces, rewards, count="rows", eps=0.0)  # mean 4/3, variance 4/3
    assert rows["a.0"] == pytest.approx((2 - 4 / 3) / sqrt(4 / 3))
    rollouts = estimate("reinforce++", traces, rewards, eps=0.0)  # mean 1, Σw² = 3/8, variance 1/(1 - 3/8)
    assert rollouts["a.0"] == pytest.approx(1 / sqrt(8 / 5)) == -rollouts["b.0"]
    with pytest.raises(ValueError, match="count"):
        estimate("reinforce++", traces, rewards, count="tokens")


def test_gigpo_by_hand() -> None:
    # returns at γ = ½: a 1.5 1 | b 0.5 1 ; anchor x: a.0 and b.1, anchor y: a.1 and b.0
    a, ra = line("a", [1.0, 1.0], anchors=["x", "y"])
    b, rb = line("b", [0.0, 1.0], anchors=["y", "x"])
    got = estimate("gigpo", [a, b], ra | rb, 0.5, normalise=False, omega=2.0)
    assert got == {"a.0": 1.0, "a.1": 1.0, "b.0": -1.0, "b.1": -1.0}
    got = estimate("gigpo", [a, b], ra | rb, 0.5, eps=0.0)
    assert got["a.0"] == pytest.approx(0.5 / sqrt(0.5) + 0.25 / sqrt(0.125))


def test_gigpo_is_per_rollout_where_the_public_code_counts_rows() -> None:
    traces, rewards = lines([1.0], [0.0, 0.0, 0.0])
    got = estimate("gigpo", traces, rewards, normalise=False, omega=0.0)
    assert [got["a.0"], got["b.0"], got["b.2"]] == [0.5, -0.5, -0.5]


def test_gae_by_hand() -> None:
    a, rewards = line("a", [1.0, 0.0, 2.0])
    values = {"a.0": 1.0, "a.1": 2.0, "a.2": 4.0}
    # δ: 1 + 1 - 1 = 1, 0 + 2 - 2 = 0, 2 - 4 = -2;  γλ = ¼
    got = estimate("gae", [a], rewards, 0.5, lam=0.5, values=values)
    assert got == {"a.0": 1 - 2 / 16, "a.1": -0.5, "a.2": -2.0}


def test_gae_bootstraps_where_the_episode_did_not_end_by_itself() -> None:
    a, rewards = line("a", [0.0, 1.0], outcome="truncated")
    values = {"a.0": 1.0, "a.1": 1.0}
    got = estimate("gae", [a], rewards, 0.5, lam=1.0, values=values, final_values={"a": 8.0})
    assert got == {"a.0": 0.5 + 2.0 - 1.0, "a.1": 1.0 + 4.0 - 1.0}
    with pytest.raises(CreditError, match="final_values"):
        estimate("gae", [a], rewards, values=values)
    ended = replace(a, outcome="terminated")
    with pytest.raises(CreditError, match="terminated"):
        estimate("gae", [ended], rewards, values=values, final_values={"a": 8.0})
    with pytest.raises(CreditError, match=r"no value for step a\.1"):
        estimate("gae", [ended], rewards, values={"a.0": 1.0})


def test_gae_takes_the_observed_return_where_parallel_steps_follow() -> None:
    trace = graph("g", {"s": (), "p": ("s",), "b1": ("p",), "b2": ("p",), "j": ("b1", "b2"), "e": ("j",)})
    rewards = {f"g.{n}": r for n, r in dict(s=0.0, p=0.0, b1=1.0, b2=2.0, j=0.0, e=8.0).items()}
    values = {f"g.{n}": v for n, v in dict(s=1.0, p=2.0, b1=3.0, b2=4.0, j=5.0, e=6.0).items()}
    got = estimate("gae", [trace], rewards, 1.0, lam=0.0, values=values)
    assert got == {"g.s": 1.0, "g.p": 9.0, "g.b1": 3.0, "g.b2": 3.0, "g.j": 1.0, "g.e": 2.0}
    got = estimate("gae", [trace], rewards, 1.0, lam=1.0, values=values)
    assert got == {"g.s": 10.0, "g.p": 9.0, "g.b1": 6.0, "g.b2": 6.0, "g.j": 3.0, "g.e": 2.0}


def test_gagpo_by_hand() -> None:
    a, ra = line("a", [0.0, 1.0], anchors=["x", "y"])
    b, rb = line("b", [0.0, 0.0], anchors=["x", "y"])
    # V(x) = V(y) = ½, γ = 1, λ = 0: δ at x is 0, at y ±½; λ = 1: return - V
    assert estimate("gagpo", [a, b], ra | rb, 1.0, lam=0.0) == {"a.0": 0.0, "a.1": 0.5, "b.0": 0.0, "b.1": -0.5}
    assert estimate("gagpo", [a, b], ra | rb, 1.0, lam=1.0) == {"a.0": 0.5, "a.1": 0.5, "b.0": -0.5, "b.1": -0.5}


def test_node_group_gives_every_node_its_own_scale() -> None:
    a, ra = line("a", [0.0, 100.0, 4.0], policy=["plan", "act", "check"])
    b, rb = line("b", [0.0, 0.0, 2.0], policy=["plan", "act", "check"])
    got = estimate("node-group", [a, b], ra | rb, eps=0.0)
    assert [got[f"a.{k}"] for k in range(3)] == pytest.approx([1 / sqrt(2)] * 3)
    got = estimate("node-group", [a, b], ra | rb, normalise=False)
    assert [got[f"b.{k}"] for k in range(3)] == [-51.0, -51.0, -1.0]


def test_certainty_equivalence_by_hand() -> None:
    # x goes by L to y (worth 1 or 0) or by R to z (worth 0): V(y) = ½, V(z) = 0, V(x) = ⅓
    a, ra = line("a", [0.0, 1.0], anchors=["x", "y"], replies=["L", "g"])
    b, rb = line("b", [0.0, 0.0], anchors=["x", "y"], replies=["L", "h"])
    c, rc = line("c", [0.0, 0.0], anchors=["x", "z"], replies=["R", "g"])
    got = estimate("certainty-equivalence", [a, b, c], ra | rb | rc, value_shrink=0.0, pair_shrink=0.0)
    expected = {"a.0": 1 / 6, "b.0": 1 / 6, "c.0": -1 / 3, "a.1": 0.5, "b.1": -0.5, "c.1": 0.0}
    assert got == pytest.approx(expected)
    shrunk = estimate("certainty-equivalence", [a, b, c], ra | rb | rc, value_shrink=0.0, pair_shrink=2.0)
    assert shrunk["a.0"] == pytest.approx(2 / (2 + 2) * 1 / 6) and shrunk["c.0"] == pytest.approx(1 / (1 + 2) * -1 / 3)


def test_certainty_equivalence_still_has_a_signal_where_no_state_repeats() -> None:
    a, ra = line("a", [0.0, 1.0], anchors=["a0", "a1"])
    b, rb = line("b", [0.0, 0.0], anchors=["b0", "b1"])
    # every V is pulled half-way to the visit's mean ½: V(a1) = ¾, V(a0) = ⅝
    got = estimate("certainty-equivalence", [a, b], ra | rb, value_shrink=1.0, pair_shrink=0.0)
    assert got == pytest.approx({"a.0": 0.125, "a.1": 0.25, "b.0": -0.125, "b.1": -0.25})


def test_least_squares_values_solve_the_pooled_process() -> None:
    # 0 → 1 twice (reward 1), 1 → end (reward 2) and 1 → 0 (reward 0); γ = ½: V1 = ½(2) + ½(½ V0), V0 = 1 + ½ V1
    values = lstd_values([1, 1, 2, 0], [0, 0, 1, 1], [1, 1, -1, 0], 0.5, [9.0, 9.0, 7.0], 0.0)
    v1 = (1 + 0.25) / (1 - 0.125)
    assert values == pytest.approx([1 + v1 / 2, v1, 7.0])
    pulled = lstd_values([1, 1, 2, 0], [0, 0, 1, 1], [1, 1, -1, 0], 0.5, [9.0, 9.0, 7.0], 1e9)
    assert pulled == pytest.approx([9.0, 9.0, 7.0], abs=1e-6)
    with pytest.raises(ValueError, match="strength"):
        lstd_values([0.0], [0], [0], 1.0, [0.0], 0.0)


# Single-step forms -------------------------------------------------------------------------------------------------

ONE_STEP = [1.0, 0.0, 0.5, 0.25, 0.0]


def one_step() -> tuple[list[Trace], dict[str, float | None]]:
    made = [line(f"t{k}", [r], anchors=["start"]) for k, r in enumerate(ONE_STEP)]
    merged: dict[str, float | None] = {}
    for _, rewards in made:
        merged |= rewards
    return [trace for trace, _ in made], merged


def single(name: str, **extra: object) -> list[float]:
    traces, rewards = one_step()
    got = estimate(name, traces, rewards, 0.9, **extra)
    return [float(got[f"t{k}.0"]) for k in range(len(ONE_STEP))]  # type: ignore[arg-type]


def test_step_rloo_on_one_step_is_rloo_exactly_and_grpo_up_to_normalisation() -> None:
    got = np.array(single("step-rloo"))
    assert got == pytest.approx(np.array(single("rloo")), abs=1e-15)
    r = np.array(ONE_STEP)
    factor = r.size / (r.size - 1) * (r.std(ddof=1) + 1e-4)
    assert got == pytest.approx(np.array(single("grpo")) * factor, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "extra", "expected"),
    [
        ("grpo", {}, grpo_advantages(ONE_STEP)),
        ("dr-grpo", {}, dr_grpo_advantages(ONE_STEP)),
        ("rloo", {}, rloo_advantages(ONE_STEP)),
        ("reinforce++", {}, whiten(ONE_STEP, np.ones(5))),
        ("reinforce++", {"count": "rows"}, whiten(ONE_STEP, np.ones(5))),
        ("gigpo", {"omega": 0.7}, 1.7 * grpo_advantages(ONE_STEP)),
        ("gigpo", {"omega": 0.7, "normalise": False}, 1.7 * dr_grpo_advantages(ONE_STEP)),
        ("gae", {"values": {f"t{k}.0": k for k in range(5)}}, np.array(ONE_STEP) - np.arange(5)),
        ("gagpo", {}, dr_grpo_advantages(ONE_STEP)),
        ("node-group", {}, grpo_advantages(ONE_STEP)),
        ("node-group", {"normalise": False}, dr_grpo_advantages(ONE_STEP)),
        (
            "certainty-equivalence",
            {"pair_shrink": 0.0, "actions": {f"t{k}.0": str(k) for k in range(5)}},
            dr_grpo_advantages(ONE_STEP),
        ),
    ],
)
def test_each_estimator_meets_its_single_step_form(name: str, extra: dict[str, object], expected: np.ndarray) -> None:
    assert single(name, **extra) == pytest.approx(list(expected), abs=1e-12)


# Edge cases --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_group_of_one(name: str) -> None:
    trace, rewards = line("a", [0.5, 1.0])
    expected: dict[str, list[float | None]] = {
        "rloo": [None, None],
        "step-rloo": [None, None],
        "gae": [1.5, 1.0],
        "reinforce++": [1 / sqrt(2), -1 / sqrt(2)],  # whitened over the batch, which is this rollout's two steps
    }
    got = estimate(name, [trace], rewards, 1.0, **({"lam": 1.0} | options(name, rewards) if name == "gae" else {}))
    assert list(got.values()) == pytest.approx(expected.get(name, [0.0, 0.0]), abs=1e-6)


@pytest.mark.parametrize("name", CRITIC_FREE)
def test_constant_rewards_judge_every_step_neutral(name: str) -> None:
    traces, rewards = lines([0.0, 0.7], [0.0, 0.7], [0.0, 0.7])
    assert list(estimate(name, traces, rewards, 1.0).values()) == pytest.approx([0.0] * 6, abs=1e-12)


@pytest.mark.parametrize("name", CRITIC_FREE)
def test_a_trace_with_a_missing_reward_is_not_assigned_and_is_no_ones_peer(name: str) -> None:
    traces, rewards = lines([0.0, 1.0], [0.0, 0.0], [0.0, None])
    got = estimate(name, traces, rewards)
    assert got["c.0"] is None and got["c.1"] is None
    alone = estimate(name, traces[:2], rewards)
    assert {k: v for k, v in got.items() if k[0] != "c"} == alone


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_step_without_an_entry_is_an_error(name: str) -> None:
    traces, rewards = lines([0.0, 1.0], [0.0, 0.0])
    extra = options(name, rewards)
    del rewards["b.1"]
    with pytest.raises(MissingRewardError, match=r"b\.1"):
        estimate(name, traces, rewards, **extra)


@pytest.mark.parametrize("name", CRITIC_FREE)
def test_truncation_counts_by_its_declared_reward_and_is_not_bootstrapped(name: str) -> None:
    traces, rewards = lines([0.0, 1.0], [0.0, -0.5])
    truncated = [traces[0], replace(traces[1], outcome="truncated")]
    assert estimate(name, truncated, rewards) == estimate(name, traces, rewards)


@pytest.mark.parametrize("name", [n for n in CRITIC_FREE if n != "reinforce++"])
def test_a_batch_of_groups_is_the_union_of_the_groups(name: str) -> None:
    first, r1 = lines([0.0, 1.0], [0.0, 0.0])
    second, r2 = lines([3.0], [0.0, 0.0], [1.0, 1.0], of="u", prefix="u")
    forks = [
        replace(t, id=f"f{t.id}", fork_of="c1", steps=tuple(replace(s, id=f"f{s.id}") for s in t.steps)) for t in first
    ]
    r3 = {f"f{k}": v for k, v in zip(r1, [0.0, 5.0, 1.0, 1.0], strict=True)}
    both = estimate(name, [first[0], second[0], forks[0], *second[1:], *forks[1:], *first[1:]], r1 | r2 | r3)
    assert both == estimate(name, first, r1) | estimate(name, second, r2) | estimate(name, forks, r3)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_superseded_attempts_get_nothing_and_an_empty_rollout_still_counts(name: str) -> None:
    traces, rewards = lines([0.0, 1.0], [0.0, 0.0])
    traces[0] = replace(traces[0], steps=(*traces[0].steps, step("old", superseded=True)))
    empty = Trace("e", task(), "failed", ())
    got = estimate(name, [*traces, empty], rewards | {"e": -3.0}, **options(name, rewards))
    assert set(got) == {"a.0", "a.1", "b.0", "b.1"}
    if name == "dr-grpo":
        assert got["b.0"] == pytest.approx(2 / 3)
    assert estimate(name, [], {}, **options(name, rewards)) == {}


@pytest.mark.parametrize("name", ["gigpo", "gagpo", "certainty-equivalence"])
def test_a_step_without_an_anchor_is_refused_unless_told_what_to_do(name: str) -> None:
    traces, rewards = lines([0.0, 1.0], [0.0, 0.0])
    bare = [replace(t, steps=tuple(replace(s, anchor=None) for s in t.steps)) for t in traces]
    with pytest.raises(MissingAnchorError, match=r"a\.0"):
        estimate(name, bare, rewards)
    names = {s.id: s.anchor for t in traces for s in t.steps}
    assert estimate(name, bare, rewards, anchors=names) == estimate(name, traces, rewards)
    alone = estimate(name, bare, rewards, anchors=dict.fromkeys(names))
    expected = {"gigpo": 1 / sqrt(2), "gagpo": 0.0, "certainty-equivalence": 0.25 / 3}
    assert alone["a.1"] == pytest.approx(expected[name], abs=1e-3)


def test_what_cannot_be_done_is_refused() -> None:
    traces, rewards = lines([0.0, 1.0], [0.0, 0.0])
    with pytest.raises(CreditError, match="step-rloo"):
        estimate("per-step", traces, rewards)
    with pytest.raises(TypeError):
        estimate("grpo", traces, rewards, per_step=True)
    with pytest.raises(CreditError, match="twice"):
        estimate("grpo", [traces[0], traces[0]], rewards)
    with pytest.raises(ValueError, match="pool"):
        estimate("certainty-equivalence", traces, rewards, pool="all")
    with pytest.raises(ValueError, match="gamma"):
        estimate("step-rloo", traces, rewards, 1.5)
    with pytest.raises(ValueError, match="not finite"):
        grpo_advantages([1.0, float("nan")])
    with pytest.raises(ValueError, match="shape"):
        gae_advantages([1.0], [1.0, 2.0], 1.0, 1.0)
