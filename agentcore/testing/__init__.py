"""Contract kits for other people's environments; :mod:`agentcore.testing.contract` says what they pin."""

from agentcore.testing.cases import Episode, check_transition, hostile_calls
from agentcore.testing.contract import EnvironmentContract

__all__ = ["EnvironmentContract", "Episode", "check_transition", "hostile_calls"]
