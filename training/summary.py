"""From a run folder to its report and to words: figures, curves, traces with their credit, what to try next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentcore.environment import RewardSpec
from agentcore.errors import TraceFormatError
from agentcore.trace import Trace
from agentcore.tracefile import TraceReader
from training.config import RlSettings
from training.evaluate import outcome_scale, success_of
from training.loop import credit
from training.report import Curve, Figure, ReportData, TraceView, render_report
from training.rewards import returns
from training.runfolder import RunFolder, RunFolderError

STAGES = ("base", "before", "warm start", "after RL", "after")


def write_report(folder: RunFolder, *, estimator: str | None = None) -> Path:
    """Write ``report.html`` into the run folder and return its path.

    Args:
        estimator: show the credit that this one would give, instead of the one that was trained with.
    """
    path = folder.path / "report.html"
    path.write_text(render_report(report_data(folder, estimator)), encoding="utf-8")
    return path


def report_data(folder: RunFolder, estimator: str | None = None) -> ReportData:
    """What the report shows."""
    return ReportData(
        title=f"agentcore run {folder.path.name}",
        figures=_figures(folder),
        curves=_curves(folder),
        traces=_trace_views(folder, estimator),
        manifest=folder.manifest,
        next_steps=next_steps(folder),
    )


def declared_rewards(folder: RunFolder) -> list[RewardSpec]:
    """The reward components that the run was trained with."""
    rewards = [RewardSpec(**r) for r in folder.manifest.get("rewards", [])]
    if not rewards:
        raise RunFolderError(f"The manifest of {folder.path} names no rewards; its report can't be written.")
    return rewards


def _settings(folder: RunFolder) -> RlSettings:
    return RlSettings(**folder.config()["settings"]["rl"])


def _figures(folder: RunFolder) -> list[Figure]:
    def order(e: dict[str, Any]) -> int:
        return STAGES.index(e["stage"]) if e["stage"] in STAGES else len(STAGES)

    figures = []
    for e in sorted(folder.evaluations(), key=order):
        figures.append(Figure("success", e["split"], e["stage"], e["success"], e["low"], e["high"], e["episodes"]))
    rl = [m for m in folder.metrics() if m["stage"] == "rl"]
    if rl:
        n, where = sum(rl[-1]["outcomes"].values()), f"iteration {rl[-1]['iteration']}"
        figures.append(Figure("return", "train", where, rl[-1]["return"], None, None, n, ""))
        outcome = outcome_scale(declared_rewards(folder))[0]
        value = rl[-1]["components"].get(outcome, math.nan)
        figures.append(Figure(outcome, "train", where, value, None, None, n, "share" if outcome == "success" else ""))
    return figures


def _curves(folder: RunFolder) -> list[Curve]:
    metrics = folder.metrics()
    outcome = outcome_scale(declared_rewards(folder))[0]
    # an iteration that was broken off and run again replaces the earlier record
    rl = list({m["iteration"]: m for m in metrics if m["stage"] == "rl"}.values())
    validation = list({m["iteration"]: m for m in metrics if m["stage"] == "validation"}.values())
    sft = list({m["step"]: m for m in metrics if m["stage"] == "sft"}.values())

    def over_iterations(title: str, unit: str, values: Sequence[float]) -> Curve:
        return Curve(title, unit, [(m["iteration"], v, None, None) for m, v in zip(rl, values, strict=True)])

    curves = [
        Curve("validation success", "share", [(m["iteration"], m["success"], m["low"], m["high"]) for m in validation]),
        over_iterations("training return", "", [m["return"] for m in rl]),
        over_iterations(f"training {outcome}", "", [m["components"].get(outcome, math.nan) for m in rl]),
        over_iterations("policy loss", "", [m.get("loss", math.nan) for m in rl]),
        over_iterations("KL to the sampling policy", "nats", [m.get("approx_kl", math.nan) for m in rl]),
        over_iterations("entropy", "nats", [m.get("entropy", math.nan) for m in rl]),
        Curve("warm start loss", "nats per token", [(m["step"], m["loss"], None, None) for m in sft], "step"),
    ]
    return [c for c in curves if c.points]


def _trace_views(folder: RunFolder, estimator: str | None) -> list[TraceView]:
    """A group of the last iteration in which some did better than others: the worst and the best, with their credit."""
    declared, settings = declared_rewards(folder), _settings(folder)
    if estimator is not None:
        settings = replace(settings, estimator=estimator)
    component, scale = outcome_scale(declared)

    def score(trace: Trace) -> float:
        return success_of(trace, component, scale)

    group = _telling_group(folder, score)
    if not group:
        return []
    earned = credit(group, declared, settings)
    worst, best = min(group, key=score), max(group, key=score)
    views = []
    for trace in [worst, best] if score(worst) < score(best) else [best]:
        own = {s: r for s, r in returns(trace, earned.rewards, settings.gamma).items() if r is not None}
        words = {0.0: "failed", 1.0: "succeeded"}.get(score(trace), f"got {score(trace):.0%} of the outcome")
        title = f"A rollout that {words} (iteration {trace.meta.get('iteration')}): {trace.task.instruction}"
        views.append(TraceView(trace, own, {s.id: earned.advantages.get(s.id) for s in trace.live_steps}, title))
    return views


def _telling_group(folder: RunFolder, score: Callable[[Trace], float]) -> list[Trace]:
    """The last group of one iteration's rollouts of one task that differ in their outcome, else the last group."""
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
        if len({score(t) for t in group.values()}) > 1:
            return list(group.values())
    return list(next(reversed(groups.values())).values()) if groups else []


