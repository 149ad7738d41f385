"""``agentcore eval`` and ``agentcore report``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from agentcore.environments import make_environment
from agentcore.graph import build_agent
from agentcore.runcommand import load_policy
from agentcore.tracefile import TraceWriter
from memory import FaissStore
from training.config import LoraSettings, RlSettings, SftSettings, TrainSettings, UpdateSettings
from training.evaluate import evaluate
from training.progress import Reporter
from training.summary import open_run, spec_of, write_report


def evaluate_splits(
    *,
    adapter: str | None,
    model: str | None,
    environment: str,
    level: str,
    split: tuple[Any, ...],
    tasks: int,
    seed: int,
    out: str | None,
    quiet: bool,
) -> list[dict[str, Any]]:
    """One evaluation per split, as JSON data."""
    options: dict[str, Any] = {"level": level, "step_limit": 8} if environment == "assistant" else {}
    env = make_environment(environment, **options)
    policy = load_policy(model, adapter, temperature=0.0, max_tokens=24)
    graph = build_agent(policy, env)
    reporter = Reporter(quiet=quiet)
    results = []
    for name in split:
        with reporter.bar(f"evaluating on {name} tasks", tasks) as advance:
            result, traces = evaluate(
                graph,
                env.tasks(name, tasks, seed=seed),
                stage=adapter or "base",
                weights={r.name: r.weight for r in env.spec.rewards},
                memory=FaissStore(None),
                on_trace=lambda _: advance(1),  # noqa: B023 - called within this round only
            )
        results.append(result.to_json())
        if out is not None:
            with TraceWriter(out) as writer:
                for trace in traces:
                    writer.write(trace)
    return results


def settings_from_json(data: dict[str, Any]) -> TrainSettings:
    """Settings as a run folder keeps them."""
    return TrainSettings(
        seed=data["seed"],
        lora=LoraSettings(**{**data["lora"], "targets": tuple(data["lora"]["targets"])}),
        update=UpdateSettings(**{**data["update"], "betas": tuple(data["update"]["betas"])}),
        sft=SftSettings(**data["sft"]),
        rl=RlSettings(**data["rl"]),
    )


def report_of(run: str, estimator: str | None = None) -> dict[str, Any]:
    """Write a run's report anew, with the credit of the estimator it was trained with or of another one."""
    folder = open_run(run)
    config = json.loads((folder.path / "config.json").read_text())
    settings = settings_from_json(config.get("settings", config))
    if estimator is not None:
        settings = replace(settings, rl=replace(settings.rl, estimator=estimator))
    spec = spec_of(config.get("environment", "assistant"), config.get("level"))
    path = write_report(folder, spec, settings)
    return {"report": str(path), "evaluations": folder.evaluations()}
