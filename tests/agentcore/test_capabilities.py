"""The capabilities one by one: what is perceived, remembered within a budget, planned, and learned from failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.runtime import Runtime

from agentcore.capabilities import MemoryNode, PerceptionNode, PlanningNode, SelfImprovementNode
from agentcore.capabilities.memory import LESSONS
from agentcore.capabilities.planning import PLAN_SYSTEM, read_plan, write_plan
from agentcore.environment import Json, Task
from agentcore.environments.assistant import AssistantEnvironment
from agentcore.environments.frozen_lake import FrozenLakeEnvironment
from agentcore.graph import build_agent
from agentcore.policies.scripted import ExpertPolicy, ScriptedChatModel
from agentcore.runner import episodes, rollout
from agentcore.state import AgentView
from agentcore.trace import Trace
from memory import BeliefState, FaissStore

TASK = {"id": "t", "split": "train", "instruction": "What does the item sold in Lyon cost?"}


def words(text: str) -> int:
    return len(text.split())


class Agent:
    """Perception, memory and planning, turn by turn, on a store."""

    def __init__(self, instruction: str = TASK["instruction"], *, budget: int = 96, store: Any = None) -> None:
        self.store = store if store is not None else FaissStore(None)
        self.memory = MemoryNode(self.store, count_tokens=words, budget=budget)
        self.state: AgentView = {"task": {**TASK, "instruction": instruction}}
        self.turn = -1

    def hear(self, observation: str = "", *results: str, names: tuple[str, ...] = ()) -> AgentView:
        self.turn += 1
        named = zip(results, names or ("lookup",) * len(results), strict=True)
        self.state |= {
            "turn": self.turn,
            "observation": observation,
            "results": [{"call_id": f"c{i}", "content": r, "ok": True, "name": n} for i, (r, n) in enumerate(named)],
        }
        self._do(PerceptionNode())
        self._do(lambda state: self.memory(state, Runtime()))
        self._do(PlanningNode())
        return self.state

    def _do(self, node: Callable[[AgentView], Any]) -> None:
        self.state = {**self.state, **node(self.state)}

    @property
    def held(self) -> set[str]:
        return {f.text for f in BeliefState.from_json(self.state["belief"]).active}


# Perception


def percept(observation: str, *results: Json, **options: Any) -> Json:
    state: AgentView = {"turn": 2, "observation": observation, "results": list(results)}
    found: Json = PerceptionNode(**options)(state)["percept"]
    return found


def test_lines_become_statements_notes_and_open_matters() -> None:
    found = percept(
        "News: amber costs 12. The clerk agrees.\nMessages to come: 3.\nrain is expected",
        {"call_id": "c", "content": "Lyon sells amber.\nCorrection: wax costs 9.", "ok": True, "name": "lookup"},
        {"call_id": "d", "content": "Error: no such tool", "ok": False, "name": "x"},
    )
    claims = [(s["subject"], s["relation"], s["value"], s["kind"]) for s in found["statements"] if "subject" in s]
    assert claims == [
        *(("Lyon", "sells", "amber", "fact"), ("wax", "costs", "9", "correction")),
        ("amber", "costs", "12", "fact"),
    ]
    assert [s["text"] for s in found["statements"] if s["kind"] == "note"] == ["The clerk agrees.", "rain is expected"]
    assert found["open"] == {"Messages to come": 3} and found["errors"] == ["Error: no such tool"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=14), st.text(max_size=60))
def test_any_text_is_perceived_and_evidence_ids_are_distinct(contents: list[str], observation: str) -> None:
    results = [{"call_id": str(i), "content": c, "ok": True, "name": "x"} for i, c in enumerate(contents)]
    found = percept(observation, *results)
    by_id = {s["evidence_id"]: s["text"] for s in found["statements"]}
    assert all(by_id[s["evidence_id"]] == s["text"] for s in found["statements"]), "one id, one text"
    agent = Agent(store=FaissStore(None, embedder=False))
    agent.hear(observation, *contents)


def test_a_tool_that_says_the_same_again_is_no_new_evidence() -> None:
    result = {"call_id": "1", "content": "amber costs 12.\nwax costs 3.", "ok": True, "name": "lookup"}
    first, again = percept("", result), percept("", {**result, "call_id": "2"})
    assert [s["evidence_id"] for s in first["statements"]] == [s["evidence_id"] for s in again["statements"]]
    other = percept("", {**result, "name": "search_notes"}, {**result, "content": "amber costs 13."})
    ids = {s["evidence_id"] for p in (first, other) for s in p["statements"]}
    assert len(ids) == 5


def test_a_long_line_is_cut() -> None:
    (note,) = percept("x" * 1000, max_chars=50)["statements"]
    assert note["text"] == "x" * 50


# Memory


def test_what_does_not_matter_yet_is_filed_and_recalled_when_it_does() -> None:
    """A two-hop question whose price arrives before its item is known."""
    agent = Agent()
    agent.hear("Messages to come: 2.")
    state = agent.hear("News: honey costs 31.\nMessages to come: 1.")
    assert state["shown"] == ["Messages to come: 1."] and len(state["filed"]) == 1
    state = agent.hear("News: wax costs 5.\nMessages to come: 0.")
    assert state["memory_ids"] == [] and len(state["filed"]) == 2
    state = agent.hear("", "Lyon sells honey.")
    assert "News: honey costs 31." in state["shown"]
    assert len(state["memory_ids"]) == 1 and len(state["filed"]) == 1
    assert "News: honey costs 31." not in agent.hear("")["shown"], "shown once"


def test_it_is_recalled_from_the_store_among_many() -> None:
    agent = Agent()
    agent.hear()
    agent.hear("\n".join(f"News: {a}{b} costs {ord(b)}." for a in "bcdfg" for b in "aeiou"))
    agent.hear("News: honey costs 31.")
    agent.hear("\n".join(f"News: {a}{b} costs {ord(b)}." for a in "hklmn" for b in "aeiou"))
    assert agent.hear("", "Lyon sells honey.")["shown"] == ["News: honey costs 31."]


def test_what_a_correction_has_overtaken_is_not_recalled() -> None:
    agent = Agent()
    for text in ("", "News: honey costs 31.", "Correction: honey costs 44.", "News: wax costs 5."):
        agent.hear(text)
    state = agent.hear("", "Lyon sells honey.")
    assert state["shown"] == ["Correction: honey costs 44."]


def test_results_are_not_shown_twice() -> None:
    agent = Agent("What does amber cost?")
    state = agent.hear("Messages to come: 0.", "amber costs 12. And more about it.")
    assert state["shown"] == ["Messages to come: 0."] and "amber costs 12." in agent.held


def test_what_does_not_fit_now_is_shown_later() -> None:
    agent = Agent("What do amber and wax cost together?", budget=5)
    agent.hear()
    assert agent.hear("News: amber costs 12.\nNews: wax costs 30.")["shown"] == ["News: wax costs 30."]
    assert agent.hear()["shown"] == ["News: amber costs 12."]
    assert agent.hear()["shown"] == []


names = st.sampled_from(["amber", "wax", "honey", "Lyon", "iron"])
lines = st.builds(
    "{}{} {} {}.{}".format,
    st.sampled_from(["", "News: ", "Correction: "]),
    names,
    st.sampled_from(["costs", "sells"]),
    names | st.integers(1, 99).map(str),
    st.sampled_from(["", " The clerk has nothing to add to what was said about amber."]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(lines, max_size=5).map("\n".join), min_size=1, max_size=6), st.integers(0, 30))
def test_the_budget_is_never_exceeded_and_nothing_is_lost(turns: list[str], budget: int) -> None:
    store = FaissStore(None, embedder=False)
    agent = Agent("What do amber and the item sold in Lyon cost?", budget=budget, store=store)
    for text in turns:
        state = agent.hear(f"{text}\nMessages to come: 1.")
        assert words("\n".join(state["shown"])) + len(state["shown"]) <= budget
        stored = {i.key: i.value["text"] for i in store.search(("notes",), limit=1000)}
        assert set(state["filed"]) <= set(stored)
        news = [s["text"] for s in state["percept"]["statements"]]
        assert all(t in state["shown"] or t in stored.values() for t in news)
        assert not set(state["memory_ids"]) & set(state["filed"])


def test_without_a_store_the_belief_remembers() -> None:
    node = MemoryNode(None, count_tokens=words)
    state: AgentView = {"task": TASK, "turn": 1, "observation": "News: honey costs 31.", "results": []}
    update = node({**state, **PerceptionNode()(state)}, Runtime())  # type: ignore[typeddict-item]
    assert update["filed"] == [] and "honey" in str(update["belief"])


def test_the_store_of_the_run_wins_over_the_one_built_in() -> None:
    built, of_the_run = FaissStore(None, embedder=False), FaissStore(None, embedder=False)
    node = MemoryNode(built, count_tokens=words)
    state: AgentView = {"task": TASK, "turn": 1, "observation": "News: honey costs 31.", "results": []}
    node({**state, **PerceptionNode()(state)}, Runtime(store=of_the_run))  # type: ignore[typeddict-item]
    assert len(of_the_run.search(("notes",))) == 1 and built.search(("notes",)) == []


# Planning


def plan(state: AgentView) -> list[tuple[str, str]]:
    return [(s["text"], s["status"]) for s in state["plan"]]


def test_a_plan_is_filled_in_and_revised() -> None:
    agent = Agent("What do amber and the item sold in Lyon cost together?")
    state = agent.hear()
    todo = [("find amber", "open"), ("find Lyon", "open"), ("add up", "open"), ("answer", "open")]
    assert plan(state) == todo and state["plan_note"] == "Plan: find amber, find Lyon, add up, answer."
    state = agent.hear("", "amber costs 12.")
    assert plan(state)[0] == ("find amber", "done") and state["plan_note"] == "", "nothing new to say"
    state = agent.hear("", "Lyon sells wax.")
    assert ("find wax", "open") in plan(state) and state["plan_note"] == "Plan: find wax, add up, answer."
    agent.hear("", "wax costs 30.")
    state = agent.hear("", "12+30 = 42", names=("compute",))
    assert ("add up", "done") in plan(state)
    state = agent.hear("News: iron costs 3.")
    state = agent.hear("Correction: iron costs 4.")
    assert ("add up", "done") in plan(state) and state["plan_note"] == "", "iron is not part of it"
    state = agent.hear("Correction: amber costs 45.")
    assert ("add up", "open") in plan(state) and state["plan_note"] == "Plan: add up, answer."
    state = agent.hear("", "45+30 = 75", names=("compute",))
    assert ("add up", "done") in plan(state)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("find amber; find Lyon; add up; answer", (["amber", "Lyon"], True)),
        ("1. Find amber\n2. find AMBER.\n3) add them up\n4. answer", (["amber"], True)),
        ("find wax, answer", (["wax"], False)),
        ("", None),
        ("I will look at the <script>alert(1)</script>; answer", None),
        ("find " + "x" * 60, None),
        ("; ".join(f"find item{i}" for i in range(30)), ([f"item{i}" for i in range(8)], False)),
    ],
)
def test_a_written_plan_is_read_as_data(text: str, read: Any) -> None:
    assert read_plan(text) == read


def test_a_policy_plans_once_and_anew_when_its_plan_is_contradicted() -> None:
    asked: list[str] = []

    def script(messages: Any, metadata: Any) -> AIMessage:
        if messages[0].content != PLAN_SYSTEM:
            return AIMessage("", tool_calls=[{"name": "lookup", "args": {"name": "amber"}, "id": f"c{len(asked)}"}])
        asked.append(messages[-1].content)
        return AIMessage("find amber; answer" if len(asked) == 1 else "no plan at all")

    planner = ScriptedChatModel(script=script)
    environment = AssistantEnvironment("hard", step_limit=6)
    corrected = (t for t in environment.tasks("train", 40) if "Correction: amber" in str(t.data))
    task = next(corrected)
    (trace,) = rollout(build_agent(planner, environment, planner=planner), episodes([task])).traces
    plans = [s for s in trace.steps if s.policy_id == "planning"]
    assert len(plans) == len(asked) >= 1 and plans[0].messages[-1]["content"] == task.instruction
    first = next(s for s in trace.steps if s.policy_id == "reasoning")
    assert "Plan: find amber, answer." in str(first.messages[-1]["content"])
    assert all("Changed: " in text for text in asked[1:])


def test_experts_plan_too_and_the_plan_is_the_rules_one() -> None:
    environment = AssistantEnvironment("hard")
    planned = episodes(environment.tasks("train", 6))
    expert = ExpertPolicy()
    for episode in planned:
        expert.prepare(episode.id, environment, episode.task, episode.key)
    traces = rollout(build_agent(expert, environment, planner=expert), planned, memory=FaissStore(None)).traces
    for one in traces:
        assert one.outcome == "terminated" and one.component_totals()["success"] == 1.0
        plan = next(s for s in one.steps if s.policy_id == "planning").reply
        assert plan == write_plan(one.task.instruction) and read_plan(plan) is not None


def test_an_agent_in_an_episode_revises_its_plan_after_a_correction() -> None:
    environment = AssistantEnvironment("hard")
    planned = episodes(environment.tasks("train", 8))
    expert = ExpertPolicy()
    for episode in planned:
        expert.prepare(episode.id, environment, episode.task, episode.key)
    traces = rollout(build_agent(expert, environment), planned, memory=FaissStore(None, embedder=False)).traces
    revised = 0
    for trace in traces:
        notes = [str(s.messages[-1]["content"]) for s in trace.steps]
        assert "Plan:" in notes[0]
        for i, note in enumerate(notes[1:], start=1):
            corrected = [t for t in trace.task.data["targets"] if f"Correction: {t} costs" in note]
            if any(f"{t} costs" in "".join(notes[:i]) for t in corrected):
                assert "Plan:" in note
                revised += 1
    assert revised, "some correction came after the price was known"


# Self-improvement


def reflected(store: Any = None, **state: Any) -> str:
    view: AgentView = {"task": TASK, "feedback": {}, "outcome": "terminated", "plan": [], **state}  # type: ignore[typeddict-item]
    lesson: str = SelfImprovementNode(store)(view, Runtime())["reflection"]
    return lesson


@pytest.mark.parametrize(
    ("state", "lesson"),
    [
        ({"feedback": {"success": 1.0}}, ""),
        ({"outcome": "truncated"}, "answer before the steps run out."),
        ({"percept": {"open": {"Messages to come": 1}}}, "wait until nothing is still to come."),
        ({"belief": {"facts": [{"until": 3.0}]}}, "use the corrected value, not the first one."),
        ({"plan": [{"kind": "find", "status": "open", "text": "x"}]}, "finish the plan before answering."),
        ({}, "check each value before answering."),
    ],
)
def test_what_is_made_of_an_ending(state: Json, lesson: str) -> None:
    assert reflected(**state) == lesson


def test_a_lesson_is_stored_once_and_counted() -> None:
    store = FaissStore(None, embedder=False)
    for _ in range(3):
        reflected(store, outcome="truncated")
    reflected(store, feedback={"success": 1.0})
    (item,) = store.search(LESSONS)
    assert item.value == {"text": "answer before the steps run out.", "failures": 3}


def guess(value: int) -> ScriptedChatModel:
    call = {"id": "c", "name": "answer", "args": {"value": value}}
    return ScriptedChatModel(script=lambda messages, metadata: AIMessage("", tool_calls=[call]))


def run(policy: Any, tasks: list[Task], store: FaissStore, **options: Any) -> list[Trace]:
    environment = AssistantEnvironment("hard")
    return rollout(build_agent(policy, environment), episodes(tasks), memory=store, **options).traces


def test_a_failure_is_recalled_in_later_episodes() -> None:
    store = FaissStore(None)
    tasks = AssistantEnvironment("hard").tasks("train", 3)
    first = run(guess(0), tasks[:1], store, learn=True)[0]
    assert "Lesson:" not in str(first.steps[0].messages)
    (lesson,) = store.search(LESSONS)
    later = run(guess(0), tasks[1:], store)
    for trace in later:
        assert f"Lesson: {lesson.value['text']}" in str(trace.steps[0].messages[-1]["content"])
        assert trace.steps[0].memory_ids == (lesson.key,)
    assert store.search(LESSONS)[0].value["failures"] == 1, "these did not learn"
    run(guess(0), AssistantEnvironment("hard").tasks("heldout", 2), store, learn=True)
    assert store.search(LESSONS)[0].value["failures"] == 1, "and held-out ones never do"


def test_a_success_leaves_no_lesson_whatever_the_environment() -> None:
    store = FaissStore(None, embedder=False)
    lake = FrozenLakeEnvironment()  # rewards single calls
    planned = episodes(lake.tasks("train", 2))
    expert = ExpertPolicy()
    for episode in planned:
        expert.prepare(episode.id, lake, episode.task, episode.key)
    traces = rollout(build_agent(expert, lake), planned, memory=store, learn=True).traces
    assert all(t.component_totals()["success"] == 1.0 for t in traces)
    assert store.search(LESSONS) == []
