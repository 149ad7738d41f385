"""Embedders: one interface over LangChain ``Embeddings``, plain functions, and two that need no network."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from memory.errors import EmbedderError

Vectors = NDArray[np.float32]
EmbedFunction = Callable[[list[str]], Any] | Callable[[list[str]], Awaitable[Any]]
EmbedderLike = Embeddings | EmbedFunction

PROBE = "The quick brown fox jumps over the lazy dog; 12 men in 3 boats."
"""Embedded once when a store is made and again when it is opened: equal vectors mean the same embedder."""


class HashingEmbedder(Embeddings):
    """Deterministic bag of hashed words and character trigrams, for tests: no model, no files, any process.

    Texts that share words have a positive cosine; it knows no synonyms. Vectors have unit length; a text without
    letters or digits is the zero vector.
    """

    def __init__(self, dims: int = 64) -> None:
        if dims < 1:
            raise EmbedderError(f"HashingEmbedder needs at least 1 dimension, got {dims}.")
        self.dims = dims
        self.name = f"hashing-{dims}"

    def _features(self, text: str) -> list[tuple[str, float]]:
        words = re.findall(r"\w+", text.lower())
        trigrams = [f"#{word[i : i + 3]}" for word in words for i in range(len(word) - 2)]
        return [(word, 1.0) for word in words] + [(gram, 0.3) for gram in trigrams]

    def _embed(self, text: str) -> list[float]:
        vector = np.zeros(self.dims, np.float64)
        for feature, weight in self._features(text):
            digest = hashlib.blake2b(feature.encode("utf-8", "replace"), digest_size=8).digest()
            number = int.from_bytes(digest, "little")
            vector[(number >> 1) % self.dims] += weight if number & 1 else -weight
        norm = float(np.linalg.norm(vector))
        return cast("list[float]", (vector / norm if norm else vector).tolist())

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One unit vector of ``dims`` floats per text."""
        return [self._embed(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """A query is embedded like a document."""
        return self._embed(text)


class WordLlamaEmbedder(Embeddings):
    """wordllama's 256-dimensional static embeddings, read from its own package folder: no torch, no network.

    Source: https://github.com/dleemiller/WordLlama (MIT).
    """

    def __init__(self) -> None:
        try:
            package = importlib.import_module("wordllama")
        except ImportError as error:
            raise EmbedderError(
                "The default embedder needs the package 'wordllama' (pip install wordllama). Install it, or pass "
                "embedder=<LangChain Embeddings or a function of texts> to the store."
            ) from error
        folder = Path(str(package.__file__)).parent
        self._model: Any = package.WordLlama.load(cache_dir=folder, disable_download=True)
        # The tokenizer's padding settings are mutable state, so one thread at a time.
        self._lock = threading.Lock()
        self.name = "wordllama-256"

    def embed_array(self, texts: Sequence[str]) -> Vectors:
        """float32 ``(len(texts), 256)`` of unit length; an empty text is the zero vector."""
        with self._lock:
            vectors = np.asarray(self._model.embed(list(texts)), np.float32)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return cast(Vectors, vectors / np.where(norms == 0, 1, norms))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One unit vector of 256 floats per text."""
        return cast("list[list[float]]", self.embed_array(texts).tolist()) if texts else []

    def embed_query(self, text: str) -> list[float]:
        """A query is embedded like a document."""
        return self.embed_documents([text])[0]


@lru_cache(maxsize=1)
def default_embedder() -> WordLlamaEmbedder:
    """The shared offline default, loaded on first use (about 0.2 s)."""
    return WordLlamaEmbedder()


class Embedder:
    """What a store calls: float32 arrays, checked, for documents and queries, sync and async.

    Wraps a LangChain ``Embeddings`` or a function ``texts -> vectors`` (sync or async). An async function serves
    only the async methods of a store.
    """

    def __init__(self, source: EmbedderLike, dims: int | None = None) -> None:
        self.source = source
        self.dims = dims
        """Dimension; known after the first vectors where it was not given."""
        self.name = describe(source)
        call = getattr(source, "__call__", None)  # noqa: B004 - the method itself is inspected, not called
        self.async_only = not isinstance(source, Embeddings) and (
            inspect.iscoroutinefunction(source) or inspect.iscoroutinefunction(call)
        )
        if not isinstance(source, Embeddings) and not callable(source):
            raise EmbedderError(
                f"An embedder must be a LangChain Embeddings or a function of texts, got {type(source).__name__}."
            )

    def documents(self, texts: Sequence[str]) -> Vectors:
        """float32 ``(len(texts), dims)``."""
        if not texts:
            return np.zeros((0, self.dims or 0), np.float32)
        clean = [_encodable(text) for text in texts]
        if isinstance(self.source, WordLlamaEmbedder):
            return self._check(self.source.embed_array(clean), len(clean))
        if isinstance(self.source, Embeddings):
            return self._check(self.source.embed_documents(clean), len(clean))
        if self.async_only:
            raise EmbedderError(
                f"The embedder {self.name!r} is an async function; use the store's async methods (aput, asearch, "
                "abatch), or pass a sync function or a LangChain Embeddings."
            )
        return self._check(cast(Any, self.source)(clean), len(clean))

    def queries(self, texts: Sequence[str]) -> Vectors:
        """float32 ``(len(texts), dims)``; embedded as queries where the source tells them from documents."""
        if isinstance(self.source, WordLlamaEmbedder) or not isinstance(self.source, Embeddings) or not texts:
            return self.documents(texts)
        return self._check([self.source.embed_query(_encodable(text)) for text in texts], len(texts))

    async def adocuments(self, texts: Sequence[str]) -> Vectors:
        """Like :meth:`documents`, without blocking the event loop."""
        if not texts:
            return np.zeros((0, self.dims or 0), np.float32)
        clean = [_encodable(text) for text in texts]
        if isinstance(self.source, Embeddings) and not isinstance(self.source, WordLlamaEmbedder):
            return self._check(await self.source.aembed_documents(clean), len(clean))
        if self.async_only:
            return self._check(await cast(Any, self.source)(clean), len(clean))
        return await asyncio.to_thread(self.documents, clean)

    async def aqueries(self, texts: Sequence[str]) -> Vectors:
        """Like :meth:`queries`, without blocking the event loop."""
        if isinstance(self.source, WordLlamaEmbedder) or not isinstance(self.source, Embeddings) or not texts:
            return await self.adocuments(texts)
        source = self.source
        vectors = await asyncio.gather(*(source.aembed_query(_encodable(text)) for text in texts))
        return self._check(vectors, len(texts))

    def _check(self, raw: Any, count: int) -> Vectors:
        try:
            vectors = np.asarray(raw, np.float32)
        except (TypeError, ValueError) as error:
            raise EmbedderError(f"The embedder {self.name!r} returned something that is not numbers: {error}") from None
        if vectors.ndim != 2 or vectors.shape[0] != count or vectors.shape[1] == 0:
            raise EmbedderError(
                f"The embedder {self.name!r} returned an array of shape {vectors.shape} for {count} texts; it must "
                "return one vector per text, all of one length."
            )
        if self.dims is not None and vectors.shape[1] != self.dims:
            raise EmbedderError(
                f"The embedder {self.name!r} returned vectors of {vectors.shape[1]} dimensions where {self.dims} were "
                "expected. Pass the embedder the store was made with, or make a new store for this one."
            )
        if not np.isfinite(vectors).all():
            raise EmbedderError(f"The embedder {self.name!r} returned NaN or infinity, which is near to nothing.")
        self.dims = int(vectors.shape[1])
        return np.ascontiguousarray(vectors)


def describe(source: object) -> str:
    """A name for an embedder: its own ``name`` or model where it has one, else where it is defined."""
    for attribute in ("name", "model", "model_name"):
        value = getattr(source, attribute, None)
        if isinstance(value, str) and value:
            return value if attribute == "name" else f"{type(source).__name__}:{value}"
    target = source if inspect.isroutine(source) else type(source)
    return f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', '?')}"


def _encodable(text: str) -> str:
    # Lone surrogates cannot be encoded, and tokenizers raise on them.
    return text.encode("utf-8", "replace").decode("utf-8")
