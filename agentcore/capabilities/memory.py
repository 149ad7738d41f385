"""Memory: the belief is updated with each observation, and what matters is recalled within a token budget.

Statements that matter to the task are shown; the others are filed in the store (FAISS) and recalled when they come to
matter, as when the second hop of a question turns up. Lessons from earlier episodes are recalled at the start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields

from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from agentcore.capabilities.perception import FROM_TOOL, raw_percept
from agentcore.environment import Json
from agentcore.state import AgentUpdate, AgentView
from memory import BeliefChange, BeliefState, Fact, RuleUpdater, Statement, Updater

LESSONS = ("lessons",)
_FIELDS = {f.name for f in fields(Statement)}


class MemoryNode:
    """Belief update and recall.

    Args:
        store: where statements and lessons are kept; None takes the graph's store (``runtime.store``), and without
            that, only the episode's belief is remembered.
        count_tokens: the policy's token count, for the budget.
        budget: tokens that this node may show per turn.
        lessons: how many lessons may be recalled at the start of an episode.
        updater: how observations change the belief; by default a correction stands against what a stale source goes
            on saying.
    """

    def __init__(
        self,
        store: BaseStore | None = None,
        *,
        count_tokens: Callable[[str], int],
        budget: int = 96,
        lessons: int = 1,
        updater: Updater | None = None,
    ) -> None:
        self.store = store
        self.count_tokens = count_tokens
        self.budget = budget
        self.lessons = lessons
        self.updater = updater or RuleUpdater(prefer="strongest", correction_reliability=0.999)

    def __call__(self, state: AgentView, runtime: Runtime[None]) -> AgentUpdate:
        # a per-episode view set by the runner must win over the store the graph was built with
        store = runtime.store if runtime.store is not None else self.store
        percept = state.get("percept") or raw_percept(state)
        belief = BeliefState.from_json(state["belief"]) if state.get("belief") else BeliefState()
        statements = [Statement(**{k: v for k, v in s.items() if k in _FIELDS}) for s in percept["statements"]]
        belief, changes = belief.update(statements, time=state.get("turn", 0), updater=self.updater)
        contradicted = [_subject(c.before) for c in changes if _overturned(c)]

        focus = focus_terms(state["task"]["instruction"], belief)
        news = [s for s in statements if not _from_result(s, state)]  # results are shown in full by themselves
        recalled = self._recall(store, state, belief, focus)
        lines = [s.text for s in news if _matters(s, focus)]
        lines += [f"{what}: {count}." for what, count in percept["open"].items()]
        notes = {s.text for s in news if s.subject is None}
        shown = self._fit([*recalled.values(), *lines], notes)
        memory_ids = [i for i, text in recalled.items() if text in shown]
        # what does not matter yet, or did not fit, is filed and may be shown later
        filed = self._file(store, state, [s for s in news if s.text not in shown])
        return {
            "belief": belief.to_json(),
            "shown": shown,
            "memory_ids": memory_ids,
            "filed": [i for i in state.get("filed", []) if i not in memory_ids] + filed,
            "contradicted": [s for s in contradicted if s],
        }

    def _recall(
        self, store: BaseStore | None, state: AgentView, belief: BeliefState, focus: set[str]
    ) -> dict[str, str]:
        """Items to show now, by id: lessons in the first turn, filed statements that have come to matter later."""
        if store is None:
            return {}
        if state.get("turn", 0) == 0:
            hits = store.search(LESSONS, query=state["task"]["instruction"], limit=self.lessons)
            return {hit.key: f"Lesson: {hit.value['text']}" for hit in hits}
        filed = state.get("filed", [])
        if not filed:
            return {}
        # what a correction has overtaken is no longer evidence for anything held
        held = {e.id for fact in belief.active for e in fact.evidence if e.weight > 0}
        hits = store.search(_namespace(state), query=" ".join(sorted(focus)), limit=len(filed) + 8)
        found = {h.key: h.value for h in hits if h.key in held and str(h.value.get("subject", "")).lower() in focus}
        return {key: str(found[key]["text"]) for key in filed if key in found}

    @staticmethod
    def _file(store: BaseStore | None, state: AgentView, statements: Iterable[Statement]) -> list[str]:
        if store is None:
            return []
        ids = []
        for s in statements:
            store.put(_namespace(state), s.evidence_id, {"text": s.text, "subject": s.subject, "kind": s.kind})
            ids.append(s.evidence_id)
        return ids

    def _fit(self, lines: list[str], notes: set[str]) -> list[str]:
        """The lines that fit the budget, in their order. Facts go before notes, later lines before earlier ones."""
        kept: set[int] = set()
        left = self.budget
        for i in sorted(range(len(lines)), key=lambda i: (lines[i] in notes, -i)):
            cost = self.count_tokens(lines[i]) + 1
            if cost <= left:
                kept.add(i)
                left -= cost
        return [line for i, line in enumerate(lines) if i in kept]


def focus_terms(instruction: str, belief: BeliefState) -> set[str]:
    """Words of the task, and the values of facts about them (one place leads to the item sold there)."""
    terms = {w.lower() for w in re.findall(r"\w+", instruction)}
    for _ in range(3):
        more = {f.value.lower() for f in belief.active if f.value and f.subject and f.subject.lower() in terms}
        more = {m for m in more if " " not in m and not m.isdigit()}
        if more <= terms:
            break
        terms |= more
    return terms


def _from_result(statement: Statement, state: AgentView) -> bool:
    """Whether the statement was read in a tool result of this turn (by its text where perception is off)."""
    if statement.evidence_id.startswith(FROM_TOOL):
        return True
    results = (line.strip() for r in state.get("results", []) for line in r["content"].splitlines())
    return statement.text in results


def _matters(statement: Statement, focus: set[str]) -> bool:
    """Only a statement known to be about something else can wait; one without a subject may be the whole point."""
    return statement.subject is None or statement.subject.lower() in focus


def _overturned(change: BeliefChange) -> bool:
    """Whether a fact that was held is held no longer (one that was only doubted still is)."""
    return change.op == "DELETE" or (
        change.op == "UPDATE"
        and change.before is not None
        and change.after is not None
        and change.before.id != change.after.id
    )


def _subject(fact: Fact | None) -> str:
    return (fact.subject or "") if fact is not None else ""


def _namespace(state: AgentView) -> tuple[str, ...]:
    return ("notes", _safe(str(state["task"]["id"])))


def _safe(text: str) -> str:
    return re.sub(r"[^\w-]", "_", text) or "task"


def as_notes(percept: Json) -> list[str]:
    """What the policy is shown when memory is off: every line as it came."""
    lines = [s["text"] for s in percept["statements"]]
    return lines + [f"{what}: {count}." for what, count in percept["open"].items()]
