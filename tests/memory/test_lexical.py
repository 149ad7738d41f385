"""BM25 against bm25s, over parts, groups and selections of documents."""

from __future__ import annotations

import random
import threading

import bm25s
import numpy as np
import pytest

from memory.lexical import Lexicon, bm25, match_scores, minmax, words

VOCABULARY = [f"w{i}" for i in range(30)]


def corpus(count: int, seed: int = 0) -> list[list[str]]:
    rng = random.Random(seed)
    return [[rng.choice(VOCABULARY) for _ in range(rng.randint(1, 12))] for _ in range(count)]


def reference(documents: list[list[str]], query: list[str]) -> np.ndarray:
    model = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    model.index(documents, show_progress=False)
    # bm25s leaves out the constant factor k1 + 1, as Lucene does since version 8.
    return np.asarray(model.get_scores(query)) * 2.2


def lexicon(documents: list[list[str]]) -> Lexicon:
    made = Lexicon()
    made.add(documents)
    return made


def test_scores_are_those_of_bm25s() -> None:
    documents = corpus(60)
    for query in (["w1"], ["w1", "w2", "w1"], ["w3", "missing"]):
        ours = bm25(query, [(lexicon(documents), np.arange(60))])
        assert ours == pytest.approx(reference(documents, query), rel=1e-5)


def test_statistics_are_those_of_the_chosen_documents() -> None:
    documents = corpus(80)
    chosen = np.arange(1, 80, 3)
    ours = bm25(["w1", "w5"], [(lexicon(documents), chosen)])
    assert ours == pytest.approx(reference([documents[i] for i in chosen], ["w1", "w5"]), rel=1e-5)


def test_parts_are_scored_as_one_corpus() -> None:
    documents = corpus(50)
    parts = [(lexicon(documents[:20]), np.arange(20)), (lexicon(documents[20:]), np.arange(30))]
    assert bm25(["w1", "w2"], parts) == pytest.approx(reference(documents, ["w1", "w2"]), rel=1e-5)


def test_groups_are_scored_as_documents() -> None:
    documents = corpus(40)
    groups = np.arange(40) % 7
    merged = [[word for i in range(40) if i % 7 == group for word in documents[i]] for group in range(7)]
    ours = bm25(["w1", "w2"], [(lexicon(documents), np.arange(40))], groups)
    assert ours == pytest.approx(reference(merged, ["w1", "w2"]), rel=1e-5)


def test_nothing_to_score() -> None:
    assert bm25(["w1"], [(Lexicon(), np.zeros(0, np.int64))]).shape == (0,)
    assert bm25([], [(lexicon([["a"]]), np.arange(1))]).tolist() == [0.0]
    assert match_scores("anything", []) == [] and match_scores("zzz", ["a b"]) == [0.0]
    assert minmax([3.0, 3.0]).tolist() == [0.0, 0.0] and minmax([]).shape == (0,)


def test_words() -> None:
    assert words("When did Caroline's sister GO running?") == words("caroline's sister go run")
    assert words("the of and") == [] and words("Ünïcode 42") == ["ünïcode", "42"]


def test_adding_while_scoring() -> None:
    made = lexicon(corpus(100))
    stop = threading.Event()
    errors: list[BaseException] = []

    def score() -> None:
        try:
            while not stop.is_set():
                count = len(made)
                assert len(bm25(["w1", "w2"], [(made, np.arange(count))])) == count
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=score) for _ in range(3)]
    for thread in threads:
        thread.start()
    for seed in range(60):
        made.add(corpus(20, seed))
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
