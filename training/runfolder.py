"""A run's folder: what it holds, how it survives being killed, how it is resumed.

    runs/<name>/
      config.json       settings, as given
      manifest.json     model, versions, environment, seed, commit
      metrics.jsonl     one line per optimizer step or iteration
      evaluations.jsonl one line per evaluation
      traces/           expert.jsonl, train.jsonl, <stage>-<split>.jsonl
      checkpoint/       adapter, optimizer and place of the last finished step
      adapters/         warm-start, best, last (plain peft folders)
      adapter/          the one to use
      report.html
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from agentcore.errors import AgentCoreError
from agentcore.policies.engine import Engine
from agentcore.policies.models import require_space
from agentcore.tracefile import TraceWriter
from training.adapters import save_adapter
from training.update import Updater


class RunFolderError(AgentCoreError, ValueError):
    """A run folder can't be made, or doesn't fit what is asked of it."""


class RunFolder:
    """Open with :meth:`create` or :meth:`resume`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: dict[str, Any] = {}

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], manifest: Mapping[str, Any]) -> RunFolder:
        """A new folder; an existing run is never overwritten."""
        path = Path(path)
        if (path / "config.json").exists():
            raise RunFolderError(
                f"{path} already holds a run. Continue it with --resume, choose another --name, or remove the folder."
            )
        require_space(path, 300 * 1024 * 1024, "a run")
        try:
            (path / "traces").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"The run folder {path} can't be made: {error.strerror}.") from error
        folder = cls(path)
        folder.manifest = dict(manifest)
        write_json(path / "manifest.json", manifest)
        write_json(path / "config.json", config)
        return folder

    @classmethod
    def resume(cls, path: str | Path, config: Mapping[str, Any]) -> RunFolder:
        """An earlier run, if it was started with the same settings."""
        path = Path(path)
        if not (path / "config.json").exists():
            raise RunFolderError(f"There is no run to resume in {path}.")
        old = json.loads((path / "config.json").read_text())
        new = json.loads(json.dumps(dict(config)))
        changed = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
        if changed:
            raise RunFolderError(
                f"The run in {path} was started with other settings ({', '.join(changed)}). Resume it with the "
                "same ones, or start a new run under another --name."
            )
        folder = cls(path)
        folder.manifest = json.loads((path / "manifest.json").read_text())
        return folder

    # -- records --------------------------------------------------------------------------------------------

    def metric(self, record: Mapping[str, Any]) -> None:
        append_json(self.path / "metrics.jsonl", {"time": time.time(), **record})

    def evaluation(self, record: Mapping[str, Any]) -> None:
        append_json(self.path / "evaluations.jsonl", {"time": time.time(), **record})

    def metrics(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path / "metrics.jsonl")

    def evaluations(self) -> list[dict[str, Any]]:
        """The last record of each (stage, split): an evaluation that was run again replaces the earlier one."""
        latest = {(r["stage"], r["split"]): r for r in read_jsonl(self.path / "evaluations.jsonl")}
        return list(latest.values())

    def traces(self, name: str) -> TraceWriter:
        """Appends to ``traces/<name>.jsonl``."""
        return TraceWriter(self.path / "traces" / f"{name}.jsonl", self.manifest)

    # -- checkpoints ----------------------------------------------------------------------------------------

    def checkpoint(self, engine: Engine, updater: Updater, place: Mapping[str, Any]) -> None:
        """Adapter, optimizer and place, whole or not at all: a killed run continues after its last checkpoint."""
        target = self.path / "checkpoint"
        partial = self.path / f".checkpoint.{uuid.uuid4().hex[:8]}"
        partial.mkdir()
        save_adapter(engine, updater.adapter, partial / "adapter", self.manifest)
        torch.save(updater.state(), partial / "optimizer.pt")
        write_json(partial / "place.json", place)
        old = self.path / ".checkpoint.old"
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            os.replace(target, old)
        os.replace(partial, target)
        shutil.rmtree(old, ignore_errors=True)

    def place(self) -> dict[str, Any] | None:
        """Where the last checkpoint was taken; None without one."""
        self._mend()
        file = self.path / "checkpoint" / "place.json"
        return json.loads(file.read_text()) if file.exists() else None

    def restore(self, engine: Engine, updater: Updater) -> None:
        """Load the checkpoint's adapter weights and optimizer into ``updater``."""
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        weights = load_file(str(self.path / "checkpoint" / "adapter" / "adapter_model.safetensors"))
        with engine.using(updater.adapter) as model:
            set_peft_model_state_dict(model, weights, adapter_name=updater.adapter)
            engine.bump(updater.adapter)
        # weights_only: a checkpoint is data, nothing in it is executed
        updater.load_state(torch.load(self.path / "checkpoint" / "optimizer.pt", weights_only=True))

    def _mend(self) -> None:
        """A run killed between the two renames of a checkpoint left the earlier one under its old name."""
        old, target = self.path / ".checkpoint.old", self.path / "checkpoint"
        if old.exists() and not target.exists():
            os.replace(old, target)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write atomically."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    with partial.open("w") as handle:
        json.dump(dict(data), handle, indent=2, default=str)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(partial, path)


def append_json(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line and see it on disk."""
    with path.open("a") as handle:
        handle.write(json.dumps(dict(record), default=str) + "\n")
        handle.flush()
        os.fsync(handle.fileno())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a file that may have been cut; an absent file has none."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue  # the line a killed process was writing
    return records
