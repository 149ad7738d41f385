"""The environment as a graph node: the only one whose input holds the hidden state."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypedDict

from langchain_core.callbacks import dispatch_custom_event

from agentcore.environment import Action, Environment, Json, Task, ToolCall, Transition
from agentcore.errors import SpecError
from agentcore.events import CONTEXT_EVENT, OBSERVATION_EVENT, REWARD_EVENT, reward_event
from agentcore.keys import derive_key
from agentcore.state import AgentUpdate


class EnvironmentView(TypedDict, total=False):
    """What the environment node reads."""

    task: Json
    turn: int
    action: Json | None
    env_task: Json
    env_state: Json
    env_key: int


class EnvironmentNode:
    """Resets on its first visit, then applies the action; checks and emits every reward component."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def __call__(self, state: EnvironmentView) -> AgentUpdate:
        if not state.get("env_state"):
            return self._reset(state)
        before = state["env_state"]
        action = state.get("action") or {"message_id": None, "text": "", "calls": []}
        calls = tuple(ToolCall(**c) for c in action["calls"])
        turn = state.get("turn", 0) + 1
        transition = self.environment.step(
            before, Action(action["text"], calls), derive_key(state.get("env_key", 0), turn)
        )
        self._check(transition, calls)
        self._report(transition, action["message_id"], self.environment.anchor(before))
        names = {c.id: c.name for c in calls}
        return {
            "env_state": transition.state,
            "turn": turn,
            "observation": transition.observation,
            "results": [{**asdict(r), "name": names.get(r.call_id, "")} for r in transition.results],
            "outcome": transition.outcome,
            "feedback": _totals(transition),
            "action": None,
        }

    def _reset(self, state: EnvironmentView) -> AgentUpdate:
        task = _task(state, self.environment)
        transition = self.environment.reset(task, derive_key(state.get("env_key", 0), 0))
        public = {"id": task.id, "split": task.split, "instruction": task.instruction}
        return {
            "task": public,
            "env_state": transition.state,
            "turn": 0,
            "observation": transition.observation,
            "results": [],
            "outcome": transition.outcome,
        }

    def _check(self, transition: Transition, calls: tuple[ToolCall, ...]) -> None:
        spec = self.environment.spec
        spec.check_rewards(transition.rewards)
        for rewards in transition.call_rewards.values():
            spec.check_rewards(rewards)
        if [r.call_id for r in transition.results] != [c.id for c in calls]:
            raise SpecError(
                f"Environment {spec.name!r} gave {len(transition.results)} results for {len(calls)} tool calls; "
                "step() must return one result per call, in order."
            )

    @staticmethod
    def _report(transition: Transition, message_id: str | None, anchor: str) -> None:
        """Hand rewards, results and the anchor to whatever records this run, addressed by identity."""
        if message_id is None:
            return
        for name, value in transition.rewards.items():
            dispatch_custom_event(REWARD_EVENT, reward_event(name, value, "step", message_id, "environment"))
        for call_id, rewards in transition.call_rewards.items():
            for name, value in rewards.items():
                dispatch_custom_event(REWARD_EVENT, reward_event(name, value, "call", call_id, "environment"))
        dispatch_custom_event(OBSERVATION_EVENT, {"results": [asdict(r) for r in transition.results]})
        dispatch_custom_event(CONTEXT_EVENT, {"message_id": message_id, "anchor": anchor})


def _totals(transition: Transition) -> dict[str, float]:
    """Every component of the transition, those of its calls added up."""
    totals = dict(transition.rewards)
    for rewards in transition.call_rewards.values():
        for name, value in rewards.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def _task(state: EnvironmentView, environment: Environment) -> Task:
    """The task of the episode; a run started with a public task only (from a server, say) gets the one of that id."""
    if state.get("env_task"):
        return Task(**state["env_task"])
    wanted = (state.get("task") or {}).get("id")
    tasks = [*environment.tasks("heldout", 20)]
    found = [t for t in tasks if wanted in (None, t.id)]
    if not found:
        raise SpecError(
            f"No task {wanted!r}: give the whole task as 'env_task' (see agentcore.runner.agent_input), or leave "
            "'task' out to get the environment's first held-out task."
        )
    return found[0]


def agent_input(task: Task, key: int) -> dict[str, Any]:
    """The input with which an agent graph starts an episode."""
    public = {"id": task.id, "split": task.split, "instruction": task.instruction}
    return {"task": public, "env_task": asdict(task), "env_key": key}