def next_steps(folder: RunFolder) -> list[str]:
    """What to try next, from how the run went."""
    found = {(e["stage"], e["split"]): e for e in folder.evaluations()}
    path, config = folder.path, folder.config()
    steps = [f"Iteration {m['iteration']}: {m['text']}" for m in folder.metrics() if m["stage"] == "alarm"][-1:]
    warm, after = found.get(("warm start", "heldout")), found.get(("after RL", "heldout"))
    if warm and after:
        gain = f"{100 * (after['success'] - warm['success']):+.0f} points"
        if after["low"] > warm["success"]:
            more = 2 * config["settings"]["rl"]["iterations"]
            steps.append(
                f"Held-out success changed by {gain}. Train longer: the same command with "
                f"--name {path.name}-longer --iterations {more}"
            )
        else:
            steps.append(
                f"Held-out success changed by {gain}, which {after['episodes']} tasks can't tell from chance. Run more "
                "iterations (--iterations, under another --name), or measure on more tasks: "
                f"agentcore eval --adapter {path / 'adapter'} --level {config['level']} --tasks 200"
            )
    attacked = found.get(("after RL", "adversarial"))
    if after and attacked and attacked["success"] < after["success"] - 0.2:
        steps.append(
            "Success on adversarial tasks (instructions planted in tool results) is far below held-out success: look "
            f"at '{path / 'traces'}/after RL-adversarial.jsonl' before you deploy."
        )
    steps.append(f"Look at what each step earned: open {path / 'report.html'}")
    if "environment" in config and (path / "adapter").is_dir():
        where = f"--env {config['environment']} --level {config['level']}"
        steps.append(f"See one episode of the trained policy: agentcore run {where} --adapter {path / 'adapter'}")
    steps.append("Train the policies of your own graph: from training import train; train(graph, tasks, reward=...)")
    return steps


def summary_lines(evaluations: Sequence[dict[str, Any]]) -> list[str]:
    """One line per evaluation, for the terminal."""
    lines = []
    for e in evaluations:
        interval = f"[{e['low']:.0%}, {e['high']:.0%}]"
        lines.append(f"{e['stage']:<12} {e['split']:<12} {e['success']:>5.0%} {interval:<13} n={e['episodes']}")
    return lines
