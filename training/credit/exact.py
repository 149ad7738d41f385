"""Exact values of a stochastic policy in an environment that is small enough to enumerate.

What the estimators estimate: each step's true advantage A(s, a) = Q(s, a) - V(s) under the *current* policy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from training.credit.dag import FloatArray, IntArray
from training.credit.errors import CreditError

S = TypeVar("S", bound=Hashable)
A = TypeVar("A", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Branch(Generic[S]):
    """One thing that can follow an action."""

    probability: float
    state: S | None
    """None where the episode ends, by itself or by truncation: nothing follows, and its reward is in ``reward``."""
    reward: float


@dataclass(frozen=True, slots=True)
class Process(Generic[S, A]):
    """A finite decision process: every state that can be reached, and what every action does there."""

    states: tuple[S, ...]
    actions: tuple[A, ...]
    reward_SA: FloatArray
    """Expected reward of each action."""
    source_N: IntArray
    action_N: IntArray
    target_N: IntArray
    probability_N: FloatArray
    """The N transitions to states that go on; an action's probabilities sum to 1 minus that of ending."""

    def uniform(self) -> FloatArray:
        """[S, A] the policy that takes every action with the same probability."""
        return np.full(self.reward_SA.shape, 1.0 / len(self.actions))


@dataclass(frozen=True, slots=True)
class Values(Generic[S, A]):
    """Exact values of one policy in one process."""

    process: Process[S, A]
    v_S: FloatArray
    q_SA: FloatArray

    @property
    def advantage_SA(self) -> FloatArray:
        """A(s, a) = Q(s, a) - V(s); its mean under the policy is 0 in every state."""
        return self.q_SA - self.v_S[:, None]

    def advantage(self, state: S, action: A) -> float:
        """Of one pair, by name."""
        return float(self.advantage_SA[self.process.states.index(state), self.process.actions.index(action)])


def enumerate_process(
    starts: Iterable[S],
    actions: Sequence[A],
    branches: Callable[[S, A], Iterable[Branch[S]]],
    *,
    limit: int = 4000,
) -> Process[S, A]:
    """Every state that ``starts`` can lead to.

    Put whatever the future depends on into the state: with a step limit, the steps taken too. A deterministic
    environment has one branch per action: ``environment.step(state, action, 0)``.

    Raises:
        CreditError: more than ``limit`` states (the solution takes their number squared in memory), or probabilities
            that are not those of one action.
    """
    names: dict[S, int] = {}
    order: list[S] = []

    def number(state: S) -> int:
        if state not in names:
            if len(order) >= limit:
                raise CreditError(
                    f"The process has more than {limit} states; use a smaller setting of the environment."
                )
            names[state] = len(order)
            order.append(state)
        return names[state]

    for start in starts:
        number(start)
    moves: list[tuple[int, int, int, float]] = []
    rewards: list[list[float]] = []
    while len(rewards) < len(order):
        source = len(rewards)
        rewards.append([0.0] * len(actions))
        for a, action in enumerate(actions):
            total = 0.0
            for branch in branches(order[source], action):
                total += branch.probability
                rewards[source][a] += branch.probability * branch.reward
                if branch.state is not None and branch.probability > 0.0:
                    moves.append((source, a, number(branch.state), branch.probability))
            if abs(total - 1.0) > 1e-9:
                raise CreditError(
                    f"The branches of {action!r} in {order[source]!r} have the total probability {total}."
                )
    columns = np.array(moves, dtype=np.float64).reshape(-1, 4)
    source_N, action_N, target_N = columns[:, :3].astype(np.int64).T
    return Process(tuple(order), tuple(actions), np.array(rewards), source_N, action_N, target_N, columns[:, 3])


def policy_values(process: Process[S, A], policy_SA: ArrayLike, gamma: float = 1.0) -> Values[S, A]:
    """V = r_π + γ P_π V, solved;  Q(s, a) = r(s, a) + γ Σ_s' P(s' | s, a) V(s') (Sutton & Barto 2018, eqs. 4.4, 4.6).

    Args:
        policy_SA: [S, A] probabilities, in the order of ``process.states`` and ``process.actions``.

    Raises:
        CreditError: at γ = 1, a state from which no episode ends under this policy.
    """
    policy = _policy(process, policy_SA)
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], not {gamma}")
    size = len(process.states)
    system = np.eye(size)
    weight_N = policy[process.source_N, process.action_N] * process.probability_N
    np.subtract.at(system, (process.source_N, process.target_N), gamma * weight_N)
    try:
        v_S = np.linalg.solve(system, (policy * process.reward_SA).sum(axis=1))
    except np.linalg.LinAlgError:
        v_S = np.full(size, np.nan)
    # a nearly singular system can be solved to nonsense; the solution has to satisfy the equation
    q_SA = _q_values(process, v_S, gamma)
    if not np.allclose((policy * q_SA).sum(axis=1), v_S, rtol=1e-6, atol=1e-9):
        raise CreditError(
            "There is a state from which no episode ends under this policy; use gamma < 1 or a step limit."
        )
    return Values(process, np.asarray(v_S, dtype=np.float64), q_SA)


def optimal_policy(process: Process[S, A], gamma: float = 1.0, *, tolerance: float = 1e-10) -> FloatArray:
    """[S, A] a greedy policy of V*, by value iteration (Sutton & Barto 2018, eq. 4.10); mix it to weaken it."""
    v_S = np.zeros(len(process.states))
    for _ in range(100_000):
        q_SA = _q_values(process, v_S, gamma)
        change = np.abs(q_SA.max(axis=1) - v_S).max(initial=0.0)
        v_S = q_SA.max(axis=1)
        if change < tolerance:
            greedy: FloatArray = np.eye(len(process.actions))[q_SA.argmax(axis=1)]
            return greedy
    raise CreditError("Value iteration did not converge; use gamma < 1 or a step limit.")


def _q_values(process: Process[S, A], v_S: FloatArray, gamma: float) -> FloatArray:
    q_SA = process.reward_SA.copy()
    np.add.at(q_SA, (process.source_N, process.action_N), gamma * process.probability_N * v_S[process.target_N])
    return q_SA


def _policy(process: Process[S, A], policy_SA: ArrayLike) -> FloatArray:
    policy = np.asarray(policy_SA, dtype=np.float64)
    if policy.shape != process.reward_SA.shape:
        raise ValueError(f"policy_SA must have shape {process.reward_SA.shape}, not {policy.shape}")
    if (policy < 0).any() or not np.allclose(policy.sum(axis=1), 1.0):
        raise ValueError("policy_SA must hold probabilities that sum to 1 in every state")
    return policy
