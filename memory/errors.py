"""The errors that memory raises. Each says what was wrong, where, and what to do about it."""

from __future__ import annotations


class MemoryStoreError(Exception):
    """Base of the package's own errors. Subclasses also inherit the standard error they specialise."""


class StoreConfigError(MemoryStoreError, ValueError):
    """A store was opened with settings that do not fit what it holds (dimension, embedder, metric)."""


class StoreClosedError(MemoryStoreError, RuntimeError):
    """An operation reached a store after ``close()``."""


class ReadOnlyError(MemoryStoreError, TypeError):
    """A write reached a frozen snapshot."""


class BadValueError(MemoryStoreError, ValueError):
    """A value, key, filter or operation that a store cannot hold or answer."""


class EmbedderError(MemoryStoreError, ValueError):
    """An embedder is missing, or returned something that is not one finite vector per text."""


class CorruptStoreError(MemoryStoreError, RuntimeError):
    """The files of a store contradict each other in a way that rebuilding cannot repair."""


class BeliefError(MemoryStoreError, ValueError):
    """A belief was asked for something it cannot do (unknown id, time running backwards, bad record)."""


class BudgetError(BeliefError):
    """A token budget that no rendering can meet."""
