"""From reward components to one reward per step: a weighted sum, placed by identity.

    r_s = Σ_c w_c · (components c on the step s and on its tool calls)

A reward on a node run or on the trace belongs to the last steps before it. Where that is one step (every trace that is
a line), it is added to that step. Where it is several (parallel branches that end together), it is kept under the
target's own id, at distance 0 from each of them, so that each branch sees all of it and their parent counts it
once; :func:`returns` and the estimators read it from there.

Nothing is coerced: an undeclared component, an unknown target, a component given twice and a trace without an
outcome are errors. A step without any component earned 0; a *trace* without an outcome component is not judged yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentcore.environment import EnvironmentSpec, Outcome, RewardSpec
from agentcore.errors import DuplicateRewardError, SpecError, UndeclaredRewardError
from agentcore.trace import Reward, Trace
from training.credit.dag import Rewards, StepGraph, returns, step_graph
from training.credit.errors import CreditError, MissingRewardError
from training.credit.wiring import EdgeKind, last_attempts

__all__ = ["MissingRewardError", "RewardConfig", "Rewards", "call_rewards", "returns", "step_rewards"]


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """How reward components become one number."""

    weights: Mapping[str, float] | None = None
    """Overrides of the declared weights, by component; 0 switches a component off (it is still logged)."""
    gamma: float = 1.0
    """Discount per step, for whoever computes returns from these rewards."""
    ungraded: Mapping[Outcome, float] | None = None
    """The reward (weight 1, on the trace) of an episode that ended with this outcome and carries no outcome component:
    what running out of the graph's own step limit, or a crash, is worth. Without an entry the reward is missing."""
    missing: Literal["raise", "none"] = "raise"
    """A trace whose outcome reward is missing: an error, or None for each of its steps (it is then not trained
    on and no other rollout is compared with it)."""
    edges: EdgeKind = "all"
    """Which edges of the trace count as cause and effect (see training.credit.dag)."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"RewardConfig.gamma must lie in [0, 1], not {self.gamma}.")
        values: list[tuple[str, float]] = [*(self.weights or {}).items(), *(self.ungraded or {}).items()]
        for name, value in values:
            if not math.isfinite(value):
                raise ValueError(f"RewardConfig: the value for {name!r} is {value}; it must be finite.")


def step_rewards(
    trace: Trace, declared: EnvironmentSpec | Sequence[RewardSpec], config: RewardConfig | None = None
) -> dict[str, float | None]:
    """The weighted reward of every live step (and of targets shared by several last steps, see the module).

    Args:
        declared: the environment's specification, or the components themselves (the environment's and the graders').

    Returns:
        A number for each live step; None for all of them where the outcome reward is missing and
        ``config.missing`` is ``none``. Rewards on superseded attempts do not count.

    Raises:
        UndeclaredRewardError: a component, in the trace or in ``config.weights``, that is not declared.
        MissingRewardError: the trace has no outcome component and ``config`` gives its outcome no value.
        SpecError: a value outside its declared range, or not finite.
        DuplicateRewardError: a target has a component twice.
        CreditError: a reward whose target is not in the trace, or a tool call id that two live steps share.
    """
    config = config or RewardConfig()
    specs = _declared(declared, config)
    graph = step_graph(trace, config.edges)
    _check(trace, specs)
    totals: dict[str, float | None] = dict.fromkeys(graph.ids, 0.0)
    if not _judged(trace, specs):
        value = (config.ungraded or {}).get(trace.outcome)
        if value is not None:
            _add(totals, _place(graph, trace.id), value)
        elif config.missing == "none":
            return dict.fromkeys(graph.ids, None)
        else:
            outcomes = ", ".join(sorted(n for n, s in specs.items() if s.kind == "outcome")) or "none is declared"
            raise MissingRewardError(
                f"Trace {trace.id} (task {trace.task.id}) ended as {trace.outcome!r} and carries no outcome component "
                f"({outcomes}). Let the environment or a grader emit one (0.0 too is a value), give "
                f"RewardConfig.ungraded[{trace.outcome!r}], or leave such traces out with missing='none'."
            )
    weights = {name: spec.weight for name, spec in specs.items()} | dict(config.weights or {})
    for reward in trace.rewards:
        key = _target(trace, graph, reward, config.edges)
        if key is not None:
            _add(totals, key, weights[reward.component] * reward.value)
    return totals


def call_rewards(
    trace: Trace, declared: EnvironmentSpec | Sequence[RewardSpec], config: RewardConfig | None = None
) -> dict[str, float]:
    """The weighted reward of every rewarded tool call of a live step, by call id; they are part of the step's reward.

    For ``training.credit.tokens.token_advantages``, which tells the calls of one message apart. Raises as
    :func:`step_rewards` does, but does not ask for an outcome.
    """
    config = config or RewardConfig()
    specs = _declared(declared, config)
    _check(trace, specs)
    weights = {name: spec.weight for name, spec in specs.items()} | dict(config.weights or {})
    live = {c.id for s in trace.live_steps for c in s.calls}
    totals: dict[str, float] = {}
    for reward in trace.rewards:
        if reward.target == "call" and reward.target_id in live:
            totals[reward.target_id] = totals.get(reward.target_id, 0.0) + weights[reward.component] * reward.value
    return totals


def _declared(declared: EnvironmentSpec | Sequence[RewardSpec], config: RewardConfig) -> dict[str, RewardSpec]:
    items = declared.rewards if isinstance(declared, EnvironmentSpec) else declared
    specs = {spec.name: spec for spec in items}
    if len(specs) != len(items):
        raise SpecError(f"A reward component is declared twice: {sorted(s.name for s in items)}.")
    for name in config.weights or {}:
        if name not in specs:
            raise UndeclaredRewardError(
                f"RewardConfig.weights names {name!r}, which is not declared (declared: {', '.join(sorted(specs))})."
            )
    return specs


def _check(trace: Trace, specs: Mapping[str, RewardSpec]) -> None:
    seen: set[tuple[str, str, str]] = set()
    for reward in trace.rewards:
        where = f"Trace {trace.id}: {reward.component!r} on {reward.target} {reward.target_id}"
        spec = specs.get(reward.component)
        if spec is None:
            raise UndeclaredRewardError(
                f"{where} (from {reward.source}) is not declared (declared: {', '.join(sorted(specs))}). Declare the "
                "component with its range, or stop emitting it."
            )
        if not spec.low - 1e-9 <= reward.value <= spec.high + 1e-9 or math.isinf(reward.value):
            raise SpecError(f"{where} is {reward.value}, outside its declared range [{spec.low}, {spec.high}].")
        key = (reward.target, reward.target_id, reward.component)
        if key in seen:
            raise DuplicateRewardError(f"{where} is there twice. Give the second writer a component of its own.")
        seen.add(key)


def _judged(trace: Trace, specs: Mapping[str, RewardSpec]) -> bool:
    """True if the trace carries an outcome component (any component, where no outcome is declared)."""
    outcomes = {name for name, spec in specs.items() if spec.kind == "outcome"} or set(specs)
    return any(reward.component in outcomes for reward in trace.rewards)


def _target(trace: Trace, graph: StepGraph, reward: Reward, edges: EdgeKind) -> str | None:
    """The key under which a reward counts; None for one on a superseded attempt."""
    what = f"Trace {trace.id}: {reward.component!r} is on {reward.target} {reward.target_id}, which"
    if reward.target == "trace":
        if reward.target_id != trace.id:
            raise CreditError(f"{what} is not this trace. Use the trace's own id.")
        return _place(graph, trace.id)
    if reward.target == "node_run":
        if reward.target_id not in {run.id for run in trace.node_runs}:
            raise CreditError(f"{what} is not a node run of this trace.")
        if _superseded_run(trace, reward.target_id):
            return None
        if edges == "chain" and not any(s.node_run == reward.target_id for s in trace.live_steps):
            raise CreditError(f"{what} made no model call, and edges='chain' cannot say which steps came before it.")
        return _place(graph, reward.target_id)
    if reward.target == "step":
        owners = [s for s in trace.steps if s.id == reward.target_id]
    else:
        owners = [s for s in trace.steps if any(c.id == reward.target_id for c in s.calls)]
    if not owners:
        raise CreditError(f"{what} is not in this trace.")
    live = [s.id for s in owners if not s.superseded]
    if len(live) > 1:
        raise CreditError(f"{what} is a call in {len(live)} live steps. Give every tool call an id of its own.")
    return live[0] if live else None


def _place(graph: StepGraph, target: str) -> str:
    """A single last step takes the reward itself; otherwise it stays under its target's id."""
    last = graph.last_before(target)
    return last[0] if len(last) == 1 else target


def _superseded_run(trace: Trace, run_id: str) -> bool:
    own = [s for s in trace.steps if s.node_run == run_id]
    if own:
        return all(s.superseded for s in own)
    return last_attempts(trace.node_runs)[run_id] != run_id


def _add(totals: dict[str, float | None], key: str, value: float) -> None:
    totals[key] = (totals.get(key) or 0.0) + value
