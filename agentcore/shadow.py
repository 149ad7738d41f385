"""Notice when somebody's own ``memory.py`` or ``training/`` hides the packages of those names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("memory", "training")
"""Our import packages with common names. They lie beside ``agentcore``, installed or in a checkout."""


def find_shadowing() -> str | None:
    """One sentence that says which file hides our ``memory`` or ``training``, or None if none does.

    Looks where Python would look and imports nothing. A package that is not installed at all is not hidden.
    """
    root = Path(__file__).resolve().parent.parent
    hidden = []
    for name in PACKAGES:
        found = _origin(name)
        if found is not None and not _is_within(found, root / name):
            hidden.append((name, found))
    if not hidden:
        return None
    files = " and ".join(str(file) for _, file in hidden)
    names = " and ".join(repr(name) for name, _ in hidden)
    one = len(hidden) == 1
    return (
        f"{files} {'hides' if one else 'hide'} the {'package' if one else 'packages'} {names} of agentcore-rl: "
        f"rename {'it' if one else 'them'}, or start Python from another folder."
    )


def _origin(name: str) -> Path | None:
    """The file that ``import name`` would load or has loaded; None if there is none, or only a bare folder."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
    else:
        spec = importlib.util.find_spec(name)
        file = spec.origin if spec is not None and spec.has_location else None
    # A folder without __init__.py has no file; it never wins over a package that has one.
    return Path(file) if file else None


def _is_within(file: Path, folder: Path) -> bool:
    return folder.resolve() in file.resolve().parents
