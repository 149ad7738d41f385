"""The default updater: rules that turn a statement into ADD, UPDATE, DELETE or NOOP. It needs no model."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from memory.records import BeliefChange, EditOp, Evidence, Fact, Statement, logit, normal

if TYPE_CHECKING:
    from memory.belief import BeliefState


@dataclass(frozen=True, slots=True)
class RuleUpdater:
    """Newest wins, evidence adds up.

    - same subject, relation and value: NOOP; the fact gains support.
    - a correction with another value: UPDATE; the old fact is retired, the new one starts as sure as any other.
    - a plain fact with another value: UPDATE too, but the old evidence counts against the new fact.
    - a retraction: DELETE.
    - nothing known about it: ADD. A note or a claim without a subject is compared by its text.
    """

    reliability: float = 0.85
    """Probability that one observation is right; sets the log-odds each piece of evidence carries."""
    correction_reliability: float = 0.92
    """The same for a correction, whose source knew the old value."""
    doubt: float = 0.7
    """Share of the old fact's log-odds that counts against a plain conflicting fact."""
    prefer: Literal["newest", "strongest"] = "newest"
    """Which of two plain conflicting facts is held: the last one, or the old one until the evidence against it
    outweighs the evidence for it."""
    multivalued: Collection[str] = ()
    """Relations of which one subject has several values at once (another value then adds, never conflicts)."""

    def __call__(self, belief: BeliefState, statement: Statement, time: float) -> Iterable[BeliefChange]:
        """The changes for one statement (exactly one, except that a retraction may retire several values)."""
        rivals = self._rivals(belief, statement)
        same = next((fact for fact in rivals if self._agrees(fact, statement)), None)
        if statement.kind == "retraction":
            return self._retract(rivals, statement, time)
        if same is not None:
            return [self._support(same, statement, time)]
        if rivals and not self._is_multivalued(statement):
            return [self._replace(belief, rivals, statement, time)]
        fact = self._new(belief, statement, time, ())
        return [_change("ADD", None, fact, statement, time, (fact,))]

    def _is_multivalued(self, statement: Statement) -> bool:
        return normal(statement.relation) in {normal(relation) for relation in self.multivalued}

    def _rivals(self, belief: BeliefState, statement: Statement) -> list[Fact]:
        """Held facts that speak of the same thing; a claim without a subject is about its own text only."""
        if statement.subject and statement.kind != "note":
            return list(belief.find(statement.subject, statement.relation))
        loose = (fact for fact in belief.active if fact.kind == "note" or not fact.subject)
        return [fact for fact in loose if normal(fact.text) == normal(statement.text)]

    def _agrees(self, fact: Fact, statement: Statement) -> bool:
        if not statement.subject or statement.kind == "note":
            return True
        if statement.value is None or fact.value is None:
            return normal(fact.text) == normal(statement.text)
        return normal(fact.value) == normal(statement.value)

    def _support(self, fact: Fact, statement: Statement, time: float) -> BeliefChange:
        # The same observation read twice is not two observations.
        if any(piece.id == statement.evidence_id for piece in fact.evidence):
            return _change("NOOP", fact, fact, statement, time, ())
        piece = Evidence(statement.evidence_id, time, logit(self.reliability))
        after = replace(fact, evidence=(*fact.evidence, piece))
        return _change("NOOP", fact, after, statement, time, (after,))

    def _replace(self, belief: BeliefState, rivals: list[Fact], statement: Statement, time: float) -> BeliefChange:
        old = rivals[-1]
        if self.prefer == "strongest" and statement.kind == "fact":
            if any(piece.id == statement.evidence_id for piece in old.evidence):
                return _change("NOOP", old, old, statement, time, ())  # read again, not observed again
            against = Evidence(statement.evidence_id, time, -logit(self.reliability))
            doubted = replace(old, evidence=(*old.evidence, against))
            if sum(piece.weight for piece in doubted.evidence) > 0:
                return _change("UPDATE", old, doubted, statement, time, (doubted,))
        doubt: tuple[Evidence, ...] = ()
        if statement.kind != "correction":
            share = self.doubt
            doubt = tuple(Evidence(p.id, time, -p.weight * share) for p in old.evidence if p.weight > 0)
        new = self._new(belief, statement, time, doubt)
        against = Evidence(statement.evidence_id, time, -max(sum(p.weight for p in new.evidence), logit(0.6)))
        retired = replace(old, evidence=(*old.evidence, against), until=time, replaced_by=new.id)
        return _change("UPDATE", old, new, statement, time, (retired, new))

    def _retract(self, rivals: list[Fact], statement: Statement, time: float) -> list[BeliefChange]:
        named = [f for f in rivals if statement.value is None or normal(f.value) == normal(statement.value)]
        changes = []
        for fact in named:
            against = Evidence(statement.evidence_id, time, -logit(self.correction_reliability))
            after = replace(fact, evidence=(*fact.evidence, against), until=time)
            changes.append(_change("DELETE", fact, after, statement, time, (after,)))
        return changes or [_change("NOOP", None, None, statement, time, ())]

    def _new(self, belief: BeliefState, statement: Statement, time: float, doubt: tuple[Evidence, ...]) -> Fact:
        sure = self.correction_reliability if statement.kind == "correction" else self.reliability
        return Fact(
            id=f"f{belief.counter + 1}",
            text=statement.text,
            evidence=(Evidence(statement.evidence_id, time, logit(sure)), *doubt),
            since=time,
            subject=statement.subject,
            relation=statement.relation,
            value=statement.value,
            kind="note" if statement.kind == "note" else "fact",
        )


def _change(
    op: EditOp, before: Fact | None, after: Fact | None, statement: Statement, time: float, touched: tuple[Fact, ...]
) -> BeliefChange:
    fact_id = after.id if after is not None else None
    return BeliefChange(op, fact_id, before, after, statement.evidence_id, time, touched)
