"""From traces to the arrays that the estimators compute on, and back to step ids."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentcore.trace import Step, Trace
from training.credit.arrays import BRANCHES, END
from training.credit.dag import (
    BoolArray,
    FloatArray,
    IntArray,
    Rewards,
    StepGraph,
    returns_S,
    step_graph,
    target_rewards,
)
from training.credit.errors import CreditError, MissingAnchorError
from training.credit.wiring import EdgeKind

Advantages = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One complete episode: no reward of it is missing."""

    trace: Trace
    steps: tuple[Step, ...]
    graph: StepGraph
    reward_D: FloatArray
    """Rewards of ``graph.targets``."""
    return_S: FloatArray
    total: float
    """Σ of all rewards, undiscounted."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The steps of several rollouts, flattened to S rows."""

    rollouts: tuple[Rollout, ...]
    steps: tuple[Step, ...]
    rollout_S: IntArray
    return_S: FloatArray

    @property
    def G(self) -> int:
        return len(self.rollouts)

    def advantages(self, traces: Sequence[Trace], value_S: FloatArray) -> Advantages:
        """By step id, for every live step of ``traces``: None for NaN and for the steps of incomplete traces."""
        result: Advantages = {s.id: None for t in traces for s in t.live_steps}
        for step, value in zip(self.steps, value_S, strict=True):
            result[step.id] = None if np.isnan(value) else float(value)
        return result

    def broadcast(self, traces: Sequence[Trace], value_G: FloatArray) -> Advantages:
        """A rollout's value on each of its live steps."""
        return self.advantages(traces, value_G[self.rollout_S])


def groups(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Traces of the same task, or forks of the same checkpoint, together; in order of first appearance.

    Raises:
        CreditError: two traces or two live steps of the batch share an id.
    """
    _unique("trace", [t.id for t in traces])
    _unique("live step", [s.id for t in traces for s in t.live_steps])
    found: dict[tuple[str, str | None], list[Trace]] = {}
    for trace in traces:
        found.setdefault((trace.task.id, trace.fork_of), []).append(trace)
    return list(found.values())


def _unique(what: str, ids: list[str]) -> None:
    if len(set(ids)) != len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise CreditError(
            f"The {what} id {twice} is there twice in the batch. Pass each trace once, with ids of its own."
        )


def batch(traces: Sequence[Trace], rewards: Rewards, gamma: float, edges: EdgeKind = "all") -> Batch:
    """The complete rollouts among ``traces``. One with a missing (None) reward is left out, as peer and as target."""
    rollouts = []
    for trace in traces:
        graph = step_graph(trace, edges)
        reward_D = target_rewards(trace, graph, rewards)
        if np.isnan(reward_D).any():
            continue
        return_S = returns_S(graph.distance, reward_D, gamma)
        rollouts.append(Rollout(trace, trace.live_steps, graph, reward_D, return_S, float(reward_D.sum())))
    sizes = [len(r.steps) for r in rollouts]
    return Batch(
        tuple(rollouts),
        tuple(s for r in rollouts for s in r.steps),
        np.repeat(np.arange(len(rollouts)), sizes),
        np.concatenate([np.zeros(0), *(r.return_S for r in rollouts)]),
    )


def labels(keys: Iterable[Hashable]) -> IntArray:
    """Equal keys get equal numbers, counted up from 0."""
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)


def visits(rollout: Rollout) -> list[int]:
    """Visit index of each step: how many steps of the same policy lie before it on the longest path that leads to it.

    On a line it counts the policy's steps. Parallel steps of one policy (Sends) share an index.
    """
    reach = np.isfinite(rollout.graph.between)
    order = np.argsort(reach.sum(axis=0), kind="stable")  # what has fewer causes comes first
    visit = [0] * len(rollout.steps)
    for i in order:
        before = [
            visit[j] + 1
            for j in np.flatnonzero(reach[:, i])
            if j != i and rollout.steps[j].policy_id == rollout.steps[i].policy_id
        ]
        visit[i] = max(before, default=0)
    return visit


def visit_cells(data: Batch) -> IntArray:
    """Cells of steps of the same policy and visit index."""
    return labels((s.policy_id, v) for r in data.rollouts for s, v in zip(r.steps, visits(r), strict=True))


def anchor_keys(steps: Sequence[Step], anchors: Mapping[str, str | None] | None) -> list[Hashable]:
    """(policy, anchor) of each step; a step that ``anchors`` maps to None is alone in its cell.

    Raises:
        MissingAnchorError: a step has no anchor and ``anchors`` does not say what to do with it.
    """
    keys: list[Hashable] = []
    for step in steps:
        anchor = step.anchor if anchors is None else anchors.get(step.id, step.anchor)
        if anchor is None and (anchors is None or step.id not in anchors):
            raise MissingAnchorError(
                f"Step {step.id} (policy {step.policy_id}) has no anchor. Record one (Environment.anchor), or pass "
                "anchors={step id: name}, from graph state or belief clusters; None there leaves a step alone."
            )
        keys.append((step.policy_id, anchor) if anchor is not None else (step.policy_id, None, step.id))
    return keys


@dataclass(frozen=True, slots=True)
class Flow:
    """What follows each step of a batch, for estimators that look one step ahead."""

    reward_S: FloatArray
    """Rewards at distance 0: the step's own, and those of targets it is a last step of."""
    successor_S: IntArray
    """Row of the only step that follows, END, or BRANCHES where several do."""


def flow(data: Batch) -> Flow:
    """Rows of the batch with their immediate rewards and successors (see arrays.lambda_returns)."""
    rewards, successors, offset = [], [], 0
    for rollout in data.rollouts:
        distance = rollout.graph.distance
        for i in range(len(rollout.steps)):
            now = distance[i] == 0.0
            rewards.append(float(rollout.reward_D[now].sum()))
            following = rollout.graph.children(i)
            if not following:
                successors.append(END)
            elif len(following) == 1 and _passes_on(distance[i], distance[following[0]], now):
                successors.append(offset + following[0])
            else:
                successors.append(BRANCHES)
        offset += len(rollout.steps)
    return Flow(np.array(rewards, dtype=np.float64), np.array(successors, dtype=np.int64))


def _passes_on(distance: FloatArray, after: FloatArray, now: BoolArray) -> bool:
    """True if every later target lies one step further from here than from the step that follows, and no other."""
    return bool(np.isinf(after[now]).all() and np.array_equal(distance[~now], after[~now] + 1.0))
