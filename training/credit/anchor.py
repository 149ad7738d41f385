"""Estimators that compare steps taken in the same state, named by the step's anchor.

States are told apart by (policy, anchor) within one task; ``anchors={step id: name}`` replaces what the steps carry,
by names from graph state or belief clusters. Truncated episodes are not bootstrapped. A trace with a missing reward
gets None and is no one's peer. A step without an anchor is an error, unless ``anchors`` maps it to None (alone in its
group).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from agentcore.trace import Trace
from training.credit.arrays import cell_advantages, cell_means, dr_grpo_advantages, grpo_advantages, lambda_returns
from training.credit.dag import Rewards
from training.credit.group import Advantages, anchor_keys, batch, flow, groups, labels
from training.credit.wiring import EdgeKind


def gigpo(
    traces: Sequence[Trace],
    rewards: Rewards,
    gamma: float = 0.95,
    *,
    omega: float = 1.0,
    normalise: bool = True,
    eps: float = 1e-4,
    anchors: Mapping[str, str | None] | None = None,
    edges: EdgeKind = "all",
) -> Advantages:
    """A = A^E + ω A^S (Feng et al. 2025, arXiv 2505.10978, eqs. 3, 6, 7, 8).

        A^E = (R(τ_i) - μ) / F        over the rollouts of the task, R(τ) = Σ r
        A^S = (R(s) - μ_anchor) / F   over the rollouts that were in the state, R(s) = Σ γ^dist r

    F = σ + ε, or 1 with ``normalise=False``. Per rollout, not per row as in the public code: traces of 1 and 3 steps
    get ±0.5. One-step traces from one state: (1 + ω) A^E. A group of one: A^E is 0.0; a state that one rollout alone
    visited: A^S is 0.0. Constant rewards: A^E is 0.0, and A^S too unless the rollouts are discounted differently.
    """
    result: Advantages = {}
    for group in groups(traces):
        data = batch(group, rewards, gamma, edges)
        total_G = np.array([r.total for r in data.rollouts], dtype=np.float64)
        episode_G = grpo_advantages(total_G, eps) if normalise else dr_grpo_advantages(total_G)
        cell_S = labels(anchor_keys(data.steps, anchors))
        step_S = cell_advantages(data.return_S, data.rollout_S, cell_S, data.G, normalise=normalise, eps=eps)
        result |= data.advantages(group, episode_G[data.rollout_S] + omega * step_S)
    return result


def gagpo(
    traces: Sequence[Trace],
    rewards: Rewards,
    gamma: float = 0.99,
    *,
    lam: float = 0.9,
    anchors: Mapping[str, str | None] | None = None,
    edges: EdgeKind = "all",
) -> Advantages:
    """Turn-level GAE without a critic: V̂(s) = mean return of the rollouts that were in the state of s.

        A(s) = G^λ(s) - V̂(s),   G^λ(s) = r_s + γ[(1-λ) V̂(s') + λ G^λ(s')]

    V̂ includes the rollout itself, so one-step traces give Dr.GRPO, and in a group of one, as in any state that one
    rollout alone visited once, V̂ is the step's own return (A = 0.0 where no state repeats). Constant rewards at γ = 1,
    all at the end: 0.0. Where parallel steps follow, G^λ is the observed return.
    """
    result: Advantages = {}
    for group in groups(traces):
        data = batch(group, rewards, gamma, edges)
        cell_S = labels(anchor_keys(data.steps, anchors))
        value_S = cell_means(data.return_S, data.rollout_S, cell_S, data.G)
        ahead = flow(data)
        lambda_S = lambda_returns(ahead.reward_S, value_S, ahead.successor_S, data.return_S, gamma, lam)
        result |= data.advantages(group, lambda_S - value_S)
    return result
