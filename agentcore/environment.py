"""The POMDP contract: what an episode is asked, what a state is, what an action does, what is rewarded.

An environment is a pure function of a JSON-serialisable state and a random key that is kept *beside* the
state: equal states stay equal, and a fork of an episode gets a new key. Everything an optimizer could exploit is
declared in :class:`EnvironmentSpec` before the optimizer is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from agentcore.errors import SpecError, UndeclaredRewardError

Split = Literal["train", "heldout", "adversarial"]
Outcome = Literal["terminated", "truncated", "failed", "abandoned"]
Forkable = Literal["exact", "replay", "none"]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """What an episode is asked to do."""

    id: str
    """Unique within its environment; the split of imported logs is a hash of it."""
    split: Split
    """Held-out and adversarial tasks never train; the trainer asserts it."""
    seed: int
    instruction: str
    """What the agent is told. Everything else about the task is hidden from it."""
    data: Json = field(default_factory=dict)
    """JSON data the environment needs to build the episode (hidden from the policies)."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as it is offered to a policy."""

    name: str
    description: str
    parameters: Json
    """JSON schema of the arguments (an object schema)."""

    def as_openai(self) -> Json:
        """The tool in the OpenAI ``tools`` format, which LangChain's ``bind_tools`` accepts."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a reply, valid or not: a malformed call is kept, never dropped."""

    id: str
    name: str
    args: Json = field(default_factory=dict)
    error: str | None = None
    """Why the call cannot be run (malformed, unknown tool, wrong arguments); None if it can."""
    raw: str | None = None
    """The text the policy wrote, where it is known."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came back for one tool call."""

    call_id: str
    content: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Action:
    """A message's text and its ordered tool calls; one environment step applies them in order."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """One declared reward component."""

    name: str
    low: float
    high: float
    """Inclusive range of one emitted value; a value outside is an error of the environment."""
    description: str
    kind: Literal["outcome", "progress", "penalty"] = "outcome"
    """``progress`` components are differences of a potential that is 0 in every final state, so that they
    leave the optimal policy unchanged (Ng et al. 1999)."""
    weight: float = 1.0
    """Weight in the derived weighted sum; configuration may override it."""


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """State, actions, termination, step limit and rewards, declared before training."""

    name: str
    version: str
    state: str
    """What the hidden state holds, in words."""
    observation: str
    """What the agent sees of it, in words."""
    actions: tuple[ToolSpec, ...]
    termination: str
    """When an episode ends by itself, in words. Training refuses an empty one."""
    step_limit: int
    """Environment steps after which the episode is truncated."""
    rewards: tuple[RewardSpec, ...]
    forkable: Forkable = "exact"

    def __post_init__(self) -> None:
        if not self.termination.strip():
            raise SpecError(
                f"Environment {self.name!r} declares no termination. Say in EnvironmentSpec.termination when an "
                "episode ends; without it a return is not defined."
            )
        if self.step_limit < 1:
            raise SpecError(f"Environment {self.name!r}: step_limit is {self.step_limit}; it must be at least 1.")
        if not self.rewards:
            raise SpecError(f"Environment {self.name!r} declares no reward component; name at least one.")
        names = [r.name for r in self.rewards]
        if len(set(names)) != len(names):
            raise SpecError(f"Environment {self.name!r} declares a reward component twice: {sorted(names)}.")

    def check_rewards(self, rewards: Mapping[str, float]) -> None:
        """Raise if ``rewards`` holds an undeclared component or a value outside its declared range."""
        declared = {r.name: r for r in self.rewards}
        for name, value in rewards.items():
            if name not in declared:
                raise UndeclaredRewardError(
                    f"Environment {self.name!r} emitted the reward component {name!r}, which its specification does "
                    f"not declare (declared: {', '.join(sorted(declared))}). Add it to EnvironmentSpec.rewards "
                    "with its range, or stop emitting it."
                )
            low, high = declared[name].low, declared[name].high
            # `not (…)` so that NaN is refused too
            if not (low - 1e-9 <= value <= high + 1e-9):
                raise SpecError(
                    f"Environment {self.name!r} emitted {name} = {value}, outside its declared range "
                    f"[{low}, {high}]. Correct the environment or the declared range."
                )


@dataclass(frozen=True, slots=True)
class Transition:
    """What one ``reset`` or ``step`` gives."""

    state: Json
    """JSON-serialisable; holds everything the future depends on besides the key."""
    observation: str
    """What the agent sees besides the tool results (news of the world)."""
    results: tuple[ToolResult, ...] = ()
    """One result per tool call of the action, in order."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Components earned by the action as a whole."""
    call_rewards: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Components earned by single tool calls, by call id."""
    outcome: Outcome | None = None
    """None while the episode goes on; ``truncated`` when the step limit ended it."""


@runtime_checkable
class Environment(Protocol):
    """A POMDP as a function of (state, action, key). ``agentcore.testing`` holds its contract kit."""

    @property
    def spec(self) -> EnvironmentSpec: ...

    def tasks(self, split: Split, count: int, *, seed: int = 0) -> Sequence[Task]:
        """``count`` distinct tasks of the split; the splits never share a task id."""
        ...

    def reset(self, task: Task, key: int) -> Transition:
        """The first state and observation; no rewards, no outcome."""
        ...

    def step(self, state: Json, action: Action, key: int) -> Transition:
        """Apply an action. Pure: ``state`` is not changed, and equal arguments give equal transitions."""
        ...

    def anchor(self, state: Json) -> str:
        """A name for the state; states that count as the same have the same name."""
        ...


@runtime_checkable
class HasOracle(Protocol):
    """An environment that knows a good action in every state (for expert traces and exact answers)."""

    def oracle(self, state: Json) -> Action: ...
