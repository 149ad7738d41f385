"""The local chat model: exact tokens go to the recorder, messages stay light, draws depend on the episode's key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy

from agentcore.environment import Task
from agentcore.environment_node import agent_input
from agentcore.environments.assistant import AssistantEnvironment
from agentcore.errors import ContextOverflowError
from agentcore.graph import build_agent
from agentcore.policies.engine import Engine, GenerationResult
from agentcore.policies.local import EPISODE_ID, EPISODE_KEY, LocalChatModel, to_message
from agentcore.recorder import Recorder
from agentcore.runner import episodes, rollout
from agentcore.trace import Step, Trace

Make = Callable[..., Engine]
TASK = Task("t", "train", 0, "do")


@tool
def lookup(name: str) -> str:
    """Look a thing up."""
    return name


@pytest.fixture
def policy(tiny_engine: Make) -> LocalChatModel:
    return LocalChatModel(engine=tiny_engine(), max_tokens=10)


def recorded(recorder: Recorder) -> Trace:
    return recorder.trace(TASK, "terminated", trace_id="x")


def test_the_exact_tokens_are_recorded_and_the_message_stays_light(policy: LocalChatModel) -> None:
    recorder = Recorder()
    bound = policy.with_options(temperature=0.7).bind_tools([lookup])
    message = bound.invoke([SystemMessage("s"), HumanMessage("amber?")], {"callbacks": [recorder]})
    (step,) = recorded(recorder).steps
    tokens = step.tokens
    assert tokens is not None and tokens.logprobs is not None
    assert tokens.reply_ids and len(tokens.logprobs) == len(tokens.reply_ids)
    assert (tokens.model, tokens.adapter, tokens.adapter_version, tokens.temperature) == ("tiny", None, 0, 0.7)
    assert policy.codec.reply_text(tokens.reply_ids) == message.content == step.reply
    assert policy.codec.tokenizer.decode(tokens.prompt_ids).endswith("amber?<|im_end|>\n<|im_start|>assistant\n")
    assert [t["function"]["name"] for t in step.tools] == ["lookup"]
    assert recorder.policies[0].engine is policy.engine
    assert set(message.response_metadata) <= {"rollout_id", "model_name", "call_order", "model_provider"}
    assert message.usage_metadata is not None
    assert message.usage_metadata["output_tokens"] == len(tokens.reply_ids)
    assert step.policy_id == "" and step.node_run is None


def test_a_conversation_goes_on_from_the_sampled_ids(policy: LocalChatModel) -> None:
    recorder = Recorder()
    config: RunnableConfig = {"callbacks": [recorder]}
    messages: list[BaseMessage] = [HumanMessage("amber?")]
    for turn in range(3):
        messages.append(policy.invoke(messages, config))
        messages.append(HumanMessage(f"and {turn}?"))
    found = [s.tokens for s in recorded(recorder).steps]
    for earlier, later in pairwise(found):
        assert earlier is not None and later is not None
        whole = (*earlier.prompt_ids, *earlier.reply_ids)
        assert later.prompt_ids[: len(whole)] == whole


def test_sync_and_async_calls_give_the_same(policy: LocalChatModel) -> None:
    prompts: list[list[BaseMessage]] = [[HumanMessage(f"price {i}?")] for i in range(4)]

    async def together() -> list[AIMessage]:
        return await asyncio.gather(*(policy.ainvoke(p) for p in prompts))

    assert [m.content for m in asyncio.run(together())] == [policy.invoke(p).content for p in prompts]


def test_a_draw_depends_on_the_episode_and_its_place(policy: LocalChatModel) -> None:
    def ask(key: int | None, text: str = "amber?") -> str:
        config: RunnableConfig = {"metadata": {EPISODE_KEY: key, EPISODE_ID: f"e{key}"} if key is not None else {}}
        return str(policy.invoke([HumanMessage(text)], config).content)

    assert ask(1) == ask(1)
    assert len({ask(k) for k in range(6)}) > 1
    assert ask(None) == ask(None) == policy.with_options(seed=0).invoke([HumanMessage("amber?")]).content
    assert len({policy.with_options(seed=s).invoke([HumanMessage("amber?")]).content for s in range(6)}) > 1


class State(TypedDict, total=False):
    said: list[str]


def build(policy: LocalChatModel, node: Any, **options: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("think", node, **options)
    graph.add_edge(START, "think")
    graph.add_edge("think", END)
    return graph.compile()


def test_several_samples_of_one_prompt_in_one_node_differ(policy: LocalChatModel) -> None:
    async def vote(state: State) -> State:
        drawn = await asyncio.gather(*(policy.ainvoke([HumanMessage("amber?")]) for _ in range(6)))
        return {"said": sorted(str(m.content) for m in drawn)}

    planned = episodes([TASK], 2)
    first = rollout(build(policy, vote), planned, to_input=lambda task, key: {"said": []})
    replies = [sorted(s.reply for s in t.steps) for t in first.traces]
    assert len(set(replies[0])) > 1 and replies[0] != replies[1]
    again = rollout(build(policy, vote), planned, to_input=lambda task, key: {"said": []})
    assert [sorted(s.reply for s in t.steps) for t in again.traces] == replies, "and are the same in the next run"


def test_calls_made_at_the_same_moment_have_ids_of_their_own(policy: LocalChatModel) -> None:
    engine = policy.engine
    text = policy.codec.encode("lookup('a')")
    engine.generate = lambda requests: [  # type: ignore[method-assign]
        GenerationResult(text, (0.0,) * len(text), "length", 0) for _ in requests
    ]
    bound = policy.bind_tools([lookup])

    async def together() -> list[AIMessage]:
        return await asyncio.gather(*(bound.ainvoke([HumanMessage(f"{i}")]) for i in range(20)))

    ids = [c["id"] for m in asyncio.run(together()) for c in m.tool_calls]
    assert len(set(ids)) == len(ids) == 20


def test_a_retried_node_draws_anew(policy: LocalChatModel) -> None:
    seen: list[str] = []

    def think(state: State) -> State:
        seen.append(str(policy.invoke([HumanMessage("amber?")]).content))
        if len(seen) < 4:
            raise ConnectionError("unreadable")
        return {"said": seen}

    retry = RetryPolicy(max_attempts=4, initial_interval=0.01, retry_on=ConnectionError)
    graph = build(policy, think, retry_policy=retry)
    (trace,) = rollout(graph, episodes([TASK]), to_input=lambda task, key: {"said": []}).traces
    assert len(set(seen)) > 1
    assert [s.superseded for s in trace.steps] == [True, True, True, False]


def test_an_agents_episodes_do_not_depend_on_how_many_run_at_once(policy: LocalChatModel) -> None:
    environment = AssistantEnvironment("hard", step_limit=4)
    planned = episodes(environment.tasks("train", 3), 2)
    graph = build_agent(policy, environment, context_budget=100_000)
    runs = [rollout(graph, planned, concurrency=n).traces for n in (1, 6)]
    for one, other in zip(*runs, strict=True):
        assert one.outcome == "truncated" and one.problems == () == other.problems
        assert [s.reply for s in one.steps] == [s.reply for s in other.steps]
        for earlier, later in pairwise(one.steps):
            assert earlier.tokens is not None and later.tokens is not None
            sampled = (*earlier.tokens.prompt_ids, *earlier.tokens.reply_ids)
            assert later.tokens.prompt_ids[: len(sampled)] == sampled
    assert len({t.steps[0].reply for t in runs[0]}) > 3, "rollouts of one task differ"
    task = planned[0].task
    config: RunnableConfig = {"metadata": {**planned[0].metadata, EPISODE_ID: "sync"}}
    final = graph.invoke(agent_input(task, planned[0].key), config)
    said = [m.content for m in final["messages"] if isinstance(m, AIMessage)]
    assert said == [s.reply for s in runs[0][0].steps]


def test_a_prompt_beyond_the_context_fails_its_own_episode_only(policy: LocalChatModel) -> None:
    def think(state: State) -> State:
        return {"said": [str(policy.invoke([HumanMessage("".join(state["said"]))]).content)]}

    tasks = [Task(f"t{i}", "train", 0, "do", {"length": n}) for i, n in enumerate((5, 5000, 5))]
    graph = build(policy, think)
    result = rollout(graph, episodes(tasks), to_input=lambda task, key: {"said": ["x"] * task.data["length"]})
    assert [t.outcome for t in result.traces] == ["terminated", "failed", "terminated"]
    assert "exceeds the model's context of 1024" in result.traces[1].problems[0]
    assert "ContextOverflowError" in str(result.traces[1].steps[0].error)
    with pytest.raises(ContextOverflowError):
        policy.invoke([HumanMessage("x" * 5000)])


def test_calls_keep_their_order_in_the_message(policy: LocalChatModel) -> None:
    tools = [{"type": "function", "function": {"name": "lookup", "parameters": {"properties": {"name": {}}}}}]
    text = "lookup(name='a\nlookup(name='b')\nnope()\nlookup(name='c')"
    calls = [p.call for p in policy.codec.parse(text, tools, "c")]
    message = to_message(text, calls)
    assert [c["args"] for c in message.tool_calls] == [{"name": "b"}, {"name": "c"}]
    assert [c["error"] is not None for c in message.invalid_tool_calls] == [True, True]
    from agentcore.assembly import calls_of

    assert [(c.id, c.name, c.error) for c in calls_of(message)] == [(c.id, c.name, c.error) for c in calls]
    assert "call_order" not in to_message(text, calls[1:2]).response_metadata


def test_options_share_the_engine_and_another_format_gets_its_own_codec(policy: LocalChatModel) -> None:
    cold = policy.with_options(temperature=0.0)
    assert cold.engine is policy.engine and cold.codec is policy.codec and policy.temperature == 1.0
    hermes = policy.with_options(tool_format="hermes")
    assert hermes.codec.format.name == "hermes" and policy.codec.format.name == "compact"


def test_logged_text_is_tokenised_again_and_marked(policy: LocalChatModel) -> None:
    messages = ({"role": "user", "content": "amber?"},)
    step = Step("s", ("t", "", 0), None, "p", messages, 'lookup(name="amber")')
    tokens = policy.tokens_of(step)
    assert tokens.retokenised and tokens.logprobs is None
    assert policy.codec.reply_text(tokens.reply_ids) == 'lookup(name="amber")'
    assert tokens.prompt_ids == policy.codec.prompt_ids(messages, [])
    exact = Step("s", ("t", "", 0), None, "p", messages, "x", tokens=tokens)
    assert policy.tokens_of(exact) is tokens


def test_messages_of_any_kind_can_be_prompted_with(policy: LocalChatModel) -> None:
    recorder = Recorder()
    call = {"name": "lookup", "args": {"name": "amber"}, "id": "1"}
    messages: list[BaseMessage] = [
        SystemMessage("s"),
        HumanMessage([{"type": "text", "text": "amber\ud800?"}, {"type": "weird", "x": 1}]),
        AIMessage("", tool_calls=[call]),
        ToolMessage("amber costs 12.", tool_call_id="1"),
        ToolMessage("orphan", tool_call_id="9"),
    ]
    assert isinstance(policy.invoke(messages, {"callbacks": [recorder]}), AIMessage)
    trace = recorded(recorder)
    assert trace.problems == ()
    assert [m["role"] for m in trace.steps[0].messages] == ["system", "user", "assistant", "tool", "tool"]
