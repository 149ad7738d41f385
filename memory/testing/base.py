"""What the checks of the store kit share: an embedder of eight words, and the hooks a subclass fills in."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, IndexConfig, TTLConfig

WORDS = ("cat", "dog", "sun", "moon", "tea", "rain", "oak", "salt")
NS = ("kit",)


class WordEmbedder(Embeddings):
    """One axis per word of :data:`WORDS`; a query ``about cat`` is a vector only if it is embedded as a query."""

    def _axes(self, text: str) -> list[float]:
        return [0.01] + [float(word in text) for word in WORDS]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """``about …`` means nothing in a document."""
        return [self._axes("" if text.startswith("about ") else text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The axes of its words."""
        return self._axes(text)


def by_text(fields: Sequence[str] = ("text",), **more: Any) -> IndexConfig:
    """An index configuration with the kit's embedder."""
    config: dict[str, Any] = {"dims": len(WORDS) + 1, "embed": WordEmbedder(), "fields": list(fields), **more}
    return config  # type: ignore[return-value]


class StoreKit:
    """What a subclass fills in."""

    has_async = True
    """Whether ``abatch`` works on the store that ``make_store`` gives."""
    l2: ClassVar[dict[str, Any] | None] = None
    """Index configuration entries that choose the Euclidean distance, where the store has one."""

    def make_store(self, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None) -> BaseStore:
        """A new, empty store."""
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Let time pass for the store; override it where the store takes a clock."""
        time.sleep(seconds)

    def reopen(self, store: BaseStore) -> BaseStore | None:
        """The same store opened again, or None where it does not persist."""
        return None

    def close(self, store: BaseStore) -> None:
        """Let a store go."""
        close = getattr(store, "close", None)
        if callable(close):
            close()

    @contextlib.contextmanager
    def store(self, index: IndexConfig | None = None, ttl: TTLConfig | None = None) -> Iterator[BaseStore]:
        """A new store, closed afterwards."""
        store = self.make_store(index=index, ttl=ttl)
        try:
            yield store
        finally:
            self.close(store)


def value_of(store: BaseStore, key: str) -> dict[str, Any]:
    """The value under a key of the kit's namespace."""
    return (store.get(NS, key) or gone()).value


def scores_of(store: BaseStore, query: str) -> dict[str, Any]:
    """The scores of all items of the kit's namespace for a query, by key."""
    return {item.key: item.score for item in store.search(NS, query=query, limit=100)}


def gone() -> Any:
    """An item that should be there is not."""
    raise AssertionError("the item is not there")


def raises(kind: type[Exception], action: Callable[[], object]) -> None:
    """The action raises that kind of error."""
    try:
        action()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
