"""Credit assignment: which step earned it.

An estimator takes traces and their rewards per step (training.rewards.step_rewards, the dictionaries of all traces
merged) and gives an advantage for every live step, by step id:

    advantages = estimate("step-rloo", traces, rewards, gamma=1.0)

``None`` means *not assigned*: there was nothing to judge the step by, do not train on it. ``0.0`` means *judged
neutral*. Traces are grouped by task (forks by their checkpoint), and the result for several groups is the union of the
groups' results, except where the estimator says that it pools the batch (``reinforce++``, ``certainty-equivalence``
with ``pool="batch"``). No estimator changes what it was asked to do: what it cannot do, it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentcore.trace import Trace
from training.credit.anchor import gagpo, gigpo
from training.credit.dag import Rewards, StepGraph, returns, step_graph
from training.credit.errors import CreditError, MissingAnchorError, MissingRewardError, UnknownEdgesError
from training.credit.group import Advantages
from training.credit.step import node_group, step_rloo
from training.credit.td import certainty_equivalence, gae
from training.credit.tokens import token_advantages
from training.credit.trajectory import dr_grpo, grpo, reinforce_pp, rloo
from training.credit.wiring import EdgeKind

Estimator = Callable[..., Advantages]
"""``(traces, rewards, gamma, **options) -> {step id: advantage or None}``."""

DEFAULT = "step-rloo"

ESTIMATORS: dict[str, Estimator] = {
    "step-rloo": step_rloo,
    "grpo": grpo,
    "dr-grpo": dr_grpo,
    "rloo": rloo,
    "reinforce++": reinforce_pp,
    "gigpo": gigpo,
    "gae": gae,
    "gagpo": gagpo,
    "node-group": node_group,
    "certainty-equivalence": certainty_equivalence,
}


def estimate(name: str, traces: Sequence[Trace], rewards: Rewards, gamma: float = 1.0, **options: Any) -> Advantages:
    """The advantages of all live steps of ``traces``, by step id.

    Args:
        name: one of ``ESTIMATORS``.
        rewards: a reward, or None where it is missing, for every live step; also under the id of a trace or node run
            whose reward belongs to several last steps.
        gamma: discount per step.
        options: of the estimator; one that it doesn't have is a TypeError.

    Raises:
        CreditError: what the estimator cannot do with these traces, and what to give it.
    """
    if name not in ESTIMATORS:
        raise CreditError(f"There is no estimator {name!r}. Choose one of: {', '.join(ESTIMATORS)}.")
    return ESTIMATORS[name](traces, rewards, gamma, **options)


__all__ = [
    "DEFAULT",
    "ESTIMATORS",
    "Advantages",
    "CreditError",
    "EdgeKind",
    "Estimator",
    "MissingAnchorError",
    "MissingRewardError",
    "Rewards",
    "StepGraph",
    "UnknownEdgesError",
    "estimate",
    "returns",
    "step_graph",
    "token_advantages",
]
