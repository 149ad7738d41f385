"""What the contract kit plays with: an episode as it was played, bad tool calls, and what every transition must be."""

from __future__ import annotations

import json
from dataclasses import dataclass

from agentcore.environment import Action, EnvironmentSpec, Json, Task, ToolCall, Transition


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode as the kit played it: what was asked, and every transition from ``reset`` on."""

    task: Task
    actions: tuple[Action, ...]
    transitions: tuple[Transition, ...]
    """One more than actions; the first is the reset's."""

    @property
    def last(self) -> Transition:
        return self.transitions[-1]

    def total(self, component: str) -> float:
        """Sum of one reward component over actions and calls."""
        return sum(
            rewards.get(component, 0.0)
            for transition in self.transitions
            for rewards in (transition.rewards, *transition.call_rewards.values())
        )


def hostile_calls(spec: EnvironmentSpec) -> list[ToolCall]:
    """Tool calls as a broken or hostile policy writes them; none may raise. Some are valid, if odd, arguments."""
    deep: Json = {}
    for _ in range(500):
        deep = {"a": deep}
    calls = [
        ToolCall("bad-0", "", {}),
        ToolCall("bad-1", "no_such_tool", {"x": 1}),
        ToolCall("bad-2", "__import__", {"name": "os"}),
        ToolCall("bad-3", "../../etc/passwd", {}),
        ToolCall("bad-4", "\x00\u202e\ud800", {"\ud800": "\x1b[31m"}),
    ]
    wrong: list[object] = [
        {},
        {"no_such_argument": 1},
        {"": None},
        deep,
        {"x" * 50_000: "y" * 50_000},
        {"a": float("nan"), "b": float("inf"), "c": 10**5000},
        [1, 2],
        None,
        "text",
    ]
    garbage: list[object] = [
        None,
        True,
        -1,
        1e308,
        float("nan"),
        "",
        "\x00",
        "\ud800",
        "'; DROP TABLE x; --",
        "{{7*7}}",
        [],
        {},
    ]
    for tool in spec.actions:
        names = list(tool.parameters.get("properties", {}))
        for args in wrong + [dict.fromkeys(names, value) for value in garbage]:
            calls.append(ToolCall(f"bad-{len(calls)}", tool.name, args))  # type: ignore[arg-type]
        calls.append(ToolCall(f"bad-{len(calls)}", tool.name, {}, error="the call could not be parsed", raw="<tool"))
    return calls


def check_transition(spec: EnvironmentSpec, action: Action, transition: Transition) -> None:
    """One result per call in order, rewards on known calls, declared and in range, a JSON state, a known outcome."""
    ids = [call.id for call in action.calls]
    assert [result.call_id for result in transition.results] == ids, "There must be one result per call, in order."
    transition.observation.encode()  # must be storable, as must the results
    for result in transition.results:
        result.content.encode()
    assert set(transition.call_rewards) <= set(ids), "call_rewards names a call that the action does not have."
    spec.check_rewards(transition.rewards)
    for rewards in transition.call_rewards.values():
        spec.check_rewards(rewards)
    assert transition.outcome in (None, "terminated", "truncated"), f"Unknown outcome {transition.outcome!r}."
    json.dumps(transition.state, allow_nan=False)
