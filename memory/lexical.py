"""Words and BM25."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence


def words(text: str) -> list[str]:
    """Lower-case words and numbers."""
    return re.findall(r"\w+", text.lower())


def match_scores(query: str, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> list[float]:
    """BM25 of each text for the query, scaled so that the best is 1 (all 0 where nothing matches)."""
    counts = [Counter(words(text)) for text in texts]
    lengths = [sum(count.values()) for count in counts]
    mean = (sum(lengths) / len(lengths) if lengths else 0) or 1.0
    scores = [0.0] * len(texts)
    for term in set(words(query)):
        holders = [i for i, count in enumerate(counts) if term in count]
        idf = math.log(1 + (len(texts) - len(holders) + 0.5) / (len(holders) + 0.5))
        for i in holders:
            tf = counts[i][term]
            scores[i] += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * lengths[i] / mean))
    best = max(scores, default=0.0)
    return [score / best for score in scores] if best else scores
