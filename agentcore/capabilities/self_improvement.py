"""Self-improvement: a failed episode leaves a lesson in memory, which later episodes recall."""

from __future__ import annotations

import hashlib

from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from agentcore.capabilities.memory import LESSONS
from agentcore.state import AgentUpdate, AgentView


class SelfImprovementNode:
    """Reflects on how an episode ended; what went wrong is stored once, with how often it happened."""

    def __init__(self, store: BaseStore | None = None) -> None:
        self.store = store

    def __call__(self, state: AgentView, runtime: Runtime[None]) -> AgentUpdate:
        lesson = reflect(state)
        store = runtime.store if runtime.store is not None else self.store
        if lesson and store is not None:
            key = hashlib.blake2b(lesson.encode(), digest_size=8).hexdigest()
            old = store.get(LESSONS, key)
            count = int(old.value.get("failures", 0)) + 1 if old is not None else 1
            store.put(LESSONS, key, {"text": lesson, "failures": count})
        return {"reflection": lesson}


def reflect(state: AgentView) -> str:
    """What to do otherwise next time; empty after a success."""
    feedback = state.get("feedback", {})
    if feedback.get("success", 0.0) > 0:
        return ""
    if state.get("outcome") == "truncated":
        return "answer before the steps run out."
    open_matters = (state.get("percept") or {}).get("open", {})
    if any(count > 0 for count in open_matters.values()):
        return "wait until nothing is still to come."
    facts = (state.get("belief") or {}).get("facts", [])
    if any(f.get("until") is not None for f in facts):
        return "use the corrected value, not the first one."
    unfinished = [
        s["text"] for s in state.get("plan", []) if s["status"] == "open" and s["kind"] not in ("answer", "act")
    ]
    if unfinished:
        return "finish the plan before answering."
    return "check each value before answering."
