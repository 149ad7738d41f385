"""Estimators that judge the whole episode and give every step of it the same advantage.

They use R(τ) = Σ of all the rewards of the trace, undiscounted; γ plays no part (but see ``reinforce_pp``). A step that
did well in a bad episode is punished with it: that is what the step-level estimators are for. Truncated episodes have
the reward declared for truncation and nothing more. A trace with a missing reward gets None and is no one's peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from agentcore.trace import Trace
from training.credit.arrays import dr_grpo_advantages, grpo_advantages, rloo_advantages, whiten
from training.credit.dag import FloatArray, Rewards
from training.credit.group import Advantages, batch, groups
from training.credit.wiring import EdgeKind


def _broadcast(
    traces: Sequence[Trace], rewards: Rewards, gamma: float, judge: Callable[[FloatArray], FloatArray]
) -> Advantages:
    result: Advantages = {}
    for group in groups(traces):
        data = batch(group, rewards, gamma, edges="chain")  # the total needs no edges
        result |= data.broadcast(group, judge(np.array([r.total for r in data.rollouts], dtype=np.float64)))
    return result


def grpo(traces: Sequence[Trace], rewards: Rewards, gamma: float = 1.0, *, eps: float = 1e-4) -> Advantages:
    """A = (R_i - μ) / (σ + ε) (arXiv 2402.03300). A group of one and constant rewards: 0.0, judged neutral."""
    return _broadcast(traces, rewards, gamma, lambda return_G: grpo_advantages(return_G, eps))


def dr_grpo(traces: Sequence[Trace], rewards: Rewards, gamma: float = 1.0) -> Advantages:
    """A = R_i - μ (arXiv 2503.20783); its loss sums tokens (``aggregate="dr"``). A group of one: 0.0."""
    return _broadcast(traces, rewards, gamma, dr_grpo_advantages)


def rloo(traces: Sequence[Trace], rewards: Rewards, gamma: float = 1.0) -> Advantages:
    """A = R_i - mean of the others (arXiv 2402.14740). A group of one has no baseline: None, not assigned."""
    return _broadcast(traces, rewards, gamma, rloo_advantages)


def reinforce_pp(
    traces: Sequence[Trace],
    rewards: Rewards,
    gamma: float = 1.0,
    *,
    count: Literal["rollouts", "rows"] = "rollouts",
    eps: float = 1e-8,
    edges: EdgeKind = "all",
) -> Advantages:
    """R_t = Σ_k γ^{k-t} r_k, whitened over all the steps passed in, across tasks (REINFORCE++, arXiv 2501.03262).

    ``count="rollouts"`` gives every rollout the same weight in the mean and variance, however many steps it took;
    ``"rows"`` weighs every step the same, as published. On one-step traces both are (R - μ) / sqrt(σ² + ε). A single
    step and constant returns: 0.0.
    """
    if count not in ("rollouts", "rows"):
        raise ValueError(f"count must be 'rollouts' or 'rows', not {count!r}")
    groups(traces)  # ids are checked there
    data = batch(traces, rewards, gamma, edges)
    sizes = np.bincount(data.rollout_S, minlength=data.G)[data.rollout_S].astype(np.float64)
    weight_S = 1.0 / sizes if count == "rollouts" else np.ones_like(sizes)
    return data.advantages(traces, whiten(data.return_S, weight_S, eps))
