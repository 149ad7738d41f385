"""Memory for agents: a LangGraph store on FAISS and SQLite, retrieval, and a belief state on top of them."""

from memory.belief import BeliefState, Updater
from memory.embedding import Embedder, HashingEmbedder, WordLlamaEmbedder
from memory.errors import (
    BadValueError,
    BeliefError,
    BudgetError,
    CorruptStoreError,
    EmbedderError,
    MemoryStoreError,
    ReadOnlyError,
    StoreClosedError,
    StoreConfigError,
)
from memory.projection import Projection
from memory.records import BeliefChange, Evidence, Fact, Hypothesis, Progress, Question, Statement
from memory.retrieval import Hit, Retriever
from memory.snapshot import Overlay, Snapshot
from memory.store import FaissStore
from memory.updating import RuleUpdater

__all__ = [
    "BadValueError",
    "BeliefChange",
    "BeliefError",
    "BeliefState",
    "BudgetError",
    "CorruptStoreError",
    "Embedder",
    "EmbedderError",
    "Evidence",
    "Fact",
    "FaissStore",
    "HashingEmbedder",
    "Hit",
    "Hypothesis",
    "MemoryStoreError",
    "Overlay",
    "Progress",
    "Projection",
    "Question",
    "ReadOnlyError",
    "Retriever",
    "RuleUpdater",
    "Snapshot",
    "Statement",
    "StoreClosedError",
    "StoreConfigError",
    "Updater",
    "WordLlamaEmbedder",
]
