"""Estimators that compare a step's return-to-go with what peers got from a comparable point on.

The return of a step counts what the step could have caused (training.credit.dag): siblings are isolated, joins
shared. Truncated episodes are not bootstrapped: their declared outcome reward is all that follows. A trace with a
missing reward gets None and is no one's peer.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentcore.trace import Trace
from training.credit.arrays import cell_advantages, leave_one_out_baseline
from training.credit.dag import Rewards
from training.credit.group import Advantages, batch, groups, labels, visit_cells
from training.credit.wiring import EdgeKind


def step_rloo(traces: Sequence[Trace], rewards: Rewards, gamma: float = 1.0, *, edges: EdgeKind = "all") -> Advantages:
    """A(s) = R(s) - 1/(G-1) Σ_{j≠i} R_j(policy of s, visit of s): return-to-go, leave-one-out baseline. The default.

    R_j is the mean return of rollout j's steps at the same policy and visit index (several where Sends ran in
    parallel), 0 where it has none: it had ended, or never went there. The baseline is a mean over rollouts and leaves
    out the whole rollout i, so it does not depend on anything rollout i did and the gradient is unbiased (return-to-go:
    Williams 1992; leave-one-out: Kool et al. 2019).

    On one-step traces it is RLOO. A group of one has no baseline: None. Constant rewards on equally long
    rollouts give 0.0.
    """
    result: Advantages = {}
    for group in groups(traces):
        data = batch(group, rewards, gamma, edges)
        baseline_S = leave_one_out_baseline(data.return_S, data.rollout_S, visit_cells(data), data.G)
        result |= data.advantages(group, data.return_S - baseline_S)
    return result


def node_group(
    traces: Sequence[Trace],
    rewards: Rewards,
    gamma: float = 1.0,
    *,
    normalise: bool = True,
    eps: float = 1e-4,
    edges: EdgeKind = "all",
) -> Advantages:
    """A(s) = (R(s) - μ) / (σ + ε) over the group (task, policy): every node's policy has its own scale (cf. Dr.MAS).

    μ and σ are over the rollouts that visited the node, each rollout's steps averaged first. On one-step traces it is
    GRPO (Dr.GRPO with ``normalise=False``). A node that one rollout alone visited, and constant returns: 0.0.
    """
    result: Advantages = {}
    for group in groups(traces):
        data = batch(group, rewards, gamma, edges)
        cell_S = labels(step.policy_id for step in data.steps)
        value_S = cell_advantages(data.return_S, data.rollout_S, cell_S, data.G, normalise=normalise, eps=eps)
        result |= data.advantages(group, value_S)
    return result
