"""Step and Trace: what one episode was, decision by decision. The hub type of the project.

A trace file is JSON lines, one record a line, append-only; see :mod:`agentcore.tracefile`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ConfigDict

from agentcore.environment import Json, Outcome, Task, ToolCall, ToolResult
from agentcore.errors import DuplicateRewardError, SpecError

SCHEMA_VERSION = 1

RewardTarget = Literal["call", "step", "node_run", "trace"]
SegmentKind = Literal["reasoning", "text", "call"]

_FINITE: ConfigDict = {"allow_inf_nan": False, "ser_json_inf_nan": "constants"}
"""A number that is not finite makes a trace invalid: it is neither read from a file nor written to one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch ``[start, end)`` of the reply's tokens: reasoning, text, or one tool call."""

    kind: SegmentKind
    start: int
    end: int
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """What was sampled, exactly: the ids, and the log-probabilities they were sampled with.

    ``reply_ids`` and ``logprobs`` have shape [T]; ``logprobs`` are of the distribution that was sampled from
    (temperature and mask included), natural log.
    """

    __pydantic_config__ = _FINITE

    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """None where only text was logged and re-tokenised (``retokenised`` is then true)."""
    temperature: float
    model: str
    adapter: str | None
    """Name of the LoRA adapter that sampled, None for the base model."""
    adapter_version: int
    segments: tuple[Segment, ...] = ()
    finish: Literal["stop", "length"] = "stop"
    retokenised: bool = False

    def __post_init__(self) -> None:
        if self.logprobs is not None and len(self.logprobs) != len(self.reply_ids):
            raise SpecError(
                f"Tokens: {len(self.logprobs)} log-probabilities for {len(self.reply_ids)} sampled tokens; give one "
                "for each."
            )


@dataclass(frozen=True, slots=True)
class Reward:
    """One named component on one target."""

    __pydantic_config__ = _FINITE

    component: str
    value: float
    target: RewardTarget
    target_id: str
    """A tool call id, a step id, a node run id or the trace id, by ``target``."""
    source: str = "environment"
    """Who gave it: ``environment``, a grader's name with its version, ``human``."""


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One execution of one graph node (LangGraph's task)."""

    __pydantic_config__ = _FINITE

    id: str
    node: str
    ns: str
    """``checkpoint_ns`` as LangGraph reports it, uuids included."""
    superstep: int
    parents: tuple[str, ...] = ()
    """Node runs that triggered this one (control edges)."""
    data_parents: tuple[str, ...] = ()
    """Node runs that wrote a channel this one reads, in an earlier superstep (data edges)."""
    attempt: int = 0
    started: float = 0.0
    ended: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: one model call by one node policy, with what followed it."""

    __pydantic_config__ = _FINITE

    id: str
    """The model call's run id."""
    key: tuple[str, str, int]
    """(thread id, checkpoint namespace, ordinal within the node run)."""
    node_run: str | None
    """Id of the node run it lies on; None for a call made outside any node."""
    policy_id: str
    """Node path without uuids and integers, e.g. ``reasoning`` or ``team/planner``."""
    messages: tuple[Json, ...]
    """The prompt as sent, in OpenAI message format."""
    reply: str
    """The reply's text as the model wrote it, tool calls included where they are text."""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    tools: tuple[Json, ...] = ()
    """The tools offered, in OpenAI format."""
    tokens: Tokens | None = None
    belief: str | None = None
    """The belief as it was shown in this prompt."""
    memory_ids: tuple[str, ...] = ()
    """Ids of the memory items recalled for this prompt."""
    anchor: str | None = None
    """The environment's name for the state in which the decision was taken."""
    attempt: int = 0
    superseded: bool = False
    """True for an attempt that a later one replaced; it does not count."""
    started: float = 0.0
    ended: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """One episode: node runs and steps as a DAG, every reward component, the outcome and the manifest."""

    __pydantic_config__ = _FINITE

    id: str
    task: Task
    outcome: Outcome
    steps: tuple[Step, ...]
    node_runs: tuple[NodeRun, ...] = ()
    rewards: tuple[Reward, ...] = ()
    fork_of: str | None = None
    """Id of the checkpoint this episode was forked from."""
    edges: Literal["superstep", "exact", "unknown"] = "superstep"
    """How the node runs' parents were found."""
    problems: tuple[str, ...] = ()
    """What could not be recorded, in words."""
    manifest: Json = field(default_factory=dict)
    meta: Json = field(default_factory=dict)
    """Seed, iteration, rollout index and whatever else places the episode in its run."""

    @property
    def live_steps(self) -> tuple[Step, ...]:
        """The steps that count, in order: superseded attempts left out."""
        return tuple(s for s in self.steps if not s.superseded)

    def rewards_of_step(self, step: Step) -> list[Reward]:
        """Rewards on the step itself and on its tool calls, in the order they were given."""
        ids = {step.id, *(c.id for c in step.calls)}
        return [r for r in self.rewards if r.target in ("step", "call") and r.target_id in ids]

    def with_reward(self, reward: Reward) -> Trace:
        """A copy with one more reward; raises as :meth:`with_rewards` does."""
        return self.with_rewards([reward])

    def with_rewards(self, rewards: Iterable[Reward]) -> Trace:
        """A copy with more rewards.

        Raises:
            DuplicateRewardError: if the target already has that component. Two writers are an error, not a sum.
        """
        given = {(r.target, r.target_id, r.component): r for r in self.rewards}
        added = list(rewards)
        for reward in added:
            key = (reward.target, reward.target_id, reward.component)
            other = given.get(key)
            if other is not None:
                raise DuplicateRewardError(
                    f"Trace {self.id}: {reward.component!r} on {reward.target} {reward.target_id} was already set by "
                    f"{other.source} ({other.value}); {reward.source} set it again ({reward.value}). Give the "
                    "second writer a component of its own."
                )
            given[key] = reward
        return replace(self, rewards=(*self.rewards, *added))

    def component_totals(self) -> dict[str, float]:
        """Sum of every reward component over the whole trace."""
        totals: dict[str, float] = {}
        for reward in self.rewards:
            totals[reward.component] = totals.get(reward.component, 0.0) + reward.value
        return totals


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """The trace as plain JSON data (see :mod:`agentcore.tracefile` for files)."""
    from agentcore.tracefile import TRACE_ADAPTER

    data: dict[str, Any] = TRACE_ADAPTER.dump_python(trace, mode="json")
    return data
