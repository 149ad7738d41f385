"""``agentcore memory``: look after a store from the command line."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import IO, Any, ParamSpec

import click
from langgraph.store.base import InvalidNamespaceError

from memory import care
from memory.embedding import EmbedderLike, HashingEmbedder
from memory.errors import BadValueError, MemoryStoreError
from memory.store import FaissStore

_P = ParamSpec("_P")
_folder = click.argument("folder", type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def _reporting(command: Callable[_P, None]) -> Callable[_P, None]:
    """Turn the package's errors into a message and exit status 1."""

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (MemoryStoreError, InvalidNamespaceError, OSError) as error:
            raise click.ClickException(str(error)) from error

    return run


@click.group("memory")
def memory() -> None:
    """Inspect, verify, rebuild, compact, export and import a memory store.

    FOLDER is the folder that FaissStore was given. All commands may run while other processes use the store.
    """


@memory.command()
@_folder
@_json
@_reporting
def inspect(folder: Path, as_json: bool) -> None:
    """Say what a store holds."""
    found = care.inspect(folder)
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    settings = found.settings
    click.echo(f"store       {found.path}")
    click.echo(f"items       {found.items} in {found.namespaces} namespaces, {found.vectors} vectors")
    click.echo(f"embedder    {settings.embedder}, {settings.dims} dimensions, {settings.metric}")
    click.echo(f"fields      {', '.join(settings.fields)}")
    click.echo(f"index       {found.index}")
    click.echo(f"generation  {found.generation}, {found.superseded} superseded versions")
    click.echo(f"on disk     {found.file_bytes / 1e6:.1f} MB")
    for name, count in found.largest:
        click.echo(f"  {count:>8}  {name}")


@memory.command()
@_folder
@_json
@_reporting
def verify(folder: Path, as_json: bool) -> None:
    """Check that the rows are sound and that the index agrees with them; exit status 1 if not."""
    problems = care.verify(folder)
    if as_json:
        click.echo(json.dumps({"path": str(folder), "ok": not problems, "problems": problems}))
    else:
        click.echo("\n".join(problems) or "The rows are sound and the index agrees with them.")
        if problems:
            click.echo("An index that disagrees is repaired by 'agentcore memory rebuild'; rows by export and import.")
    if problems:
        sys.exit(1)


@memory.command()
@_folder
@_json
@_reporting
def rebuild(folder: Path, as_json: bool) -> None:
    """Write the index file anew from the rows."""
    vectors = care.rebuild(folder)
    click.echo(json.dumps({"vectors": vectors}) if as_json else f"Indexed {vectors} vectors.")


@memory.command()
@_folder
@_json
@_reporting
def compact(folder: Path, as_json: bool) -> None:
    """Remove superseded versions and give their space back.

    Versions stay while a process holds a snapshot of the store.
    """
    removed = care.compact(folder)
    click.echo(json.dumps({"removed": removed}) if as_json else f"Removed {removed} superseded versions.")


@memory.command("export")
@_folder
@click.option("--output", "-o", type=click.File("w", lazy=True), default="-", help="File; else standard output.")
@_json
@_reporting
def export_items(folder: Path, output: IO[str], as_json: bool) -> None:
    """Write every item as one line of JSON.

    Vectors are not exported; an import embeds anew. With --json the number of items is reported on standard error.
    """
    count = 0
    for record in care.export(folder):
        output.write(json.dumps(record, ensure_ascii=False) + "\n")
        count += 1
    click.echo(json.dumps({"items": count}) if as_json else f"Exported {count} items.", err=True)


@memory.command("import")
@_folder
@click.argument("file", type=click.File("r"))
@click.option("--embedder", metavar="NAME", help="wordllama (default), hashing-DIMS, or module:attribute.")
@click.option("--fields", default=None, help="Comma-separated paths to embed, for a new store.")
@_json
@_reporting
def import_items(folder: Path, file: IO[str], embedder: str | None, fields: str | None, as_json: bool) -> None:
    """Put exported items (JSON lines in FILE, - for standard input) into a store, making it where there is none."""
    chosen = None if fields is None else [field.strip() for field in fields.split(",")]
    with FaissStore(folder, embedder=_embedder(embedder), fields=chosen) as store:
        count = care.restore(store, _records(file))
    click.echo(json.dumps({"items": count}) if as_json else f"Imported {count} items.")


def _records(file: IO[str]) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise BadValueError(f"Line {number} of {file.name} is not JSON: {error}.") from None


def _embedder(name: str | None) -> EmbedderLike | None:
    if name is None or name == "wordllama":
        return None
    if name.startswith("hashing-") and name[8:].isdigit():
        return HashingEmbedder(int(name[8:]))
    module, _, attribute = name.partition(":")
    try:
        found: EmbedderLike = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.BadParameter(
            f"cannot load {name!r} ({error}); give wordllama, hashing-DIMS, or the module:attribute of a LangChain "
            "Embeddings or a function of texts",
            param_hint="--embedder",
        ) from error
    return found
