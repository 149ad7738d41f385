"""The records a belief is made of, and their JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from memory.errors import BeliefError

StatementKind = Literal["fact", "correction", "retraction", "note"]
EditOp = Literal["ADD", "UPDATE", "DELETE", "NOOP"]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Statement:
    """What perception hands to the belief updater: one claim read from one observation."""

    text: str
    evidence_id: str
    """Id of the observation it came from."""
    subject: str | None = None
    relation: str | None = None
    value: str | None = None
    kind: StatementKind = "fact"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation that speaks for or against a fact."""

    id: str
    time: float
    weight: float
    """Log-odds: positive supports, negative contradicts."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One claim with the evidence for and against it, and the time it was held."""

    id: str
    text: str
    evidence: tuple[Evidence, ...]
    since: float
    """Time from which it was held to be true."""
    subject: str | None = None
    relation: str | None = None
    value: str | None = None
    kind: Literal["fact", "note", "summary"] = "fact"
    until: float | None = None
    """Time at which it was retired; None while it is held."""
    replaced_by: str | None = None
    """Id of the fact that took its place."""
    parents: tuple[str, ...] = ()
    """Ids a summary stands for; they are kept and can be expanded again."""
    folded: tuple[tuple[float, float | None], ...] = ()
    """Periods [from, to) in which a summary stood in for it (to None: it still does)."""

    @property
    def confidence(self) -> float:
        """Probability in (0, 1) that the claim is true, given its evidence."""
        return sigmoid(sum(piece.weight for piece in self.evidence))

    @property
    def supporting(self) -> tuple[str, ...]:
        """Ids of the evidence for it, oldest first."""
        return tuple(piece.id for piece in self.evidence if piece.weight >= 0)

    @property
    def contradicting(self) -> tuple[str, ...]:
        """Ids of the evidence against it, oldest first."""
        return tuple(piece.id for piece in self.evidence if piece.weight < 0)

    @property
    def active(self) -> bool:
        """Held to be true and not folded into a summary."""
        return self.until is None and not (self.folded and self.folded[-1][1] is None)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A guess that evidence has not settled."""

    id: str
    text: str
    evidence: tuple[Evidence, ...]
    since: float
    until: float | None = None
    verdict: Literal["confirmed", "rejected"] | None = None

    @property
    def confidence(self) -> float:
        """Probability in (0, 1), from the evidence's log-odds; 0.5 without any."""
        return sigmoid(sum(piece.weight for piece in self.evidence))


@dataclass(frozen=True, slots=True)
class Question:
    """Something the agent needs to find out."""

    id: str
    text: str
    since: float
    until: float | None = None
    answer: str | None = None
    evidence_id: str | None = None
    """The observation that answered it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a goal or plan stood from ``time`` on; the last entry of a key is the current one."""

    key: str
    text: str
    time: float


@dataclass(frozen=True, slots=True)
class BeliefChange:
    """One logged edit of a belief. Applying the changes in order to the old belief gives the new one."""

    op: EditOp
    fact_id: str | None
    """The fact held after the edit (ADD, UPDATE, NOOP) or the one retired (DELETE); None where nothing matched."""
    before: Fact | None
    after: Fact | None
    """The fact after the edit. For UPDATE by another value this is the new fact, ``before`` the retired one."""
    evidence_id: str
    time: float = 0.0
    touched: tuple[Fact, ...] = ()
    """Every fact the edit wrote, as it is after it."""
    revision_before: str = ""
    """Names the whole belief before the edit (see :attr:`BeliefState.revision`)."""
    revision_after: str = ""


def sigmoid(log_odds: float) -> float:
    """The probability of a claim with these log-odds; finite for every finite input."""
    if log_odds >= 0:
        return 1 / (1 + math.exp(-min(log_odds, 700)))
    odds = math.exp(max(log_odds, -700))
    return odds / (1 + odds)


def logit(probability: float) -> float:
    """The log-odds of a probability in (0, 1)."""
    if not 0 < probability < 1:
        raise BeliefError(f"A probability must lie strictly between 0 and 1, got {probability}.")
    return math.log(probability / (1 - probability))


def normal(text: str | None) -> str:
    """A text without case, surrounding or repeated space, for comparing."""
    return " ".join((text or "").casefold().split())


def fact_to_json(fact: Fact) -> Json:
    """A fact as a JSON object, without the fields that are empty."""
    data: Json = {"id": fact.id, "text": fact.text, "since": fact.since, "kind": fact.kind}
    data["evidence"] = [[piece.id, piece.time, piece.weight] for piece in fact.evidence]
    for name in ("subject", "relation", "value", "until", "replaced_by"):
        if (value := getattr(fact, name)) is not None:
            data[name] = value
    if fact.parents:
        data["parents"] = list(fact.parents)
    if fact.folded:
        data["folded"] = [list(period) for period in fact.folded]
    return data


def fact_from_json(data: Mapping[str, Any]) -> Fact:
    """The fact that :func:`fact_to_json` wrote; raises :class:`BeliefError` on anything else."""
    try:
        rest = {name: data.get(name) for name in ("subject", "relation", "value", "replaced_by")}
        return Fact(
            id=str(data["id"]),
            text=str(data["text"]),
            evidence=evidence_from_json(data["evidence"]),
            since=number(data["since"]),
            kind=data["kind"],
            parents=tuple(str(parent) for parent in data.get("parents", ())),
            until=optional_number(data.get("until")),
            folded=tuple((number(period[0]), optional_number(period[1])) for period in data.get("folded", ())),
            **rest,
        )
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise BeliefError(f"Not a fact written by to_json: {error!r} in {str(data)[:200]}") from error


def evidence_from_json(data: Any) -> tuple[Evidence, ...]:
    """Evidence from its ``[id, time, weight]`` triples."""
    return tuple(Evidence(str(name), number(when), float(number(weight))) for name, when, weight in data)


def number(value: Any) -> float:
    """A finite number as it is (times may be integers); raises TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{value!r} is not a number")
    return value


def optional_number(value: Any) -> float | None:
    """A number or None."""
    return None if value is None else number(value)
