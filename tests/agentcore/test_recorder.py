"""Any LangGraph run as a trace: who called, what triggered whom, what came back, and rewards by identity."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from agentcore import Recorder, aemit_reward, emit_reward
from agentcore.assembly import policy_id
from agentcore.environment import Task
from agentcore.errors import DuplicateRewardError, SpecError
from agentcore.policies.scripted import ScriptedChatModel
from agentcore.trace import NodeRun, Reward, Trace

TASK = Task("t", "train", 0, "do")
U = "11111111-2222-3333-4444-555555555555"


def echo(messages: Any, metadata: Any) -> AIMessage:
    return AIMessage(f"re: {messages[-1].content}")


MODEL = ScriptedChatModel(script=echo)


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


def say(text: str) -> Any:
    def node(state: State) -> State:
        return {"said": [str(MODEL.invoke(text).content)]}

    return node


def run(graph: Any, given: Any = None, *, recorder: Recorder | None = None, thread: str = "th") -> tuple[Trace, Any]:
    recorder = recorder or Recorder()
    config: RunnableConfig = {"callbacks": [recorder], "configurable": {"thread_id": thread}}
    final = graph.invoke({"said": []} if given is None else given, config)
    return recorder.trace(TASK, "terminated", trace_id="x"), final


def chain(*nodes: tuple[str, Any], **options: Any) -> Any:
    graph = StateGraph(State)
    for name, node in nodes:
        graph.add_node(name, node, **options)
    names = [START, *(name for name, _ in nodes), END]
    for source, target in pairwise(names):
        graph.add_edge(source, target)
    return graph


def named(trace: Trace, node: str) -> list[NodeRun]:
    return [r for r in trace.node_runs if r.node == node]


def parents(trace: Trace, run: NodeRun) -> set[str]:
    by_id = {r.id: r for r in trace.node_runs}
    return {by_id[p].node for p in run.parents}


# Steps and policy ids


@pytest.mark.parametrize(
    ("ns", "name", "expected"),
    [
        (f"reasoning:{U}", None, "reasoning"),
        (f"team:{U}|planner:{U}", None, "team/planner"),
        (f"team:{U}|1|planner:{U}", None, "team/planner"),
        (f"model:{U}", "writer", "writer:model"),
        ("", None, ""),
        (f"node-7:{U}", None, "node-7"),
    ],
)
def test_policy_ids(ns: str, name: str | None, expected: str) -> None:
    assert policy_id(ns, name) == expected


def test_a_line_of_nodes() -> None:
    trace, _ = run(chain(("one", say("a")), ("two", lambda s: {}), ("three", say("b"))).compile())
    assert [(s.policy_id, s.reply) for s in trace.steps] == [("one", "re: a"), ("three", "re: b")]
    assert [s.messages for s in trace.steps] == [({"role": "user", "content": t},) for t in "ab"]
    assert [parents(trace, r) for r in trace.node_runs] == [set(), {"one"}, {"two"}]
    assert {s.node_run for s in trace.steps} <= {r.id for r in trace.node_runs}
    assert [s.key[0] for s in trace.steps] == ["th", "th"]
    assert all(r.ended is not None and r.error is None for r in trace.node_runs)
    assert trace.problems == () and trace.edges == "superstep"


def test_calls_in_one_node_are_counted() -> None:
    def node(state: State) -> State:
        return {"said": [str(MODEL.invoke(t).content) for t in "abc"]}

    trace, _ = run(chain(("n", node)).compile())
    assert [s.key[2] for s in trace.steps] == [0, 1, 2]
    assert len({s.key[:2] for s in trace.steps}) == 1


def test_a_call_outside_any_graph() -> None:
    recorder = Recorder()
    MODEL.invoke("hello", {"callbacks": [recorder]})
    (step,) = recorder.trace(TASK, "terminated", trace_id="x").steps
    assert (step.node_run, step.policy_id, step.reply) == (None, "", "re: hello")


def test_a_reply_object_that_is_used_twice_is_two_replies() -> None:
    same = AIMessage("always")
    model = ScriptedChatModel(script=lambda messages, metadata: same)
    ids = {model.invoke("a").id, model.invoke("b").id}
    assert len(ids) == 2 and same.id is None


# Edges


def test_branches_do_not_see_each_other_and_a_join_sees_all() -> None:
    graph = StateGraph(State)
    for name in ("start", "left", "right", "join"):
        graph.add_node(name, say(name))
    graph.add_edge(START, "start")
    graph.add_edge("start", "left")
    graph.add_edge("start", "right")
    graph.add_edge(["left", "right"], "join")
    trace, _ = run(graph.compile())
    assert {r.node: parents(trace, r) for r in trace.node_runs} == {
        "start": set(),
        "left": {"start"},
        "right": {"start"},
        "join": {"left", "right"},
    }


def test_sends_are_siblings() -> None:
    graph = StateGraph(State)
    graph.add_node("plan", say("plan"))
    graph.add_node("work", lambda item: {"said": [str(MODEL.invoke(item).content)]})
    graph.add_node("end", say("end"))
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda s: [Send("work", f"job {i}") for i in range(3)], ["work"])
    graph.add_edge("work", "end")
    trace, _ = run(graph.compile())
    assert len({r.ns for r in named(trace, "work")}) == 3
    assert [parents(trace, r) for r in named(trace, "work")] == [{"plan"}] * 3
    assert set(named(trace, "end")[0].parents) == {r.id for r in named(trace, "work")}
    assert {s.policy_id for s in trace.steps} == {"plan", "work", "end"}


def test_a_subgraph_hangs_on_the_node_that_called_it() -> None:
    inner = chain(("first", say("i1")), ("second", say("i2"))).compile()

    def twice(state: State) -> State:
        inner.invoke(state)
        inner.invoke(state)
        return {"said": [str(MODEL.invoke("after").content)]}

    graph = chain(("before", say("b")), ("team", inner), ("again", twice), ("last", say("l")))
    trace, _ = run(graph.compile())
    assert [s.policy_id for s in trace.steps] == [
        *("before", "team/first", "team/second"),
        *("again/first", "again/second", "again/first", "again/second", "again", "last"),
    ]
    assert [parents(trace, r) for r in named(trace, "first")] == [{"team"}, {"again"}, {"again"}]
    assert [parents(trace, r) for r in named(trace, "second")] == [{"first"}] * 3
    seconds = [set(r.parents) for r in named(trace, "second")]
    assert not any(a & b for i, a in enumerate(seconds) for b in seconds[:i]), "each follows its own first"
    assert parents(trace, named(trace, "last")[0]) == {"again"}


# Attempts


def fails(times: int, error: type[Exception] = ConnectionError) -> Callable[[], None]:
    left = [times]

    def maybe() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise error("try again")

    return maybe


RETRY = RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False, retry_on=ConnectionError)


def test_a_retry_supersedes_the_earlier_attempt() -> None:
    maybe = fails(2)

    def node(state: State) -> State:
        MODEL.invoke("x")
        emit_reward("tried", 1.0)
        maybe()
        return {}

    trace, _ = run(chain(("n", node), ("last", say("y")), retry_policy=RETRY).compile())
    tries = [s for s in trace.steps if s.policy_id == "n"]
    assert [(s.attempt, s.superseded) for s in tries] == [(0, True), (1, True), (2, False)]
    assert [s.policy_id for s in trace.live_steps] == ["n", "last"]
    assert len({s.key for s in tries}) == 1, "one step key, three attempts"
    runs = named(trace, "n")
    assert [r.error is not None for r in runs] == [True, True, False] and "try again" in str(runs[0].error)
    assert named(trace, "last")[0].parents == (runs[2].id,)
    assert [r.target_id for r in trace.rewards] == [runs[2].id], "the replaced attempts' rewards went with them"


def test_the_last_attempt_counts_even_if_it_failed() -> None:
    maybe = fails(5)

    def node(state: State) -> State:
        MODEL.invoke("x")
        maybe()
        return {}

    recorder = Recorder()
    with pytest.raises(ConnectionError):
        run(chain(("n", node), retry_policy=RETRY).compile(), recorder=recorder)
    trace = recorder.trace(TASK, "failed", trace_id="x")
    assert [s.superseded for s in trace.steps] == [True, True, False]


def test_a_retry_supersedes_what_its_subgraph_did() -> None:
    maybe = fails(1)
    inner = chain(("first", say("i1")), ("second", say("i2"))).compile()

    def node(state: State) -> State:
        inner.invoke(state)
        maybe()
        return {}

    trace, _ = run(chain(("n", node), retry_policy=RETRY).compile())
    assert [(s.policy_id, s.superseded) for s in trace.steps] == [
        *(("n/first", True), ("n/second", True)),
        *(("n/first", False), ("n/second", False)),
    ]
    live = [r for r in named(trace, "second") if r.id == trace.live_steps[1].node_run]
    assert live[0].parents == (trace.live_steps[0].node_run,)


def test_an_interrupted_node_runs_again_and_its_subgraph_goes_on() -> None:
    def ask(state: State) -> State:
        MODEL.invoke("before asking")
        return {"said": [interrupt("sure?")]}

    inner = chain(("think", say("t")), ("ask", ask)).compile()
    graph = chain(("one", say("a")), ("team", inner), ("last", say("l"))).compile(checkpointer=InMemorySaver())
    recorder = Recorder()
    run(graph, recorder=recorder)
    trace, final = run(graph, Command(resume="yes"), recorder=recorder)
    assert "yes" in final["said"]
    assert [(s.policy_id, s.superseded) for s in trace.steps] == [
        ("one", False),
        ("team/think", False),
        ("team/ask", True),
        ("team/ask", False),
        ("last", False),
    ]
    assert [r.error for r in named(trace, "ask")] == ["interrupt", None]


def test_only_the_branch_that_crashed_runs_again() -> None:
    maybe = fails(1)

    def crash(state: State) -> State:
        MODEL.invoke("c")
        maybe()
        return {}

    graph = StateGraph(State)
    graph.add_node("left", say("l"))
    graph.add_node("right", crash)
    graph.add_edge(START, "left")
    graph.add_edge(START, "right")
    compiled = graph.compile(checkpointer=InMemorySaver())
    recorder = Recorder()
    with pytest.raises(ConnectionError):
        run(compiled, recorder=recorder)
    config: RunnableConfig = {"callbacks": [recorder], "configurable": {"thread_id": "th"}}
    compiled.invoke(None, config)
    trace = recorder.trace(TASK, "terminated", trace_id="x")
    assert sorted((s.policy_id, s.superseded) for s in trace.steps) == [
        *(("left", False), ("right", False), ("right", True))
    ]


# Tools


@tool
def price(item: str) -> str:
    """Price of an item."""
    emit_reward("looked", 0.5)
    return f"{item} costs 12."


@tool
def broken(item: str) -> str:
    """Always fails."""
    raise ValueError(f"no {item}")


@tool
def move(to: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Answers with a command."""
    emit_reward("moved", 1.0, tool_call_id=tool_call_id)
    return Command(update={"messages": [ToolMessage(f"at {to}", tool_call_id=tool_call_id)]})


