"""What a report is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentcore.trace import Trace

Point = tuple[float, float, float | None, float | None]
"""x, y, and the ends of y's 95 % confidence interval where it is known."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A headline figure: one measure, on one split, at one stage of training."""

    name: str
    """What is measured, e.g. ``success``."""
    split: str
    """``train``, ``heldout`` or ``adversarial``; never pooled."""
    stage: str
    """E.g. ``base``, ``warm start``, ``after RL``; stages are shown in the order in which they first appear."""
    value: float
    low: float | None
    """Lower end of the 95 % confidence interval; None if it was not computed."""
    high: float | None
    n: int
    """Episodes that it was measured on."""
    unit: str = "share"
    """``share`` is a number from 0 to 1, shown in per cent; anything else is shown as it is, after the number."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line over the iterations of a run."""

    name: str
    unit: str
    """``share`` fixes the y axis to 0 - 100 %; otherwise a word for the axis, may be empty."""
    points: Sequence[Point]
    """In order of x. A point whose y is not finite is a gap in the line."""
    x_label: str = "iteration"


@dataclass(frozen=True, slots=True)
class TraceView:
    """A trace with the credit that training gave to its steps."""

    trace: Trace
    returns: Mapping[str, float] = field(default_factory=dict)
    """Return by step id."""
    advantages: Mapping[str, float | None] = field(default_factory=dict)
    """Advantage by step id. None, or no entry: not assigned, so the step was not trained on. 0.0: judged neutral."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything a report shows. Text may hold anything; it is escaped."""

    title: str
    figures: Sequence[Figure] = ()
    curves: Sequence[Curve] = ()
    traces: Sequence[TraceView] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """JSON data; nested mappings are shown with dotted names."""
    next_steps: Sequence[str] = ()
    """What to try next, one sentence each."""
