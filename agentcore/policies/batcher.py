"""Gathers the model calls of concurrent graph runs into batches.

Calls wait until no further call has arrived for a moment, or a batch is full; one batch runs at a time in its own
thread, so the event loop stays free. Which calls share a batch never changes a result (see the engine).
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from agentcore.policies.engine import Engine, GenerationRequest, GenerationResult


class Batcher:
    """One queue per event loop, in front of one engine."""

    def __init__(self, engine: Engine, *, max_batch: int = 64, gather_s: float = 0.02) -> None:
        self.engine = engine
        self.max_batch = max_batch
        self.gather_s = gather_s
        self._lock = threading.Lock()
        self._queues: dict[asyncio.AbstractEventLoop, _Queue] = {}
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentcore-engine")

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Sample one reply together with whatever other calls are waiting.

        Raises:
            PolicyError: if the request can't be served; the other calls are not affected.
        """
        self.engine.check(request)
        loop = asyncio.get_running_loop()
        with self._lock:
            queue = self._queues.get(loop)
            if queue is None:
                queue = self._queues[loop] = _Queue(self)
        return await queue.submit(request)

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let go of a loop whose queue is empty."""
        with self._lock:
            self._queues.pop(loop, None)

    def run(self, batch: list[GenerationRequest]) -> list[GenerationResult]:
        return self.engine.generate(batch)

    @property
    def pool(self) -> ThreadPoolExecutor:
        return self._pool


_Waiting = tuple[GenerationRequest, "asyncio.Future[GenerationResult]"]


class _Queue:
    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self.waiting: list[_Waiting] = []
        self.arrived = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def submit(self, request: GenerationRequest) -> GenerationResult:
        future: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        self.arrived.set()
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._serve())
        return await future

    async def _serve(self) -> None:
        """Run batches until nothing waits any more."""
        loop = asyncio.get_running_loop()
        try:
            while self.waiting:
                await self._gather()
                # cancelled episodes are not sampled for
                batch = [(r, f) for r, f in self.waiting[: self.batcher.max_batch] if not f.done()]
                self.waiting = self.waiting[self.batcher.max_batch :]
                if batch:
                    await self._run(loop, batch)
        finally:
            self.batcher.forget(loop)
            for _, future in self.waiting:  # the loop is being shut down
                future.cancel()

    async def _run(self, loop: asyncio.AbstractEventLoop, batch: list[_Waiting]) -> None:
        try:
            results = await loop.run_in_executor(self.batcher.pool, self.batcher.run, [r for r, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)

    async def _gather(self) -> None:
        """Wait until the batch is full or no call has arrived for a moment."""
        while len(self.waiting) < self.batcher.max_batch:
            self.arrived.clear()
            try:
                await asyncio.wait_for(self.arrived.wait(), self.batcher.gather_s)
            except TimeoutError:
                return
