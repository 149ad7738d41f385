"""Whatever the layout, a prompt holds the task and stays within the context budget."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore.capabilities.reasoning import MESSAGE_TOKENS, Layout, fit_text
from agentcore.environments.assistant import AssistantEnvironment
from agentcore.environments.assistant_tasks import Difficulty
from agentcore.graph import build_agent
from agentcore.policies.scripted import ExpertPolicy
from agentcore.policies.toolformat import FORMATS
from agentcore.runner import episodes, rollout
from agentcore.trace import Step, Trace
from memory import FaissStore, HashingEmbedder

BUDGET = 160
LONG = Difficulty(facts=3, hops=2, late=1, corrections=2, distractors=6, verbosity=2)


def words(text: str) -> int:
    return len(text.split())


class CountingExpert(ExpertPolicy):
    """The expert, with a token count of its own (words)."""

    @property
    def codec(self) -> Any:
        return SimpleNamespace(count=words, format=FORMATS["compact"])


def run(layout: Layout, budget: int) -> list[Trace]:
    environment = AssistantEnvironment("long", mixture=[LONG], step_limit=30)
    policy = CountingExpert()
    agent = build_agent(
        policy, environment, layout=layout, context_budget=budget, belief_budget=budget // 2, memory_budget=budget // 4
    )
    planned = episodes(environment.tasks("train", 3))
    for episode in planned:
        policy.prepare(episode.id, environment, episode.task, episode.key)
    return rollout(agent, planned, memory=FaissStore(None, embedder=HashingEmbedder())).traces


def prompt_tokens(step: Step) -> int:
    tools = words(FORMATS["compact"].describe(list(step.tools)))
    return tools + sum(words(str(m["content"])) + MESSAGE_TOKENS for m in step.messages)


@pytest.mark.parametrize("layout", ["append", "rewrite", "window"])
def test_no_prompt_exceeds_the_context_budget(layout: Layout) -> None:
    traces = run(layout, BUDGET)
    steps = [step for trace in traces for step in trace.steps]
    assert len(steps) > 20
    assert max(prompt_tokens(step) for step in steps) <= BUDGET
    for trace in traces:
        assert all(trace.task.instruction in str(step.messages) for step in trace.steps)


def test_append_grows_until_the_budget_and_then_starts_from_the_belief() -> None:
    steps = run("append", BUDGET)[0].steps
    grew = [len(b.messages) > len(a.messages) for a, b in itertools.pairwise(steps)]
    assert any(grew) and not all(grew)
    roomy = run("append", 10**6)[0].steps
    assert all(b.messages[: len(a.messages)] == a.messages for a, b in itertools.pairwise(roomy))


def test_a_stale_registry_does_not_overturn_a_correction_in_the_belief() -> None:
    for trace in run("rewrite", BUDGET):
        corrected = [line for batch in trace.task.data["schedule"] for line in batch if line.startswith("Correction")]
        shown = trace.steps[-1].belief or ""
        for line in corrected:
            assert line.split(".")[0] in shown


@given(st.text(max_size=300), st.integers(0, 60))
def test_a_text_is_cut_to_its_budget_and_the_cut_is_marked(text: str, budget: int) -> None:
    cut = fit_text(text, budget, len)
    assert len(cut) <= max(budget, 0)
    if len(text) <= budget:
        assert cut == text
    elif cut:
        assert cut.endswith(" […]") and text.startswith(cut.removesuffix(" […]"))
