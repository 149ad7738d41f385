"""How a policy hands over what it sampled: to callback handlers, by run id, never inside the message."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from agentcore.environment import ToolCall
from agentcore.trace import Tokens


@runtime_checkable
class TokenSink(Protocol):
    """A callback handler that takes the exact tokens of a model call."""

    def on_tokens(self, run_id: UUID, tokens: Tokens, calls: tuple[ToolCall, ...], policy: Any) -> None:
        """``calls`` are all calls of the reply, unreadable ones included; ``policy`` is the chat model."""
        ...


@runtime_checkable
class RepeatCounter(Protocol):
    """A callback handler that knows how often a node has asked the same."""

    def repeat_of(self, run_id: UUID) -> int:
        """How many earlier calls of the same node, in any of its attempts, had the same prompt."""
        ...
