"""Embedders: the offline default, the hashing one, and the wrapper a store calls them through."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from memory import Embedder, EmbedderError, HashingEmbedder, WordLlamaEmbedder
from memory.embedding import default_embedder, describe


class TwoSided(Embeddings):
    """Queries and documents on different axes."""

    model = "two-sided-1"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        return [0.0, 1.0]


def test_the_default_knows_meaning_and_is_offline() -> None:
    embedder = default_embedder()
    assert embedder is default_embedder() and embedder.name == "wordllama-256"
    car, vehicle, soup, empty = np.array(embedder.embed_documents(["a fast car", "quick vehicle", "hot soup", ""]))
    assert car.shape == (256,) and car @ vehicle > car @ soup
    assert np.linalg.norm(car) == pytest.approx(1) and not empty.any()
    assert embedder.embed_query("a fast car") == pytest.approx(car.tolist()) and embedder.embed_documents([]) == []


def test_the_default_is_safe_from_many_threads() -> None:
    embedder = WordLlamaEmbedder()
    texts = [f"text number {i} " * (i % 7 + 1) for i in range(60)]
    alone = embedder.embed_array(texts)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: embedder.embed_array([text])[0], texts))
    assert np.allclose(np.array(found), alone, atol=1e-5)


def test_hashing_is_deterministic_and_sees_shared_words() -> None:
    embedder = HashingEmbedder(64)
    one, two, other = np.array(embedder.embed_documents(["red apple", "apple RED", "zebra"]))
    assert one == pytest.approx(two) and one @ one == pytest.approx(1) and abs(one @ other) < 0.6
    assert not any(embedder.embed_query("...")) and embedder.embed_query("red apple") == one.tolist()
    with pytest.raises(EmbedderError):
        HashingEmbedder(0)


def test_the_wrapper_takes_embeddings_and_functions() -> None:
    async def afunction(texts: list[str]) -> Any:
        return np.ones((len(texts), 3))

    class Callable_:
        async def __call__(self, texts: list[str]) -> Any:
            return np.ones((len(texts), 3))

    wrapped = Embedder(TwoSided())
    assert wrapped.documents(["a"]).tolist() == [[1, 0]] and wrapped.queries(["a"]).tolist() == [[0, 1]]
    assert asyncio.run(wrapped.aqueries(["a", "b"])).tolist() == [[0, 1], [0, 1]] and wrapped.dims == 2
    assert asyncio.run(wrapped.adocuments(["a"])).dtype == np.float32
    function = Embedder(lambda texts: [[1.0, 2.0]] * len(texts))
    assert function.queries(["a"]).tolist() == [[1, 2]] and asyncio.run(function.aqueries(["a"])).tolist() == [[1, 2]]
    for source in (afunction, Callable_()):
        only_async = Embedder(source, dims=3)
        assert only_async.async_only and asyncio.run(only_async.adocuments(["a"])).shape == (1, 3)
        with pytest.raises(EmbedderError, match="async"):
            only_async.documents(["a"])
    assert wrapped.documents([]).shape == (0, 2) and asyncio.run(wrapped.adocuments([])).shape == (0, 2)
    with pytest.raises(EmbedderError, match="Embeddings or a function"):
        Embedder(3)  # type: ignore[arg-type]


def test_names() -> None:
    assert describe(TwoSided()) == "TwoSided:two-sided-1" and describe(HashingEmbedder(4)) == "hashing-4"
    assert describe(test_names).endswith("test_embedding.test_names")


def test_texts_that_cannot_be_encoded() -> None:
    assert Embedder(default_embedder()).documents(["lone \ud800 surrogate"]).shape == (1, 256)


def test_dimensions_must_stay() -> None:
    wrapped = Embedder(lambda texts: [[0.0] * len(texts[0])] * len(texts))
    wrapped.documents(["four"])
    with pytest.raises(EmbedderError, match="5 dimensions where 4"):
        wrapped.documents(["fives"])
