"""Agents as LangGraph graphs that remember, plan, and get better from their own traces."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentcore.shadow import find_shadowing

if TYPE_CHECKING:
    from agentcore.environment import Action, Environment, EnvironmentSpec, RewardSpec, Task, Transition
    from agentcore.environments import make_environment
    from agentcore.events import aemit_reward, emit_reward
    from agentcore.graph import build_agent
    from agentcore.policies.local import LocalChatModel
    from agentcore.recorder import Recorder
    from agentcore.runner import episodes, rollout
    from agentcore.trace import Step, Trace
    from agentcore.tracefile import TraceReader, TraceWriter, read_traces

__version__ = "0.1.0"

_hidden = find_shadowing()
if _hidden:
    raise ImportError(_hidden)

_EXPORTS = {
    "Action": "agentcore.environment",
    "Environment": "agentcore.environment",
    "EnvironmentSpec": "agentcore.environment",
    "LocalChatModel": "agentcore.policies.local",
    "Recorder": "agentcore.recorder",
    "RewardSpec": "agentcore.environment",
    "Step": "agentcore.trace",
    "Task": "agentcore.environment",
    "Trace": "agentcore.trace",
    "TraceReader": "agentcore.tracefile",
    "TraceWriter": "agentcore.tracefile",
    "Transition": "agentcore.environment",
    "aemit_reward": "agentcore.events",
    "build_agent": "agentcore.graph",
    "emit_reward": "agentcore.events",
    "episodes": "agentcore.runner",
    "make_environment": "agentcore.environments",
    "read_traces": "agentcore.tracefile",
    "rollout": "agentcore.runner",
}

__all__ = [
    "Action",
    "Environment",
    "EnvironmentSpec",
    "LocalChatModel",
    "Recorder",
    "RewardSpec",
    "Step",
    "Task",
    "Trace",
    "TraceReader",
    "TraceWriter",
    "Transition",
    "__version__",
    "aemit_reward",
    "build_agent",
    "emit_reward",
    "episodes",
    "make_environment",
    "read_traces",
    "rollout",
]


def __getattr__(name: str) -> Any:
    """Public names load on first use: importing the package stays fast."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'agentcore' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
