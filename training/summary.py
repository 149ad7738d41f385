"""From a run folder to its report and to words: figures, curves, traces with their credit, what to try next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentcore.environment import EnvironmentSpec
from agentcore.errors import TraceFormatError
from agentcore.trace import Trace
from agentcore.tracefile import TraceReader
from training.config import TrainSettings
from training.credit import estimate
from training.report import Curve, Figure, ReportData, TraceView, render_report
from training.rewards import RewardConfig, returns, step_rewards
from training.runfolder import RunFolder, RunFolderError

STAGES = ("base", "before", "warm start", "after RL", "after")


def write_report(folder: RunFolder, spec: EnvironmentSpec, settings: TrainSettings) -> Path:
    """Write ``report.html`` into the run folder and return its path."""
    path = folder.path / "report.html"
    path.write_text(render_report(report_data(folder, spec, settings)), encoding="utf-8")
    return path


def report_data(folder: RunFolder, spec: EnvironmentSpec, settings: TrainSettings) -> ReportData:
    """What the report shows."""
    return ReportData(
        title=f"agentcore run {folder.path.name}",
        figures=_figures(folder),
        curves=_curves(folder),
        traces=_trace_views(folder, spec, settings),
        manifest=folder.manifest,
        next_steps=next_steps(folder),
    )


def _figures(folder: RunFolder) -> list[Figure]:
    def order(e: dict[str, Any]) -> int:
        return STAGES.index(e["stage"]) if e["stage"] in STAGES else len(STAGES)

    figures = []
    for e in sorted(folder.evaluations(), key=order):
        figures.append(Figure("success", e["split"], e["stage"], e["success"], e["low"], e["high"], e["episodes"]))
    for name in ("return", "success"):
        rl = [m for m in folder.metrics() if m["stage"] == "rl"]
        if rl:
            value = rl[-1]["return"] if name == "return" else rl[-1]["components"].get("success", math.nan)
            n = sum(rl[-1]["outcomes"].values())
            unit = "" if name == "return" else "share"
            figures.append(Figure(name, "train", f"iteration {rl[-1]['iteration']}", value, None, None, n, unit))
    return figures


def _curves(folder: RunFolder) -> list[Curve]:
    metrics = folder.metrics()
    # an iteration that was run again after a resume replaces the earlier record
    rl = list({m["iteration"]: m for m in metrics if m["stage"] == "rl"}.values())
    validation = list({m["iteration"]: m for m in metrics if m["stage"] == "validation"}.values())
    sft = list({m["step"]: m for m in metrics if m["stage"] == "sft"}.values())
    curves = [
        Curve(
            "validation success (held-out tasks)",
            "share",
            [(m["iteration"], m["success"], m["low"], m["high"]) for m in validation],
        ),
        Curve("training return", "", [(m["iteration"], m["return"], None, None) for m in rl]),
        Curve(
            "training success",
            "share",
            [(m["iteration"], m["components"].get("success", math.nan), None, None) for m in rl],
        ),
        Curve("policy loss", "", [(m["iteration"], m.get("loss", math.nan), None, None) for m in rl]),
        Curve("KL to the sampling policy", "nats", [(m["iteration"], m.get("approx_kl", math.nan), None, None) for m in rl]),
        Curve("entropy", "nats", [(m["iteration"], m.get("entropy", math.nan), None, None) for m in rl]),
        Curve("warm start loss", "nats per token", [(m["step"], m["loss"], None, None) for m in sft], "step"),
    ]
    return [c for c in curves if c.points]


def _trace_views(folder: RunFolder, spec: EnvironmentSpec, settings: TrainSettings) -> list[TraceView]:
    """A group of the last iteration in which some succeeded and some failed: one of each, with its credit."""
    group = _telling_group(folder)
    if not group:
        return []
    worst = sum(min(0.0, r.low * r.weight) for r in spec.rewards if r.kind == "outcome")
    config = RewardConfig(gamma=settings.rl.gamma, ungraded={"truncated": worst, "failed": worst})
    rewards: dict[str, float | None] = {}
    for trace in group:
        rewards |= step_rewards(trace, spec, config)
    advantages = estimate(settings.rl.estimator, group, rewards, settings.rl.gamma)
    views = []
    for wanted in (0.0, 1.0):
        trace = next((t for t in group if t.component_totals().get("success", 0.0) == wanted), None)
        if trace is not None:
            own = {s: r for s, r in returns(trace, rewards, settings.rl.gamma).items() if r is not None}
            words = "succeeded" if wanted else "failed"
            title = f"A rollout that {words} (iteration {trace.meta.get('iteration')}): {trace.task.instruction}"
            views.append(TraceView(trace, own, {s.id: advantages.get(s.id) for s in trace.live_steps}, title))
    return views


def _telling_group(folder: RunFolder) -> list[Trace]:
    """The last group of one iteration's rollouts of one task whose success differs."""
    try:
        reader = TraceReader(folder.path / "traces" / "train.jsonl")
    except TraceFormatError:
        return []
    groups: dict[tuple[Any, str], dict[Any, Trace]] = {}
    for trace in reader:
        key = (trace.meta.get("iteration"), trace.task.id)
        groups.setdefault(key, {})[trace.id] = trace
        if len(groups) > 64:  # only the last ones matter; a long run's file is larger than memory
            groups.pop(next(iter(groups)))
    for group in reversed(groups.values()):
        totals = {t.component_totals().get("success", 0.0) for t in group.values()}
        if len(totals) > 1:
            return list(group.values())
    return list(next(reversed(groups.values())).values()) if groups else []


