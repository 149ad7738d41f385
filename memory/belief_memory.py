"""A belief whose evidence lies in a store: every observation is kept, every update is logged, anything can be reread.

Works over any LangGraph ``BaseStore``. Under the namespace it is given it uses three:

    …, "evidence"  one item per observation: {"text", "time", …}
    …, "changes"   one item per change of the belief, with the facts before and after
    …, "belief"    the current belief, key "current"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import BaseStore, PutOp

from memory.belief import BeliefState, Updater
from memory.errors import BeliefError
from memory.lexical import match_scores
from memory.projection import Projection
from memory.records import BeliefChange, Fact, Json, Statement, fact_from_json, fact_to_json
from memory.retrieval import Retriever

MOST_EVIDENCE = 5000
"""Pieces of evidence whose relevance is looked at in one projection."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that was observed, as it is kept."""

    id: str
    text: str
    time: float
    more: Mapping[str, Any]
    """Further fields that retrieval may use: ``episode``, ``position``, ``speaker``, ``importance``, …"""


class BeliefMemory:
    """Holds a belief, its evidence and its log in a store. The belief itself stays a frozen value.

    One writer per namespace: two that share one would overwrite each other's belief (their evidence would be kept).
    """

    def __init__(
        self,
        store: BaseStore,
        namespace: tuple[str, ...],
        *,
        updater: Updater | None = None,
        retriever: Retriever | None = None,
        index: Sequence[str] = ("text",),
    ) -> None:
        """Take up what the namespace holds.

        ``retriever`` replaces the default one over the same store; ``index`` names the fields of an observation that
        are embedded.
        """
        self.store = store
        self.namespace = namespace
        self.updater = updater
        self.retriever = retriever or Retriever(store, text="text")
        self.index = list(index)
        item = store.get((*namespace, "belief"), "current")
        self.belief = BeliefState() if item is None else BeliefState.from_json(item.value["belief"])
        self._logged = 0 if item is None else int(item.value["changes"])

    def observe(
        self, observations: Iterable[Observation], statements: Iterable[Statement], *, time: float
    ) -> tuple[BeliefChange, ...]:
        """Keep observations, update the belief with what was read from them, log the changes: one batch."""
        belief, changes = self.belief.update(statements, time, updater=self.updater)
        evidence = (*self.namespace, "evidence")
        ops = [
            PutOp(evidence, seen.id, {**seen.more, "text": seen.text, "time": seen.time}, self.index)
            for seen in observations
        ]
        ops += [
            PutOp((*self.namespace, "changes"), f"{self._logged + place:08d}", change_to_json(change), False)
            for place, change in enumerate(changes)
        ]
        self._store(belief, ops, len(changes))
        return changes

    def replace(self, belief: BeliefState) -> None:
        """Take over a belief that was changed directly (questions, hypotheses, progress, summaries)."""
        if belief.time < self.belief.time:
            raise BeliefError(f"The new belief is older ({belief.time}) than the one it replaces ({self.belief.time}).")
        self._store(belief, [], 0)

    def _store(self, belief: BeliefState, ops: list[PutOp], changes: int) -> None:
        record = {"belief": belief.to_json(), "changes": self._logged + changes}
        self.store.batch([*ops, PutOp((*self.namespace, "belief"), "current", record, False)])
        self.belief = belief
        self._logged += changes

    def evidence(self, evidence_id: str) -> Observation:
        """An observation as it was kept, word for word."""
        item = self.store.get((*self.namespace, "evidence"), evidence_id)
        if item is None:
            raise BeliefError(f"There is no evidence {evidence_id!r} under {'/'.join(self.namespace)}.")
        more = {name: value for name, value in item.value.items() if name not in ("text", "time")}
        return Observation(evidence_id, item.value["text"], item.value["time"], more)

    def changes(self) -> list[BeliefChange]:
        """The logged changes, oldest first."""
        ops = [self.store.get((*self.namespace, "changes"), f"{place:08d}") for place in range(self._logged)]
        return [change_from_json(item.value) for item in ops if item is not None]

    def scores(self, query: str) -> dict[str, float]:
        """Relevance in [0, 1] of each held fact: that of its evidence, or its own match with the query if better."""
        hits = self.retriever.search((*self.namespace, "evidence"), query, k=MOST_EVIDENCE)
        found = {hit.key: hit.score for hit in hits}
        low, high = min(found.values(), default=0.0), max(found.values(), default=0.0)
        scale = (high - low) or 1.0
        facts = self.belief.active
        matched = match_scores(query, [fact.text for fact in facts])
        scores = {}
        for fact, match in zip(facts, matched, strict=True):
            evidence = max(((found[name] - low) / scale for name in self._roots(fact) if name in found), default=0.0)
            scores[fact.id] = evidence if fact.kind == "note" else max(evidence, match)
        return scores

    def _roots(self, fact: Fact) -> list[str]:
        """Ids of the observations behind a fact, through summaries."""
        if not fact.parents:
            return list(fact.supporting)
        by_id = {other.id: other for other in self.belief.facts}
        return [name for parent in fact.parents for name in self._roots(by_id[parent])]

    def project(self, query: str, *, budget: int, count_tokens: Callable[[str], int]) -> Projection:
        """The belief in at most ``budget`` tokens, facts chosen by their evidence's relevance to the query."""
        scores = self.scores(query) if query else None
        return self.belief.project(query, budget=budget, count_tokens=count_tokens, scores=scores)


def change_to_json(change: BeliefChange) -> Json:
    """A logged change as a JSON object."""
    return {
        "op": change.op,
        "fact_id": change.fact_id,
        "before": None if change.before is None else fact_to_json(change.before),
        "after": None if change.after is None else fact_to_json(change.after),
        "evidence_id": change.evidence_id,
        "time": change.time,
        "touched": [fact_to_json(fact) for fact in change.touched],
        "revision_before": change.revision_before,
        "revision_after": change.revision_after,
    }


def change_from_json(data: Mapping[str, Any]) -> BeliefChange:
    """The change that :func:`change_to_json` wrote; raises :class:`BeliefError` on anything else."""
    try:
        return BeliefChange(
            op=data["op"],
            fact_id=data["fact_id"],
            before=None if data["before"] is None else fact_from_json(data["before"]),
            after=None if data["after"] is None else fact_from_json(data["after"]),
            evidence_id=str(data["evidence_id"]),
            time=data["time"],
            touched=tuple(fact_from_json(fact) for fact in data["touched"]),
            revision_before=str(data["revision_before"]),
            revision_after=str(data["revision_after"]),
        )
    except (KeyError, TypeError) as error:
        raise BeliefError(f"Not a change written by change_to_json: {error!r}.") from error
