"""The built-in environment: an assistant whose facts arrive over several turns, some later corrected.

State: the hidden world (registry, messages to come, right answer), what was delivered and what is known.
Observation: the result of each tool call, and the messages that arrived with this turn.
It is instant and deterministic from a task; only the policy is random. Memory matters, since corrections arrive
after the price they correct, once, and the registry keeps showing the old one; credit matters, since one wrong
call among right ones decides the outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from agentcore.environment import (
    Action,
    EnvironmentSpec,
    Json,
    Outcome,
    RewardSpec,
    Split,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Transition,
)
from agentcore.environments.arithmetic import evaluate
from agentcore.environments.assistant_tasks import PRESETS, Difficulty, draw_task
from agentcore.errors import SpecError
from agentcore.tools.checks import check_calls

PROGRESS_SCALE = 0.3
"""Φ of a state in which every needed price is known; small beside the 1 for success."""

_ONE_STRING = "string"


def _tool(name: str, description: str, argument: str, kind: str = _ONE_STRING) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": {argument: {"type": kind}},
        "required": [argument],
        "additionalProperties": False,
    }
    return ToolSpec(name, description, schema)


TOOLS = (
    _tool("lookup", "registry entry of an item or a place", "name"),
    _tool("compute", "arithmetic, e.g. 12+30", "expression"),
    _tool("search_notes", "messages received so far that mention the query", "query"),
    _tool("answer", "give the final answer", "value", "integer"),
)

REWARDS = (
    RewardSpec("success", 0.0, 1.0, "1 if the answer is right, 0 if it is wrong", "outcome"),
    RewardSpec(
        "progress",
        -PROGRESS_SCALE,
        PROGRESS_SCALE,
        "change of a potential: share of the needed prices that are known as they stand now; 0 in final states",
        "progress",
        weight=0.0,  # logged; as a baseline it is worse than none until the policy succeeds often
    ),
    RewardSpec("invalid_call", -0.1, 0.0, "a call that is malformed, unknown or has wrong arguments", "penalty"),
    RewardSpec("truncation", -0.2, 0.0, "the step limit ended the episode without an answer", "outcome"),
)


class AssistantEnvironment:
    """Facts over several turns; see the module's docstring. Follows :class:`agentcore.environment.Environment`."""

    def __init__(
        self, level: str = "hard", *, step_limit: int | None = None, mixture: Sequence[Difficulty] | None = None
    ) -> None:
        """Args:
        level: name of a preset mixture of difficulties (``easy``, ``medium``, ``hard``, ``long``).
        step_limit: environment steps after which an episode is truncated; by default 10, or what it takes to hear all
            messages and then to add up and answer.
        mixture: difficulties of your own, cycled through; ``level`` then only names them.
        """
        if mixture is None:
            if level not in PRESETS:
                raise SpecError(f"Unknown level {level!r} of the assistant environment; choose from {sorted(PRESETS)}.")
            mixture = PRESETS[level]
        self.level = level
        self.mixture = tuple(mixture)
        if step_limit is None:
            step_limit = max(10, *(d.messages + 4 for d in self.mixture))
        self.spec = EnvironmentSpec(
            name="assistant",
            version="1",
            state="registry, messages to come, the right answer, what was delivered and what is known",
            observation="tool results and the messages that arrived this turn",
            actions=TOOLS,
            termination="the agent answers",
            step_limit=step_limit,
            rewards=REWARDS,
            forkable="exact",
        )

    def tasks(self, split: Split, count: int, *, seed: int = 0) -> list[Task]:
        """``count`` tasks; adversarial ones plant an instruction inside a tool result."""
        tasks = []
        for i in range(count):
            d = self.mixture[i % len(self.mixture)]
            if split == "adversarial":
                d = Difficulty(d.facts, d.hops, d.late, d.corrections, d.distractors, d.verbosity, inject=True)
            tasks.append(draw_task(self.spec.name, split, i, seed, self.level, d))
        return tasks

    def reset(self, task: Task, key: int) -> Transition:
        missing = {"targets", "registry", "schedule", "answer"} - set(task.data)
        if missing:
            raise SpecError(
                f"Task {task.id!r} is not one of the assistant environment: its data lacks {sorted(missing)}."
            )
        state: Json = {
            "world": task.data,
            "turn": 0,
            "delivered": [],
            "prices": {},
            "corrected": [],
            "place_known": False,
            "looked_up": [],
            "sum": None,
            "done": False,
        }
        return Transition(state, self._pending_text(state))

    def step(self, state: Json, action: Action, key: int) -> Transition:
        if state["done"]:
            raise SpecError("This episode is over: its state is final. Call reset(task, key) to start another one.")
        before = self._potential(state)
        now: Json = {
            **state,
            "turn": state["turn"] + 1,
            "delivered": list(state["delivered"]),
            "prices": dict(state["prices"]),
            "corrected": list(state["corrected"]),
            "looked_up": list(state["looked_up"]),
        }
        results: list[ToolResult] = []
        rewards: dict[str, float] = {}
        call_rewards: dict[str, dict[str, float]] = {}
        outcome: Outcome | None = None
        for call in check_calls(action.calls, TOOLS):
            if now["done"]:
                results.append(ToolResult(call.id, "The episode is over; this call was not run.", ok=False))
                continue
            result = self._run(now, call)
            results.append(result)
            if not result.ok:
                call_rewards[call.id] = {"invalid_call": -0.1}
        if now["done"]:
            outcome = "terminated"
            rewards["success"] = 1.0 if now["answered"] == now["world"]["answer"] else 0.0
        elif now["turn"] >= self.spec.step_limit:
            now["done"] = True
            outcome = "truncated"
            rewards.update(success=0.0, truncation=-0.2)
        observation = "" if now["done"] else self._deliver(now)
        if not action.calls:
            rewards["invalid_call"] = -0.1
            observation = f"No tool was called. Call one tool.\n{observation}".strip()
        rewards["progress"] = self._potential(now) - before
        return Transition(now, observation, tuple(results), rewards, call_rewards, outcome)

    def anchor(self, state: Json) -> str:
        world = state["world"]
        known = [(t, state["prices"].get(t)) for t in world["targets"]]
        pending = len(world["schedule"]) - len(state["delivered"])
        parts = (world["targets"], known, state["place_known"], state["sum"], pending, state["done"])
        return repr(parts)

    def oracle(self, state: Json) -> Action:
        """A good action that uses only what the agent was told (it does not peek at the answer)."""
        return Action("", (ToolCall(f"oracle-{state['turn']}", *self._oracle_call(state)),))

    # -- one call -------------------------------------------------------------------------------------------

    def _run(self, now: Json, call: ToolCall) -> ToolResult:
        if call.error is not None:
            return ToolResult(call.id, f"Error: {call.error}", ok=False)
        tools: dict[str, tuple[str, Callable[[Json, Any], tuple[str, bool]]]] = {
            "lookup": ("name", self._lookup),
            "compute": ("expression", self._compute),
            "search_notes": ("query", self._search),
            "answer": ("value", self._answer),
        }
        argument, run = tools[call.name]
        value = call.args[argument]
        if len(str(value)) > 200:
            return ToolResult(call.id, f"Error: {argument} must have at most 200 characters.", ok=False)
        content, ok = run(now, value)
        return ToolResult(call.id, content, ok)

    def _lookup(self, now: Json, name: Any) -> tuple[str, bool]:
        registry = now["world"]["registry"]
        found = next((k for k in registry if k.lower() == str(name).strip().lower()), None)
        if found is None:
            asked = [t for t in now["world"]["targets"] if t == str(name).strip().lower()]
            now["looked_up"] += [t for t in asked if t not in now["looked_up"]]
            return f"{str(name)[:40]}: no entry.", True
        if found not in now["looked_up"]:
            now["looked_up"].append(found)
        if found == now["world"]["place"]:
            now["place_known"] = True
        self._learn(now, registry[found])
        return str(registry[found]), True

    def _compute(self, now: Json, expression: Any) -> tuple[str, bool]:
        try:
            value = evaluate(str(expression))
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError) as error:
            return f"Error: cannot compute that ({type(error).__name__}).", False
        now["sum"] = value
        return f"{str(expression)[:80]} = {value}", True

    def _search(self, now: Json, query: Any) -> tuple[str, bool]:
        words = {w for w in re.findall(r"\w+", str(query).lower()) if len(w) > 2}
        hits = [line for line in now["delivered"] if words & set(re.findall(r"\w+", line.lower()))]
        return ("\n".join(hits[-2:]) if hits else "No message mentions that."), True

    def _answer(self, now: Json, value: Any) -> tuple[str, bool]:
        text = str(value).strip()
        if not re.fullmatch(r"-?\d{1,9}", text):
            return "Error: answer needs a whole number of at most 9 digits.", False
        now["done"], now["answered"] = True, int(text)
        return "Answer received.", True

    # -- messages and what is known -------------------------------------------------------------------------

    def _deliver(self, now: Json) -> str:
        """Hand over this turn's messages and say how many are still to come."""
        schedule, lines = now["world"]["schedule"], []
        index = now["turn"] - 1
        if index < len(schedule):
            for line in schedule[index]:
                lines.append(line)
                now["delivered"].append(line)
                self._learn(now, line)
        return "\n".join([*lines, self._pending_text(now)])

    @staticmethod
    def _pending_text(state: Json) -> str:
        pending = max(0, len(state["world"]["schedule"]) - state["turn"])
        return f"Messages to come: {pending}."

    @staticmethod
    def _learn(now: Json, line: str) -> None:
        """What an attentive reader knows after this line; a correction outlives what the registry says."""
        match = re.search(r"(\w+) costs (\d+)\.", line)
        if match is None:
            return
        item, price = match.group(1), int(match.group(2))
        if line.startswith("Correction:"):
            now["corrected"].append(item)
        elif item in now["corrected"]:
            return
        now["prices"][item] = price

    def _potential(self, state: Json) -> float:
        if state["done"]:
            return 0.0
        targets = state["world"]["targets"]
        known = sum(1 for t in targets if t in state["prices"] and self._reachable(state, t))
        return PROGRESS_SCALE * known / len(targets)

    @staticmethod
    def _reachable(state: Json, target: str) -> bool:
        """Whether the agent can know that this is an item it was asked for."""
        world = state["world"]
        return world["place"] is None or target != world["targets"][-1] or state["place_known"]

    def _oracle_call(self, state: Json) -> tuple[str, Json]:
        world = state["world"]
        for target in world["targets"]:
            if not self._reachable(state, target):
                return "lookup", {"name": world["place"]}
            if target not in state["prices"]:
                asked = target in state["looked_up"]
                return ("search_notes", {"query": target}) if asked else ("lookup", {"name": target})
        if len(world["schedule"]) > state["turn"]:
            return "search_notes", {"query": world["targets"][0]}
        values = [state["prices"][t] for t in world["targets"]]
        if len(values) > 1 and state["sum"] != sum(values):
            return "compute", {"expression": "+".join(map(str, values))}
        return "answer", {"value": sum(values)}
