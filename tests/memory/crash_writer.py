"""A process that forks writers on request and lets them be killed: see test_crashes.py.

Each line on standard input, ``folder seed``, starts one writer. A writer changes a store at random and prints a line
before each write (what it is about to do) and one after it (that it was acknowledged).
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

from langgraph.store.base import PutOp

from memory import FaissStore, HashingEmbedder

KEYS = 60


def write(folder: str, seed: int) -> None:
    """Write until killed."""
    random.seed(seed)
    kind = random.choice(["flat", "flat", "auto", "sq8", "hnsw"])
    store = open_store(folder, kind)
    say({"opened": kind})
    count = 0
    while True:
        ops = []
        for _ in range(random.choice([1, 1, 1, 5, 30])):
            key, count = str(random.randrange(KEYS)), count + 1
            value = None if random.random() < 0.2 else {"text": f"word{count % 7}", "n": f"{seed}.{count}"}
            ops.append(PutOp(("crash", key[0]), key, value))
        say({"trying": {op.key: None if op.value is None else op.value["n"] for op in ops}})
        store.batch(ops)
        say({"done": True})
        chance = random.random()
        if chance < 0.05:
            store.save_index()
        elif chance < 0.08:
            store.compact()
        elif chance < 0.1:
            store.close()
            store = open_store(folder, kind)


def open_store(folder: str, kind: Any) -> FaissStore:
    return FaissStore(folder, embedder=HashingEmbedder(16), fields=["text"], kind=kind, sq8_from=40, garbage=20)


def say(message: object) -> None:
    """One line on standard output, at once."""
    os.write(1, (json.dumps(message) + "\n").encode())


def main() -> None:
    """Fork a writer for each request; the parent never uses FAISS, whose threads do not survive a fork."""
    for line in sys.stdin:
        folder, seed = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                write(folder, seed)
            finally:
                os._exit(1)
        say({"pid": child})
        _, status = os.waitpid(child, 0)
        say({"ended": status})


if __name__ == "__main__":
    main()
