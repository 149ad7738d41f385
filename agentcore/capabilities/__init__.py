"""The six capabilities as graph nodes; each can be used singly in a graph of your own."""

from agentcore.capabilities.memory import MemoryNode
from agentcore.capabilities.perception import PerceptionNode
from agentcore.capabilities.planning import PlanningNode
from agentcore.capabilities.reasoning import ReasoningNode
from agentcore.capabilities.self_improvement import SelfImprovementNode
from agentcore.capabilities.tool_use import ToolUseNode

CAPABILITIES = ("perception", "memory", "planning", "reasoning", "tool_use", "self_improvement")

__all__ = [
    "CAPABILITIES",
    "MemoryNode",
    "PerceptionNode",
    "PlanningNode",
    "ReasoningNode",
    "SelfImprovementNode",
    "ToolUseNode",
]
