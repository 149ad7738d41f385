"""Which step could have caused which: the graph of a trace's live steps, and returns over it.

The return of a step is

    R(s) = Σ_d γ^dist(s,d) r_d        over every step d that s could have caused, s itself included,

each d counted once, dist in steps along the shortest path. On a line this is the usual R_t = r_t + γ R_{t+1}
(Sutton & Barto 2018, eq. 3.9). The edges come from the node runs: ``parents`` (control: s triggered d) and
``data_parents`` (data: s wrote what d read). How steps and node runs are wired:

* Steps of one node run are chained in their order.
* A node run without live steps is passed through and adds no distance.
* A node run inside a subgraph (its ``ns`` extends another run's ``ns`` by ``|``) lies between the entry and the exit of
  that run: what follows the outer run follows everything inside it.
* A step outside every node run (``node_run`` None) is a barrier in trace order: it follows all that was recorded
  before it and precedes all that was recorded after it. The same holds for a node run's own steps among the runs of a
  subgraph it called. A trace without node runs is therefore a line.
* Siblings of one superstep have no edge between them; a join is reached by all of them.

``edges="control"`` leaves the data edges out; it is biased wherever a node reads what a parallel branch wrote.
``edges="chain"`` takes the trace as a list, the only choice where the edges were not recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentcore.trace import NodeRun, Step, Trace
from training.credit.errors import CreditError, MissingRewardError, UnknownEdgesError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Rewards = Mapping[str, float | None]
EdgeKind = Literal["all", "control", "chain"]


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


@dataclass(slots=True)
class _Wiring:
    """Points 0..S-1 are steps; each node run adds an entry and an exit point. Entering a step costs 1."""

    steps: tuple[Step, ...]
    runs: tuple[NodeRun, ...]
    edges: EdgeKind
    successors: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.successors = [set() for _ in range(len(self.steps) + 2 * len(self.runs) + 2)]

    def entry(self, run: int) -> int:
        return len(self.steps) + 2 * run

    def exit(self, run: int) -> int:
        return len(self.steps) + 2 * run + 1

    def parents(self, run: NodeRun) -> tuple[str, ...]:
        return run.parents if self.edges == "control" else (*run.parents, *run.data_parents)


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
    wiring = _Wiring(steps, runs, edges)
    _wire(trace.id, wiring)
    _refuse_cycles(trace.id, wiring.successors)
    count = len(steps)
    distance = np.full((count, len(targets)), np.inf)
    for i in range(count):
        reached = _distances(i, wiring.successors, count)
        distance[i, :count] = reached[:count]
        distance[i, count:-1] = reached[count + 1 : count + 2 * len(runs) : 2]
    leaves = [i for i in range(count) if np.isfinite(distance[i, :count]).sum() == 1]
    if leaves:
        distance[:, -1] = distance[:, leaves].min(axis=1)
    return StepGraph(tuple(s.id for s in steps), targets, distance)


def _wire(trace_id: str, wiring: _Wiring) -> None:
    index = {run.id: k for k, run in enumerate(wiring.runs)}
    own: dict[int | None, list[int]] = {}
    for i, step in enumerate(wiring.steps):
        if step.node_run is not None and step.node_run not in index:
            raise CreditError(f"Trace {trace_id}: step {step.id} lies on node run {step.node_run}, which is not in it.")
        own.setdefault(None if step.node_run is None else index[step.node_run], []).append(i)
    for run, of_run in own.items():
        if run is not None:  # a retried model call keeps its ordinal; the sort is stable
            of_run.sort(key=lambda i: wiring.steps[i].key[2])
    if wiring.edges == "chain":
        _wire_chain(wiring, own)
        return
    for k, run_ in enumerate(wiring.runs):
        for parent in wiring.parents(run_):
            if parent not in index:
                raise CreditError(
                    f"Trace {trace_id}: node run {run_.id} ({run_.node}) has the parent {parent}, which is not in it."
                )
            wiring.successors[wiring.exit(index[parent])].add(wiring.entry(k))
    containers = [_containers(run_, wiring.runs) for run_ in wiring.runs]
    inside: dict[int | None, list[int]] = {}
    for k, outer in enumerate(containers):
        for container in outer:
            inside.setdefault(container, []).append(k)
        if not outer:
            inside.setdefault(None, []).append(k)
    first = _first_steps(wiring, own, inside)
    for k in range(len(wiring.runs)):
        _wire_body(wiring, (wiring.entry(k), wiring.exit(k)), own.get(k, []), inside.get(k, []), first, index)
    root = len(wiring.successors)
    _wire_body(wiring, (root - 2, root - 1), own.get(None, []), inside.get(None, []), first, index)


def _wire_chain(wiring: _Wiring, own: dict[int | None, list[int]]) -> None:
    for i in range(len(wiring.steps) - 1):
        wiring.successors[i].add(i + 1)
    for run, of_run in own.items():
        if run is not None:
            wiring.successors[of_run[-1]].add(wiring.exit(run))


def _containers(run: NodeRun, runs: Sequence[NodeRun]) -> list[int]:
    """The runs (attempts share a namespace) whose subgraph this one lies in, innermost level only."""
    lengths = {k: len(r.ns) for k, r in enumerate(runs) if r.ns and run.ns.startswith(r.ns + "|")}
    return [k for k, length in lengths.items() if length == max(lengths.values())]


def _first_steps(
    wiring: _Wiring, own: dict[int | None, list[int]], inside: dict[int | None, list[int]]
) -> dict[int, int | None]:
    """Trace index of the first live step on or inside each run; None where there is none."""
    first: dict[int, int | None] = {}

    def visit(run: int) -> int | None:
        if run not in first:
            found = [*own.get(run, []), *(i for k in inside.get(run, []) if (i := visit(k)) is not None)]
            first[run] = min(found, default=None)
        return first[run]

    for k in range(len(wiring.runs)):
        visit(k)
    return first


def _wire_body(
    wiring: _Wiring,
    ends: tuple[int, int],
    own: list[int],
    inner: list[int],
    first: dict[int, int | None],
    index: dict[str, int],
) -> None:
    """Wire what lies on one run: its own steps in a chain, the runs of its subgraphs between them."""
    gates = [ends[0], *own, ends[1]]
    siblings = set(inner)
    chunk: dict[int, int] = {}  # inner run k lies between gates[chunk[k]] and the next gate

    def place(k: int, seen: frozenset[int]) -> int:
        if k not in chunk:
            start = first[k]
            before = [index[p] for p in wiring.parents(wiring.runs[k])]
            chunk[k] = (
                sum(i < start for i in own)
                if start is not None
                else max((place(p, seen | {k}) for p in before if p in siblings and p not in seen), default=0)
            )
        return chunk[k]

    for k in inner:
        place(k, frozenset({k}))
    followed: set[int] = set()
    for k in inner:
        before = {index[p] for p in wiring.parents(wiring.runs[k])} & siblings
        same = {p for p in before if chunk[p] == chunk[k]}
        followed |= same
        if not same:
            wiring.successors[gates[chunk[k]]].add(wiring.entry(k))
    for k in siblings - followed:
        wiring.successors[wiring.exit(k)].add(gates[chunk[k] + 1])
    for c in range(len(gates) - 1):
        if c not in chunk.values():
            wiring.successors[gates[c]].add(gates[c + 1])


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
