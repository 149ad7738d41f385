"""Random keys never change between versions, machines and processes: recorded runs depend on them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentcore.keys import derive_key, rng


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ((), 5460801731388113703),
        ((0,), 7210762507766007076),
        ((1, "train", 3, "assistant/train/hard/0/0-f1h2l0c1d1v0", 7), 5018873803896449125),
        ((-1, 2.5, None, True, ("a", (1, 2))), 5575144174048221275),
        (("é漢", b"\x00"), 5053008512841527495),
    ],
)
def test_keys_are_pinned(parts: tuple[object, ...], key: int) -> None:
    assert derive_key(*parts) == key


def test_draws_are_pinned() -> None:
    random = rng(0, "pinned")
    assert [random.randint(0, 999) for _ in range(4)] == [413, 519, 589, 775]
    assert rng(1, 2).sample(range(100), 3) == [80, 74, 46]


def test_parts_are_told_apart_by_type_position_and_grouping() -> None:
    keys = [derive_key(*p) for p in [(1, 2), (2, 1), ("1", 2), ((1, 2),), (12,), (1, 2, None), (1.0, 2)]]
    assert len(set(keys)) == len(keys)
    assert all(0 <= k < 2**63 for k in keys)


def test_keys_do_not_depend_on_the_process() -> None:
    program = "from agentcore.keys import derive_key; print(derive_key(3, 'a', (1, 'b')))"
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={"PYTHONHASHSEED": seed}
        )
        assert int(done.stdout) == derive_key(3, "a", (1, "b")), done.stderr
