"""Planning: an explicit plan in the state, revised when an observation contradicts what it rests on."""

from __future__ import annotations

import re

from agentcore.environment import Json
from agentcore.state import AgentUpdate, AgentView
from memory import BeliefState

_STOP_WORDS = (
    "a an and are at be by can cost costs do does find for from get give how in is it item much of on or please price "
    "sold tell that the their them this to together total sum up was what when where which who with you"
)
_STOP = frozenset(_STOP_WORDS.split())
_COMBINE = frozenset(["together", "total", "sum", "combined", "altogether"])


class PlanningNode:
    """For a question: "find X" for each thing it names, then combine if it asks for a total, then answer.

    Facts fill it in: a step is done when the belief holds a fact about its subject; a fact that leads on ("Lyon sells
    amber") adds a step; a contradicted fact reopens what was combined from it. A task that asks nothing has one
    step, to do it, which is not worth showing.
    """

    def __call__(self, state: AgentView) -> AgentUpdate:
        instruction = state["task"]["instruction"]
        if "?" not in instruction:
            return {"plan": [_step("act", instruction, False)], "plan_note": ""}
        belief = BeliefState.from_json(state["belief"]) if state.get("belief") else BeliefState()
        old = state.get("plan") or []
        plan = self._gather(instruction, belief)
        about = {s["text"].removeprefix("find ").lower() for s in plan}
        contradicted = [c for c in state.get("contradicted", []) if c.lower() in about]
        if _COMBINE & set(re.findall(r"\w+", instruction.lower())):
            combined = any(r["name"] == "compute" and r["ok"] for r in state.get("results", []))
            was = any(s["kind"] == "combine" and s["status"] == "done" for s in old)
            done = (combined or was) and not contradicted
            plan.append(_step("combine", "add up", done))
        plan.append(_step("answer", "answer", False))
        changed = [s["text"] for s in plan] != [s["text"] for s in old]
        revised = changed or (bool(old) and bool(contradicted))
        note = "Plan: " + ", ".join(s["text"] for s in plan if s["status"] == "open") + "." if revised else ""
        return {"plan": plan, "plan_note": note}

    @staticmethod
    def _gather(instruction: str, belief: BeliefState) -> list[Json]:
        """One step for each thing to find out, in the order the task names them, with what it led on to."""
        facts = {f.subject.lower(): f for f in belief.active if f.subject}
        steps: list[Json] = []
        todo = [w for w in re.findall(r"[A-Za-z]\w+", instruction) if w.lower() not in _STOP]
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
