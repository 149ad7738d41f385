"""The errors that agentcore raises. Each says what was wrong, where, and what to do about it."""

from __future__ import annotations


class AgentCoreError(Exception):
    """Base of the package's own errors. Subclasses also inherit the standard error they specialise."""


class SpecError(AgentCoreError, ValueError):
    """An environment, task or graph breaks the contract it declared."""


class UndeclaredRewardError(SpecError):
    """A reward component was emitted that the specification does not declare."""


class TraceFormatError(AgentCoreError, ValueError):
    """A trace file holds something that is not a trace of a supported schema version."""


class DuplicateRewardError(AgentCoreError, ValueError):
    """Two writers set the same reward component on the same target."""


class PolicyError(AgentCoreError, RuntimeError):
    """A policy could not be loaded or could not act (unknown model, wrong adapter, missing extra)."""


class ContextOverflowError(PolicyError):
    """A prompt and the reply it asks for do not fit the model's context. Ends one episode, not a rollout."""
