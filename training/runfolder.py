"""A run's folder: what it holds, how it survives being killed, how it is resumed.

runs/<name>/
  config.json        settings, as given
  manifest.json      model, versions, environment, rewards, seed, commit
  metrics.jsonl      one line per optimizer step or iteration
  evaluations.jsonl  one line per evaluation
  traces/            expert.jsonl, train.jsonl, <stage>-<split>.jsonl
  memory/            what training episodes remembered
  checkpoint/        adapters, optimizers, memory and place of the last finished step
  adapters/          warm-start, best, last (plain peft folders; where several adapters train, a folder of them)
  adapter/           the one to use
  interrupted/       traces and metrics of work that was broken off and done again
  report.html
"""

from __future__ import annotations

import json
import shutil
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from agentcore.errors import AgentCoreError
from agentcore.policies.engine import Engine
from agentcore.policies.models import require_space
from agentcore.tracefile import TraceWriter
from memory import FaissStore, care
from memory.locks import FileLock
from training.adapters import load_adapters, save_adapters
from training.files import append_json, copy_in_place, cut_back, mend, partial_of, put_in_place, read_jsonl, write_json
from training.updaters import Updaters

_GROWING = ("metrics.jsonl", "traces/train.jsonl")
"""Files that a step adds to before its checkpoint is taken."""


class RunFolderError(AgentCoreError, ValueError):
    """A run folder can't be made, or doesn't fit what is asked of it."""


class RunFolder:
    """Got by :meth:`create` or :meth:`resume`, to work in it alone until ``close``, or by :meth:`open`, to read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: dict[str, Any] = {}
        self.close: Callable[[], object] = lambda: None
        """Let another process work in it."""

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], manifest: Mapping[str, Any]) -> RunFolder:
        """A new folder; an existing run is never overwritten."""
        path = Path(path)
        cls.refuse_existing(path)
        require_space(path, 300 * 1024 * 1024, "a run")
        try:
            (path / "traces").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"The run folder {path} can't be made: {error.strerror}.") from error
        folder = cls(path)
        folder._hold()
        folder.manifest = dict(manifest)
        write_json(path / "manifest.json", manifest)
        write_json(path / "config.json", config)
        return folder

    @staticmethod
    def refuse_existing(path: str | Path) -> None:
        """Raise if there is a run in ``path`` already."""
        if (Path(path) / "config.json").exists():
            raise RunFolderError(
                f"{path} already holds a run. Continue it with --resume, choose another --name, or remove the folder."
            )

    @classmethod
    def resume(cls, path: str | Path, config: Mapping[str, Any]) -> RunFolder:
        """An earlier run, if it was started with the same settings, as it was at its last checkpoint.

        What was written after that is done again; its traces and metrics move to ``interrupted/``.
        """
        folder = cls.open(path)
        old = flat(folder.config())
        new = flat(json.loads(json.dumps(dict(config))))
        changed = sorted(k for k in {*old, *new} if k not in old or k not in new or old[k] != new[k])
        if changed:
            words = [f"{k} was {old.get(k)!r} and is now {new.get(k)!r}" for k in changed[:3]]
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise RunFolderError(
                f"The run in {path} was started with other settings ({'; '.join(words)}{more}). Resume it with the "
                "same ones, or start a new run under another --name."
            )
        folder._hold()
        for inside in (folder.path, folder.path / "adapters"):
            mend(inside)
        sizes = (folder.place() or {}).get("sizes", {})
        for name in _GROWING:
            cut_back(folder.path / name, sizes.get(name, 0), folder.path / "interrupted" / Path(name).name)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An earlier run, for reading."""
        folder = cls(Path(path))
        if not (folder.path / "config.json").is_file():
            raise RunFolderError(f"There is no run in {path} (no config.json); name the folder of one, or start one.")
        try:
            folder.manifest = json.loads((folder.path / "manifest.json").read_text())
            folder.config()
        except (OSError, ValueError) as error:
            raise RunFolderError(f"The run in {path} is damaged: its config or manifest can't be read.") from error
        return folder

    def _hold(self) -> None:
        lock = FileLock(self.path / ".lock")
        self.close = weakref.finalize(self, lock.close)
        if not lock.try_exclusive():
            self.close()
            raise RunFolderError(f"Another process is working in {self.path}; wait for it, or stop it first.")

    def config(self) -> dict[str, Any]:
        """The settings it was started with."""
        config: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        return config

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

    def traces(self, name: str, *, anew: bool = False) -> TraceWriter:
        """Appends to ``traces/<name>.jsonl``, or starts it anew."""
        path = self.path / "traces" / f"{name}.jsonl"
        if anew:
            path.unlink(missing_ok=True)
        return TraceWriter(path, self.manifest)

    def publish(self) -> Path | None:
        """Make ``adapter/`` a copy of the best adapter there is; None if there is none yet."""
        found = (self.path / "adapters" / name for name in ("best", "warm-start"))
        source = next((f for f in found if f.is_dir()), None)
        if source is None:
            return None
        copy_in_place(source, self.path / "adapter")
        return self.path / "adapter"

    # -- checkpoints ----------------------------------------------------------------------------------------

    def checkpoint(
        self,
        engine: Engine,
        updater: Updaters,
        place: Mapping[str, Any],
        memory: FaissStore | None = None,
        assigned: Mapping[str, str] | None = None,
    ) -> None:
        """Adapters, optimizers, memory and place, whole or not at all; a killed run continues after its last one."""
        partial = partial_of(self.path / "checkpoint")
        partial.mkdir()
        save_adapters(engine, updater.adapters, partial / "adapter", self.manifest, assigned)
        torch.save(updater.state(), partial / "optimizers.pt")
        if memory is not None and memory.path is not None:
            with (partial / "memory.jsonl").open("w") as handle:
                handle.writelines(json.dumps(record) + "\n" for record in care.export(memory.path))
        sizes = {n: (self.path / n).stat().st_size for n in _GROWING if (self.path / n).exists()}
        more = {"versions": dict(updater.trained.versions), "sizes": sizes}
        write_json(partial / "place.json", {**place, **more})
        put_in_place(partial, self.path / "checkpoint")

    def place(self) -> dict[str, Any] | None:
        """Where the last checkpoint was taken; None without one."""
        file = self.path / "checkpoint" / "place.json"
        return json.loads(file.read_text()) if file.exists() else None

    def restore(self, engine: Engine, updater: Updaters) -> None:
        """Load the checkpoint's adapter weights and optimizers into ``updater``."""
        load_adapters(engine, updater.adapters, self.path / "checkpoint" / "adapter")
        # these are the weights of those versions, so that no version in the traces names two
        engine.versions |= (self.place() or {})["versions"]
        # weights_only: a checkpoint is data, nothing in it is executed
        updater.load_state(torch.load(self.path / "checkpoint" / "optimizers.pt", weights_only=True))

    def memory(self) -> FaissStore:
        """The memory of training episodes, as it was at the last checkpoint."""
        folder = self.path / "memory"
        shutil.rmtree(folder, ignore_errors=True)
        store = FaissStore(folder)
        care.restore(store, read_jsonl(self.path / "checkpoint" / "memory.jsonl"))
        return store


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    result: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result
