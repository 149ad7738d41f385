"""Commands of the training package: quickstart, train, eval, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from agentcore.cli import as_json, emit, folder_of


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that quickstart and train share."""
    options = [
        click.option("--model", default=None, help="Default, a Hugging Face name or a local folder."),
        click.option("--runs", default="runs", show_default=True, type=click.Path(), help="Where run folders go."),
        click.option("--resume", is_flag=True, help="Continue an interrupted run of this name."),
        click.option("--seed", default=0, show_default=True),
        click.option("--iterations", default=None, type=click.IntRange(0), help="Iterations of reinforcement."),
        click.option("--sft-steps", default=None, type=click.IntRange(1), help="Steps of the supervised warm start."),
        click.option(
            "--learning-rate",
            default=None,
            type=click.FloatRange(0, min_open=True),
            help="Learning rate of reinforcement.",
        ),
        click.option("--estimator", default=None, help="How credit is assigned (see docs/credit)."),
        click.option("--heldout-tasks", default=None, type=click.IntRange(1)),
        click.option("--quiet", is_flag=True, help="No progress on standard error, only warnings."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.option("--name", default="quickstart", show_default=True, help="Name of the run.")
@_run_options
@as_json
def quickstart(name: str, runs: str, resume: bool, quiet: bool, json_: bool, **options: Any) -> None:
    """The main job: warm-start, reinforce and evaluate the built-in agent, then write a report."""
    from training.quickstart import QuickstartConfig

    _start(_configured(QuickstartConfig(), options), folder_of(runs, name), resume, quiet, json_)


@click.command()
@click.option("--name", default="train", show_default=True, help="Name of the run.")
@click.option("--env", "environment", default="assistant", show_default=True)
@click.option("--level", default="hard", show_default=True, help="Level that is trained and evaluated on.")
@click.option("--traces", type=click.Path(), default=None, help="Trace file to warm-start from.")
@click.option("--planner", is_flag=True, help="The policy also writes the plan, in a node of its own.")
@click.option(
    "--adapters",
    type=click.Choice(["shared", "per-node"]),
    default="shared",
    show_default=True,
    help="One LoRA adapter for all nodes, or one for each.",
)
@_run_options
@as_json
def train(name: str, runs: str, resume: bool, quiet: bool, json_: bool, **options: Any) -> None:
    """Train a policy in a built-in environment, from a trace file or from the environment's oracle."""
    from agentcore.tracefile import TraceReader
    from training.quickstart import QuickstartConfig

    if options["traces"] is not None:
        TraceReader(options["traces"])  # a missing file is said before a model is loaded
    config = replace(
        QuickstartConfig(base_tasks=0),
        environment=options.pop("environment"),
        level=options.pop("level"),
        traces=options.pop("traces"),
        planner=options.pop("planner"),
        adapters=options.pop("adapters"),
    )
    _start(_configured(config, options), folder_of(runs, name), resume, quiet, json_)


def _configured(config: Any, options: dict[str, Any]) -> Any:
    """The configuration with what was given on the command line."""
    settings = replace(config.settings, seed=options["seed"])
    if options["iterations"] is not None:
        settings = replace(settings, rl=replace(settings.rl, iterations=options["iterations"]))
    if _estimator(options["estimator"]) is not None:
        settings = replace(settings, rl=replace(settings.rl, estimator=options["estimator"]))
    if options["sft_steps"] is not None:
        settings = replace(settings, sft=replace(settings.sft, steps=options["sft_steps"]))
    if options["learning_rate"] is not None:
        settings = replace(settings, update=replace(settings.update, learning_rate=options["learning_rate"]))
    config = replace(config, settings=settings)
    if options["model"] is not None:
        config = replace(config, model=options["model"])
    if options["heldout_tasks"] is not None:
        config = replace(config, heldout_tasks=options["heldout_tasks"])
    return config


def _estimator(name: str | None) -> str | None:
    """The name, if there is such an estimator."""
    from training.credit import ESTIMATORS

    if name is not None and name not in ESTIMATORS:
        raise click.BadParameter(f"choose from {', '.join(ESTIMATORS)}", param_hint="--estimator")
    return name


def _start(config: Any, path: Path, resume: bool, quiet: bool, json_: bool) -> None:
    from training.progress import Reporter
    from training.quickstart import Quickstart
    from training.summary import summary_lines

    result = Quickstart(config, path, resume=resume, reporter=Reporter(quiet=quiet)).run()
    if json_:
        emit(result)
        return
    click.echo(f"\nHeld-out and adversarial success, 95 % intervals ({result['seconds']:.0f} s):")
    for line in summary_lines(result["evaluations"]):
        click.echo(f"  {line}")
    click.echo(f"\nAdapter: {result['adapter']}\nReport:  {result['report']}\n\nWhat to try next:")
    for step in result["next"]:
        click.echo(f"  - {step}")


@click.command()
@click.option("--adapter", type=click.Path(), default=None, help="Adapter folder; without one, the base model.")
@click.option("--model", default=None)
@click.option("--env", "environment", default="assistant", show_default=True)
@click.option("--level", default="hard", show_default=True)
@click.option("--planner", is_flag=True, help="The policy also plans (on by itself where an adapter is a planner's).")
@click.option("--split", type=click.Choice(["train", "heldout", "adversarial"]), multiple=True, default=("heldout",))
@click.option("--tasks", default=64, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True, help="Seed of the task lists.")
@click.option("--out", type=click.Path(), default=None, help="Append the traces to this file.")
@click.option("--quiet", is_flag=True)
@as_json
def eval(json_: bool, quiet: bool, **options: Any) -> None:
    """Success of a policy, split by split, with 95 % intervals."""
    from training.evalcommand import evaluate_splits
    from training.summary import summary_lines

    results = evaluate_splits(quiet=quiet, **options)
    if json_:
        emit({"evaluations": results})
        return
    for line in summary_lines(results):
        click.echo(line)


@click.command()
@click.argument("run", type=click.Path())
@click.option("--estimator", default=None, help="Show the credit that another estimator would give.")
@as_json
def report(run: str, estimator: str | None, json_: bool) -> None:
    """Write the HTML report of a run folder (runs/NAME) anew and print where it is."""
    from training.evalcommand import report_of

    result = report_of(run, _estimator(estimator))
    if json_:
        emit(result)
        return
    from training.summary import summary_lines

    for line in summary_lines(result["evaluations"]):
        click.echo(line)
    click.echo(f"Report: {result['report']}")
