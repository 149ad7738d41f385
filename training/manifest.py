"""The manifest: which model, code, environment and settings made a trace set, an adapter or a figure."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from agentcore.environment import EnvironmentSpec, RewardSpec
from agentcore.policies.engine import Engine

_PACKAGES = ("agentcore-rl", "langgraph", "langchain-core", "torch", "transformers", "peft", "accelerate", "faiss-cpu")


def build_manifest(
    *,
    engine: Engine | None,
    settings: Mapping[str, Any],
    seed: int,
    spec: EnvironmentSpec | None = None,
    rewards: Sequence[RewardSpec] = (),
) -> dict[str, Any]:
    """Versions and identities, as JSON data. ``rewards`` are the declared components where there is no ``spec``."""
    return {
        "model": asdict(engine.identity) if engine is not None else None,
        "packages": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "environment": {"name": spec.name, "version": spec.version} if spec is not None else None,
        "grader": {"name": f"{spec.name} environment", "version": spec.version} if spec is not None else None,
        "rewards": [asdict(r) for r in (spec.rewards if spec is not None else rewards)],
        "seed": seed,
        "settings": dict(settings),
        "git_commit": _commit(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit of the checkout this code lies in; None for an installed package."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
