"""Tools: arguments checked against their schema, calls run within limits; an error becomes an observation."""

from agentcore.tools.checks import check_call, check_calls
from agentcore.tools.limits import ToolLimits, ToolTimeoutError, arun_limited, run_limited, truncate
from agentcore.tools.run import arun_tools, run_tools, tool_spec

__all__ = [
    "ToolLimits",
    "ToolTimeoutError",
    "arun_limited",
    "arun_tools",
    "check_call",
    "check_calls",
    "run_limited",
    "run_tools",
    "tool_spec",
    "truncate",
]
