"""Tool use: each call is checked against its schema before the environment sees it; an error becomes an observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from agentcore.environment import ToolCall, ToolSpec
from agentcore.state import AgentUpdate, AgentView
from agentcore.tools.checks import check_calls


class ToolUseNode:
    """Marks calls that can't be run with the reason; drops none."""

    def __init__(self, tools: Sequence[ToolSpec], *, max_calls: int = 4) -> None:
        self.tools = tuple(tools)
        self.max_calls = max_calls

    def __call__(self, state: AgentView) -> AgentUpdate:
        action = state.get("action") or {"text": "", "calls": []}
        checked = list(check_calls([ToolCall(**c) for c in action["calls"]], self.tools))
        for i, call in enumerate(checked):
            if i >= self.max_calls and call.error is None:
                checked[i] = replace(call, error=f"at most {self.max_calls} calls per turn are run")
        return {"action": {**action, "calls": [asdict(c) for c in checked]}}
