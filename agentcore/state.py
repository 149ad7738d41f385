"""The state of an agent graph: what its nodes read and write.

``AgentView`` is all that the capability nodes can read. ``AgentState`` adds the hidden channels of the environment,
which only the environment node's input schema contains: no policy can peek.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages

from agentcore.environment import Json


class AgentView(TypedDict, total=False):
    """What perception, memory, planning, reasoning, tool use and self-improvement may read."""

    task: Json
    """Public part of the task: id, split, instruction."""
    turn: int
    """Environment steps taken so far."""
    observation: str
    """The raw text the environment showed last."""
    results: list[Json]
    """Tool results of the last action: call_id, name, content, ok."""
    percept: Json
    """The structured observation: statements, open matters, errors."""
    belief: Json
    """The belief state (``memory.BeliefState.to_json``)."""
    shown: list[str]
    """What memory hands to the policy this turn: changed facts and recalled items, within the token budget."""
    filed: list[str]
    """Ids of statements that were filed in memory and not shown yet."""
    memory_ids: list[str]
    """Memory items recalled this turn."""
    contradicted: list[str]
    """Subjects whose facts an observation of this turn contradicted."""
    plan: list[Json]
    """Plan steps: text, about, status."""
    plan_note: str
    """The plan as it should be shown this turn; empty while it has not changed."""
    messages: Annotated[list[AnyMessage], add_messages]
    """The conversation as the policy is shown it."""
    action: Json | None
    """The checked action: text and calls."""
    outcome: str | None
    feedback: dict[str, float]
    """Reward components of the last transition, as the agent may see them after the episode."""
    reflection: str
    """What the agent made of a failure."""


class AgentState(AgentView, total=False):
    """The whole state, hidden channels included."""

    env_task: Json
    """The full task, its hidden data included."""
    env_state: Json
    env_key: int
    """Random key of the episode, kept beside the environment's state; a fork gets a new one."""


AgentUpdate = dict[str, Any]
"""What a node returns: some channels of the state."""
