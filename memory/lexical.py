"""Words, and BM25 over documents that are only ever added.

A document never changes (an updated item is a new document), so one set of postings serves the store as of any
generation: a score counts only the documents that are allowed, and all statistics (N, document frequencies, mean
length) are those of the allowed ones. Libraries such as bm25s build an index once over a fixed corpus, which does not
fit a memory that changes with every step; the tests compare the scores with theirs.
"""

from __future__ import annotations

import math
import re
import threading
from array import array
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import Stemmer
from numpy.typing import NDArray

from memory.columns import Grown

Floats = NDArray[np.float64]
_WORD = re.compile(r"\w+")
_STOP = """
a about am an and any are as at be been but by can could d did do does for from had has have he her him his how i if in
into is it its just ll m me my no not of on or our re s she should so such t that the their them then there these they
this to ve was we were what when where which who will with would you your
"""
STOPWORDS = frozenset(_STOP.split())
"""Words that say nothing about what a text is about (question words too: no answer contains them)."""
_local = threading.local()


def words(text: str) -> list[str]:
    """English stems of the words and numbers of a text, in order, without stopwords and apostrophes."""
    found = _WORD.findall(text.lower().replace("'", "").replace("\u2019", ""))
    kept = [word for word in found if word not in STOPWORDS]
    # A stemmer is not thread-safe.
    stemmer = getattr(_local, "stemmer", None)
    if stemmer is None:
        stemmer = _local.stemmer = Stemmer.Stemmer("english")
    return cast("list[str]", stemmer.stemWords(kept))


class Lexicon:
    """Postings of documents 0, 1, 2, …; safe to use from many threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.lengths = Grown(np.int32)
        self._postings: dict[str, tuple[array[int], array[int]]] = {}

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, documents: Sequence[Sequence[str]]) -> None:
        """Append documents, given as their words."""
        with self.lock:
            for number, document in enumerate(documents, len(self)):
                for word, count in Counter(document).items():
                    numbers, counts = self._postings.setdefault(word, (array("q"), array("q")))
                    numbers.append(number)
                    counts.append(count)
            self.lengths.extend([len(document) for document in documents])

    def posting(self, word: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The documents that hold a word, and how often."""
        with self.lock:
            found = self._postings.get(word)
            if found is None:
                return np.zeros(0, np.int64), np.zeros(0, np.int64)
            # Copies: an array cannot grow while numpy looks into it.
            return np.array(found[0], np.int64), np.array(found[1], np.int64)


def bm25(
    query: Sequence[str],
    parts: Sequence[tuple[Lexicon, NDArray[np.int64]]],
    groups: NDArray[np.int64] | None = None,
    *,
    k1: float = 1.2,
    b: float = 0.75,
) -> Floats:
    """BM25 of the chosen documents of several lexicons, as if they were one corpus.

    Args:
        query: Words; one that comes twice counts twice.
        parts: Lexicons with the documents chosen from each, (n_i,).
        groups: (Σ n_i,) numbers 0 … g-1; the documents of a group are then scored as one.

    Returns:
        (Σ n_i,), or (g,) with groups: Σ_w idf(w) · tf · (k1 + 1) / (tf + k1 · (1 - b + b · length / mean length)) with
        idf(w) = ln(1 + (N - df + ½) / (df + ½)), as in Lucene (Robertson & Zaragoza 2009).
    """
    places = [_places(len(lexicon), chosen) for lexicon, chosen in parts]
    offsets = np.concatenate([[0], np.cumsum([len(chosen) for _, chosen in parts])]).astype(np.int64)
    lengths = np.concatenate([lexicon.lengths.view[chosen].astype(np.float64) for lexicon, chosen in parts])
    if groups is not None:
        lengths = np.bincount(groups, weights=lengths).astype(np.float64)
    scores: Floats = np.zeros(len(lengths))
    if not len(scores):
        return scores
    norm = k1 * (1 - b + b * lengths / (float(lengths.mean()) or 1.0))
    for word, times in Counter(query).items():
        at, counts = _occurrences(word, parts, places, offsets)
        if groups is not None and len(at):
            summed = np.bincount(groups[at], weights=counts, minlength=len(scores)).astype(np.float64)
            at = np.flatnonzero(summed)
            counts = summed[at]
        idf = times * math.log(1 + (len(scores) - len(at) + 0.5) / (len(at) + 0.5))
        scores[at] += idf * counts * (k1 + 1) / (counts + norm[at])
    return scores


def _occurrences(
    word: str, parts: Sequence[tuple[Lexicon, Any]], places: Sequence[NDArray[np.int64]], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Floats]:
    """The chosen documents that hold a word, numbered through all parts, and how often each does."""
    found, counted = [], []
    for (lexicon, _), place, offset in zip(parts, places, offsets[:-1], strict=True):
        numbers, counts = lexicon.posting(word)
        # Documents that were added since the choice was made have no place.
        inside = numbers < len(place)
        at = place[numbers[inside]]
        found.append(at[at >= 0] + offset)
        counted.append(counts[inside][at >= 0])
    return np.concatenate(found), np.concatenate(counted).astype(np.float64)


def _places(size: int, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.full(max(size, int(chosen.max(initial=-1)) + 1), -1, np.int64)
    places[chosen] = np.arange(len(chosen))
    return places


def match_scores(query: str, texts: Sequence[str]) -> list[float]:
    """BM25 of each text for a query, scaled so that the best is 1 (all 0 where nothing matches)."""
    lexicon = Lexicon()
    lexicon.add([_cached_words(text) for text in texts])
    scores = bm25(words(query), [(lexicon, np.arange(len(texts)))])
    best = float(scores.max(initial=0.0))
    return cast("list[float]", (scores / best if best else scores).tolist())


@lru_cache(maxsize=20_000)
def _cached_words(text: str) -> tuple[str, ...]:
    # A belief is projected again and again with mostly the same lines.
    return tuple(words(text))


def minmax(scores: Any) -> Floats:
    """Scores scaled to [0, 1] over their range; all 0 where they are all equal."""
    values = np.asarray(scores, np.float64)
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    return (values - low) / (high - low) if high > low else np.zeros_like(values)