def calling(*calls: tuple[str, str, dict[str, Any]]) -> ScriptedChatModel:
    """Makes the calls (id, name, arguments) in its first reply, then ends."""

    def script(messages: Any, metadata: Any) -> AIMessage:
        if any(isinstance(m, ToolMessage) for m in messages):
            return AIMessage("done")
        return AIMessage("", tool_calls=[{"id": i, "name": n, "args": a} for i, n, a in calls])

    return ScriptedChatModel(script=script)


async def test_results_attach_by_call_id_in_a_prebuilt_agent() -> None:
    model = calling(
        ("c1", "price", {"item": "amber"}),
        ("c2", "move", {"to": "Lyon"}),
        ("c3", "nope", {}),
        ("c4", "price", {"item": "wax"}),
        ("c5", "price", {"wrong": 1}),
    )
    agent = create_agent(model, [price, move], name="shopper")
    recorder = Recorder()
    await agent.ainvoke({"messages": [HumanMessage("go")]}, {"callbacks": [recorder]})
    trace = recorder.trace(TASK, "terminated", trace_id="x")
    assert trace.problems == ()
    first, second = trace.steps
    assert (first.policy_id, second.policy_id) == ("shopper:model", "shopper:model")
    assert [t["function"]["name"] for t in first.tools] == ["price", "move"]
    found = {r.call_id: r for r in first.results}
    assert [r.call_id for r in first.results] == ["c1", "c2", "c3", "c4", "c5"]
    assert [found[c].content for c in ("c1", "c2", "c4")] == ["amber costs 12.", "at Lyon", "wax costs 12."]
    assert [found[f"c{i}"].ok for i in range(1, 6)] == [True, True, False, True, False]
    assert "nope is not a valid tool" in found["c3"].content
    # a reward given in a tool lands on its own node run, or on the call that is named
    runs = {r.id for r in named(trace, "tools")}
    looked = [r for r in trace.rewards if r.component == "looked"]
    assert len(looked) == 2 and {r.target_id for r in looked} <= runs and looked[0].target_id != looked[1].target_id
    assert [(r.target, r.target_id) for r in trace.rewards if r.component == "moved"] == [("call", "c2")]


