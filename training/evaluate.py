"""Evaluation: success with intervals, the splits kept apart, adapters compared on equal tasks and equal memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from langgraph.pregel import Pregel

from agentcore.environment import RewardSpec, Split, Task
from agentcore.errors import SpecError
from agentcore.runner import Episode, episodes, rollout
from agentcore.trace import Trace
from memory import FaissStore, Snapshot


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Success on one split."""

    split: Split
    stage: str
    success: float
    """Share of episodes that succeeded; where the outcome is graded, its mean on a scale from 0 to 1."""
    low: float
    high: float
    """95 % Wilson interval of ``success`` (wider than needed where the outcome is graded)."""
    episodes: int
    mean_return: float
    mean_steps: float
    outcomes: Mapping[str, int]
    """Episodes by outcome."""
    by_task: Mapping[str, float]
    """Success by task id, the mean over the task's episodes, for paired comparisons."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def wilson(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927). n = 0 gives (0, 1): nothing is known."""
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))  # p lies inside, rounding or not


def paired_difference(
    a: Mapping[str, float], b: Mapping[str, float], *, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """Mean of a - b over the tasks, with a 95 % bootstrap interval over tasks.

    Raises:
        SpecError: if the two were not measured on the same tasks.
    """
    if set(a) != set(b) or not a:
        raise SpecError(f"A paired difference needs the same tasks on both sides ({len(a)} and {len(b)} were given).")
    d = np.array([a[k] - b[k] for k in sorted(a)])
    draws = np.random.default_rng(seed).choice(d, size=(resamples, d.size), replace=True).mean(axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(d.mean()), float(low), float(high)


def outcome_scale(specs: Sequence[RewardSpec]) -> tuple[str, tuple[float, float]]:
    """The component that success is counted by, and which of its values are no success (0) and full success (1).

    It is the first outcome component that can be positive, else the first; one that can't be positive (a cost) counts
    from its worst value.
    """
    outcomes = [s for s in specs if s.kind == "outcome"] or list(specs)
    spec = next((s for s in outcomes if s.high > 0), outcomes[0])
    return spec.name, (0.0 if spec.high > 0 else spec.low, spec.high)


def success_of(trace: Trace, component: str = "success", scale: tuple[float, float] = (0.0, 1.0)) -> float:
    """The episode's outcome from 0 to 1, ``scale`` being what counts as either. What was not judged did not succeed."""
    value = trace.component_totals().get(component)
    if value is None:
        return 0.0
    zero, one = scale
    return min(1.0, max(0.0, (value - zero) / (one - zero))) if one > zero else float(value >= one)


def evaluate(
    graph: Pregel[Any, Any, Any, Any],
    tasks: Sequence[Task],
    *,
    stage: str,
    weights: Mapping[str, float],
    memory: FaissStore | Snapshot | None = None,
    component: str = "success",
    scale: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
    planned: Sequence[Episode] | None = None,
    on_trace: Callable[[Trace], None] | None = None,
    **options: Any,
) -> tuple[Evaluation, list[Trace]]:
    """Run each task once and count successes. Episodes never change ``memory``; keys depend on the task alone.

    Args:
        weights: of the reward components in the return (undeclared ones count 0 here; training refuses them).
        component, scale: what success is counted by, see :func:`outcome_scale`.
        planned: the episodes to run instead of one for each task.
        options: passed to :func:`agentcore.runner.rollout`.

    Raises:
        SpecError: if there are no tasks, or tasks of several splits.
    """
    if not tasks:
        raise SpecError("There are no tasks to evaluate on; give at least one.")
    if len({t.split for t in (*tasks, *(e.task for e in planned or ()))}) != 1:
        raise SpecError("Evaluate one split at a time: training, held-out and adversarial figures are kept apart.")
    listed = planned if planned is not None else episodes(tasks, seed=seed, purpose="evaluate")
    traces = rollout(graph, listed, memory=memory, learn=False, on_trace=on_trace, **options).traces
    scores: dict[str, list[float]] = {}
    for trace in traces:
        scores.setdefault(trace.task.id, []).append(success_of(trace, component, scale))
    wins, n = sum(sum(s) for s in scores.values()), len(traces)
    low, high = wilson(wins, n)
    outcomes: dict[str, int] = {}
    for trace in traces:
        outcomes[trace.outcome] = outcomes.get(trace.outcome, 0) + 1
    returns = [sum(weights.get(c, 0.0) * v for c, v in t.component_totals().items()) for t in traces]
    return (
        Evaluation(
            split=tasks[0].split,
            stage=stage,
            success=wins / n,
            low=low,
            high=high,
            episodes=n,
            mean_return=sum(returns) / n,
            mean_steps=sum(len(t.live_steps) for t in traces) / n,
            outcomes=outcomes,
            by_task={task: sum(s) / len(s) for task, s in scores.items()},
        ),
        traces,
    )
