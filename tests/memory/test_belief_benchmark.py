"""The belief benchmark: its reading of LoCoMo on a made-up file, and on the real one that AGENTCORE_LOCOMO names."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from memory import HashingEmbedder

FILE = Path(__file__).parents[2] / "benchmarks" / "belief.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("belief_benchmark", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def conversation() -> dict[str, Any]:
    lines = ["Hello!", "I adopted a grey cat", "What is it called?", "Pixel, after my camera", "Nice", "Bye"]
    turns = [
        {"speaker": "Ann" if i % 2 else "Bob", "dia_id": f"D{session}:{i + 1}", "text": f"{text} ({session})"}
        for session in (1, 2)
        for i, text in enumerate(lines)
    ]
    return {
        "conversation": {"session_2": turns[6:], "session_1": turns[:6], "session_1_date_time": "May"},
        "qa": [
            {"question": "What is Ann's cat called?", "evidence": ["D1:2; D:1:4"], "category": 1},
            {"question": "When?", "evidence": ["D2:02"], "category": 2},
            {"question": "Unanswerable?", "evidence": ["D1:1"], "category": 5},
            {"question": "No evidence?", "evidence": ["D9:9"], "category": 4},
        ],
    }


def test_reading(benchmark: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "locomo.json"
    file.write_text(json.dumps([conversation()]))
    (found,) = benchmark.read_locomo(file)
    assert [turn.id for turn in found.turns][:3] == ["D1:1", "D1:2", "D1:3"] and len(found.turns) == 12
    assert [question.evidence for question in found.questions] == [("D1:2", "D1:4"), ("D2:2",)]


def test_recall_counts_whole_turns_only(benchmark: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "locomo.json"
    file.write_text(json.dumps([conversation()]))
    words = lambda text: len(text.split())  # noqa: E731
    result = benchmark.locomo(file, HashingEmbedder(64), [0], words, ["belief", "bm25", "dense"])
    assert result["questions"] == 2
    assert result["belief"]["recall"] == {"512": 1.0, "1024": 1.0, "2048": 1.0}, "everything fits"


def test_synthetic(benchmark: ModuleType) -> None:
    table = benchmark.synthetic(2, 40, len)
    assert set(table) == {"newest", "strongest"} and table["newest"]["contradiction_rate"] == 0


@pytest.mark.slow
def test_locomo(benchmark: ModuleType) -> None:
    if not os.environ.get("AGENTCORE_LOCOMO"):
        pytest.skip("AGENTCORE_LOCOMO does not name a copy of locomo10.json")
    count = benchmark.token_counter("smollm2")
    result = benchmark.locomo(Path(os.environ["AGENTCORE_LOCOMO"]), None, [9], count, ["belief", "bm25"])
    assert result["belief"]["recall"]["1024"] > result["bm25"]["recall"]["1024"] + 0.05
