"""Render a report: one HTML file that needs no network, no script and no other file."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from training.report.data import Figure, ReportData
from training.report.svg import interval_bar, line_chart
from training.report.text import flat, interval, measure, plain, visible
from training.report.views import figure_panels, trace_table


def render_report(data: ReportData) -> str:
    """The page as a string; write it with ``encoding="utf-8"``.

    Everything that came from a model, a tool or a log is escaped, and its control and direction characters are shown as
    signs. The page forbids itself scripts and any request (Content-Security-Policy).
    """
    environment = Environment(
        loader=PackageLoader("training.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(visible=visible, plain=plain, measure=measure, shade=_shade_style, interval=_interval)
    page = environment.get_template("report.html.j2").render(
        title=data.title,
        panels=figure_panels(data.figures),
        curves=[(curve, line_chart(curve)) for curve in data.curves],
        tables=[trace_table(view) for view in data.traces],
        manifest=list(flat(data.manifest)),
        next_steps=data.next_steps,
        interval_bar=interval_bar,
    )
    # A lone surrogate cannot be written as UTF-8; `visible` and `plain` show those they see.
    return page.encode("utf-8", "replace").decode()


def _interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return "no interval"
    return interval(figure.low, figure.high, figure.unit)


def _shade_style(shade: float) -> Markup:
    """A cell colour: blue above zero, orange below; see-through enough for the text on it in light and dark."""
    colour = "38, 99, 235" if shade > 0 else "217, 108, 6"
    return Markup(f"background: rgba({colour}, {0.5 * abs(shade):.2f})") if shade else Markup("")
