"""One process of test_stress.py: threads that add, delete and search one shared store, and check every answer."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from langgraph.store.base import PutOp

from memory import FaissStore, HashingEmbedder

WORDS = ("red", "green", "blue", "apple", "pear", "tree", "stone", "river")


class Worker:
    """One thread. It alone writes its namespace, so it knows what must be there; it reads everybody's."""

    def __init__(self, store: FaissStore, process: int, thread: int) -> None:
        self.store = store
        self.namespace = ("stress", f"p{process}", f"t{thread}")
        self.held: dict[str, dict[str, object]] = {}
        self.rng = random.Random(100 * process + thread)
        self.operations = 0

    def run(self, until: float) -> Worker:
        """Work until a time; any wrong answer raises."""
        actions = (self.put, self.put, self.put_many, self.delete, self.get, self.search, self.search_all)
        actions += (self.look_back,)
        while time.monotonic() < until:
            self.rng.choice(actions)()
            self.operations += 1
        return self

    def value(self) -> dict[str, object]:
        n = self.rng.randrange(1000)
        return {"text": f"{self.rng.choice(WORDS)} {self.rng.choice(WORDS)}", "n": n, "check": 3 * n + 1}

    def put(self) -> None:
        key, value = str(self.rng.randrange(40)), self.value()
        self.store.put(self.namespace, key, value)
        self.held[key] = value

    def put_many(self) -> None:
        values = {str(self.rng.randrange(40)): self.value() for _ in range(8)}
        self.store.batch([PutOp(self.namespace, key, value) for key, value in values.items()])
        self.held.update(values)

    def delete(self) -> None:
        key = str(self.rng.randrange(40))
        self.store.delete(self.namespace, key)
        self.held.pop(key, None)

    def get(self) -> None:
        key = str(self.rng.randrange(40))
        item = self.store.get(self.namespace, key)
        assert (None if item is None else item.value) == self.held.get(key)

    def search(self) -> None:
        """In its own namespace the answer is known: all items, best first, and the right ones above 0.99."""
        query = f"{self.rng.choice(WORDS)} {self.rng.choice(WORDS)}"
        found = self.store.search(self.namespace, query=query, limit=100)
        assert {item.key: item.value for item in found} == self.held
        scores = [item.score for item in found]
        assert scores == sorted(scores, key=lambda score: -(score or 0))
        same = {key for key, value in self.held.items() if set(str(value["text"]).split()) == set(query.split())}
        top = {item.key for item in found if (item.score or 0) > 0.999}
        assert {key for key in same if self.held[key]["text"] == query} <= top
        n = self.rng.randrange(1000)
        some = self.store.search(self.namespace, query=query, filter={"n": {"$lt": n}}, limit=100)
        assert {item.key for item in some} == {key for key, value in self.held.items() if int(str(value["n"])) < n}

    def search_all(self) -> None:
        found = self.store.search(("stress",), query=self.rng.choice(WORDS), limit=20)
        assert all(item.value["check"] == 3 * item.value["n"] + 1 for item in found)
        assert len({(item.namespace, item.key) for item in found}) == len(found)

    def look_back(self) -> None:
        """A snapshot and an overlay stay as they were while everybody writes."""
        before = dict(self.held)
        with self.store.snapshot() as snapshot:
            overlay = snapshot.overlay()
            overlay.put(self.namespace, "own", {"text": "red"})
            self.put()
            assert {item.key: item.value for item in snapshot.search(self.namespace, limit=100)} == before
            assert {item.key for item in overlay.search(self.namespace, query="red", limit=100)} == {*before, "own"}


def main(folder: str, process: int, threads: int, seconds: float) -> None:
    """Run the threads; print what each namespace must hold and how many operations were done."""
    # Small limits, so that switching to SQ8, pruning and compaction happen all the time.
    store = FaissStore(
        folder, embedder=HashingEmbedder(32), fields=["text"], sq8_from=400, garbage=200, durability="normal"
    )
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(threads) as pool:
        workers = list(pool.map(lambda thread: Worker(store, process, thread).run(until), range(threads)))
    assert threading.active_count() < threads + 3
    store.close()
    held = {worker.namespace[1] + worker.namespace[2]: worker.held for worker in workers}
    print(json.dumps({"held": held, "operations": sum(worker.operations for worker in workers)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
