"""The supervised warm start: imitate logged expert traces until validation stops improving."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentcore.environment import Environment
from agentcore.errors import SpecError
from agentcore.graph import build_agent
from agentcore.keys import rng
from agentcore.policies.local import LocalChatModel
from agentcore.policies.scripted import ExpertPolicy
from agentcore.runner import episodes, rollout
from agentcore.trace import Step, Tokens, Trace
from agentcore.tracefile import TraceWriter
from memory import FaissStore
from training.batch import TokenRow, build_sequences
from training.config import SftSettings
from training.files import partial_of
from training.update import Stats
from training.updaters import Updaters


def write_expert_traces(
    environment: Environment, count: int, path: Path, *, seed: int, tool_format: str, planner: bool = False
) -> None:
    """Run the environment's oracle through the agent graph and log what it did, as anyone's expert would be logged.

    With ``planner`` it also writes the plans, as a policy of its own.
    """
    expert = ExpertPolicy(tool_format=tool_format)
    planned = episodes(environment.tasks("train", count, seed=seed), seed=seed, purpose="expert")
    for episode in planned:
        expert.prepare(episode.id, environment, episode.task, episode.key)
    agent = build_agent(expert, environment, planner=expert if planner else None)
    traces = rollout(agent, planned, memory=FaissStore(None)).traces
    partial = partial_of(path)
    with TraceWriter(partial) as writer:
        for trace in traces:
            writer.write(trace)
    os.replace(partial, path)  # all of them or none: a run that is resumed trusts the file


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Rows to imitate and rows to validate on, each list entry one trace."""

    train: list[list[TokenRow]]
    validation: list[TokenRow]


def demonstrations(traces: Sequence[Trace], policy: LocalChatModel, *, validation: float = 0.15) -> Demonstrations:
    """The successful traces as token rows; the last share of them validates.

    Raises:
        SpecError: if no trace is fit to be imitated, or one comes from a task that must not train.
    """
    wrong = [t for t in traces if t.task.split != "train"]
    if wrong:
        raise SpecError(
            f"{len(wrong)} of {len(traces)} traces come from tasks that must not train (the first: "
            f"{wrong[0].task.id!r}, split {wrong[0].task.split!r}). Give traces of the split 'train' only."
        )

    def tokens_of(step: Step) -> Tokens:
        # ids that another model's tokeniser made mean nothing here: read its text
        foreign = step.tokens is not None and step.tokens.model != policy.engine.identity.name
        tokens = policy.tokens_of(replace(step, tokens=None) if foreign else step)
        # whoever sampled it, it is imitated by the node's own adapter
        return replace(tokens, adapter=policy.adapter_of(step.policy_id))

    good = [t for t in traces if t.outcome == "terminated" and t.component_totals().get("success", 1.0) > 0]
    rows = []
    for trace in good:
        built, _ = build_sequences([trace], {s.id: 1.0 for s in trace.live_steps}, tokens_of, on_policy=False)
        if built:
            rows.append(built)
    if len(rows) < 2:
        raise SpecError(f"Of {len(traces)} traces {len(rows)} can be imitated; a warm start needs at least 2.")
    held = max(1, round(len(rows) * validation))
    return Demonstrations(rows[:-held], [r for trace in rows[-held:] for r in trace])


def warm_start(
    updater: Updaters,
    data: Demonstrations,
    settings: SftSettings,
    *,
    seed: int,
    start: int = 0,
    losses: Sequence[float] = (),
    on_step: Callable[[int, Stats, float | None], None] | None = None,
    stop: Callable[[int], bool] | None = None,
) -> int:
    """Supervised steps after step ``start``, up to which ``losses`` were the validation losses; returns the last one's
    number.

    ``on_step(step, statistics, validation loss or None)`` is called after each step. Stops early once the validation
    loss has not improved for ``settings.patience`` validations.
    """
    if start == 0:
        updater.start_phase(settings.learning_rate)
    seen, step = list(losses), start
    if _patience_is_out(seen, settings):
        return step
    for step in range(start + 1, settings.steps + 1):
        chosen = rng(seed, "imitate", step).sample(range(len(data.train)), min(settings.batch_traces, len(data.train)))
        stats = updater.imitate([row for i in chosen for row in data.train[i]])
        loss = updater.imitation_loss(data.validation) if step % settings.validate_every == 0 else None
        if on_step is not None:
            on_step(step, stats, loss)
        if loss is not None:
            seen.append(loss)
        if _patience_is_out(seen, settings) or (stop is not None and stop(step)):
            break
    return step


def _patience_is_out(losses: Sequence[float], settings: SftSettings) -> bool:
    """Whether the last ``patience`` validations brought no improvement of 1 %."""
    best, worse = float("inf"), 0
    for loss in losses:
        best, worse = (loss, 0) if loss < best * 0.99 else (best, worse + 1)
    return 0 < settings.patience <= worse
