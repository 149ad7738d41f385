"""Planning: an explicit plan in the state, revised when an observation contradicts what it rests on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import dispatch_custom_event
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from agentcore.environment import Json
from agentcore.events import CONTEXT_EVENT
from agentcore.state import AgentUpdate, AgentView
from memory import BeliefState

PLAN_SYSTEM = "Write a plan in one line: find each thing the task names; add up if it asks for a total; answer."
"""What a chat model that plans is told."""

_STOP_WORDS = (
    "a an and are at be by can cost costs do does find for from get give how in is it item much of on or please price "
    "sold tell that the their them this to together total sum up was what when where which who with you"
)
_STOP = frozenset(_STOP_WORDS.split())
_COMBINE = frozenset(["together", "total", "sum", "combined", "altogether"])
_FINDS = 8
"""A written plan may name so many things to find."""


class PlanningNode:
    """For a question: "find X" for each thing it names, then combine if it asks for a total, then answer.

    Facts fill it in: a step is done when the belief holds a fact about its subject; a fact that leads on ("Lyon sells
    amber") adds a step; a contradicted fact reopens what was combined from it. A task that asks nothing has one
    step, to do it, which is not worth showing.

    Args:
        planner: a chat model that writes the plan at the start, and anew when what it rests on is contradicted: a
            policy of its own, whose steps earn credit and can be trained. What it writes is read as data, and where
            no plan can be read in it, the rules plan. Without one, the rules always do.
    """

    def __init__(self, planner: BaseChatModel | None = None) -> None:
        self.planner = planner

    def __call__(self, state: AgentView) -> AgentUpdate:
        prompt = self._prompt(state)
        if prompt is None or self.planner is None:
            return self._update(state, None)
        return self._update(state, self.planner.invoke(prompt))

    async def acall(self, state: AgentView) -> AgentUpdate:
        """The same without blocking the event loop, so that concurrent episodes share a batch."""
        prompt = self._prompt(state)
        if prompt is None or self.planner is None:
            return self._update(state, None)
        return self._update(state, await self.planner.ainvoke(prompt))

    def _prompt(self, state: AgentView) -> list[AnyMessage] | None:
        """What to ask the planner; None where there is nothing to plan anew."""
        instruction = state["task"]["instruction"]
        old = state.get("plan") or []
        changed = _contradicted(state, old)
        if self.planner is None or "?" not in instruction or (old and not changed):
            return None
        lines = [instruction, *([f"Changed: {', '.join(changed)}."] if changed else [])]
        return [SystemMessage(PLAN_SYSTEM), HumanMessage("\n".join(lines))]

    def _update(self, state: AgentView, reply: Any) -> AgentUpdate:
        instruction = state["task"]["instruction"]
        if "?" not in instruction:
            return {"plan": [_step("act", instruction, False)], "plan_note": ""}
        belief = BeliefState.from_json(state["belief"]) if state.get("belief") else BeliefState()
        old = state.get("plan") or []
        names, combine = _asked_for(instruction)
        if reply is not None:
            held = "\n".join(f.text for f in belief.active)
            dispatch_custom_event(CONTEXT_EVENT, {"message_id": reply.id, "belief": held})
            names, combine = read_plan(str(reply.text)) or (names, combine)
        elif self.planner is not None and old:  # as it was planned
            names = [s["text"].removeprefix("find ") for s in old if s["kind"] == "find"]
            combine = any(s["kind"] == "combine" for s in old)
        plan = _gather(names, belief)
        contradicted = _contradicted(state, plan)
        if combine:
            combined = any(r["name"] == "compute" and r["ok"] for r in state.get("results", []))
            was = any(s["kind"] == "combine" and s["status"] == "done" for s in old)
            done = (combined or was) and not contradicted
            plan.append(_step("combine", "add up", done))
        plan.append(_step("answer", "answer", False))
        changed = [s["text"] for s in plan] != [s["text"] for s in old]
        revised = changed or (bool(old) and bool(contradicted))
        note = "Plan: " + ", ".join(s["text"] for s in plan if s["status"] == "open") + "." if revised else ""
        return {"plan": plan, "plan_note": note}


def write_plan(instruction: str) -> str:
    """The rules' plan in the form that a planner writes: ``find amber; find brass; add up; answer``."""
    names, combine = _asked_for(instruction)
    return "; ".join([*(f"find {n}" for n in names), *(["add up"] if combine else []), "answer"])


def read_plan(text: str) -> tuple[list[str], bool] | None:
    """What a written plan wants to find, in order, and whether it adds up; None where it names nothing to find."""
    names: list[str] = []
    combine = False
    for part in re.split(r"[;,\n]", text[:600]):
        words = re.sub(r"^\d+[.)]\s*", "", part.strip().rstrip("."))
        found = re.fullmatch(r"find (\w[\w -]{0,39})", words, re.IGNORECASE)
        if found and found[1].lower() not in {n.lower() for n in names} and len(names) < _FINDS:
            names.append(found[1])
        combine = combine or bool(re.fullmatch(r"add(?: them)? up", words, re.IGNORECASE))
    return (names, combine) if names else None


def _asked_for(instruction: str) -> tuple[list[str], bool]:
    """The things a question names, in its order, and whether it asks for their total."""
    words = re.findall(r"[A-Za-z]\w+", instruction)
    names = list(dict.fromkeys(w for w in words if w.lower() not in _STOP))
    return names, bool(_COMBINE & set(re.findall(r"\w+", instruction.lower())))


def _contradicted(state: AgentView, plan: Sequence[Json]) -> list[str]:
    """Subjects of the plan whose facts this turn contradicted."""
    about = {s["text"].removeprefix("find ").lower() for s in plan}
    return [c for c in state.get("contradicted", []) if c.lower() in about]


def _gather(names: Sequence[str], belief: BeliefState) -> list[Json]:
    """One step for each thing to find out, in order, with what it led on to."""
    facts = {f.subject.lower(): f for f in belief.active if f.subject}
    steps: list[Json] = []
    todo = list(names)
    seen: set[str] = set()
    while todo:
        name = todo.pop(0)
        if name.lower() in seen:
            continue
        seen.add(name.lower())
        fact = facts.get(name.lower())
        steps.append(_step("find", f"find {name}", fact is not None))
        if fact is not None and fact.value and not any(ch.isdigit() for ch in fact.value) and " " not in fact.value:
            todo.insert(0, fact.value)
    return steps


def _step(kind: str, text: str, done: bool) -> Json:
    return {"kind": kind, "text": text, "status": "done" if done else "open"}
