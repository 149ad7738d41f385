"""How the steps of a trace hang together: from node runs and their parents to edges between steps.

The edges come from ``NodeRun.parents`` (control: s triggered d) and ``data_parents`` (data: s wrote what d read).

* Steps of one node run are chained in their order.
* A node run without live steps is passed through and adds no distance.
* A node run inside a subgraph (its ``ns`` extends another run's ``ns`` by ``|``) lies between the entry and the exit of
  that run: what follows the outer run follows everything inside it.
* A step outside every node run (``node_run`` None) is a barrier in trace order: it follows all that was recorded
  before it and precedes all that was recorded after it. The same holds for a node run's own steps among the runs of a
  subgraph it called. A trace without node runs is therefore a line.
* Siblings of one superstep have no edge between them; a join is reached by all of them.
* An attempt that a later one of the same node run replaced (same ``ns`` and node) hands its edges to the last one.

``edges="control"`` leaves the data edges out; it is biased wherever a node reads what a parallel branch wrote.
``edges="chain"`` takes the trace as a list, the only choice where the edges were not recorded.
"""

from __future__ import annotations

from typing import Literal

from agentcore.trace import NodeRun, Trace
from training.credit.errors import CreditError

EdgeKind = Literal["all", "control", "chain"]
Successors = list[set[int]]
"""By point: 0..S-1 the live steps, S+2k and S+2k+1 the entry and exit of node run k, the last two the trace's."""


def wire(trace: Trace, edges: EdgeKind) -> Successors:
    """What follows each point directly. Passing into a step counts as one step further, all else as none.

    Raises:
        CreditError: a step or a node run names a node run that is not in the trace.
    """
    return _Wiring(trace, edges).successors


def last_attempts(runs: tuple[NodeRun, ...]) -> dict[str, str]:
    """For each node run's id, the id of the last attempt at it (its own, where it was not retried)."""
    last: dict[tuple[str, str], NodeRun] = {}
    for run in runs:
        key = (run.ns, run.node)
        if run.ns and (key not in last or run.attempt > last[key].attempt):
            last[key] = run
    found = {run.id: last.get((run.ns, run.node), run) for run in runs}
    return {run.id: found[run.id].id if found[run.id].attempt > run.attempt else run.id for run in runs}


class _Wiring:
    def __init__(self, trace: Trace, edges: EdgeKind) -> None:
        self.trace, self.edges = trace, edges
        self.steps, self.runs = trace.live_steps, trace.node_runs
        self.successors: Successors = [set() for _ in range(len(self.steps) + 2 * len(self.runs) + 2)]
        self.index = {run.id: k for k, run in enumerate(self.runs)}
        self.own = self._own_steps()
        if edges == "chain":
            self._chain()
            return
        final = last_attempts(self.runs)
        self.attempt = [self.index[final[run.id]] for run in self.runs]
        self.inside = self._contents()
        self.parents = self._parents()
        self.first: dict[int, int | None] = {}
        for k in range(len(self.runs)):
            for parent in self.parents[k]:
                self.successors[self.exit(parent)].add(self.entry(k))
            self._body(k, self.entry(k), self.exit(k))
        self._body(None, len(self.successors) - 2, len(self.successors) - 1)

    def entry(self, run: int) -> int:
        return len(self.steps) + 2 * run

    def exit(self, run: int) -> int:
        return len(self.steps) + 2 * run + 1

    def _own_steps(self) -> dict[int | None, list[int]]:
        """Steps by the node run they lie on (None: on none), in their order."""
        own: dict[int | None, list[int]] = {}
        for i, step in enumerate(self.steps):
            if step.node_run is not None and step.node_run not in self.index:
                raise CreditError(
                    f"Trace {self.trace.id}: step {step.id} lies on node run {step.node_run}, which is not in it."
                )
            own.setdefault(None if step.node_run is None else self.index[step.node_run], []).append(i)
        for run, steps in own.items():
            if run is not None:
                steps.sort(key=lambda i: self.steps[i].key[2])
        return own

    def _chain(self) -> None:
        for i in range(len(self.steps) - 1):
            self.successors[i].add(i + 1)
        for run, steps in self.own.items():
            if run is not None:
                self.successors[steps[-1]].add(self.exit(run))

    def _contents(self) -> dict[int | None, list[int]]:
        """Runs by the run whose subgraph they lie in (None: in none), innermost level only, last attempts only."""
        named = {run.ns: self.attempt[k] for k, run in enumerate(self.runs) if run.ns}
        inside: dict[int | None, list[int]] = {}
        for k, run in enumerate(self.runs):
            if self.attempt[k] == k:
                outer = next((ns for ns in _outer(run.ns) if ns in named), None)
                inside.setdefault(None if outer is None else named[outer], []).append(k)
        return inside

    def _parents(self) -> list[set[int]]:
        """Parents of each run (none for replaced attempts); what a run lies in precedes it by its entry, not here."""
        parents: list[set[int]] = [set() for _ in self.runs]
        for k, run in enumerate(self.runs):
            outer = set(_outer(run.ns))
            for parent in run.parents if self.edges == "control" else (*run.parents, *run.data_parents):
                if parent not in self.index:
                    where = f"Trace {self.trace.id}: node run {run.id} ({run.node})"
                    raise CreditError(f"{where} has the parent {parent}, which is not in it.")
                if self.runs[self.index[parent]].ns not in outer:
                    parents[self.attempt[k]].add(self.attempt[self.index[parent]])
        return parents

    def _first_step(self, run: int) -> int | None:
        """Trace index of the first live step on or inside a run; None where there is none."""
        if run not in self.first:
            inner = [self._first_step(k) for k in self.inside.get(run, [])]
            self.first[run] = min([*self.own.get(run, []), *(i for i in inner if i is not None)], default=None)
        return self.first[run]

    def _body(self, run: int | None, entry: int, exit: int) -> None:
        """What lies on one run (None: on the trace): its own steps in a chain, its subgraphs' runs between them."""
        own, inner = self.own.get(run, []), self.inside.get(run, [])
        gates = [entry, *own, exit]
        between = self._places(own, inner)  # inner run k lies between gates[between[k]] and the next one
        followed: set[int] = set()
        for k in inner:
            before = {p for p in self.parents[k] if between.get(p) == between[k]}
            followed |= before
            if not before:
                self.successors[gates[between[k]]].add(self.entry(k))
        for k in inner:
            if k not in followed:
                self.successors[self.exit(k)].add(gates[between[k] + 1])
        for c in set(range(len(gates) - 1)) - set(between.values()):
            self.successors[gates[c]].add(gates[c + 1])

    def _places(self, own: list[int], inner: list[int]) -> dict[int, int]:
        """How many of the own steps come before each inner run: by its first step, or else not before its parents."""
        place: dict[int, int] = {}
        silent = []
        for k in inner:
            first = self._first_step(k)
            if first is None:
                silent.append(k)
            else:
                place[k] = sum(i < first for i in own)
        for k in sorted(silent, key=lambda k: self.runs[k].superstep):
            place[k] = max((place[p] for p in self.parents[k] if p in place), default=0)
        return place


def _outer(ns: str) -> list[str]:
    """The namespaces that ``ns`` lies in, innermost first."""
    parts = ns.split("|")
    return ["|".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]
