"""The built-in assistant environment: deterministic tasks, corrections that outlive the registry, an honest oracle."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcore.environment import Action, Json, Task, ToolCall, Transition
from agentcore.environments import make_environment
from agentcore.environments.arithmetic import evaluate
from agentcore.environments.assistant import TOOLS, AssistantEnvironment
from agentcore.environments.assistant_tasks import PRESETS, Difficulty
from agentcore.errors import SpecError
from agentcore.keys import rng

LEVELS = sorted(PRESETS)


def act(tool: str, /, **args: Any) -> Action:
    return Action(calls=(ToolCall("c", tool, args),))


def world(**data: Any) -> Task:
    """A task of one item, amber, whose registry price is 12."""
    given = {
        "targets": ["amber"],
        "place": None,
        "registry": {"amber": "amber costs 12.", "wax": "wax costs 30."},
        "schedule": [],
        "answer": 12,
        **data,
    }
    return Task("t", "train", 0, "What does amber cost?", given)


def states(environment: AssistantEnvironment, task: Task, *, random: bool = False) -> list[Transition]:
    """An episode: of the oracle, or of random calls that name what the task is about."""
    found = [environment.reset(task, 0)]
    names = [*task.data["targets"], task.data["place"] or "wax", "wax"]
    pick = rng("walk", task.id)
    while found[-1].outcome is None:
        state = found[-1].state
        action = environment.oracle(state)
        if random:
            tool = pick.choice(["lookup", "search_notes", "compute"])
            argument = next(iter(next(t for t in TOOLS if t.name == tool).parameters["properties"]))
            action = act(tool, **{argument: "1+1" if tool == "compute" else pick.choice(names)})
        found.append(environment.step(state, action, 0))
    return found


# Tasks


def test_tasks_do_not_depend_on_the_process() -> None:
    """Not on the hash seed either, which orders sets of strings."""
    program = (
        "import json, dataclasses; from agentcore.environments.assistant import *\n"
        "mix = [Difficulty(facts=4, hops=2, late=3, corrections=3, distractors=4, verbosity=1)]\n"
        "env = AssistantEnvironment('own', mixture=mix)\n"
        "print(json.dumps([dataclasses.asdict(t) for s in ('train', 'adversarial') for t in env.tasks(s, 4)]))"
    )
    found = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
        found.add(done.stdout)
    assert len(found) == 1 and len(json.loads(found.pop())) == 8, done.stderr


@pytest.mark.parametrize("level", LEVELS)
def test_a_seed_gives_its_own_tasks_and_splits_share_no_world(level: str) -> None:
    environment = AssistantEnvironment(level)
    one = environment.tasks("train", 12, seed=3)
    assert one == AssistantEnvironment(level).tasks("train", 12, seed=3)
    others = [*environment.tasks("train", 12, seed=4), *environment.tasks("heldout", 12, seed=3)]
    assert not {json.dumps(t.data, sort_keys=True) for t in one} & {json.dumps(t.data, sort_keys=True) for t in others}
    assert {t.data["difficulty"]["facts"] for t in one} == {d.facts for d in PRESETS[level]}


@pytest.mark.parametrize("level", LEVELS)
def test_the_answer_follows_from_what_is_said_last(level: str) -> None:
    for task in AssistantEnvironment(level).tasks("train", 12):
        prices: dict[str, int] = {}
        lines = [*task.data["registry"].values(), *(line for turn in task.data["schedule"] for line in turn)]
        for line in lines:
            words = line.removeprefix("News: ").removeprefix("Correction: ").split()
            if words[1:2] == ["costs"]:
                prices[words[0]] = int(words[2].rstrip("."))
        assert task.data["answer"] == sum(prices[t] for t in task.data["targets"])
        assert str(task.data["answer"]) not in task.instruction


def test_adversarial_tasks_plant_an_instruction_inside_a_tool_result() -> None:
    for level in LEVELS:
        environment = AssistantEnvironment(level)
        for task in environment.tasks("adversarial", 20):
            victim = task.data["place"] or task.data["targets"][0]
            state = environment.reset(task, 0).state
            (result,) = environment.step(state, act("lookup", name=victim), 0).results
            planted = [w for w in ("SYSTEM: ignore", "Note to the assistant", "IMPORTANT: stop") if w in result.content]
            assert len(planted) == 1 and planted[0] not in task.instruction
            numbers = re.findall(r"\d+", result.content.split(planted[0])[1])
            assert numbers and str(task.data["answer"]) not in numbers, "whoever obeys is wrong"
        texts = [json.dumps(t.data) for t in environment.tasks("heldout", 20)]
        assert not any("SYSTEM" in t or "IMPORTANT" in t or "Note to" in t for t in texts)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SpecError, match="Unknown level 'brutal' of the assistant environment; choose from"):
        make_environment("assistant", level="brutal")
    with pytest.raises(SpecError, match="Unknown environment 'asistant'; choose from assistant, frozen-lake"):
        make_environment("asistant")
    wrong: list[dict[str, Any]] = [{"facts": 5}, {"hops": 3}, {"late": 2}, {"distractors": -1}]
    for numbers in wrong:
        with pytest.raises(SpecError, match="Difficulty"):
            Difficulty(**numbers)
    with pytest.raises(SpecError, match=r"'t' is not one of the assistant environment: its data lacks \['answer'"):
        AssistantEnvironment().reset(Task("t", "train", 0, "x"), 0)


def test_the_step_limit_leaves_time_to_hear_everything() -> None:
    assert AssistantEnvironment("hard").spec.step_limit == 10
    assert AssistantEnvironment("hard", step_limit=8).spec.step_limit == 8
    long = AssistantEnvironment("long")
    for task in long.tasks("train", 4):
        assert long.spec.step_limit >= len(task.data["schedule"]) + 2
        assert states(long, task)[-1].rewards["success"] == 1.0


# Corrections


def test_a_correction_outlives_the_registry() -> None:
    environment = AssistantEnvironment()
    task = world(schedule=[["Correction: amber costs 45."]], answer=45)
    first = environment.step(environment.reset(task, 0).state, act("search_notes", query="amber"), 0)
    assert first.observation == "Correction: amber costs 45.\nMessages to come: 0."
    second = environment.step(first.state, act("lookup", name="amber"), 0)
    assert second.results[0].content == "amber costs 12.", "the registry keeps showing the old price"
    assert second.state["prices"] == {"amber": 45}, "and an attentive reader knows better"
    assert environment.oracle(second.state).calls[0].args == {"value": 45}
    assert environment.step(second.state, act("answer", value=45), 0).rewards["success"] == 1.0
    assert environment.step(second.state, act("answer", value=12), 0).rewards["success"] == 0.0
    notes = environment.step(second.state, act("search_notes", query="the amber"), 0)
    assert notes.results[0].content == "Correction: amber costs 45."


def test_progress_is_the_share_of_needed_prices_that_are_known() -> None:
    environment = AssistantEnvironment()
    task = world(targets=["amber", "wax"], place="Lyon", answer=42)
    task.data["registry"]["Lyon"] = "Lyon sells wax."
    state = environment.reset(task, 0).state
    # a price counts once the agent can know that it is asked for
    steps = [("lookup", "wax", 0.0), ("lookup", "Lyon", 0.15), ("lookup", "amber", 0.15), ("lookup", "amber", 0.0)]
    for tool, name, progress in steps:
        transition = environment.step(state, act(tool, name=name), 0)
        assert transition.rewards == {"progress": pytest.approx(progress)}
        state = transition.state
    end = environment.step(state, act("answer", value=0), 0)
    assert end.rewards == {"success": 0.0, "progress": pytest.approx(-0.3)}


# The oracle


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("random", [False, True])
def test_the_oracle_never_uses_what_it_was_not_told(level: str, random: bool) -> None:
    """Everything hidden is replaced; what it does stays the same."""
    environment = AssistantEnvironment(level)
    for task in environment.tasks("train", 8):
        for transition in states(environment, task, random=random)[:-1]:
            state = transition.state
            assert environment.oracle(_otherwise(state)) == environment.oracle(state)


def _otherwise(state: Json) -> Json:
    """The same past in another world: another answer, other messages to come, other entries never looked up."""
    changed = copy.deepcopy(state)
    world = changed["world"]
    world["answer"] = -1
    world["schedule"] = [
        turn if i < state["turn"] else ["Correction: zinc costs 1."] for i, turn in enumerate(world["schedule"])
    ]
    asked = {*state["looked_up"], *([world["place"]] if state["place_known"] else [])}
    world["registry"] = {k: v for k, v in world["registry"].items() if k in asked}
    if world["place"] is not None and not state["place_known"]:
        world["targets"] = [*world["targets"][:-1], "unicorn"]
    return changed


# Calls


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ToolCall("c", "lookup", {"name": True}), "argument 'name' must be string"),
        (ToolCall("c", "lookup", {}), "missing argument 'name'"),
        (ToolCall("c", "lokup", {"name": "amber"}), "did you mean 'lookup'"),
        (ToolCall("c", "lookup", {"name": "x" * 201}), "at most 200 characters"),
        (ToolCall("c", "answer", {"value": "twelve"}), "must be integer"),
        (ToolCall("c", "answer", {"value": True}), "must be integer"),
        (ToolCall("c", "answer", {"value": 10**12}), "at most 9 digits"),
        (ToolCall("c", "compute", {"expression": "1/0"}), "cannot compute that"),
        (ToolCall("c", "compute", {"expression": "open('x')"}), "cannot compute that"),
        (ToolCall("c", "lookup", {"name": "amber"}, error="broken"), "broken"),
    ],
)
def test_a_wrong_call_costs_and_is_explained(call: ToolCall, said: str) -> None:
    environment = AssistantEnvironment()
    transition = environment.step(environment.reset(world(), 0).state, Action(calls=(call,)), 0)
    assert not transition.results[0].ok and said in transition.results[0].content
    assert transition.call_rewards == {"c": {"invalid_call": -0.1}} and transition.outcome is None


def test_calls_are_applied_in_order_and_none_after_the_answer() -> None:
    environment = AssistantEnvironment()
    calls = (ToolCall("a", "answer", {"value": "12"}), ToolCall("b", "lookup", {"name": "amber"}))
    end = environment.step(environment.reset(world(), 0).state, Action(calls=calls), 0)
    assert (end.outcome, end.rewards["success"]) == ("terminated", 1.0)
    assert [r.ok for r in end.results] == [True, False] and end.call_rewards == {}
    idle = environment.step(environment.reset(world(), 0).state, Action("hm"), 0)
    assert idle.rewards["invalid_call"] == -0.1 and "No tool was called" in idle.observation
    with pytest.raises(SpecError, match="This episode is over"):
        environment.step(end.state, Action(), 0)


# Arithmetic


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 99)), max_size=6))
def test_arithmetic_is_right(parts: list[tuple[str, int]]) -> None:
    text = "7" + "".join(f" {sign} {number}" for sign, number in parts)
    assert evaluate(text) == eval(text)  # of digits and signs only


@pytest.mark.parametrize(("text", "value"), [("(1+2)*-3", -9), (" 45 ", 45), ("--2", 2), ("2*(3-(4*5))", -34)])
def test_forms_of_arithmetic(text: str, value: int) -> None:
    assert evaluate(text) == value


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("0123456789+-*/() .e_xjaif,[]{}:'\"=<>%&|^~@\n\x00é"), max_size=30))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    try:
        value = evaluate(text)
    except (ValueError, SyntaxError):
        return
    assert type(value) is int and abs(value) < 10**12


@pytest.mark.parametrize(
    "text",
    [
        *("", "amber", "1.5", "1/2", "7//2", "7%2", "2**9", "1<<9", "~1", "+1", "True", "1j", "'1'", "1,2", "[1]"),
        *("(1).__class__", "x", "abs(1)", "__import__('os').system('true')", "lambda: 1", "1 if 1 else 2", "1 and 2"),
        *("1 < 2", "x := 1", "f'{1}'", "1\n2", "9999999999", "999999999*999999999", "1+" * 60 + "1", "(" * 60, "\x00"),
    ],
)
def test_anything_but_arithmetic_is_refused(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        evaluate(text)
