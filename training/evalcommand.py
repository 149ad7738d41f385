"""``agentcore eval`` and ``agentcore report``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from agentcore.graph import build_agent
from agentcore.runcommand import load_policy
from agentcore.trace import Trace
from agentcore.tracefile import TraceWriter
from memory import FaissStore
from training.evaluate import evaluate, outcome_scale
from training.progress import Reporter
from training.quickstart import QuickstartConfig, environment_of
from training.runfolder import RunFolder
from training.summary import write_report


def evaluate_splits(
    *,
    adapter: str | None,
    model: str | None,
    environment: str,
    level: str,
    planner: bool,
    split: tuple[Any, ...],
    tasks: int,
    seed: int,
    out: str | None,
    quiet: bool,
) -> list[dict[str, Any]]:
    """One evaluation per split, as JSON data."""
    config = replace(QuickstartConfig(), environment=environment)  # whose step limit and reply length apply here too
    env = environment_of(config, level)
    component, scale = outcome_scale(env.spec.rewards)
    # a file that can't be written to is said before the work is done
    writing = TraceWriter(out) if out is not None else nullcontext()
    policy = load_policy(model, adapter, temperature=0.0, max_tokens=config.max_tokens)
    graph = build_agent(policy, env, planner=policy if planner or "planning" in policy.adapters else None)
    reporter = Reporter(quiet=quiet)
    results = []
    with writing as writer:
        for name in split:
            with reporter.bar(f"evaluating on {name} tasks", tasks) as advance:

                def done(trace: Trace, advance: Callable[[int], None] = advance) -> None:
                    if writer is not None:
                        writer.write(trace)
                    advance(1)

                result, _ = evaluate(
                    graph,
                    env.tasks(name, tasks, seed=seed),
                    stage=adapter or "base",
                    weights={r.name: r.weight for r in env.spec.rewards},
                    memory=FaissStore(None),
                    component=component,
                    scale=scale,
                    on_trace=done,
                )
            results.append(result.to_json())
    return results


def report_of(run: str, estimator: str | None = None) -> dict[str, Any]:
    """Write a run's report anew, with the credit of the estimator it was trained with or of another one."""
    folder = RunFolder.open(run)
    return {"report": str(write_report(folder, estimator=estimator)), "evaluations": folder.evaluations()}
