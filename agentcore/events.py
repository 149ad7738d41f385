"""What nodes and tools tell whoever records the run: rewards, results and context, addressed by identity."""

from __future__ import annotations

import math

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.runnables import RunnableConfig

from agentcore.environment import Json
from agentcore.errors import SpecError
from agentcore.trace import RewardTarget

REWARD_EVENT = "agentcore.reward"
OBSERVATION_EVENT = "agentcore.observation"
CONTEXT_EVENT = "agentcore.context"


def reward_event(component: str, value: float, target: RewardTarget, target_id: str, source: str) -> Json:
    """The payload of one reward event.

    Raises:
        SpecError: if the value is not a finite number.
    """
    if not math.isfinite(value):
        raise SpecError(f"The reward {component!r} is {value}; give a finite number.")
    return {"component": component, "value": float(value), "target": target, "target_id": target_id, "source": source}


def emit_reward(
    component: str,
    value: float,
    *,
    tool_call_id: str | None = None,
    source: str = "environment",
    config: RunnableConfig | None = None,
) -> None:
    """Reward the present node run, or the tool call ``tool_call_id``, from inside a node or a tool."""
    target: RewardTarget = "call" if tool_call_id is not None else "node_run"
    payload = reward_event(component, value, target, tool_call_id or "", source)
    dispatch_custom_event(REWARD_EVENT, payload, config=config)


async def aemit_reward(
    component: str,
    value: float,
    *,
    tool_call_id: str | None = None,
    source: str = "environment",
    config: RunnableConfig | None = None,
) -> None:
    """:func:`emit_reward` for asynchronous code."""
    target: RewardTarget = "call" if tool_call_id is not None else "node_run"
    payload = reward_event(component, value, target, tool_call_id or "", source)
    await adispatch_custom_event(REWARD_EVENT, payload, config=config)
