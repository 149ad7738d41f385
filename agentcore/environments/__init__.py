"""Built-in environments, by name."""

from __future__ import annotations

from typing import Any

from agentcore.environment import Environment
from agentcore.errors import SpecError

NAMES = ("assistant", "frozen-lake")


def make_environment(name: str, **options: Any) -> Environment:
    """The environment called ``name`` (``assistant`` or ``frozen-lake``), built with ``options``.

    Raises:
        SpecError: for an unknown name, naming those that exist.
    """
    if name == "assistant":
        from agentcore.environments.assistant import AssistantEnvironment

        return AssistantEnvironment(**options)
    if name in ("frozen-lake", "frozen_lake"):
        from agentcore.environments.frozen_lake import FrozenLakeEnvironment

        return FrozenLakeEnvironment(**options)
    raise SpecError(f"Unknown environment {name!r}; choose from {', '.join(NAMES)}.")
