"""Line charts and interval bars as inline SVG. Colours are the page's CSS classes, so that dark mode works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from training.report.data import Curve, Figure, Point
from training.report.text import measure, number, plain

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 26, 46
"""Margins around the plot, for tick labels and axis titles."""
_MARKERS_UP_TO = 40


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers (1, 2 or 5 times a power of ten) that enclose ``[low, high]``."""
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The mapping from data to picture."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    x_low: float
    x_high: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        inside = min(max(value, low), high)
        return HEIGHT - BOTTOM - (inside - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def line_chart(curve: Curve) -> Markup:
    """The curve with its confidence band, ticks and axis titles; a note where there is no finite point."""
    finite = [p for p in curve.points if math.isfinite(p[0]) and math.isfinite(p[1])]
    if not finite:
        return Markup('<p class="muted">No finite values were recorded.</p>')
    frame = _frame(curve, finite)
    runs = _runs(curve.points)
    parts = [_axes(curve, frame)]
    parts += [_band(run, frame) for run in runs]
    for run in runs:
        path = " ".join(f"{frame.x(p[0]):.1f},{frame.y(p[1]):.1f}" for p in run)
        parts.append(f'<polyline class="line" points="{path}"/>')
    dots = finite if len(finite) <= _MARKERS_UP_TO else [run[0] for run in runs if len(run) == 1]
    for p in dots:
        tip = f"{curve.x_label} {p[0]:g}: {measure(p[1], curve.unit)}"
        parts.append(
            f'<circle class="dot" cx="{frame.x(p[0]):.1f}" cy="{frame.y(p[1]):.1f}" r="2.8">'
            f"<title>{escape(plain(tip))}</title></circle>"
        )
    label = f"{curve.name} by {curve.x_label}: {_spoken(finite, curve.unit)}"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    return Markup(f'<svg class="chart" {size} role="img" aria-label="{escape(plain(label))}">{"".join(parts)}</svg>')


def interval_bar(figure: Figure) -> Markup:
    """A share on a line from 0 to 100 %, with its confidence interval; nothing for other units."""
    if figure.unit != "share" or not math.isfinite(figure.value):
        return Markup("")

    def x(value: float) -> float:
        return 3 + 154 * min(max(value, 0.0), 1.0)

    band = ""
    if figure.low is not None and figure.high is not None and math.isfinite(figure.low + figure.high):
        width = max(x(figure.high) - x(figure.low), 1.0)
        band = f'<rect class="interval" x="{x(figure.low):.1f}" y="3" width="{width:.1f}" height="8" rx="3"/>'
    return Markup(
        '<svg class="bar" viewBox="0 0 160 14" aria-hidden="true">'
        '<rect class="track" x="3" y="6" width="154" height="2"/>'
        f'{band}<circle class="dot" cx="{x(figure.value):.1f}" cy="7" r="4"/></svg>'
    )


def _frame(curve: Curve, finite: Sequence[Point]) -> _Frame:
    xs = [p[0] for p in finite]
    ys = [v for p in finite for v in p[1:] if v is not None and math.isfinite(v)]
    whole = all(x == int(x) for x in xs)
    x_low, x_high = (min(xs), max(xs)) if max(xs) > min(xs) else (xs[0] - 1, xs[0] + 1)
    x_ticks = [t for t in nice_ticks(x_low, x_high, 6) if x_low <= t <= x_high and (not whole or t == int(t))]
    share = curve.unit == "share"
    y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if share else nice_ticks(min(ys), max(ys))
    return _Frame(x_ticks, y_ticks, x_low, x_high)


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """Stretches without a gap."""
    runs: list[list[Point]] = [[]]
    for p in points:
        if math.isfinite(p[0]) and math.isfinite(p[1]):
            runs[-1].append(p)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _band(run: Sequence[Point], frame: _Frame) -> str:
    known = [(p[0], p[2], p[3]) for p in run if p[2] is not None and p[3] is not None]
    known = [k for k in known if math.isfinite(k[1]) and math.isfinite(k[2])]
    if not known:
        return ""
    if len(known) == 1:
        x, low, high = known[0]
        at = f"{frame.x(x):.1f}"
        return f'<line class="whisker" x1="{at}" x2="{at}" y1="{frame.y(low):.1f}" y2="{frame.y(high):.1f}"/>'
    upper = [f"{frame.x(x):.1f},{frame.y(high):.1f}" for x, _, high in known]
    lower = [f"{frame.x(x):.1f},{frame.y(low):.1f}" for x, low, _ in reversed(known)]
    return f'<polygon class="band" points="{" ".join(upper + lower)}"/>'


def _axes(curve: Curve, frame: _Frame) -> str:
    share = curve.unit == "share"
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in frame.y_ticks:
        y = f"{frame.y(tick):.1f}"
        text = f"{100 * tick:.0f} %" if share else _tick(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y}" dy="0.35em" text-anchor="end">{text}</text>')
    for tick in frame.x_ticks:
        x = f"{frame.x(tick):.1f}"
        parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 17}" text-anchor="middle">{_tick(tick)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (LEFT + right) / 2
    parts.append(
        f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{_short(curve.x_label)}</text>'
    )
    unit = "per cent" if share else curve.unit
    parts.append(f'<text class="label" x="8" y="14">{_short(unit)}</text>')
    return "".join(parts)


def _short(text: str) -> Markup:
    """SVG text does not wrap."""
    shown = plain(text)
    return escape(shown if len(shown) <= 40 else shown[:39] + "…")


def _tick(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def _spoken(points: Sequence[Point], unit: str) -> str:
    first, last = points[0], points[-1]
    if len(points) == 1:
        return measure(first[1], unit)
    best = max(points, key=lambda p: p[1])
    ends = f"from {measure(first[1], unit)} to {measure(last[1], unit)}"
    return f"{ends}, highest {measure(best[1], unit)} at {number(best[0], 0)}"
