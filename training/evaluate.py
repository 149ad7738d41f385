"""Evaluation: success with intervals, the splits kept apart, adapters compared on the same tasks and the same memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from langgraph.pregel import Pregel

from agentcore.environment import Split, Task
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
    """Share of episodes that succeeded."""
    low: float
    high: float
    """95 % Wilson interval of ``success``."""
    episodes: int
    mean_return: float
    mean_steps: float
    outcomes: Mapping[str, int]
    """Episodes by outcome."""
    by_task: Mapping[str, float]
    """Success by task id, for paired comparisons."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def wilson(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927). n = 0 gives (0, 1): nothing is known."""
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


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


def success_of(trace: Trace, component: str = "success") -> float:
    """1 if the episode succeeded. An episode that never got so far as to be judged did not succeed."""
    return 1.0 if trace.component_totals().get(component, 0.0) > 0 else 0.0


def evaluate(
    graph: Pregel[Any, Any, Any, Any],
    tasks: Sequence[Task],
    *,
    stage: str,
    weights: Mapping[str, float],
    memory: FaissStore | Snapshot | None = None,
    component: str = "success",
    seed: int = 0,
    planned: Sequence[Episode] | None = None,
    on_trace: Callable[[Trace], None] | None = None,
    **options: Any,
) -> tuple[Evaluation, list[Trace]]:
    """Run each task once and count successes. Episodes never change ``memory``; keys depend on the task alone.

    Args:
        weights: of the reward components in the return (undeclared ones count 0 here; training refuses them).
        options: passed to :func:`agentcore.runner.rollout`.
    """
    if len({t.split for t in tasks}) != 1:
        raise SpecError("Evaluate one split at a time: training, held-out and adversarial figures are kept apart.")
    listed = planned if planned is not None else episodes(tasks, seed=seed, purpose="evaluate")
    traces = rollout(graph, listed, memory=memory, learn=False, on_trace=on_trace, **options).traces
    by_task = {t.task.id: success_of(t, component) for t in traces}
    wins, n = sum(by_task.values()), len(by_task)
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
            by_task=by_task,
        ),
        traces,
    )