def next_steps(folder: RunFolder) -> list[str]:
    """What to try next, from how the run went."""
    found = {(e["stage"], e["split"]): e for e in folder.evaluations()}
    path = folder.path
    steps = []
    warm, after = found.get(("warm start", "heldout")), found.get(("after RL", "heldout"))
    if warm and after:
        gain = after["success"] - warm["success"]
        if after["low"] > warm["success"]:
            steps.append(f"Held-out success rose by {gain:+.0%} points. Train longer: agentcore quickstart --iterations 16")
        else:
            steps.append(
                f"Held-out success changed by {gain:+.0%} points, which {after['episodes']} tasks can't tell from "
                "chance. Run more iterations (--iterations), or measure on more tasks: agentcore eval --tasks 200"
            )
    attacked = found.get(("after RL", "adversarial"))
    if after and attacked and attacked["success"] < after["success"] - 0.2:
        steps.append(
            "Success on adversarial tasks (instructions planted in tool results) is far below held-out success: look "
            f"at {path / 'traces'}/after RL-adversarial.jsonl before you deploy."
        )
    steps.append(f"Look at what each step earned: open {path / 'report.html'}")
    steps.append(f"See one episode of the trained policy: agentcore run --adapter {path / 'adapter'}")
    steps.append("Train the policies of your own graph: from training import train; train(graph, tasks, reward=...)")
    return steps


def open_run(path: str | Path) -> RunFolder:
    """An existing run folder, for reading."""
    folder = RunFolder(Path(path))
    if not (folder.path / "manifest.json").exists():
        raise RunFolderError(f"{path} is not a run folder (it has no manifest.json).")
    import json

    folder.manifest = json.loads((folder.path / "manifest.json").read_text())
    return folder


def spec_of(environment: str, level: str | None = None) -> EnvironmentSpec:
    """Specification of a named environment, as the traces of a run refer to it."""
    from agentcore.environments import make_environment

    return make_environment(environment, **({"level": level} if level else {})).spec


def summary_lines(evaluations: Sequence[dict[str, Any]]) -> list[str]:
    """One line per evaluation, for the terminal."""
    lines = []
    for e in evaluations:
        interval = f"[{e['low']:.0%}, {e['high']:.0%}]"
        lines.append(f"{e['stage']:<12} {e['split']:<12} {e['success']:>5.0%} {interval:<13} n={e['episodes']}")
    return lines
