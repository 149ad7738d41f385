"""Memory for agents: a LangGraph store on FAISS and SQLite, retrieval, and a belief state on top of them."""

from memory.belief import BeliefState, Updater
from memory.belief_memory import BeliefMemory, Observation
from memory.corpus import Fields
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
from memory.retrieval import Hit, Retriever, Weights
from memory.snapshot import Overlay, Snapshot
from memory.store import FaissStore
from memory.updating import RuleUpdater

__all__ = [
    "BadValueError",
    "BeliefChange",
    "BeliefError",
    "BeliefMemory",
    "BeliefState",
    "BudgetError",
    "CorruptStoreError",
    "Embedder",
    "EmbedderError",
    "Evidence",
    "Fact",
    "FaissStore",
    "Fields",
    "HashingEmbedder",
    "Hit",
    "Hypothesis",
    "MemoryStoreError",
    "Observation",
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
    "Weights",
    "WordLlamaEmbedder",
]
