"""Threads and processes that add, delete and search one store together: no crash, no wrong answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memory import FaissStore, HashingEmbedder
from memory.care import verify

ROOT = Path(__file__).parents[2]


def stress(folder: Path, processes: int, threads: int, seconds: float) -> int:
    command = [sys.executable, "-m", "tests.memory.stress_worker", str(folder)]
    running = [
        subprocess.Popen(
            [*command, str(number), str(threads), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        for number in range(processes)
    ]
    held, operations = {}, 0
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready", process.communicate()[1]
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in running:
        output, errors = process.communicate(timeout=seconds + 120)
        assert process.returncode == 0, errors[-3000:]
        result = json.loads(output)
        held.update(result["held"])
        operations += result["operations"]
    assert verify(folder) == []
    with FaissStore(folder, embedder=HashingEmbedder(32)) as store:
        items = store.search(("stress",), limit=100_000)
    found: dict[str, dict[str, object]] = {name: {} for name in held}
    for item in items:
        found["".join(item.namespace[1:])][item.key] = item.value
    assert found == held
    return operations


def test_three_seconds(tmp_path: Path) -> None:
    assert stress(tmp_path / "store", processes=2, threads=4, seconds=3) > 100


@pytest.mark.slow
def test_sixty_seconds(tmp_path: Path) -> None:
    print(stress(tmp_path / "store", processes=3, threads=8, seconds=60), "operations")
