"""Runs graphs on tasks, many episodes at once: graph + tasks -> traces. Async inside, a plain call outside."""

from __future__ import annotations

import asyncio
import math
import os
import sysconfig
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
from agentcore.errors import AgentCoreError, ContextOverflowError, SpecError
from agentcore.keys import derive_key
from agentcore.policies.local import EPISODE_ID, EPISODE_KEY
from agentcore.recorder import Recorder, describe
from agentcore.trace import Reward, Trace
from memory import FaissStore, Overlay, Snapshot

T = TypeVar("T")
ToInput = Callable[[Task, int], Any]
"""(task, episode key) -> the graph's input."""
TraceReward = Callable[[Trace, Any], float | Mapping[str, float]]
"""(trace, the graph's final state) -> one number, or components by name."""

_OURS = tuple(f"{Path(__file__).parent.parent / p}{os.sep}" for p in ("agentcore", "memory", "training"))
_OUR_MEANS = ("faiss", "jinja2", "numpy", "peft", "pydantic", "safetensors", "tokenizers", "torch", "transformers")
"""Libraries that do our work: what is raised in them is raised by who called them."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode to run; its key fixes every random choice in it."""

    task: Task
    rollout: int
    key: int
    id: str

    @property
    def metadata(self) -> dict[str, Any]:
        """The run's metadata: by it a local policy knows its episode and draws the episode's own random numbers.

        The policy's key is derived, since the environment draws from ``key`` itself: no policy may know its dice.
        """
        return {EPISODE_KEY: derive_key(self.key, "policy"), EPISODE_ID: self.id}


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
    recursion_limit: int | None = None,
    manifest: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    on_trace: Callable[[Trace], None] | None = None,
) -> RolloutResult:
    """Run the episodes and record them.

    A rollout that goes wrong is data: the recursion limit gives ``truncated``, an exception in a user's node (or a
    prompt beyond the model's context) ``failed``, an interrupt that nobody answers ``abandoned``, with what happened
    in ``Trace.problems``. An error in this project's own code raises.

    Args:
        graph: any compiled LangGraph graph.
        planned: see :func:`episodes`.
        to_input: makes the graph's input of (task, key); the default suits :func:`agentcore.build_agent`.
        reward: grades a finished trace; its components attach to the trace.
        memory: each episode gets a private overlay on one snapshot of it as the graph's store.
        learn: merge the overlays of training tasks' episodes into ``memory`` afterwards, in order; others never merge.
        concurrency: episodes under way at once.
        recursion_limit: supersteps after which an episode is cut off; by default the graph's own limit, or 200.
        on_trace: called with each trace as soon as its episode ends.
    """
    snapshot = memory.snapshot() if isinstance(memory, FaissStore) else memory
    limit = recursion_limit or (graph.config or {}).get("recursion_limit", 200)
    runner = _Runner(graph, to_input, reward, snapshot, limit, dict(manifest or {}), dict(meta or {}))
    try:
        result = run_sync(runner.run_all(planned, concurrency, on_trace))
        if learn and isinstance(memory, FaissStore):
            for episode, overlay in zip(planned, runner.overlays, strict=True):
                if episode.task.split == "train":
                    overlay.merge_into(memory)
    finally:
        if snapshot is not None and snapshot is not memory:
            snapshot.close()
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
            "metadata": episode.metadata,
        }
        final: Any = None
        outcome: Outcome = "terminated"
        try:
            final = await graph.ainvoke(self.to_input(episode.task, episode.key), config)
            outcome = _outcome(final, recorder)
        except GraphRecursionError:
            outcome = "truncated"
            recorder.problems.append(f"the graph's recursion limit of {self.recursion_limit} was reached")
        except Exception as error:
            if _is_ours(error):
                raise
            outcome = "failed"
            recorder.problems.append(describe(error))
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
            trace = trace.with_reward(Reward(component, _number(amount, name, component), "trace", trace.id, name))
        return trace


def _number(value: Any, name: str, component: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise SpecError(
            f"The reward function {name!r} gave {component} = {value!r}; it must return a finite number, or a mapping "
            "of component names to finite numbers."
        )
    return number


def _outcome(final: Any, recorder: Recorder) -> Outcome:
    """How an episode ended whose graph came to rest with the state ``final``."""
    if not isinstance(final, Mapping):
        return "terminated"
    if final.get("__interrupt__"):
        recorder.problems.append("the graph was interrupted to ask for input, and nobody answered")
        return "abandoned"
    outcome = final.get("outcome")
    return outcome if outcome in ("terminated", "truncated", "failed", "abandoned") else "terminated"


def _is_ours(error: BaseException) -> bool:
    """Whether the exception is this project's own (a broken contract, a bug of ours), and not a bad rollout."""
    if isinstance(error, AgentCoreError):
        return not isinstance(error, ContextOverflowError)
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if file == __file__:
            break
        if file.startswith(_OURS):
            return True
        if not _is_means(file):
            return False
    return False


def _is_means(file: str) -> bool:
    """Whether a source file belongs to Python itself or to a library that does our work."""
    if f"{os.sep}site-packages{os.sep}" in file:
        return file.rpartition(f"{os.sep}site-packages{os.sep}")[2].split(os.sep)[0] in _OUR_MEANS
    return file.startswith((sysconfig.get_path("stdlib"), "<frozen"))


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
