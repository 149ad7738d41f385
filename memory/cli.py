"""``agentcore memory``: look after a store from the command line."""

from __future__ import annotations

import click


@click.group("memory")
def memory() -> None:
    """Inspect, verify, rebuild, compact, export and import a store."""
