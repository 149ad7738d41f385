"""Estimators that look one step ahead: turn-level GAE with given values, and certainty-equivalent credit.

A trace with a missing reward gets None and is left out of everything that is pooled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from agentcore.trace import Step, Trace
from training.credit.arrays import BRANCHES, END, cell_means, lambda_returns, lstd_values, pair_means
from training.credit.dag import FloatArray, IntArray, Rewards, returns_S
from training.credit.errors import CreditError
from training.credit.group import Advantages, Batch, anchor_keys, batch, flow, groups, labels, visit_cells
from training.credit.wiring import EdgeKind


def gae(
    traces: Sequence[Trace],
    rewards: Rewards,
    gamma: float = 0.99,
    *,
    values: Mapping[str, float],
    final_values: Mapping[str, float] | None = None,
    lam: float = 0.9,
    edges: EdgeKind = "all",
) -> Advantages:
    """Turn-level generalised advantage estimation (arXiv 1506.02438, eqs. 11, 16): one decision is one time step.

        δ_h = r_h + γ V(s_{h+1}) - V(s_h);   A_h = Σ_l (γλ)^l δ_{h+l}

    Args:
        values: V by step id, for every live step: the value of the state in which the decision was taken.
        final_values: V of the state after the last step by trace id, for every trace that did not end by itself
            (truncated, failed, abandoned): it is bootstrapped with it; 0.0 says not to. A terminated trace has none.

    Each rollout stands alone, so a group of one is nothing special; one-step traces give r - V. Where parallel steps
    follow, A is the observed return minus V (as with λ = 1), since their joint value isn't the sum of their values.
    """
    groups(traces)  # ids are checked there
    data = batch(traces, rewards, gamma, edges)
    absent = [s.id for s in data.steps if s.id not in values]
    if absent:
        raise CreditError(f"gae: no value for step {absent[0]} ({len(absent)} steps). Give V for every live step.")
    data = _bootstrap(data, dict(final_values or {}), gamma)
    value_S = np.array([values[s.id] for s in data.steps], dtype=np.float64)
    ahead = flow(data)
    lambda_S = lambda_returns(ahead.reward_S, value_S, ahead.successor_S, data.return_S, gamma, lam)
    return data.advantages(traces, lambda_S - value_S)


def _bootstrap(data: Batch, final_values: dict[str, float], gamma: float) -> Batch:
    """γ V(after the end) as a reward on the trace, where the episode did not end by itself."""
    for rollout in data.rollouts:
        trace = rollout.trace
        if trace.outcome == "terminated" and trace.id in final_values:
            raise CreditError(
                f"gae: trace {trace.id} terminated, and nothing follows a terminated episode. Leave it out "
                "of final_values."
            )
        if trace.outcome != "terminated" and rollout.steps:
            if trace.id not in final_values:
                raise CreditError(
                    f"gae: trace {trace.id} is {trace.outcome}, so its last state still has a value. Give "
                    "final_values[trace id]; 0.0 if it should not be bootstrapped."
                )
            rollout.reward_D[-1] += gamma * final_values[trace.id]
    return_S = [returns_S(r.graph.distance, r.reward_D, gamma) for r in data.rollouts]
    return Batch(data.rollouts, data.steps, data.rollout_S, np.concatenate([np.zeros(0), *return_S]))


def certainty_equivalence(
    traces: Sequence[Trace],
    rewards: Rewards,
    gamma: float = 1.0,
    *,
    value_shrink: float = 1.0,
    pair_shrink: float = 2.0,
    pool: Literal["task", "batch"] = "task",
    anchors: Mapping[str, str | None] | None = None,
    actions: Mapping[str, str] | None = None,
    edges: EdgeKind = "all",
) -> Advantages:
    """The batch as an empirical decision process over (policy, anchor), solved; TD errors averaged per action.

        V̂ = least-squares TD (Bradtke & Barto 1996; Boyan 2002), shrunk towards the mean return at the same visit index
        δ_s = r_s + γ V̂(s') - V̂(s);   A(s) = Σ_{u: same anchor, action} δ_u / (n + κ)

    Pooling trades a little bias for most of the noise of a single return: on slippery FrozenLake (64 episodes; random,
    half-trained, near-optimal policy) its correlation with the exact advantage is about .5/.7/.8, that of a
    trajectory's return about .1. κ (``pair_shrink``) shrinks rare pairs towards 0, no judgement; shrinking them towards
    their single sample's return instead correlated .3/.4/.6 there. ``value_shrink`` counts imagined visits to
    each state at the visit's mean return; it keeps a signal where no state repeats (V̂ would be the own return).
    Transitions are counted, each being one sample of the process.

    ``pool="batch"`` takes equal anchors of different tasks for the same state; with ``task`` each task is its own
    process. ``actions={step id: name}`` says which actions count as the same, see :func:`action_key`.

    On one-step traces whose actions all differ, with ``pair_shrink=0``, it is Dr.GRPO. Truncated episodes end with
    their declared reward, like terminated ones. Where parallel steps follow, the observed return stands for
    r + γ V̂(s'). A group of one is compared with itself: 0.0 where no state repeats. Constant rewards at γ = 1, all at
    the end: 0.0.
    """
    if pool not in ("task", "batch"):
        raise ValueError(f"pool must be 'task' or 'batch', not {pool!r}")
    by_task = groups(traces)
    result: Advantages = {}
    for group in by_task if pool == "task" else [list(traces)]:
        data = batch(group, rewards, gamma, edges)
        keys = anchor_keys(data.steps, anchors)
        names = [action_key(s) if actions is None or s.id not in actions else actions[s.id] for s in data.steps]
        pair_S = labels(zip(keys, names, strict=True))
        value_S = _certainty_equivalent(data, labels(keys), pair_S, gamma, value_shrink, pair_shrink)
        result |= data.advantages(group, value_S)
    return result


def _certainty_equivalent(
    data: Batch, state_S: IntArray, pair_S: IntArray, gamma: float, value_shrink: float, pair_shrink: float
) -> FloatArray:
    if state_S.size == 0:
        return np.zeros(0)
    ahead = flow(data)
    branches = ahead.successor_S == BRANCHES
    reward_S = np.where(branches, data.return_S, ahead.reward_S)
    successor_S = np.where(branches, END, ahead.successor_S)
    next_S = np.where(successor_S >= 0, state_S[successor_S], END)
    baseline_S = cell_means(data.return_S, data.rollout_S, visit_cells(data), data.G)
    prior_K = np.bincount(state_S, weights=baseline_S) / np.bincount(state_S)
    value_K = lstd_values(reward_S, state_S, next_S, gamma, prior_K, value_shrink)
    after_S = np.where(next_S >= 0, value_K[next_S], 0.0)
    delta_S = reward_S + gamma * after_S - value_K[state_S]
    return pair_means(delta_S, pair_S, pair_shrink)


def action_key(step: Step) -> str:
    """What was done: the tool calls (name and arguments, in order), or the reply's text where there are none.

    Two replies with the same calls and different words around them count as the same action.
    """
    if step.calls:
        return json.dumps([[c.name, c.args, c.error is not None] for c in step.calls], sort_keys=True)
    return "text:" + step.reply.strip()
