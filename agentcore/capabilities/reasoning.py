"""Reasoning: the decision. What is known, planned and new becomes a prompt, and the policy chooses.

Prompt layouts: ``append`` lets the conversation grow and re-renders it from the belief only when it exceeds the context
budget; ``rewrite`` renders the belief anew in every turn; ``window`` has no belief and drops the oldest messages, as a
plain chat loop would. None of them exceeds the context budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from langchain_core.callbacks import dispatch_custom_event
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from agentcore.assembly import calls_of
from agentcore.capabilities.memory import as_notes, focus_terms
from agentcore.capabilities.perception import raw_percept
from agentcore.environment import Json, ToolSpec
from agentcore.events import CONTEXT_EVENT
from agentcore.state import AgentUpdate, AgentView
from memory import BeliefState

Layout = Literal["append", "rewrite", "window"]


MESSAGE_TOKENS = 6
"""What a chat template adds to a message, about."""


class ReasoningNode:
    """Composes the prompt and asks the policy.

    Args:
        policy: any chat model; tools are bound to it.
        tools: what is offered.
        system: system prompt.
        layout: ``append``, ``rewrite`` or ``window``.
        context_budget: prompt tokens after which ``append`` re-renders from the belief.
        belief_budget: tokens of the belief in a rendered prompt.
        history: False makes a reactive policy that sees only the task and the present turn.
    """

    def __init__(
        self,
        policy: BaseChatModel,
        tools: Sequence[ToolSpec],
        *,
        system: str,
        count_tokens: Callable[[str], int],
        layout: Layout = "append",
        context_budget: int = 512,
        belief_budget: int = 128,
        history: bool = True,
    ) -> None:
        self.model = policy.bind_tools([t.as_openai() for t in tools])
        self.system = system
        codec = getattr(policy, "codec", None)
        self.tool_tokens = count_tokens(codec.format.describe([t.as_openai() for t in tools])) if codec else 0
        self.count_tokens = count_tokens
        self.layout = layout
        self.context_budget = context_budget
        self.belief_budget = belief_budget
        self.history = history

    def __call__(self, state: AgentView) -> AgentUpdate:
        prompt, update = self._prompt(state)
        reply = self.model.invoke(prompt)
        return self._finish(state, reply, update)

    async def acall(self, state: AgentView) -> AgentUpdate:
        """The same without blocking the event loop, so that concurrent episodes share a batch."""
        prompt, update = self._prompt(state)
        reply = await self.model.ainvoke(prompt)
        return self._finish(state, reply, update)

    def _finish(self, state: AgentView, reply: Any, update: list[Any]) -> AgentUpdate:
        context = {
            "message_id": reply.id,
            "belief": "\n".join(f.text for f in _belief(state).active),
            "memory_ids": state.get("memory_ids", []),
        }
        dispatch_custom_event(CONTEXT_EVENT, context)
        return {"messages": [*update, reply], "action": action_of(reply)}

    # -- the prompt -----------------------------------------------------------------------------------------

    def _prompt(self, state: AgentView) -> tuple[list[Any], list[Any]]:
        """The messages to send, and the update of the ``messages`` channel before the reply."""
        past = list(state.get("messages", []))
        new: list[AnyMessage] = [HumanMessage(self._turn_text(state, first=not past))]
        if not past:
            new.insert(0, SystemMessage(self.system))
        if self.layout == "window" and self.history:
            return self._window(state, [*past, *new]), new
        if self.layout == "append" and self.history and self._tokens([*past, *new]) <= self.context_budget:
            return [*past, *new], new
        prompt = [SystemMessage(self.system), HumanMessage(self._rendered(state))]
        return prompt, [RemoveMessage(id=REMOVE_ALL_MESSAGES), *prompt] if past else list(prompt)

    def _window(self, state: AgentView, messages: list[AnyMessage]) -> list[AnyMessage]:
        """System prompt, task, and as many of the last messages as fit; the very last one is cut if it must be."""
        head: list[AnyMessage] = [messages[0], HumanMessage(state["task"]["instruction"])]
        left = self.context_budget - self._tokens(head)
        tail: list[AnyMessage] = []
        for message in reversed(messages[1:]):
            cost = self._tokens([message])
            if cost > left and not tail:
                text = fit_text(str(message.content), left - MESSAGE_TOKENS, self.count_tokens)
                return [*head, HumanMessage(text)]
            if cost > left:
                return [*head, *tail]
            tail.insert(0, message)
            left -= cost
        return messages

    def _turn_text(self, state: AgentView, *, first: bool) -> str:
        parts = [state["task"]["instruction"]] if first else []
        parts += [r["content"] for r in state.get("results", [])]
        parts += _news(state)
        if state.get("plan_note"):
            parts.append(state["plan_note"])
        return "\n".join(p for p in parts if p) or "Go on."

    def _rendered(self, state: AgentView) -> str:
        """The task, the belief within its budget, and the present turn: what is left of the past is the belief."""
        instruction = state["task"]["instruction"]
        open_steps = [s["text"] for s in state.get("plan", []) if s["status"] == "open" and s["kind"] != "act"]
        plan = f"Plan: {', '.join(open_steps)}." if open_steps else ""
        fixed: list[AnyMessage] = [SystemMessage(self.system), HumanMessage("\n".join((instruction, plan)))]
        left = self.context_budget - self._tokens(fixed)
        present = "\n".join([*(r["content"] for r in state.get("results", [])), *_news(state)])
        present = fit_text(present, left // 2, self.count_tokens)
        left -= self.count_tokens(present) + 2
        budget = max(0, min(self.belief_budget, left))
        held = _belief(state)
        query = " ".join([instruction, *sorted(focus_terms(instruction, held))])  # what the task leads on to counts too
        belief = held.project(query, budget=budget, count_tokens=self.count_tokens).text
        parts = [instruction, belief if self.history else "", present, plan]
        return "\n".join(p for p in parts if p)

    def _tokens(self, messages: Sequence[AnyMessage]) -> int:
        """Tokens of messages, those of the tools' description and of each message's frame included."""
        own = self.tool_tokens if messages and isinstance(messages[0], SystemMessage) else 0
        return own + sum(self.count_tokens(str(m.content)) + MESSAGE_TOKENS for m in messages)


def fit_text(text: str, budget: int, count_tokens: Callable[[str], int]) -> str:
    """The beginning of a text, cut so that it counts at most ``budget`` tokens; a cut is marked."""
    if count_tokens(text) <= budget:
        return text
    low, high = 0, len(text)
    while low < high:  # the longest beginning that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count_tokens(text[:middle] + " […]") <= budget else (low, middle - 1)
    return text[:low] + " […]" if low else ""


def _belief(state: AgentView) -> BeliefState:
    return BeliefState.from_json(state["belief"]) if state.get("belief") else BeliefState()


def _news(state: AgentView) -> list[str]:
    """What memory chose to show; without memory, the observation as it came (results are shown apart)."""
    if "shown" in state:
        return list(state["shown"])
    percept = state.get("percept") or raw_percept(state)
    results = {line.strip() for r in state.get("results", []) for line in r["content"].splitlines()}
    return [line for line in as_notes(percept) if line not in results]


def action_of(reply: AIMessage) -> Json:
    """A reply as an action: text and ordered calls, unreadable ones included."""
    calls = [{"id": c.id, "name": c.name, "args": c.args, "error": c.error, "raw": c.raw} for c in calls_of(reply)]
    return {"message_id": reply.id, "text": reply.text, "calls": calls}
