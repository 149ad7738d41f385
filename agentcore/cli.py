"""The command line. Other packages' commands join through the entry-point group ``agentcore.commands``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import click

GROUP = "agentcore.commands"


class Commands(click.Group):
    """Built-in commands, and those of the entry-point group, which are imported only when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(e.name for e in metadata.entry_points(group=GROUP))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for entry in metadata.entry_points(group=GROUP, name=cmd_name):
            command = entry.load()
            return command if isinstance(command, click.Command) else None
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            rows = []
            for name in self.list_commands(ctx):
                try:
                    command = self.get_command(ctx, name)
                except ImportError as error:
                    rows.append((name, f"(needs {error.name}: pip install 'agentcore-rl[train]')"))
                    continue
                if command is not None:
                    rows.append((name, command.get_short_help_str(70)))
            formatter.write_dl(rows)


@click.group(cls=Commands)
@click.version_option(package_name="agentcore-rl", message="%(version)s")
def cli() -> None:
    """Build agents as LangGraph graphs and fine-tune their policies from their own traces."""


def as_json(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --json: one JSON object on standard output."""
    return click.option("--json", "json_", is_flag=True, help="Print one JSON object on standard output.")(command)


def emit(data: Any) -> None:
    """Print JSON for scripts."""
    click.echo(json.dumps(data, indent=2, default=str))


@cli.command()
@as_json
def doctor(json_: bool) -> None:
    """What is installed, which model and device would be used, what is missing and how to get it."""
    from agentcore.doctor import diagnose

    checks = diagnose()
    failed = [c for c in checks if c.status == "fail"]
    if json_:
        emit({"ok": not failed, "checks": [c.as_json() for c in checks]})
    else:
        for check in checks:
            click.echo(f"{check.status:<5} {check.name}: {check.found}")
            if check.fix:
                click.echo(f"      -> {check.fix}")
    if failed:
        sys.exit(1)


@cli.command()
@click.option("--env", "environment", default="assistant", show_default=True, help="Name of the environment.")
@click.option("--level", default="hard", show_default=True, help="Level of the assistant environment.")
@click.option("--split", type=click.Choice(["train", "heldout", "adversarial"]), default="heldout", show_default=True)
@click.option("--tasks", default=1, show_default=True, type=click.IntRange(1), help="How many tasks to run.")
@click.option("--model", default=None, help="Model name or folder; the bundled one by default.")
@click.option("--adapter", type=click.Path(), default=None, help="Folder of a trained adapter.")
@click.option("--policy", type=click.Choice(["local", "oracle"]), default="local", show_default=True)
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0.0), help="0 is greedy.")
@click.option("--planner", is_flag=True, help="The policy also plans (on by itself where an adapter is a planner's).")
@click.option("--without", multiple=True, help="Switch a capability off (may be repeated).")
@click.option("--out", type=click.Path(), default=None, help="Append the traces to this file.")
@click.option("--seed", default=0, show_default=True)
@as_json
def run(json_: bool, **options: Any) -> None:
    """Run episodes of the agent and show them step by step."""
    from agentcore.runcommand import run_episodes, show

    traces = run_episodes(**options)
    if json_:
        from agentcore.trace import trace_to_json

        emit({"episodes": [trace_to_json(t) for t in traces]})
        return
    for trace in traces:
        show(trace)


def main() -> None:
    """Entry point: errors become one sentence and a non-zero exit."""
    from agentcore.errors import AgentCoreError
    from memory import MemoryStoreError

    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        if "--json" in sys.argv:
            emit({"error": error.format_message(), "kind": type(error).__name__})
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted. What was finished is kept; a training run goes on with --resume.", err=True)
        sys.exit(130)
    except (AgentCoreError, MemoryStoreError, OSError) as error:  # an OSError: no space, no permission, no such file
        if "--json" in sys.argv:
            emit({"error": str(error), "kind": type(error).__name__})
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        click.echo(
            f"Error: this command needs {error.name}, which is not installed. Run: pip install 'agentcore-rl[train]'",
            err=True,
        )
        sys.exit(1)


def folder_of(runs: str, name: str) -> Path:
    """``runs/<name>``."""
    return Path(runs) / name


if __name__ == "__main__":
    main()