def test_a_tool_that_raises_leaves_its_error_as_the_result() -> None:
    agent = create_agent(calling(("c1", "broken", {"item": "wax"})), [broken])
    recorder = Recorder()
    with pytest.raises(ValueError, match="no wax"):
        agent.invoke({"messages": [HumanMessage("go")]}, {"callbacks": [recorder]})
    trace = recorder.trace(TASK, "failed", trace_id="x")
    (result,) = trace.steps[0].results
    assert (result.ok, result.content) == (False, "ValueError: no wax")


# Rewards


def test_parallel_branches_get_their_own_rewards() -> None:
    def branch(value: float, *, slow: bool) -> Any:
        async def node(state: State) -> State:
            await MODEL.ainvoke("x")
            await asyncio.sleep(0.05 if slow else 0)
            await aemit_reward("good", value)
            return {}

        return node

    graph = StateGraph(State)
    graph.add_node("left", branch(-1.0, slow=True))
    graph.add_node("right", branch(1.0, slow=False))
    graph.add_edge(START, "left")
    graph.add_edge(START, "right")
    compiled = graph.compile()
    recorder = Recorder()
    asyncio.run(compiled.ainvoke({"said": []}, {"callbacks": [recorder]}))
    trace = recorder.trace(TASK, "terminated", trace_id="x")
    by_id = {r.id: r.node for r in trace.node_runs}
    assert {by_id[r.target_id]: r.value for r in trace.rewards} == {"left": -1.0, "right": 1.0}


