"""Concurrent calls share a batch; a failure or a cancelled caller harms nobody else's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from agentcore.errors import ContextOverflowError, PolicyError
from agentcore.policies.batcher import Batcher
from agentcore.policies.engine import Engine, GenerationRequest, GenerationResult

Make = Callable[..., Engine]


def request(key: int, *, length: int = 8, **options: int) -> GenerationRequest:
    return GenerationRequest(tuple(range(5, 5 + length)), key, options.get("max_new_tokens", 4), 1.0)


class Watched(Engine):
    """An engine that notes its batches; a batch with a key in ``broken`` fails, and ``gate`` holds batches back."""

    sizes: list[int]
    broken: set[int]
    gate: threading.Event

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        self.gate.wait(timeout=30)
        self.sizes.append(len(requests))
        if self.broken & {r.key for r in requests}:
            raise RuntimeError("out of memory")
        return super().generate(requests)


@pytest.fixture
def watched(tiny_engine: Make) -> Watched:
    engine = tiny_engine()
    engine.__class__ = Watched
    assert isinstance(engine, Watched)
    engine.sizes, engine.broken, engine.gate = [], set(), threading.Event()
    engine.gate.set()
    return engine


async def test_concurrent_calls_are_gathered_and_each_gets_its_own(watched: Watched) -> None:
    expected = [watched.generate([request(k)])[0].ids for k in range(10)]
    watched.sizes.clear()
    batcher = Batcher(watched, max_batch=8)
    results = await asyncio.gather(*(batcher.generate(request(k)) for k in range(10)))
    assert [r.ids for r in results] == expected
    assert watched.sizes == [8, 2]
    assert (await batcher.generate(request(3))).ids == expected[3], "and again, later"


async def test_calls_that_come_while_a_batch_runs_are_the_next_one(watched: Watched) -> None:
    batcher = Batcher(watched)
    watched.gate.clear()
    first = asyncio.create_task(batcher.generate(request(0)))
    await asyncio.sleep(0.1)
    rest = [asyncio.create_task(batcher.generate(request(k))) for k in range(1, 4)]
    await asyncio.sleep(0.1)
    watched.gate.set()
    await asyncio.gather(first, *rest)
    assert watched.sizes == [1, 3]


async def test_an_exception_reaches_every_caller_of_its_batch_and_no_other(watched: Watched) -> None:
    batcher = Batcher(watched, max_batch=2)
    watched.broken = {1}
    results = await asyncio.gather(*(batcher.generate(request(k)) for k in range(4)), return_exceptions=True)
    assert [isinstance(r, RuntimeError) for r in results] == [True, True, False, False]
    watched.broken = set()
    assert (await batcher.generate(request(1))).ids


async def test_a_request_that_cannot_be_served_fails_alone(watched: Watched) -> None:
    batcher = Batcher(watched)
    long, empty = request(1, length=2000), request(2, length=0)
    results = await asyncio.gather(
        *(batcher.generate(r) for r in (request(0), long, empty, request(3))), return_exceptions=True
    )
    assert isinstance(results[1], ContextOverflowError) and isinstance(results[2], PolicyError)
    assert isinstance(results[0], GenerationResult) and isinstance(results[3], GenerationResult)
    assert watched.sizes == [2]


async def test_cancelled_callers_are_not_sampled_for_and_wedge_nothing(watched: Watched) -> None:
    batcher = Batcher(watched)
    watched.gate.clear()
    running = asyncio.create_task(batcher.generate(request(0)))
    await asyncio.sleep(0.1)
    waiting = [asyncio.create_task(batcher.generate(request(k))) for k in range(1, 4)]
    await asyncio.sleep(0.05)
    running.cancel()  # its batch is under way already
    waiting[0].cancel()
    await asyncio.sleep(0.05)
    watched.gate.set()
    results = await asyncio.gather(running, *waiting, return_exceptions=True)
    assert [isinstance(r, asyncio.CancelledError) for r in results] == [True, True, False, False]
    assert watched.sizes == [1, 2]
    for task in (asyncio.create_task(batcher.generate(request(9))) for _ in range(2)):
        await asyncio.wait_for(task, 30)


def test_each_event_loop_has_a_queue_that_goes_with_it(watched: Watched) -> None:
    batcher = Batcher(watched)

    async def some() -> list[GenerationResult]:
        return await asyncio.gather(*(batcher.generate(request(k)) for k in range(3)))

    first = asyncio.run(some())
    found: list[list[GenerationResult]] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(some()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == [first] * 3
    assert watched.sizes == [3] * 4


def test_a_loop_that_is_shut_down_in_the_middle_leaves_the_batcher_usable(watched: Watched) -> None:
    batcher = Batcher(watched)
    watched.gate.clear()

    async def give_up() -> None:
        asyncio.get_running_loop().call_later(0.2, watched.gate.set)
        async with asyncio.timeout(0.1):
            await asyncio.gather(*(batcher.generate(request(k)) for k in range(3)))

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    watched.gate.set()
    assert asyncio.run(asyncio.wait_for(batcher.generate(request(0)), 30)).ids
