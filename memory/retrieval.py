"""First cut of retrieval; the API stays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from langgraph.store.base import BaseStore

from memory.lexical import match_scores


@dataclass(frozen=True, slots=True)
class Hit:
    """One retrieved item."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    score: float
    why: dict[str, float] = field(default_factory=dict)


class Retriever:
    """Dense and BM25, min-max fused."""

    def __init__(self, store: BaseStore, *, text: str = "text", **_: Any) -> None:
        self.store, self.text = store, text

    def search(self, namespace: tuple[str, ...], query: str, k: int = 5) -> list[Hit]:
        """The ``k`` best items for the query, best first."""
        items = self.store.search(namespace, query=query, limit=10_000)
        lexical = match_scores(query, [str(item.value.get(self.text, item.value)) for item in items])
        hits = []
        for item, bm25 in zip(items, lexical, strict=True):
            dense = item.score or 0.0
            why = {"dense": dense / 2, "bm25": bm25 / 2, "neighbour": 0.0, "recency": 0.0, "importance": 0.0}
            hits.append(Hit(item.namespace, item.key, item.value, sum(why.values()), why))
        return sorted(hits, key=lambda hit: -hit.score)[:k]
