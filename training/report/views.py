"""Traces and figures arranged for the template: rows, columns and cell colours; no HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentcore.environment import ToolCall, ToolResult
from agentcore.trace import Reward, Step, Trace
from training.report.data import Figure, TraceView
from training.report.text import as_json, message_parts, number

SPLIT_TITLES = {"train": "Training tasks", "heldout": "Held-out tasks", "adversarial": "Adversarial tasks"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A number in a table."""

    text: str
    detail: str = ""
    """Where it comes from, shown on hover: the parts of a sum."""
    shade: float = 0.0
    """-1 to 1 for the heat map's colour."""
    kind: str = ""
    """``none`` for a value that is not there, as opposed to zero."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """A tool call beside its result."""

    name: str
    args: str
    error: str | None
    result: str | None
    ok: bool
    rewards: str
    """Components on this call alone."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of a trace as the table shows it."""

    number: str
    policy_id: str
    superseded: bool
    messages: tuple[tuple[str, str], ...]
    belief: str | None
    reply: str
    calls: tuple[CallRow, ...]
    error: str | None
    components: tuple[Cell, ...]
    return_: Cell
    advantage: Cell
    tokens: tuple[str, ...]
    """Lines: prompt, reply, and whether the reply was cut off at the length limit."""
    sampled_by: str


@dataclass(frozen=True, slots=True)
class TraceTable:
    """A trace arranged for the page."""

    title: str
    trace: Trace
    components: tuple[str, ...]
    rows: tuple[StepRow, ...]
    elsewhere: tuple[tuple[str, tuple[Cell, ...]], ...]
    """Rewards that lie on no step: on the trace, on node runs, on targets that are not in the trace."""
    totals: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class FigurePanel:
    """One split's figures: a measure by stages."""

    title: str
    rows: tuple[tuple[str, tuple[Figure, ...]], ...]


def figure_panels(figures: Sequence[Figure]) -> list[FigurePanel]:
    """Figures by split (held-out first, adversarial last) and measure, stages in order of first appearance."""
    order = {"heldout": 0, "train": 1, "adversarial": 3}
    splits = sorted(dict.fromkeys(f.split for f in figures), key=lambda split: order.get(split, 2))
    stages = list(dict.fromkeys(f.stage for f in figures))
    panels = []
    for split in splits:
        rows = []
        for name in dict.fromkeys(f.name for f in figures if f.split == split):
            mine = [f for f in figures if f.split == split and f.name == name]
            rows.append((name, tuple(sorted(mine, key=lambda f: stages.index(f.stage)))))
        panels.append(FigurePanel(SPLIT_TITLES.get(split, split), tuple(rows)))
    return panels


def trace_table(view: TraceView) -> TraceTable:
    """The trace with every reward component in a column of its own, and the credit of every step."""
    trace = view.trace
    components = tuple(dict.fromkeys(r.component for r in trace.rewards))
    rewards = [(step, trace.rewards_of_step(step)) for step in trace.steps]
    largest = _largest(r.value for r in trace.rewards)
    largest_return = _largest(view.returns.values())
    largest_advantage = _largest(a for a in view.advantages.values() if a is not None)
    rows = tuple(
        _step_row(
            step,
            str(index),
            own,
            tuple(_component_cell(name, own, largest) for name in components),
            _credit_cell(view.returns.get(step.id), largest_return, "–"),
            _credit_cell(view.advantages.get(step.id), largest_advantage, "not trained"),
        )
        for index, (step, own) in enumerate(rewards, start=1)
    )
    placed = {id(reward) for _, own in rewards for reward in own}
    rest = [reward for reward in trace.rewards if id(reward) not in placed]
    totals = trace.component_totals()
    return TraceTable(
        title=view.title or f"Trace {trace.id}",
        trace=trace,
        components=components,
        rows=rows,
        elsewhere=tuple(
            (label, tuple(_component_cell(name, own, largest) for name in components))
            for label, own in _by_target(rest, trace)
        ),
        totals=tuple(Cell(number(totals[name])) for name in components),
    )


def _step_row(
    step: Step, index: str, rewards: Sequence[Reward], components: tuple[Cell, ...], return_: Cell, advantage: Cell
) -> StepRow:
    tokens, sampled_by = ["no tokens"], "tokens were not recorded"
    if step.tokens is not None:
        t = step.tokens
        tokens = [f"{len(t.prompt_ids)} in prompt", f"{len(t.reply_ids)} in reply"]
        tokens += ["cut off"] if t.finish == "length" else []
        adapter = f"{t.adapter}, version {t.adapter_version}" if t.adapter else "no adapter"
        origin = "; re-tokenised from text" if t.retokenised else ""
        sampled_by = f"{t.model}, {adapter}, temperature {t.temperature:g}{origin}"
    return StepRow(
        number=index,
        policy_id=step.policy_id,
        superseded=step.superseded,
        messages=tuple(message_parts(message) for message in step.messages),
        belief=step.belief,
        reply=step.reply,
        calls=_call_rows(step.calls, step.results, rewards),
        error=step.error,
        components=components,
        return_=return_,
        advantage=advantage,
        tokens=tuple(tokens),
        sampled_by=sampled_by,
    )


def _call_rows(
    calls: Sequence[ToolCall], results: Sequence[ToolResult], rewards: Sequence[Reward]
) -> tuple[CallRow, ...]:
    """Calls with their results by id; a result without a call is shown too, since a log may hold one."""
    unused = list(results)
    rows = []
    for call in calls:
        result = next((r for r in unused if r.call_id == call.id), None)
        if result is not None:
            unused.remove(result)
        args = ", ".join(f"{name}={as_json(value)}" for name, value in call.args.items())
        earned = [r for r in rewards if r.target == "call" and r.target_id == call.id]
        content, ok = (result.content, result.ok) if result is not None else (None, call.error is None)
        shown = args if args or call.raw is None else call.raw
        text = ", ".join(f"{r.component} {number(r.value)}" for r in earned)
        rows.append(CallRow(call.name, shown, call.error, content, ok, text))
    rows += [CallRow(f"(result of {r.call_id})", "", None, r.content, r.ok, "") for r in unused]
    return tuple(rows)


def _component_cell(name: str, rewards: Iterable[Reward], largest: float) -> Cell:
    mine = [r for r in rewards if r.component == name]
    if not mine:
        return Cell("", kind="none")
    total = sum(r.value for r in mine)
    detail = "; ".join(f"{number(r.value)} on {r.target} {r.target_id}, from {r.source}" for r in mine)
    return Cell(number(total), detail, _shade(total, largest))


def _credit_cell(value: float | None, largest: float, missing: str) -> Cell:
    if value is None:
        return Cell(missing, kind="none")
    return Cell(number(value), shade=_shade(value, largest))


def _by_target(rewards: Sequence[Reward], trace: Trace) -> list[tuple[str, list[Reward]]]:
    nodes = {run.id: run.node for run in trace.node_runs}
    groups: dict[str, list[Reward]] = {}
    for reward in rewards:
        if reward.target == "trace" and reward.target_id == trace.id:
            label = "whole trace"
        elif reward.target == "node_run" and reward.target_id in nodes:
            label = f"node run {nodes[reward.target_id]}"
        else:
            label = f"{reward.target} {reward.target_id}, which is not in this trace"
        groups.setdefault(label, []).append(reward)
    return list(groups.items())


def _largest(values: Iterable[float]) -> float:
    return max((abs(v) for v in values if math.isfinite(v)), default=0.0)


def _shade(value: float, largest: float) -> float:
    return max(-1.0, min(1.0, value / largest)) if largest > 0 and math.isfinite(value) else 0.0
