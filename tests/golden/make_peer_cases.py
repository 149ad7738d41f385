"""Asks verl's and TRL's own functions, compares ours with them, and freezes 20 cases of each function as JSON.

Not part of the tests, which only read the JSON. To run it, make an environment outside the repository, install torch
for the CPU first (so that no other build of it is pulled in), then either peer:

    python -m venv /tmp/peer && . /tmp/peer/bin/activate
    pip install torch==2.13.0 numpy
    pip install trl==1.16.0
    pip install --no-deps verl==0.9.1
    pip install omegaconf tensordict ray hydra-core codetiming orjson

and, from the root of the repository,

    python tests/golden/make_peer_cases.py verl --batches 1000 --write
    python tests/golden/make_peer_cases.py trl --batches 1000 --write

Batches are random and ragged: groups of 1 to 8 replies, 1 to 5 tokens each, some with constant rewards. All is compared
in float64; the script fails on a difference above 1e-6 and prints the largest per function.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import random
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
sys.modules["tests"] = ModuleType("tests")  # some peers install a package of that name, which would hide this folder
sys.modules["tests"].__path__ = [str(ROOT / "tests")]

from tests.golden.peer_cases import FOLDER, OURS, difference  # noqa: E402
from tests.golden.peer_inputs import Maker  # noqa: E402

SEED, FROZEN = 20260701, 20


def makers(peer: str) -> dict[str, Maker]:
    if peer == "verl":
        from tests.golden.peer_verl import verl_makers

        return verl_makers()
    from tests.golden.peer_trl import trl_makers

    return trl_makers()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=sorted(OURS))
    parser.add_argument("--batches", type=int, default=1000, help="random batches per function")
    parser.add_argument("--write", action="store_true", help=f"freeze the first {FROZEN} of each as JSON")
    options = parser.parse_args()
    made = makers(options.peer)
    assert made.keys() == OURS[options.peer].keys()
    frozen: dict[str, list[dict[str, object]]] = {}
    for name, make in made.items():
        rng = random.Random(f"{SEED} {name}")
        worst = 0.0
        frozen[name] = []
        for _ in range(options.batches):
            inputs, expected = make(rng)
            worst = max(worst, difference(OURS[options.peer][name](inputs), expected))
            if len(frozen[name]) < FROZEN:
                frozen[name].append({"inputs": inputs, "expected": expected})
        print(f"{name}: {options.batches} batches, largest difference {worst:.1e}")
        assert worst < 1e-6, name
    if options.write:
        version = importlib.metadata.version(options.peer)
        data = {
            "peer": options.peer,
            "version": version,
            "torch": importlib.metadata.version("torch"),
            "made_with": "tests/golden/make_peer_cases.py",
            "seed": SEED,
            "cases": frozen,
        }
        path = FOLDER / f"{options.peer}-{version}.json"
        path.write_text(json.dumps(data, separators=(",", ":")).replace('{"inputs"', '\n{"inputs"') + "\n")
        print(f"wrote {path} ({path.stat().st_size // 1024} KiB)")


if __name__ == "__main__":
    main()
