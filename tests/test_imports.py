"""Imports go memory <- agentcore <- training <- demos and never back; importing is light; shadowing is noticed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("memory", "agentcore", "training", "demos")
"""Each may import itself and what stands before it."""


def imported(source: str, package: str) -> Iterator[tuple[int, str]]:
    """(line, top-level name) of every import in the source, inside functions and under TYPE_CHECKING too.

    ``package`` is the dotted package that the source lies in, for relative imports. Names given as strings to
    ``import_module`` or ``__import__`` count.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield node.lineno, (node.module or "").partition(".")[0]
            else:
                parts = package.split(".")
                # A relative import that climbs past its package would be an error at run time.
                yield node.lineno, parts[0] if node.level <= len(parts) else "beyond the top"
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if name in ("import_module", "__import__", "find_spec") and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value).partition(".")[0]


def upward(package: str, source: str, dotted: str) -> list[tuple[int, str]]:
    later = ORDER[ORDER.index(package) + 1 :]
    return [(line, name) for line, name in imported(source, dotted) if name in later or name == "beyond the top"]


@pytest.mark.parametrize("package", ORDER)
def test_no_import_goes_upward(package: str) -> None:
    found = []
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"{package} has no files"
    for file in files:
        dotted = ".".join(file.relative_to(ROOT).parent.parts)
        for line, name in upward(package, file.read_text(encoding="utf-8"), dotted):
            found.append(f"{file.relative_to(ROOT)}:{line} imports {name}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import training",
        "import os, training.credit as c",
        "from training.credit import x",
        "def f():\n    from demos import app",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import training",
        "import importlib\nimportlib.import_module('training.credit')",
        "__import__('training')",
        "from ... import training",
    ],
)
def test_the_parser_sees_every_upward_import(source: str) -> None:
    assert upward("agentcore", source, "agentcore.tools")


def test_the_parser_lets_the_others_pass() -> None:
    source = (
        "import os\nimport memory\nfrom . import checks\nfrom .. import trace\nfrom agentcore import x\nimport torch"
    )
    assert not upward("agentcore", source, "agentcore.tools")


def python(program: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds the packages behind ``cwd``, as when they are installed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **extra}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


HEAVY = ("torch", "transformers", "peft", "accelerate", "gymnasium", "gradio")


@pytest.mark.parametrize(
    "module", ["memory", "agentcore", "agentcore.environment", "agentcore.trace", "agentcore.doctor"]
)
def test_importing_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    done = python(f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])", tmp_path)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("file", "name"), [("memory.py", "memory"), ("training.py", "training"), ("training/__init__.py", "training")]
)
def test_a_users_own_file_in_the_way_is_named(file: str, name: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise RuntimeError('looking must not import it')")
    done = python("import agentcore", tmp_path)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: "), done.stderr
    assert str(tmp_path / file) in last and f"hides the package '{name}'" in last
    assert "rename it" in last


def test_two_files_in_the_way_are_both_named(tmp_path: Path) -> None:
    for name in ("memory.py", "training.py"):
        (tmp_path / name).write_text("")
    last = python("import agentcore", tmp_path).stderr.strip().splitlines()[-1]
    assert "memory.py and " in last and "training.py hide the packages 'memory' and 'training'" in last


def test_a_users_module_that_is_already_loaded_is_named(tmp_path: Path) -> None:
    (tmp_path / "memory.py").write_text("")
    done = python("import sys, memory; sys.path.remove(''); import agentcore", tmp_path)
    assert "memory.py hides" in done.stderr.strip().splitlines()[-1]


def test_folders_that_hide_nothing_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()  # without __init__.py Python passes it over for the real package
    (tmp_path / "training").mkdir()
    (tmp_path / "mine.py").write_text("")
    done = python("import mine, agentcore, memory; print(memory.__file__)", tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(ROOT) in done.stdout
