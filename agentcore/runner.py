"""Runs graphs on tasks, many episodes at once: graph + tasks -> traces. Async inside, a plain call outside."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.pregel import Pregel

from agentcore.environment import Outcome, Task
from agentcore.environment_node import agent_input
from agentcore.errors import AgentCoreError
from agentcore.keys import derive_key
from agentcore.policies.local import EPISODE_ID, EPISODE_KEY
from agentcore.recorder import Recorder
from agentcore.trace import Reward, Trace
from memory import FaissStore, Overlay, Snapshot

T = TypeVar("T")
ToInput = Callable[[Task, int], Any]
"""(task, episode key) -> the graph's input."""
TraceReward = Callable[[Trace, Any], float | Mapping[str, float]]
"""(trace, the graph's final state) -> one number, or components by name."""

_OURS = tuple(str(Path(__file__).parent.parent / p) for p in ("agentcore", "memory", "training"))


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode to run; its key fixes every random choice in it."""

    task: Task
    rollout: int
    key: int
    id: str


@dataclass(slots=True)
class RolloutResult:
    """Traces in the order of (task, rollout), and the policies that acted in them."""

    traces: list[Trace] = field(default_factory=list)
    policies: list[Any] = field(default_factory=list)


def episodes(
    tasks: Sequence[Task], group_size: int = 1, *, seed: int = 0, iteration: int = 0, purpose: str = "run"
) -> list[Episode]:
    """``group_size`` episodes of each task, keyed by (seed, purpose, iteration, task, rollout)."""
    listed = []
    for task in tasks:
        for rollout_index in range(group_size):
            key = derive_key(seed, purpose, iteration, task.id, rollout_index)
            listed.append(Episode(task, rollout_index, key, f"{key:016x}"))
    return listed


def rollout(
    graph: Pregel[Any, Any, Any, Any],
    planned: Sequence[Episode],
    *,
    to_input: ToInput = agent_input,
    reward: TraceReward | None = None,
    memory: FaissStore | Snapshot | None = None,
    learn: bool = False,
    concurrency: int = 64,
    recursion_limit: int = 200,
    manifest: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    on_trace: Callable[[Trace], None] | None = None,
) -> RolloutResult:
    """Run the episodes and record them.

    A rollout that goes wrong is data: the recursion limit gives ``truncated``, an exception in a user's node ``failed``, with
    what happened in ``Trace.problems``. An error in this project's own code raises.

    Args:
        graph: any compiled LangGraph graph.
        planned: see :func:`episodes`.
        to_input: makes the graph's input of (task, key); the default suits :func:`agentcore.build_agent`.
        reward: grades a finished trace; its components attach to the trace.
        memory: each episode gets a private overlay on one snapshot of it as the graph's store.
        learn: merge the overlays into ``memory`` afterwards, in order (training episodes only).
        concurrency: episodes under way at once.
        on_trace: called with each trace as soon as its episode ends.
    """
    snapshot = memory.snapshot() if isinstance(memory, FaissStore) else memory
    runner = _Runner(graph, to_input, reward, snapshot, recursion_limit, dict(manifest or {}), dict(meta or {}))
    result = run_sync(runner.run_all(planned, concurrency, on_trace))
    if learn and isinstance(memory, FaissStore):
        for overlay in runner.overlays:
            overlay.merge_into(memory)
    return result


class _Runner:
    def __init__(
        self,
        graph: Pregel[Any, Any, Any, Any],
        to_input: ToInput,
        reward: TraceReward | None,
        snapshot: Snapshot | None,
        recursion_limit: int,
        manifest: dict[str, Any],
        meta: dict[str, Any],
    ) -> None:
        self.graph = graph
        self.to_input = to_input
        self.reward = reward
        self.snapshot = snapshot
        self.recursion_limit = recursion_limit
        self.manifest = manifest
        self.meta = meta
        self.overlays: list[Overlay] = []

    async def run_all(
        self, planned: Sequence[Episode], concurrency: int, on_trace: Callable[[Trace], None] | None
    ) -> RolloutResult:
        gate = asyncio.Semaphore(concurrency)
        result = RolloutResult()
        overlays = [self.snapshot.overlay() if self.snapshot is not None else None for _ in planned]

        async def one(episode: Episode, overlay: Overlay | None) -> Trace:
            async with gate:
                trace = await self._run(episode, overlay, result.policies)
            if on_trace is not None:
                on_trace(trace)
            return trace

        tasks = [asyncio.create_task(one(e, o)) for e, o in zip(planned, overlays, strict=True)]
        try:
            result.traces = list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
        self.overlays = [o for o in overlays if o is not None]
        return result

    async def _run(self, episode: Episode, overlay: Overlay | None, policies: list[Any]) -> Trace:
        recorder = Recorder()
        graph = self.graph.copy(update={"store": overlay}) if overlay is not None else self.graph
        config: RunnableConfig = {
            "callbacks": [recorder],
            "recursion_limit": self.recursion_limit,
            "configurable": {"thread_id": episode.id},
            "metadata": {EPISODE_KEY: episode.key, EPISODE_ID: episode.id},
        }
        final: Any = None
        outcome: Outcome = "terminated"
        try:
            final = await graph.ainvoke(self.to_input(episode.task, episode.key), config)
            if isinstance(final, Mapping) and final.get("outcome") in ("terminated", "truncated", "failed"):
                outcome = final["outcome"]
        except GraphRecursionError:
            outcome = "truncated"
            recorder.problems.append(f"the graph's recursion limit of {self.recursion_limit} was reached")
        except AgentCoreError:
            raise
        except Exception as error:
            if _is_ours(error):
                raise
            outcome = "failed"
            recorder.problems.append("".join(traceback.format_exception_only(error)).strip()[:1000])
        for policy in recorder.policies:
            if not any(p is policy for p in policies):
                policies.append(policy)
        trace = recorder.trace(
            episode.task,
            outcome,
            trace_id=episode.id,
            manifest=self.manifest,
            meta={**self.meta, "rollout": episode.rollout, "key": episode.key},
        )
        return self._graded(trace, final)

    def _graded(self, trace: Trace, final: Any) -> Trace:
        if self.reward is None:
            return trace
        name = getattr(self.reward, "__name__", type(self.reward).__name__)
        value = self.reward(trace, final)
        components = value if isinstance(value, Mapping) else {"reward": value}
        for component, amount in components.items():
            trace = trace.with_reward(Reward(component, float(amount), "trace", trace.id, source=name))
        return trace


def _is_ours(error: BaseException) -> bool:
    """Whether the exception was raised by this project's own code (a bug of ours, not a bad rollout)."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_OURS)


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, also where an event loop is already running (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    box: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            box.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, name="agentcore-runner")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return box[0]
