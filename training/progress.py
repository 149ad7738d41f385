"""What a person sees while a run goes on: progress bars and a line per result, on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Reporter:
    """Bars and lines; ``quiet`` prints neither. A warning is always printed."""

    def __init__(self, *, quiet: bool = False) -> None:
        # standard output is for results that scripts read
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._warnings = Console(stderr=True, highlight=False) if quiet else self.console

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        self._warnings.print(f"WARNING: {text}", style="bold red", markup=False)

    @contextlib.contextmanager
    def bar(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar of ``total``; call what it yields with the number of units done since the last call."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(description, total=total)
            yield lambda n: progress.advance(task, n)
