"""What an agent holds to be true: an explicit filter b' = update(b, a, o) over facts with evidence.

A belief is frozen. Confidence follows the evidence: each piece carries a weight in log-odds, and a fact's
confidence is the logistic function of the sum (the Bayes update of a binary hypothesis from independent
observations). Nothing is forgotten: a retired fact keeps its evidence, and ``as_of(t)`` shows the belief as it was.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

from memory.belief_json import belief_to_json, fields_from_json
from memory.errors import BeliefError
from memory.projection import Projection, project
from memory.records import (
    BeliefChange,
    Evidence,
    Fact,
    Hypothesis,
    Json,
    Progress,
    Question,
    Statement,
    fact_to_json,
    normal,
)
from memory.updating import RuleUpdater


class Updater(Protocol):
    """Decides how one statement changes a belief: rules, or a policy. It must not change the belief itself."""

    def __call__(self, belief: BeliefState, statement: Statement, time: float) -> Iterable[BeliefChange]: ...


@dataclass(frozen=True, slots=True)
class BeliefState:
    """Facts, hypotheses, open questions and progress, with everything that was ever held.

    All methods return a new belief. Times are any numbers that do not run backwards (step numbers, seconds).
    """

    facts: tuple[Fact, ...] = ()
    """Held, retired and folded facts, in order of their first appearance."""
    hypotheses: tuple[Hypothesis, ...] = ()
    questions: tuple[Question, ...] = ()
    progress: tuple[Progress, ...] = ()
    time: float = 0.0
    """Time of the last change."""
    revision: str = ""
    """Hash chained over all changes: two beliefs with the same history have the same revision."""
    counter: int = 0
    """Number of ids given out."""

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def active(self) -> tuple[Fact, ...]:
        """The facts held now, summaries in place of what they stand for."""
        return tuple(fact for fact in self.facts if fact.active)

    @property
    def open_questions(self) -> tuple[Question, ...]:
        """The questions not resolved yet."""
        return tuple(question for question in self.questions if question.until is None)

    @property
    def open_hypotheses(self) -> tuple[Hypothesis, ...]:
        """The hypotheses not settled yet."""
        return tuple(guess for guess in self.hypotheses if guess.until is None)

    @property
    def current_progress(self) -> dict[str, Progress]:
        """The last entry of each key, in order of the keys' first appearance."""
        return {entry.key: entry for entry in self.progress}

    def fact(self, fact_id: str) -> Fact:
        """The fact of that id, held or retired."""
        for fact in self.facts:
            if fact.id == fact_id:
                return fact
        raise BeliefError(f"The belief has no fact {fact_id!r}; it knows {len(self.facts)} facts.")

    def find(self, subject: str | None, relation: str | None) -> tuple[Fact, ...]:
        """The facts held about that subject and relation (compared without case and spacing); notes claim nothing."""
        return tuple(fact for fact in self.history(subject, relation) if fact.active)

    def history(self, subject: str | None, relation: str | None) -> tuple[Fact, ...]:
        """Everything that was ever held about that subject and relation, oldest first."""
        wanted = (normal(subject), normal(relation))
        claims = (fact for fact in self.facts if fact.subject and fact.kind != "note")
        return tuple(fact for fact in claims if (normal(fact.subject), normal(fact.relation)) == wanted)

    def as_of(self, time: float) -> BeliefState:
        """The belief as it was at ``time``: later facts, evidence, answers and summaries are undone."""
        return BeliefState(
            facts=tuple(_fact_as_of(fact, time) for fact in self.facts if fact.since <= time),
            hypotheses=tuple(
                replace(guess, evidence=_until(guess.evidence, time), **_reopened(guess.until, time, verdict=None))
                for guess in self.hypotheses
                if guess.since <= time
            ),
            questions=tuple(
                replace(question, **_reopened(question.until, time, answer=None, evidence_id=None))
                for question in self.questions
                if question.since <= time
            ),
            progress=tuple(entry for entry in self.progress if entry.time <= time),
            time=min(self.time, time),
            revision=f"{self.revision}@{time}",
            counter=self.counter,
        )

    # -- updating -----------------------------------------------------------------------------------------------

    def update(
        self, statements: Iterable[Statement], time: float, *, updater: Updater | None = None
    ) -> tuple[BeliefState, tuple[BeliefChange, ...]]:
        """b' = update(b, a, o): one logged change per statement. The default updater is rule-based, needs no model."""
        decide: Updater = updater or RuleUpdater()
        belief, changes = self.at(time), []
        for statement in statements:
            for change in decide(belief, statement, time):
                belief, logged = belief.apply(replace(change, time=time))
                changes.append(logged)
        return belief, tuple(changes)

    def apply(self, change: BeliefChange) -> tuple[BeliefState, BeliefChange]:
        """Carry out one change; returns the new belief and the change with both revisions filled in."""
        if change.revision_before and change.revision_before != self.revision:
            raise BeliefError(
                f"A change made on belief revision {change.revision_before} cannot be applied to {self.revision}. "
                "Apply changes in the order in which they were logged, to the belief they started from."
            )
        facts = {fact.id: fact for fact in self.facts}
        fresh = sum(1 for fact in change.touched if fact.id not in facts)
        facts.update((fact.id, fact) for fact in change.touched)
        what = ["change", change.op, change.evidence_id, [fact_to_json(fact) for fact in change.touched]]
        after = self._next(change.time, what, facts=tuple(facts.values()), counter=self.counter + fresh)
        return after, replace(change, revision_before=self.revision, revision_after=after.revision)

    def at(self, time: float) -> BeliefState:
        """The same belief at a later time."""
        self._check_time(time)
        return self if time == self.time else replace(self, time=time)

    # -- questions, hypotheses, progress ------------------------------------------------------------------------

    def ask(self, text: str, *, time: float | None = None) -> BeliefState:
        """Add an open question; asking an open one again changes nothing."""
        when = self._when(time)
        if any(normal(question.text) == normal(text) for question in self.open_questions):
            return self.at(when)
        question = Question(f"q{self.counter + 1}", text, when)
        questions = (*self.questions, question)
        return self._next(when, ["ask", text], questions=questions, counter=self.counter + 1)

    def resolve(
        self, question_id: str, answer: str, *, evidence_id: str | None = None, time: float | None = None
    ) -> BeliefState:
        """Close an open question with its answer."""
        when = self._when(time)
        old = _one(self.open_questions, question_id, "open question")
        new = replace(old, until=when, answer=answer, evidence_id=evidence_id)
        return self._next(when, ["resolve", question_id, answer], questions=_swap(self.questions, new))

    def suppose(self, text: str, *, time: float | None = None) -> BeliefState:
        """Add a hypothesis at even odds; supposing an open one again changes nothing."""
        when = self._when(time)
        if any(normal(guess.text) == normal(text) for guess in self.open_hypotheses):
            return self.at(when)
        guess = Hypothesis(f"h{self.counter + 1}", text, (), when)
        hypotheses = (*self.hypotheses, guess)
        return self._next(when, ["suppose", text], hypotheses=hypotheses, counter=self.counter + 1)

    def weigh(
        self, hypothesis_id: str, evidence_id: str, *, supports: bool, weight: float = 1.0, time: float | None = None
    ) -> BeliefState:
        """Add evidence for or against an open hypothesis; ``weight`` is in log-odds and positive."""
        when = self._when(time)
        if not weight > 0:
            raise BeliefError(f"A weight must be positive, got {weight}; say supports=False for evidence against.")
        old = _one(self.open_hypotheses, hypothesis_id, "open hypothesis")
        piece = Evidence(evidence_id, when, weight if supports else -weight)
        new = replace(old, evidence=(*old.evidence, piece))
        what = ["weigh", hypothesis_id, evidence_id, piece.weight]
        return self._next(when, what, hypotheses=_swap(self.hypotheses, new))

    def settle(
        self, hypothesis_id: str, verdict: Literal["confirmed", "rejected"], *, time: float | None = None
    ) -> BeliefState:
        """Close an open hypothesis."""
        when = self._when(time)
        new = replace(_one(self.open_hypotheses, hypothesis_id, "open hypothesis"), until=when, verdict=verdict)
        return self._next(when, ["settle", hypothesis_id, verdict], hypotheses=_swap(self.hypotheses, new))

    def set_progress(self, key: str, text: str, *, time: float | None = None) -> BeliefState:
        """Say where a goal or plan stands; the earlier entries of the key are kept."""
        when = self._when(time)
        current = self.current_progress.get(key)
        if current is not None and current.text == text:
            return self.at(when)
        return self._next(when, ["progress", key, text], progress=(*self.progress, Progress(key, text, when)))

    # -- compression --------------------------------------------------------------------------------------------

    def compress(self, fact_ids: Collection[str], text: str, *, time: float | None = None) -> BeliefState:
        """Fold held facts into one summary. Reversible: the summary keeps their ids, they keep their evidence."""
        when = self._when(time)
        if not fact_ids:
            raise BeliefError("A summary needs at least one fact to stand for.")
        parents = [_one(self.active, fact_id, "held fact") for fact_id in fact_ids]
        # A summary is as sure as the least sure fact in it.
        weight = min(sum(piece.weight for piece in fact.evidence) for fact in parents)
        evidence = (Evidence(f"summary:{','.join(fact_ids)}", when, weight),)
        ids = tuple(fact_ids)
        summary = Fact(f"f{self.counter + 1}", text, evidence, when, kind="summary", parents=ids)
        folded = {fact.id: replace(fact, folded=(*fact.folded, (when, None))) for fact in parents}
        facts = (*(folded.get(fact.id, fact) for fact in self.facts), summary)
        return self._next(when, ["compress", list(ids), text], facts=facts, counter=self.counter + 1)

    def expand(self, summary_id: str, *, time: float | None = None) -> BeliefState:
        """Undo a summary: the facts it stands for are held again and it is retired."""
        when = self._when(time)
        summary = _one(self.active, summary_id, "held fact")
        if not summary.parents:
            raise BeliefError(f"Fact {summary_id!r} is not a summary; only a summary can be expanded.")
        changed = {summary_id: replace(summary, until=when)}
        for fact in self.facts:
            if fact.id in summary.parents and fact.folded:
                changed[fact.id] = replace(fact, folded=(*fact.folded[:-1], (fact.folded[-1][0], when)))
        facts = tuple(changed.get(fact.id, fact) for fact in self.facts)
        return self._next(when, ["expand", summary_id], facts=facts)

    # -- projecting and storing ---------------------------------------------------------------------------------

    def project(
        self,
        query: str = "",
        *,
        budget: int,
        count_tokens: Callable[[str], int],
        scores: Mapping[str, float] | None = None,
    ) -> Projection:
        """Render what matters to ``query`` into at most ``budget`` tokens, and say what was left out.

        ``count_tokens`` is the policy's own tokenizer; ``scores`` (item id to relevance in [0, 1]) replaces the
        built-in word match. See :func:`memory.projection.project`.
        """
        return project(self, query, budget=budget, count_tokens=count_tokens, scores=scores)

    def to_json(self) -> Json:
        """A JSON object; :meth:`from_json` gives an equal belief."""
        return belief_to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BeliefState:
        """Read what :meth:`to_json` wrote; raises :class:`BeliefError` on anything else."""
        return cls(**fields_from_json(data))

    # -- helpers ------------------------------------------------------------------------------------------------

    def _check_time(self, time: float) -> None:
        if not math.isfinite(time) or time < self.time:
            raise BeliefError(f"Time {time} lies before the belief's time {self.time}; times must not run backwards.")

    def _when(self, time: float | None) -> float:
        if time is not None:
            self._check_time(time)
        return self.time if time is None else time

    def _next(self, time: float, what: list[Any], **fields: Any) -> BeliefState:
        self._check_time(time)
        text = json.dumps([self.revision, time, what], sort_keys=True)
        revision = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return replace(self, time=time, revision=revision, **fields)


_Record = TypeVar("_Record", Fact, Hypothesis, Question)


def _one(records: Iterable[_Record], record_id: str, what: str) -> _Record:
    known = {record.id: record for record in records}
    if record_id not in known:
        raise BeliefError(f"There is no {what} {record_id!r}; known: {', '.join(known) or 'none'}.")
    return known[record_id]


def _swap(records: tuple[_Record, ...], new: _Record) -> tuple[_Record, ...]:
    return tuple(new if record.id == new.id else record for record in records)


def _until(evidence: tuple[Evidence, ...], time: float) -> tuple[Evidence, ...]:
    return tuple(piece for piece in evidence if piece.time <= time)


def _reopened(until: float | None, time: float, **cleared: Any) -> dict[str, Any]:
    return {"until": None, **cleared} if until is not None and until > time else {}


def _fact_as_of(fact: Fact, time: float) -> Fact:
    folded = tuple((start, None if end is None or end > time else end) for start, end in fact.folded if start <= time)
    undone = _reopened(fact.until, time, replaced_by=None)
    return replace(fact, evidence=_until(fact.evidence, time), folded=folded, **undone)
