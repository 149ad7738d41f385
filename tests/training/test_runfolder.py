"""The run folder: never overwritten, whole after a kill, resumed only as it was started, worked in by one process."""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentcore.errors import AgentCoreError
from agentcore.policies.engine import Engine
from agentcore.tracefile import read_traces
from memory import FaissStore, HashingEmbedder
from tests.training.tiny import make_updaters, play, rows_of, trace
from training.adapters import save_adapter
from training.files import append_json, copy_in_place, cut_back, read_jsonl
from training.runfolder import RunFolder, RunFolderError

Make = Callable[..., Engine]
CONFIG = {"kind": "test", "settings": {"seed": 1, "rl": {"iterations": 2, "betas": (0.9, 0.99)}}}


def made(path: Path) -> RunFolder:
    return RunFolder.create(path, CONFIG, {"seed": 1})


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    made(tmp_path / "run").close()
    before = (tmp_path / "run" / "config.json").read_bytes()
    for again in (lambda: made(tmp_path / "run"), lambda: RunFolder.refuse_existing(tmp_path / "run")):
        with pytest.raises(RunFolderError, match=r"already holds a run.*--resume.*--name"):
            again()
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    RunFolder.refuse_existing(tmp_path / "other")


def test_a_run_that_was_killed_while_it_was_made_can_be_made_again(tmp_path: Path) -> None:
    (tmp_path / "run" / "traces").mkdir(parents=True)
    (tmp_path / "run" / "manifest.json").write_text("{}")
    folder = made(tmp_path / "run")
    assert folder.config()["kind"] == "test"


def test_it_is_resumed_with_the_same_settings_only(tmp_path: Path) -> None:
    made(tmp_path / "run").close()
    folder = RunFolder.resume(tmp_path / "run", CONFIG)
    assert folder.manifest == {"seed": 1} and folder.place() is None
    folder.close()
    other = {**CONFIG, "settings": {"seed": 2, "rl": {"iterations": 2, "betas": (0.9, 0.99)}}, "new": None}
    with pytest.raises(RunFolderError, match="other settings") as error:
        RunFolder.resume(tmp_path / "run", other)
    assert "settings.seed was 1 and is now 2" in str(error.value) and "new" in str(error.value)
    assert "iterations" not in str(error.value)


