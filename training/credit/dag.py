"""Which step could have caused which: the graph of a trace's live steps, and returns over it.

The return of a step is

    R(s) = Σ_d γ^dist(s,d) r_d        over every step d that s could have caused, s itself included,

each d counted once, dist in steps along the shortest path. On a line this is the usual R_t = r_t + γ R_{t+1}
(Sutton & Barto 2018, eq. 3.9). The edges come from the trace's node runs; training.credit.wiring says how.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np
from numpy.typing import NDArray

from agentcore.trace import Trace
from training.credit.errors import CreditError, MissingRewardError, UnknownEdgesError
from training.credit.wiring import EdgeKind, wire

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Rewards = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Distances between the live steps of one trace, and from them to other targets of rewards."""

    ids: tuple[str, ...]
    """The S live steps, in trace order."""
    targets: tuple[str, ...]
    """The S steps, then every node run, then the trace itself: whatever can carry a reward."""
    distance: FloatArray
    """[S, len(targets)]: steps along the shortest path, 0 from a step to itself, inf where there is no path.
    A node run or a trace lies at distance 0 from the last steps that lead to it."""

    @property
    def between(self) -> FloatArray:
        """[S, S] distances among the steps."""
        return self.distance[:, : len(self.ids)]

    def children(self, step: int) -> list[int]:
        """Indices of the steps one step further on."""
        return [int(i) for i in np.flatnonzero(self.between[step] == 1.0)]

    def last_before(self, target: str) -> list[str]:
        """The steps at distance 0 from a target: those that its reward immediately follows."""
        column = self.distance[:, self.targets.index(target)]
        return [self.ids[int(i)] for i in np.flatnonzero(column == 0.0)]


def step_graph(trace: Trace, edges: EdgeKind = "all") -> StepGraph:
    """The graph of a trace's live steps.

    Raises:
        UnknownEdgesError: the trace has node runs of unknown edges and ``edges`` is not ``chain``.
        CreditError: ids that are not unique or not there, or edges that form a cycle.
    """
    steps, runs = trace.live_steps, trace.node_runs
    targets = (*(s.id for s in steps), *(r.id for r in runs), trace.id)
    if len(set(targets)) != len(targets):
        raise CreditError(
            f"Trace {trace.id}: the ids of its live steps, node runs and of the trace itself are not all different, "
            "so a reward could not be told which it belongs to. Give each an id of its own."
        )
    if trace.edges == "unknown" and len(runs) > 1 and edges != "chain":
        raise UnknownEdgesError(
            f"Trace {trace.id} does not know which node run triggered which. Record it with durability 'sync', or, if "
            "its graph is a line, ask for edges='chain'."
        )
    successors = wire(trace, edges)
    _refuse_cycles(trace.id, successors)
    count = len(steps)
    distance = np.full((count, len(targets)), np.inf)
    for i in range(count):
        reached = _distances(i, successors, count)
        distance[i, :count] = reached[:count]
        distance[i, count:-1] = reached[count + 1 : count + 2 * len(runs) : 2]
    leaves = [i for i in range(count) if np.isfinite(distance[i, :count]).sum() == 1]
    if leaves:
        distance[:, -1] = distance[:, leaves].min(axis=1)
    return StepGraph(tuple(s.id for s in steps), targets, distance)


def _refuse_cycles(trace_id: str, successors: list[set[int]]) -> None:
    try:
        TopologicalSorter(dict(enumerate(successors))).prepare()
    except CycleError:
        raise CreditError(
            f"Trace {trace_id}: the parents of its node runs form a cycle, so cause and effect are not defined. "
            "An edge must lead from an earlier superstep to a later one."
        ) from None


def _distances(start: int, successors: list[set[int]], steps: int) -> FloatArray:
    """Shortest paths from one point (0-1 breadth-first search): entering a step costs 1, a run's end nothing."""
    distance = np.full(len(successors), np.inf)
    distance[start] = 0.0
    queue = deque([start])
    while queue:
        point = queue.popleft()
        for after in successors[point]:
            cost = 1.0 if after < steps else 0.0
            if distance[point] + cost < distance[after]:
                distance[after] = distance[point] + cost
                (queue.append if cost else queue.appendleft)(after)
    return distance


def target_rewards(trace: Trace, graph: StepGraph, rewards: Rewards) -> FloatArray:
    """[len(graph.targets)] rewards; NaN where a reward is missing (None), 0 for a target that never carried one.

    Raises:
        MissingRewardError: a live step has no entry in ``rewards``.
    """
    absent = [s for s in graph.ids if s not in rewards]
    if absent:
        raise MissingRewardError(
            f"Trace {trace.id}: no reward was given for step {absent[0]} ({len(absent)} of {len(graph.ids)} steps). "
            "Give every live step a reward (training.rewards.step_rewards does), or None where it is missing."
        )
    given = [rewards.get(target, 0.0) for target in graph.targets]
    values = np.array([np.nan if r is None else r for r in given], dtype=np.float64)
    if np.isinf(values).any() or any(r is not None and np.isnan(r) for r in given):
        raise CreditError(f"Trace {trace.id}: a reward is not finite. Use None for a reward that is missing.")
    return values


def returns_S(distance: FloatArray, reward_D: FloatArray, gamma: float) -> FloatArray:
    """R(s) = Σ_d γ^dist(s,d) r_d for distances [S, D] and rewards [D]; NaN where a missing reward is reached."""
    if distance.ndim != 2 or reward_D.shape != distance.shape[1:]:
        raise ValueError(f"distance must be [S, D] and rewards [D], not {distance.shape} and {reward_D.shape}")
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], not {gamma}")
    reach = np.isfinite(distance)
    discount = np.where(reach, gamma ** np.where(reach, distance, 0.0), 0.0)
    terms = np.where(reach, discount * reward_D, 0.0)  # not a matrix product: 0 · NaN would spread
    result: FloatArray = terms.sum(axis=1)
    return result


def returns(trace: Trace, rewards: Rewards, gamma: float = 1.0, *, edges: EdgeKind = "all") -> dict[str, float | None]:
    """The return of every live step over the trace's graph (see the module's docstring).

    A missing reward (None) makes the return of every step that could have caused it None. A truncated trace
    is not bootstrapped: what follows it counts 0, and its own declared outcome reward stands for it.
    """
    graph = step_graph(trace, edges)
    values = returns_S(graph.distance, target_rewards(trace, graph, rewards), gamma)
    return {s: None if np.isnan(v) else float(v) for s, v in zip(graph.ids, values, strict=True)}
