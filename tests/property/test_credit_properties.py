"""What holds for every batch: permutations, baselines that do not look at their own rollout, sums of zero, scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcore.trace import NodeRun, Trace
from tests.golden.credit_traces import line, step, task
from training.credit import ESTIMATORS, estimate, returns, step_graph
from training.credit.arrays import (
    cell_advantages,
    discounted_returns,
    gae_advantages,
    grpo_advantages,
    leave_one_out_baseline,
    rloo_advantages,
    whiten,
)

pytestmark = pytest.mark.filterwarnings("error")

NUMBERS = st.floats(-4, 4).map(lambda x: round(x, 3))
GROUPS = st.lists(st.lists(NUMBERS, min_size=1, max_size=5), min_size=1, max_size=5)
Made = tuple[list[Trace], dict[str, float | None]]
QUICK = settings(max_examples=60, deadline=None)


def made(group: list[list[float]]) -> Made:
    """Lines with few anchors and actions, so that states repeat within and across rollouts."""
    traces, merged = [], {}
    for i, rewards in enumerate(group):
        names = [f"s{(i + 2 * k) % 3}" for k in range(len(rewards))]
        trace, given_ = line(f"r{i}", rewards, anchors=names, replies=[f"a{(i * k) % 2}" for k in range(len(rewards))])
        traces.append(trace)
        merged |= given_
    return traces, merged


def run(name: str, traces: list[Trace], rewards: dict[str, float | None]) -> dict[str, float | None]:
    extra = {"values": {k: 0.1 * len(k) for k in rewards}} if name == "gae" else {}
    return estimate(name, traces, rewards, 0.9, **extra)


@QUICK
@given(GROUPS, st.randoms(use_true_random=False))
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_order_of_rollouts_does_not_matter(name: str, group: list[list[float]], random: object) -> None:
    traces, rewards = made(group)
    shuffled = list(traces)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = run(name, traces, rewards), run(name, shuffled, rewards)
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert (value is None) == (second[key] is None)
        assert value is None or value == pytest.approx(second[key], abs=1e-6)


@QUICK
@given(GROUPS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_live_step_gets_a_finite_number_or_none(name: str, group: list[list[float]]) -> None:
    traces, rewards = made(group)
    got = run(name, traces, rewards)
    assert set(got) == set(rewards)
    assert all(v is None or np.isfinite(v) for v in got.values())


@QUICK
@given(GROUPS, NUMBERS)
def test_the_leave_one_out_baseline_ignores_all_that_its_own_rollout_did(
    group: list[list[float]], other: float
) -> None:
    rollout = np.repeat(np.arange(len(group)), [len(r) for r in group])
    visit = np.concatenate([np.arange(len(r)) for r in group])
    value = np.concatenate([np.array(r) for r in group])
    changed = np.where(rollout == 0, other, value)
    before = leave_one_out_baseline(value, rollout, visit, len(group))
    after = leave_one_out_baseline(changed, rollout, visit, len(group))
    assert np.array_equal(before[rollout == 0], after[rollout == 0], equal_nan=True)


@QUICK
@given(GROUPS, NUMBERS)
def test_a_constant_on_the_others_moves_leave_one_out_advantages_by_minus_the_constant(
    group: list[list[float]], constant: float
) -> None:
    totals = np.array([sum(r) for r in group])
    if len(totals) > 1:
        moved = totals + constant * (np.arange(len(totals)) > 0)
        assert rloo_advantages(moved)[0] == pytest.approx(rloo_advantages(totals)[0] - constant, abs=1e-9)


@QUICK
@given(st.lists(NUMBERS, min_size=2, max_size=8), NUMBERS, st.floats(0.1, 5))
def test_rloo_sums_to_zero_ignores_shifts_and_scales(returns_: list[float], shift: float, scale: float) -> None:
    advantages = rloo_advantages(returns_)
    assert advantages.sum() == pytest.approx(0.0, abs=1e-9)
    assert rloo_advantages(np.array(returns_) + shift) == pytest.approx(advantages, abs=1e-9)
    assert rloo_advantages(np.array(returns_) * scale) == pytest.approx(advantages * scale, abs=1e-9)


@QUICK
@given(st.lists(NUMBERS, min_size=2, max_size=8), st.floats(0.5, 5))
def test_grpo_sums_to_zero_and_ignores_scale(returns_: list[float], scale: float) -> None:
    advantages = grpo_advantages(returns_, eps=0.0)
    assert advantages.sum() == pytest.approx(0.0, abs=1e-9)
    assert grpo_advantages(np.array(returns_) * scale, eps=0.0) == pytest.approx(advantages, abs=1e-6)


@QUICK
@given(GROUPS)
def test_whitening_has_weighted_mean_zero(group: list[list[float]]) -> None:
    value = np.concatenate([np.array(r) for r in group])
    weight = np.concatenate([np.full(len(r), 1 / len(r)) for r in group])
    assert (weight * whiten(value, weight)).sum() == pytest.approx(0.0, abs=1e-6)


@QUICK
@given(GROUPS)
def test_cell_advantages_sum_to_zero_over_rollouts(group: list[list[float]]) -> None:
    rollout = np.repeat(np.arange(len(group)), [len(r) for r in group])
    value = np.concatenate([np.array(r) for r in group])
    weight = np.concatenate([np.full(len(r), 1 / len(r)) for r in group])
    one_cell = cell_advantages(value, rollout, np.zeros(len(value)), len(group), normalise=True)
    assert (weight * one_cell).sum() == pytest.approx(0.0, abs=1e-5)


@QUICK
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8), st.floats(0, 1), NUMBERS)
def test_gae_lies_between_td_error_and_return(pairs: list[tuple[float, float]], gamma: float, final: float) -> None:
    r, v = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    after = np.append(v[1:], final)
    assert gae_advantages(r, v, gamma, 0.0, final) == pytest.approx(r + gamma * after - v, abs=1e-9)
    assert gae_advantages(r, v, gamma, 1.0, final) == pytest.approx(discounted_returns(r, gamma, final) - v, abs=1e-9)


@QUICK
@given(st.integers(1, 7).flatmap(lambda n: st.lists(st.sets(st.integers(0, max(n - 2, 0))), min_size=n, max_size=n)))
def test_distances_and_returns_of_random_graphs_agree_with_their_definition(parents: list[set[int]]) -> None:
    size = len(parents)
    edges = [{p for p in ps if p < k} for k, ps in enumerate(parents)]
    runs = tuple(NodeRun(f"n{k}", f"n{k}", f"n{k}:x", 0, tuple(f"n{p}" for p in edges[k])) for k in range(size))
    trace = Trace("g", task(), "terminated", tuple(step(f"s{k}", f"n{k}") for k in range(size)), runs)
    distance = np.full((size, size), np.inf)
    for d in range(size):
        distance[d, d] = 0.0
        for p in edges[d]:
            distance[:, d] = np.minimum(distance[:, d], distance[:, p] + 1)
    assert np.array_equal(step_graph(trace).between, distance)
    rewards = {f"s{k}": float(2**k) for k in range(size)}
    got = returns(trace, rewards, 0.5)
    for s in range(size):
        expected = sum(0.5 ** distance[s, d] * 2**d for d in range(size) if np.isfinite(distance[s, d]))
        assert got[f"s{s}"] == pytest.approx(expected)
