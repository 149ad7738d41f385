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

from agentcore.capabilities.perception import raw_percept
from agentcore.environment import Json
from agentcore.state import AgentUpdate, AgentView
from memory import BeliefState, Fact, Statement

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
    """

    def __init__(
        self,
        store: BaseStore | None = None,
        *,
        count_tokens: Callable[[str], int],
        budget: int = 96,
        lessons: int = 1,
    ) -> None:
        self.store = store
        self.count_tokens = count_tokens
        self.budget = budget
        self.lessons = lessons

    def __call__(self, state: AgentView, runtime: Runtime[None]) -> AgentUpdate:
        # a per-episode view set by the runner must win over the store the graph was built with
        store = runtime.store if runtime.store is not None else self.store
        percept = state.get("percept") or raw_percept(state)
        belief = BeliefState.from_json(state["belief"]) if state.get("belief") else BeliefState()
        statements = [Statement(**{k: v for k, v in s.items() if k in _FIELDS}) for s in percept["statements"]]
        belief, changes = belief.update(statements, time=state.get("turn", 0))
        contradicted = [_subject(c.before) for c in changes if c.op in ("UPDATE", "DELETE")]

        focus = focus_terms(state["task"]["instruction"], belief)
        news = [s for s in statements if not _from_result(s, state)]  # results are shown in full by themselves
        recalled = self._recall(store, state, belief, focus)
        lines = [s.text for s in news if _matters(s, focus)]
        lines += [f"{what}: {count}." for what, count in percept["open"].items()]
        shown = self._fit([*recalled.values(), *lines])
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

    def _fit(self, lines: list[str]) -> list[str]:
        """The last lines that fit the budget; news is worth more than what came before it."""
        kept: list[str] = []
        left = self.budget
        for line in reversed(lines):
            cost = self.count_tokens(line) + 1
            if cost > left:
                continue
            kept.append(line)
            left -= cost
        return kept[::-1]


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
    if re.match(r"t\d+\.r", statement.evidence_id):
        return True
    results = (line.strip() for r in state.get("results", []) for line in r["content"].splitlines())
    return statement.text in results


def _matters(statement: Statement, focus: set[str]) -> bool:
    """Only a statement that is known to be about something else can wait; what has no subject may be the whole point."""
    return statement.subject is None or statement.subject.lower() in focus


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