def test_a_component_given_twice_is_an_error() -> None:
    def node(state: State) -> State:
        emit_reward("good", 1.0)
        emit_reward("good", 1.0, source="grader-3")
        return {}

    recorder = Recorder()
    with pytest.raises(DuplicateRewardError, match=r"'good' on node_run .* was already set by environment"):
        run(chain(("n", node)).compile(), recorder=recorder)


def test_a_reward_for_nothing_known_is_kept_and_said() -> None:
    def node(state: State) -> State:
        MODEL.invoke("x")
        emit_reward("good", 1.0, tool_call_id="c9")
        return {}

    trace, _ = run(chain(("n", node)).compile())
    assert trace.rewards == (Reward("good", 1.0, "call", "c9"),)
    assert trace.problems == ("reward 'good' for the tool call c9, which no recorded reply made",)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_is_a_finite_number(value: float) -> None:
    def node(state: State) -> State:
        emit_reward("good", value)
        return {}

    with pytest.raises(SpecError, match="The reward 'good' is"):
        run(chain(("n", node)).compile())


# What cannot be recorded


def test_what_the_recorder_cannot_take_is_a_problem_and_changes_no_result() -> None:
    from langchain_core.callbacks import dispatch_custom_event

    def node(state: State) -> State:
        dispatch_custom_event("agentcore.reward", {"nonsense": 1})
        dispatch_custom_event("agentcore.context", {"message_id": "nobody's"})
        dispatch_custom_event("agentcore.observation", {"results": [{"call_id": "c9", "content": "", "ok": True}]})
        dispatch_custom_event("somebody.else", object())
        return {"said": ["done"]}

    trace, final = run(chain(("n", node)).compile())
    assert final["said"] == ["done"]
    said = " / ".join(trace.problems)
    assert "on_custom_event could not be recorded (TypeError" in said
    assert "nobody's, which no recorded call gave" in said and "c9, which no recorded reply made" in said
    assert len(trace.problems) == 3


def test_arguments_that_are_not_json_are_an_error_of_the_call() -> None:
    reply = AIMessage("", tool_calls=[{"id": "c1", "name": "price", "args": {"x": float("nan"), "y": "\ud800"}}])
    model = ScriptedChatModel(script=lambda messages, metadata: reply)
    recorder = Recorder()
    model.invoke("x", {"callbacks": [recorder]})
    (call,) = recorder.trace(TASK, "terminated", trace_id="x").steps[0].calls
    assert (call.args, call.error) == ({"x": "nan", "y": "?"}, "the arguments hold what is not JSON")


def test_a_plain_language_model_is_a_step_too() -> None:
    from langchain_core.language_models import FakeListLLM

    llm = FakeListLLM(responses=["hi there"])
    trace, _ = run(chain(("n", lambda s: {"said": [llm.invoke("hello")]})).compile())
    assert trace.problems == ()
    assert [(s.policy_id, s.messages[0]["content"], s.reply) for s in trace.steps] == [("n", "hello", "hi there")]


def test_a_failed_call_is_a_step_with_its_error() -> None:
    def script(messages: Any, metadata: Any) -> AIMessage:
        raise TimeoutError("no answer")

    def node(state: State) -> State:
        with pytest.raises(TimeoutError):
            ScriptedChatModel(script=script).invoke("x")
        return {"said": [str(MODEL.invoke("y").content)]}

    trace, _ = run(chain(("n", node)).compile())
    assert [(s.error, s.reply) for s in trace.steps] == [("TimeoutError: no answer", ""), (None, "re: y")]
