"""How good a belief is, measured against known truth and without a judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from memory.belief import BeliefState
from memory.records import Fact, normal

Key = tuple[str, str]
"""Subject and relation, as :func:`memory.records.normal` writes them."""
Truth = Mapping[Key, str | None]
"""The true value of each key that was ever spoken of; None where nothing is true (any more)."""


def key_of(subject: str | None, relation: str | None) -> Key:
    """The key of a subject and relation."""
    return normal(subject), normal(relation)


def evidence_recall(text: str, evidence: Collection[str]) -> float:
    """Share of the evidence texts that stand in a rendered belief word for word; 1 where there are none."""
    return sum(piece in text for piece in evidence) / len(evidence) if evidence else 1.0


def _held(belief: BeliefState) -> list[tuple[Key, Fact]]:
    return [
        (key_of(fact.subject, fact.relation), fact) for fact in belief.active if fact.subject and fact.kind != "note"
    ]


def update_error(belief: BeliefState, truth: Truth) -> float:
    """Share of the keys about which the belief is wrong: it holds another value than the true one, or several, or
    none, or something where nothing is true."""
    values: dict[Key, set[str]] = {key: set() for key in truth}
    for key, fact in _held(belief):
        if key in values:
            values[key].add(normal(fact.value))
    wrong = sum(values[key] != ({normal(value)} if value is not None else set()) for key, value in truth.items())
    return wrong / len(truth) if truth else 0.0


def staleness(belief: BeliefState, truth: Truth, past: Mapping[Key, Collection[str]]) -> float:
    """Share of the held facts whose value was true once and is not any more; ``past`` holds all once true values."""
    held = [(key, normal(fact.value)) for key, fact in _held(belief) if key in truth]
    stale = sum(
        value != normal(truth[key]) and value in {normal(old) for old in past.get(key, ())} for key, value in held
    )
    return stale / len(held) if held else 0.0


def contradiction_rate(belief: BeliefState, multivalued: Collection[str] = ()) -> float:
    """Share of the held keys that have more than one value at once, leaving out relations that may."""
    several = {normal(relation) for relation in multivalued}
    values: dict[Key, set[str]] = {}
    for key, fact in _held(belief):
        if key[1] not in several:
            values.setdefault(key, set()).add(normal(fact.value))
    return sum(len(found) > 1 for found in values.values()) / len(values) if values else 0.0


def brier(pairs: Iterable[tuple[float, bool]]) -> float:
    """Mean of (confidence - outcome)², in [0, 1]; 0.25 is what always saying one half scores (Brier 1950)."""
    squares = [(confidence - float(outcome)) ** 2 for confidence, outcome in pairs]
    return sum(squares) / len(squares) if squares else 0.0


def calibration(belief: BeliefState, truth: Truth) -> float:
    """Brier score of the confidence of the held facts whose truth is known."""
    known = [(key, fact) for key, fact in _held(belief) if key in truth]
    return brier((fact.confidence, normal(fact.value) == normal(truth[key])) for key, fact in known)


@dataclass(frozen=True, slots=True)
class Measures:
    """All measures of one belief."""

    update_error: float
    staleness: float
    contradiction_rate: float
    brier: float
    facts: int
    """Facts held."""
    tokens: int
    """Tokens of the whole belief, rendered without a limit."""
    bytes: int
    """Bytes of its JSON form, with everything that was ever held."""


def measure(
    belief: BeliefState, truth: Truth, past: Mapping[Key, Collection[str]], count_tokens: Callable[[str], int]
) -> Measures:
    """All measures of a belief against known truth."""
    return Measures(
        update_error=update_error(belief, truth),
        staleness=staleness(belief, truth, past),
        contradiction_rate=contradiction_rate(belief),
        brier=calibration(belief, truth),
        facts=len(belief.active),
        tokens=belief.project(budget=2**31, count_tokens=count_tokens).tokens,
        bytes=len(json.dumps(belief.to_json()).encode()),
    )