@pytest.mark.parametrize("damage", ["no folder", "no config", "cut config", "no manifest"])
def test_there_has_to_be_a_run_to_resume(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "run"
    if damage != "no folder":
        made(path).close()
    if damage == "no config":
        (path / "config.json").unlink()
    if damage == "cut config":
        (path / "config.json").write_text('{"kind": ')
    if damage == "no manifest":
        (path / "manifest.json").unlink()
    for read in (lambda: RunFolder.resume(path, CONFIG), lambda: RunFolder.open(path)):
        with pytest.raises(RunFolderError, match=r"There is no run in|is damaged") as error:
            read()
        assert "\n" not in str(error.value)


def test_two_processes_do_not_work_in_one_run(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    with pytest.raises(RunFolderError, match="Another process is working in"):
        RunFolder.resume(tmp_path / "run", CONFIG)
    RunFolder.open(tmp_path / "run")  # to read is allowed
    folder.close()
    folder.close()
    again = RunFolder.resume(tmp_path / "run", CONFIG)
    del again
    gc.collect()
    RunFolder.resume(tmp_path / "run", CONFIG).close()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(AgentCoreError):
        made(tmp_path / "run")


def test_a_name_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunFolderError, match="can't be made"):
        made(tmp_path / "run")


# Records -----------------------------------------------------------------------------------------------------------


def test_whole_lines_are_read_and_the_next_record_is_not_lost_behind_a_cut_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_jsonl(path) == []
    append_json(path, {"a": 1, "nan": math.nan})
    with path.open("a") as handle:
        handle.write('{"a": 2, "b"')  # killed here
    assert [r["a"] for r in read_jsonl(path)] == [1]
    append_json(path, {"a": 3})
    assert [r["a"] for r in read_jsonl(path)] == [1, 3]
    assert math.isnan(read_jsonl(path)[0]["nan"])


def test_an_evaluation_that_was_run_again_replaces_the_earlier_one(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    for success in (0.1, 0.2):
        folder.evaluation({"stage": "base", "split": "heldout", "success": success})
    folder.evaluation({"stage": "base", "split": "adversarial", "success": 0.3})
    assert [e["success"] for e in folder.evaluations()] == [0.2, 0.3]
    for name in ("a", "b"):
        with folder.traces("base-heldout", anew=True) as writer:
            writer.write(trace(name, []))
    assert [t.id for t in read_traces(folder.path / "traces" / "base-heldout.jsonl")[0]] == ["b"]


def test_a_file_is_cut_back_and_what_came_after_is_kept_aside(tmp_path: Path) -> None:
    path, aside = tmp_path / "train.jsonl", tmp_path / "interrupted" / "train.jsonl"
    path.write_text("one\ntwo\nthr")
    cut_back(path, 100, aside)
    assert not aside.exists()
    cut_back(path, 4, aside)
    assert path.read_text() == "one\n" and aside.read_text() == "two\nthr\n"
    with path.open("a") as handle:
        handle.write("four\n")
    cut_back(path, 4, aside)
    assert aside.read_text().split() == ["two", "thr", "four"]
    cut_back(tmp_path / "absent", 0, aside)


# Checkpoints -------------------------------------------------------------------------------------------------------


def remembering(path: Path, *notes: str) -> FaissStore:
    store = FaissStore(path, embedder=HashingEmbedder(32))
    for note in notes:
        store.put(("lessons",), note, {"text": note})
    return store


def weights(updater: Any) -> dict[str, Any]:
    return {n: p.detach().clone() for n, p in updater["policy"].parameters.items()}


def test_a_checkpoint_brings_back_weights_optimizer_version_and_records(tiny_engine: Make, tmp_path: Path) -> None:
    engine = tiny_engine()
    updater = make_updaters(engine, learning_rate=0.02)
    rows = rows_of([play(engine, f"t{i}", 2, i) for i in range(2)], lambda s: 1.0)
    folder = made(tmp_path / "run")
    updater.reinforce(rows)
    with folder.traces("train") as writer:
        writer.write(trace("whole", []))
    folder.metric({"stage": "rl", "iteration": 1})
    folder.checkpoint(engine, updater, {"stage": "rl", "iteration": 1, "history": [(0, math.nan, 0.5)]})
    saved, version = weights(updater), engine.versions["policy"]
    # an iteration that is broken off
    with folder.traces("train") as writer:
        writer.write(trace("unfinished", []))
    folder.metric({"stage": "rl", "iteration": 2})
    updater.reinforce(rows)
    after = weights(updater)
    folder.close()

    other = tiny_engine()
    restored = make_updaters(other, learning_rate=0.02, move=0.2)
    resumed = RunFolder.resume(tmp_path / "run", CONFIG)
    place = resumed.place()
    assert place is not None and (place["stage"], place["iteration"]) == ("rl", 1)
    assert [r["iteration"] for r in resumed.metrics()] == [1]
    assert [t.id for t in read_traces(resumed.path / "traces" / "train.jsonl")[0]] == ["whole"]
    assert [t.id for t in read_traces(resumed.path / "interrupted" / "train.jsonl")[0]] == ["unfinished"]
    resumed.restore(other, restored)
    assert all(torch.equal(saved[n], p) for n, p in weights(restored).items())
    assert other.versions["policy"] == version, "one version never names two sets of weights"
    restored.reinforce(rows)
    assert all(torch.equal(after[n], p) for n, p in weights(restored).items())


@pytest.mark.parametrize("killed", ["while it was written", "between the renames", "before the old one went"])
def test_a_half_written_checkpoint_is_not_one(tiny_engine: Make, tmp_path: Path, killed: str) -> None:
    engine = tiny_engine()
    updater = make_updaters(engine)
    folder = made(tmp_path / "run")
    folder.checkpoint(engine, updater, {"stage": "sft", "step": 4})
    folder.close()
    path = folder.path
    if killed == "while it was written":
        (path / ".checkpoint.0badcafe.partial" / "adapter").mkdir(parents=True)
        (path / ".checkpoint.0badcafe.partial" / "optimizer.pt").write_bytes(b"half")
    elif killed == "between the renames":
        (path / "checkpoint").rename(path / ".checkpoint.old")
    else:
        (path / ".checkpoint.old" / "adapter").mkdir(parents=True)
    resumed = RunFolder.resume(path, CONFIG)
    place = resumed.place()
    assert place is not None and place["step"] == 4
    resumed.restore(engine, updater)
    assert not [p for p in path.iterdir() if p.name.startswith(".checkpoint")]
    resumed.checkpoint(engine, updater, {"stage": "sft", "step": 8})
    assert (resumed.place() or {})["step"] == 8


def test_a_run_without_a_checkpoint_starts_over(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    folder.metric({"stage": "sft", "step": 1})
    with folder.traces("train") as writer:
        writer.write(trace("t", []))
    folder.close()
    resumed = RunFolder.resume(tmp_path / "run", CONFIG)
    assert resumed.metrics() == []
    with resumed.traces("train") as writer:
        writer.write(trace("again", []))
    assert [t.id for t in read_traces(resumed.path / "traces" / "train.jsonl")[0]] == ["again"]
    assert [t.id for t in read_traces(resumed.path / "interrupted" / "train.jsonl")[0]] == ["t"]


def test_the_memory_is_as_it_was_at_the_checkpoint(tiny_engine: Make, tmp_path: Path) -> None:
    engine = tiny_engine()
    folder = made(tmp_path / "run")
    store = remembering(folder.path / "memory", "first", "second")
    store.put(("lessons",), "first", {"text": "first", "failures": 2})
    folder.checkpoint(engine, make_updaters(engine), {"stage": "rl", "iteration": 1}, store)
    store.put(("lessons",), "third", {"text": "of an iteration that is run again"})
    store.delete(("lessons",), "second")
    store.close()
    folder.close()
    restored = RunFolder.resume(folder.path, CONFIG).memory()
    found = {i.key: i.value for i in restored.search(("lessons",), limit=10)}
    assert found == {"first": {"text": "first", "failures": 2}, "second": {"text": "second"}}
    assert restored.search(("lessons",), query="second", limit=1)[0].key == "second"


def test_the_best_adapter_there_is_becomes_the_one_to_use(tiny_engine: Make, tmp_path: Path) -> None:
    engine = tiny_engine()
    make_updaters(engine)
    folder = made(tmp_path / "run")
    assert folder.publish() is None
    for name in ("warm-start", "best"):
        save_adapter(engine, "policy", folder.path / "adapters" / name, {"from": name})
        path = folder.publish()
        assert path == folder.path / "adapter"
        assert json.loads((path / "manifest.json").read_text()) == {"from": name}
    copy_in_place(folder.path / "adapters" / "warm-start", folder.path / "adapters" / "best")
    assert sorted(p.name for p in (folder.path / "adapters").iterdir()) == ["best", "warm-start"]
