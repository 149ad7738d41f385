"""Exact values against closed forms, and the estimators' means against exact advantages."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.golden.credit_traces import line
from training.credit import CreditError, estimate
from training.credit.exact import Branch, Process, enumerate_process, optimal_policy, policy_values


def gambler(size: int = 4) -> Process[int, str]:
    """Stakes of one coin: up or down by the toss; 1 for reaching ``size``, 0 at none left."""

    def branches(state: int, action: str) -> list[Branch[int]]:
        p = {"fair": 0.5, "good": 0.75}[action]
        up = Branch(p, None, 1.0) if state + 1 == size else Branch(p, state + 1, 0.0)
        down = Branch(1 - p, None, 0.0) if state == 1 else Branch(1 - p, state - 1, 0.0)
        return [up, down]

    return enumerate_process([1], ["fair", "good"], branches)


def test_a_gamblers_chance_is_the_closed_form() -> None:
    process = gambler()
    always = np.eye(2)
    assert process.states == (1, 2, 3)
    fair = policy_values(process, np.tile(always[0], (3, 1)))
    assert fair.v_S == pytest.approx([0.25, 0.5, 0.75])
    odds = 0.25 / 0.75
    good = policy_values(process, np.tile(always[1], (3, 1)))
    assert good.v_S == pytest.approx([(1 - odds**k) / (1 - odds**4) for k in (1, 2, 3)])
    assert fair.advantage(2, "good") == pytest.approx(0.75 * 0.75 + 0.25 * 0.25 - 0.5)
    assert optimal_policy(process).argmax(axis=1).tolist() == [1, 1, 1]


def test_the_mean_advantage_is_zero_in_every_state() -> None:
    process = gambler()
    policy = np.array([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]])
    values = policy_values(process, policy, 0.9)
    assert (policy * values.advantage_SA).sum(axis=1) == pytest.approx([0.0, 0.0, 0.0])


LAKE = "SFFFFHFHFFFHHFFG"


def test_the_random_policy_on_the_slippery_4x4_lake() -> None:
    """Gymnasium's FrozenLake-v1 without a step limit: a random walk reaches the goal in 1.39 % of the episodes."""

    def move(cell: int, direction: int) -> int:
        row, column = divmod(cell, 4)
        step = [(0, -1), (1, 0), (0, 1), (-1, 0)][direction % 4]
        return 4 * min(max(row + step[0], 0), 3) + min(max(column + step[1], 0), 3)

    def branches(cell: int, action: int) -> list[Branch[int]]:
        made = []
        for direction in (action - 1, action, action + 1):
            after = move(cell, direction)
            ends = LAKE[after] in "HG"
            made.append(Branch(1 / 3, None if ends else after, float(LAKE[after] == "G")))
        return made

    process = enumerate_process([0], range(4), branches)
    assert len(process.states) == 11
    assert policy_values(process, process.uniform()).v_S[0] == pytest.approx(0.0139398, abs=1e-7)
    best = policy_values(process, optimal_policy(process))
    assert best.v_S[0] == pytest.approx(14 / 17, abs=1e-6)


def test_what_cannot_be_solved_is_refused() -> None:
    forever = enumerate_process([0], ["stay"], lambda s, a: [Branch(1.0, s, 1.0)])
    with pytest.raises(CreditError, match="no episode ends"):
        policy_values(forever, [[1.0]])
    assert policy_values(forever, [[1.0]], 0.5).v_S == pytest.approx([2.0])
    with pytest.raises(CreditError, match="more than"):
        enumerate_process([0], ["on"], lambda s, a: [Branch(1.0, s + 1, 0.0)], limit=10)
    with pytest.raises(CreditError, match="probability"):
        enumerate_process([0], ["on"], lambda s, a: [Branch(0.5, None, 0.0)])
    with pytest.raises(ValueError, match="sum to 1"):
        policy_values(forever, [[0.5]])
    with pytest.raises(ValueError, match="shape"):
        policy_values(forever, [[0.5, 0.5]])


def two_moves(state: str, action: int) -> list[Branch[str]]:
    """x goes to y (0) or z (1); there the reward of the second action is 1 and 0.2, of the first 0."""
    if state == "x":
        return [Branch(1.0, "yz"[action], 0.1 * action)]
    return [Branch(1.0, None, action * {"y": 1.0, "z": 0.2}[state])]


@pytest.mark.parametrize(
    ("name", "options"),
    [("step-rloo", {}), ("rloo", {}), ("certainty-equivalence", {"value_shrink": 0.0, "pair_shrink": 0.0})],
)
def test_the_mean_policy_gradient_over_all_groups_is_the_exact_one(name: str, options: dict[str, float]) -> None:
    """∂V/∂logit(x) = π(1)π(0)(Q(x,1) - Q(x,0)); all 64 groups of three rollouts of the uniform policy."""
    process = enumerate_process(["x"], [0, 1], two_moves)
    values = policy_values(process, process.uniform())
    truth = 0.25 * (values.q_SA[0, 1] - values.q_SA[0, 0])
    total = 0.0
    for actions in product([(0, 0), (0, 1), (1, 0), (1, 1)], repeat=3):
        traces, rewards = [], {}
        for i, (first, second) in enumerate(actions):
            after = "yz"[first]
            earned = [0.1 * first, second * {"y": 1.0, "z": 0.2}[after]]
            trace, given = line(f"r{i}", earned, anchors=["x", after], replies=[str(first), str(second)])
            traces.append(trace)
            rewards |= given
        got = estimate(name, traces, rewards, **options)
        total += sum(float(got[f"r{i}.0"] or 0.0) * (a[0] - 0.5) for i, a in enumerate(actions)) / 3
    if name == "certainty-equivalence":  # its V̂ holds the own rollout, which shrinks the gradient by (G - 1) / G
        truth *= 2 / 3
    assert total / 64 == pytest.approx(truth, abs=1e-12)
