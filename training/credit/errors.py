"""What credit assignment refuses, and what to do about it."""

from __future__ import annotations

from agentcore.errors import AgentCoreError


class CreditError(AgentCoreError, ValueError):
    """Traces, rewards or options from which no advantage can be computed as asked."""


class MissingRewardError(CreditError):
    """A trace or a step has no reward where one is needed. A missing reward is never taken for 0."""


class MissingAnchorError(CreditError):
    """An estimator that groups steps by state met a step whose state has no name."""


class UnknownEdgesError(CreditError):
    """The trace does not know which node run triggered which, so returns are not defined."""
