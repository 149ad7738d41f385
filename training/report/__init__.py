"""One self-contained HTML page about a run: figures, learning curves, traces step by step, manifest."""

from training.report.data import Curve, Figure, ReportData, TraceView
from training.report.render import render_report

__all__ = ["Curve", "Figure", "ReportData", "TraceView", "render_report"]
