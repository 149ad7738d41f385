"""``kill -9`` at random moments: what was acknowledged is there, and the index agrees with the rows."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory import FaissStore, HashingEmbedder
from memory.care import verify

ROOT = Path(__file__).parents[2]


class Crashes:
    """One store that is written by processes that are killed, and what it must hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held: dict[str, str] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.memory.crash_writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def lines(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def once(self, seed: int, delay: float, after: str) -> int:
        """Kill a writer some time ``after`` it was started ("pid") or was open ("opened"), check the store; returns how
        many writes it acknowledged."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(self.folder), seed]) + "\n")
        self.process.stdin.flush()
        acknowledged, writer, trying = 0, 0, {}
        for message in self.lines():
            writer = message.get("pid", writer)
            if after in message:
                threading.Timer(delay, os.kill, (writer, signal.SIGKILL)).start()
            elif "trying" in message:
                trying = message["trying"]
            elif "done" in message:
                apply(self.held, trying)
                acknowledged, trying = acknowledged + 1, {}
            elif "ended" in message:
                assert os.WIFSIGNALED(message["ended"]), "the writer failed by itself"
                break
        self.check(trying)
        return acknowledged

    def check(self, trying: dict[str, str | None]) -> None:
        """Every acknowledged write is there; the one in flight is there wholly or not at all."""
        if (self.folder / "store.db").exists():
            assert verify(self.folder) == []
        with FaissStore(self.folder, embedder=HashingEmbedder(16), fields=["text"], durability="normal") as store:
            items = store.search((), limit=1000)
            found = {item.key: item.value["n"] for item in items}
            with_unacknowledged = dict(self.held)
            apply(with_unacknowledged, trying)
            assert found in (self.held, with_unacknowledged)
            self.held = found
            near = store.search(("crash",), query="word3", limit=1000)
            assert {item.key for item in near} == found.keys()
            assert all(((item.score or 0) > 0.999) == (item.value["text"] == "word3") for item in near)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def apply(held: dict[str, str], changes: dict[str, str | None]) -> None:
    for key, value in changes.items():
        if value is None:
            held.pop(key, None)
        else:
            held[key] = value


def crash(folder: Path, times: int) -> None:
    crashes = Crashes(folder)
    rng = random.Random(7)
    try:
        acknowledged = 0
        for seed in range(times):
            after = "pid" if seed % 4 == 3 else "opened"
            acknowledged += crashes.once(seed, 0.01 + 0.4 * rng.random() ** 2, after)
    finally:
        crashes.close()
    assert acknowledged > times, "the writers hardly wrote anything"
    print(f"{times} kills, {acknowledged} acknowledged writes")


def test_twenty_kills(tmp_path: Path) -> None:
    crash(tmp_path / "store", 20)


@pytest.mark.slow
def test_two_hundred_kills(tmp_path: Path) -> None:
    start = time.monotonic()
    crash(tmp_path / "store", 200)
    print(f"{time.monotonic() - start:.0f} s")
