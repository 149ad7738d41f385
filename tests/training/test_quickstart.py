"""The main job on the tiny random model: that it leaves what it promises, also when it is killed or interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentcore.errors import SpecError
from agentcore.trace import Trace
from agentcore.tracefile import read_traces
from tests.training.killed_runs import CONFIG
from training.files import read_jsonl
from training.progress import Reporter
from training.quickstart import Quickstart, QuickstartConfig, environment_of
from training.runfolder import RunFolder, RunFolderError

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def runs(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Runs that were left alone (``whole``), killed and resumed (``killed``), and stopped with Ctrl-C (``stopped``)."""
    path = tmp_path_factory.mktemp("runs")
    command = [sys.executable, str(Path(__file__).with_name("killed_runs.py")), str(tiny_folder), str(path), "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return path, {**json.loads(done.stdout.splitlines()[-1]), "err": done.stderr}


def traces(folder: Path, name: str = "train") -> list[Trace]:
    found, problems = read_traces(folder / "traces" / f"{name}.jsonl")
    assert not problems
    return found


def drawn(folder: Path, name: str = "train") -> list[Any]:
    """What was seen and sampled, without what every run makes up anew: ids of calls, and times."""
    found = []
    for t in sorted(traces(folder, name), key=lambda t: t.id):
        steps = [(k.prompt_ids, k.reply_ids, k.adapter, k.adapter_version) for s in t.steps if (k := s.tokens)]
        rewards = sorted((r.component, r.value) for r in t.rewards)
        found.append((t.id, t.outcome, steps, rewards, t.meta, [s.memory_ids for s in t.steps]))
    return found


def memory_of(folder: Path) -> list[Any]:
    keep = ("namespace", "key", "value")
    records = read_jsonl(folder / "checkpoint" / "memory.jsonl")
    return sorted([[r[k] for k in keep] for r in records], key=json.dumps)


def test_a_run_leaves_everything_it_promises(runs: tuple[Path, Any], tiny_folder: Path) -> None:
    folder = runs[0] / "whole"
    assert runs[1]["codes"]["whole"] == 0
    names = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
    assert names >= {"config.json", "manifest.json", "metrics.jsonl", "evaluations.jsonl", "report.html", "adapter"}
    found = RunFolder.open(folder)
    assert [(e["stage"], e["split"], e["episodes"]) for e in found.evaluations()] == [
        ("base", "heldout", 1),
        ("warm start", "heldout", 2),
        ("warm start", "adversarial", 1),
        ("after RL", "heldout", 2),
        ("after RL", "adversarial", 1),
    ]
    for name in ("warm-start", "best", "last"):
        assert (folder / "adapters" / name / "manifest.json").is_file()
    base: Any = AutoModelForCausalLM.from_pretrained(tiny_folder)
    plain = PeftModel.from_pretrained(base, str(folder / "adapter"))
    assert any("lora_" in n and float(p.abs().max()) > 0 for n, p in plain.named_parameters())
    metrics = found.metrics()
    assert [m["iteration"] for m in metrics if m["stage"] == "rl"] == [1, 2, 3]
    assert [m["iteration"] for m in metrics if m["stage"] == "validation"] == [0, 2, 3]
    page = (folder / "report.html").read_text()
    assert "warm start loss" in page and "A rollout that" in page
    manifest = json.loads((folder / "adapter" / "manifest.json").read_text())
    assert manifest["model"]["name"] == str(tiny_folder.resolve()) and manifest["environment"]["name"] == "assistant"
    assert [r["name"] for r in manifest["rewards"]][:1] == ["success"]


def test_only_training_tasks_are_trained_on_and_remembered(runs: tuple[Path, Any]) -> None:
    for name in ("whole", "killed"):
        folder = runs[0] / name
        assert {t.task.split for t in [*traces(folder), *traces(folder, "expert")]} == {"train"}
        trained = {t.task.id for t in traces(folder)}
        for stage in ("base-heldout", "validation-0-heldout", "after RL-heldout", "after RL-adversarial"):
            assert not trained & {t.task.id for t in traces(folder, stage)}
        memory = memory_of(folder)
        assert [r for r in memory if r[0] == ["lessons"]], "failed episodes left a lesson"
        assert {r[0][1] for r in memory if r[0][0] == "notes"} <= trained
    # what picks the adapter is not what measures it
    validation = {t.task.id for t in traces(runs[0] / "whole", "validation-0-heldout")}
    assert not validation & {t.task.id for t in traces(runs[0] / "whole", "after RL-heldout")}


def test_killed_at_random_moments_it_ends_as_if_it_had_been_left_alone(runs: tuple[Path, Any]) -> None:
    path, result = runs
    assert result["codes"]["resumed"] == result["codes"]["resumed again"] == 0
    assert -9 in result["killed"], "no kill came in time; nothing was shown"
    whole, killed = path / "whole", path / "killed"
    # no episode was trained twice, none is missing, and each was drawn by the same weights as without the kills
    ids = [t.id for t in traces(killed)]
    assert len(ids) == len(set(ids)) == 12
    assert drawn(killed) == drawn(whole)
    for stage in ("base-heldout", "warm start-heldout", "validation-2-heldout", "after RL-heldout"):
        assert drawn(killed, stage) == drawn(whole, stage)
    rl = [[m["iteration"] for m in RunFolder.open(f).metrics() if m["stage"] == "rl"] for f in (whole, killed)]
    assert rl == [[1, 2, 3], [1, 2, 3]]
    sft = [[m["step"] for m in RunFolder.open(f).metrics() if m["stage"] == "sft"] for f in (whole, killed)]
    assert sft == [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert memory_of(killed) == memory_of(whole)
    a, b = (load_file(str(f / "adapter" / "adapter_model.safetensors")) for f in (whole, killed))
    assert a.keys() == b.keys() and all(torch.allclose(a[k], b[k], atol=1e-4) for k in a)
    found = [RunFolder.open(f).evaluations() for f in (whole, killed)]
    assert [(e["stage"], e["split"], e["success"]) for e in found[0]] == [
        (e["stage"], e["split"], e["success"]) for e in found[1]
    ]
    assert (killed / "report.html").is_file()
    assert not [p for p in killed.rglob("*") if p.name.endswith((".partial", ".old"))]


def test_ctrl_c_leaves_a_usable_folder_and_says_one_sentence(runs: tuple[Path, Any], tiny_folder: Path) -> None:
    path, result = runs
    assert result["codes"]["stopped"] == 130
    said = [line for line in result["err"].splitlines() if "nterrupt" in line]
    assert said == ["Interrupted. What was finished is kept; a training run goes on with --resume."]
    assert "Traceback" not in result["err"]
    folder = path / "stopped"
    assert "warm start" in (folder / "report.html").read_text()
    base: Any = AutoModelForCausalLM.from_pretrained(tiny_folder)
    PeftModel.from_pretrained(base, str(folder / "adapter"))
    assert RunFolder.open(folder).evaluations()


# In this process ---------------------------------------------------------------------------------------------------


def start(config: QuickstartConfig, path: Path, *, resume: bool = False) -> dict[str, Any]:
    return Quickstart(config, path, resume=resume, reporter=Reporter(quiet=True)).run()


def test_a_run_without_reinforcement_uses_the_warm_start_and_can_be_resumed(tiny_folder: Path, tmp_path: Path) -> None:
    settings = replace(CONFIG.settings, rl=replace(CONFIG.settings.rl, iterations=0))
    config = replace(CONFIG, model=str(tiny_folder), settings=settings, base_tasks=0, adversarial_tasks=0)
    first = start(config, tmp_path / "run")
    weights = [
        load_file(str(tmp_path / "run" / name / "adapter_model.safetensors"))
        for name in ("adapter", "adapters/warm-start")
    ]
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[1])
    again = start(config, tmp_path / "run", resume=True)
    assert again["evaluations"] == first["evaluations"]
    with pytest.raises(RunFolderError, match="already holds a run"):
        start(config, tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"base_tasks was 0 and is now 3"):
        start(replace(config, base_tasks=3), tmp_path / "run", resume=True)


def test_planner_and_actor_train_adapters_of_their_own(tiny_folder: Path, tmp_path: Path) -> None:
    settings = replace(CONFIG.settings, rl=replace(CONFIG.settings.rl, iterations=1))
    config = replace(CONFIG, model=str(tiny_folder), settings=settings, planner=True, adapters="per-node")
    result = start(config, tmp_path / "run")
    drawn_by = {
        (s.policy_id, s.tokens.adapter) for t in traces(tmp_path / "run") for s in t.steps if s.tokens is not None
    }
    assert drawn_by == {("planning", "planning"), ("reasoning", "reasoning")}
    metrics = [m for m in read_jsonl(tmp_path / "run" / "metrics.jsonl") if m["stage"] == "sft"]
    assert metrics and all("planning/loss" in m and "reasoning/loss" in m for m in metrics)
    base: Any = AutoModelForCausalLM.from_pretrained(tiny_folder)
    for name in ("planning", "reasoning"):
        PeftModel.from_pretrained(base, str(Path(result["adapter"]) / name))
    again = start(config, tmp_path / "run", resume=True)
    assert again["evaluations"] == result["evaluations"]


def test_what_is_wrong_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    wrong = replace(CONFIG, model="no such model")
    with pytest.raises(RunFolderError, match="There is no run"):
        start(wrong, tmp_path / "run", resume=True)
    for changes, match in (({"level": "absurd"}, "Unknown level 'absurd'"), ({"environment": "x"}, "Unknown environ")):
        with pytest.raises(SpecError, match=match):
            start(replace(wrong, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_levels_are_those_of_the_assistant_and_other_environments_have_none() -> None:
    assert environment_of(CONFIG, "easy").spec.step_limit == CONFIG.step_limit
    assert environment_of(replace(CONFIG, environment="frozen-lake"), "easy").spec.name == "frozen-lake"
