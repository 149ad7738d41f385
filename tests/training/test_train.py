"""``train`` on users' own graphs, with the tiny random model; and that the whole loop learns what can be learned."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
import torch
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from peft import PeftModel

from agentcore import LocalChatModel, Task
from agentcore.environment import RewardSpec
from agentcore.errors import PolicyError, SpecError, UndeclaredRewardError
from agentcore.policies.engine import Engine
from agentcore.policies.scripted import ScriptedChatModel
from agentcore.trace import Trace
from agentcore.tracefile import read_traces
from training import LoraSettings, RlSettings, TrainSettings, UpdateSettings, train
from training.loop import hacking_alarm
from training.runfolder import RunFolder, RunFolderError
from training.summary import write_report

Make = Callable[..., Engine]
SETTINGS = TrainSettings(
    lora=LoraSettings(rank=4, alpha=8),
    rl=RlSettings(iterations=2, tasks=2, group_size=3, validate_every=1),
)


def tasks(count: int = 6, split: Any = "train") -> list[Task]:
    return [Task(f"{split}-{i}", split, i, f"What does amber cost? {i}") for i in range(count)]


def ask(task: Task, key: int) -> dict[str, Any]:
    return {"messages": [("user", task.instruction)]}


def policy_of(engine: Engine, **options: Any) -> LocalChatModel:
    return LocalChatModel(engine=engine, **({"max_tokens": 3} | options))


def two_turns(policy: Any) -> Any:
    """A user's own graph: it speaks, is asked again, and speaks again."""

    def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [policy.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("say", say)
    graph.add_node("again", lambda state: {"messages": [("user", "And lemon?")]})
    graph.add_edge(START, "say")
    graph.add_conditional_edges("say", lambda s: END if len(s["messages"]) > 3 else "again")
    graph.add_edge("again", "say")
    return graph.compile()


def even(trace: Trace, final: Any) -> float:
    """A reward that differs between rollouts: whether the first token's id is even."""
    tokens = trace.steps[0].tokens
    return float(tokens is not None and tokens.reply_ids[0] % 2 == 0)


def run(policy: LocalChatModel, folder: Path, **options: Any) -> Any:
    options = {
        "to_input": ask,
        "reward": even,
        "settings": SETTINGS,
        "quiet": True,
        "graph": two_turns(policy),
    } | options
    graph = options.pop("graph")
    return train(graph, options.pop("tasks", tasks()), folder=folder, **options)


def drawn(folder: Path, *, versions: bool = True) -> list[Any]:
    """What was sampled, trace by trace, without what is made up anew in every run: ids and times."""
    traces, problems = read_traces(folder / "traces" / "train.jsonl")
    assert not problems
    found = []
    for t in sorted(traces, key=lambda t: t.id):
        steps = [(k.prompt_ids, k.reply_ids, versions and k.adapter_version) for s in t.steps if (k := s.tokens)]
        found.append((t.id, t.task.id, t.outcome, steps, [(r.component, r.value) for r in t.rewards], t.meta))
    return found


# From graph to adapter ---------------------------------------------------------------------------------------------


def test_a_users_graph_is_trained_from_end_to_end(
    tiny_engine: Make, tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    policy = policy_of(tiny_engine(), temperature=0.8)
    result = run(policy, tmp_path / "run")
    assert result.folder == tmp_path / "run" and result.adapter == tmp_path / "run" / "adapter"
    assert (result.before.stage, result.after.stage) == ("before", "after")
    assert result.before.episodes == result.after.episodes == 1  # a quarter of six tasks
    # the policy in the graph now is the trained one, with the temperature it had
    assert policy.adapter == "policy" and policy.temperature == 0.8

    ids = torch.tensor([[41, 42, 43, 44]])
    plain = PeftModel.from_pretrained(tiny_model(0), str(result.adapter)).eval()
    with policy.engine.using("policy") as model, torch.no_grad():
        assert torch.equal(plain(input_ids=ids).logits, model(input_ids=ids).logits)

    traces, _ = read_traces(tmp_path / "run" / "traces" / "train.jsonl")
    assert [t.meta["iteration"] for t in traces].count(1) == 6 and len(traces) == 12
    assert all(len(t.live_steps) == 2 and t.task.split == "train" for t in traces)
    assert {s.tokens.adapter for t in traces for s in t.steps if s.tokens} == {"policy"}
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rl = [m for m in metrics if m["stage"] == "rl"]
    assert [m["iteration"] for m in rl] == [1, 2]
    assert all(m["steps"] == m["steps_trained"] + sum(m["excluded"].values()) == 12 for m in rl)
    assert all(m["return"] == pytest.approx(m["components"]["reward"]) for m in rl)
    assert [m["iteration"] for m in metrics if m["stage"] == "validation"] == [0, 1, 2]
    manifest = json.loads((result.adapter / "manifest.json").read_text())
    assert manifest["model"]["name"] == "tiny" and manifest["seed"] == 0 and manifest["packages"]["torch"]
    assert manifest == json.loads((tmp_path / "run" / "manifest.json").read_text())
    page = write_report(RunFolder.open(tmp_path / "run")).read_text()
    assert "What does amber cost?" in page and "training reward" in page


def test_the_same_seed_gives_the_same_traces(tiny_engine: Make, tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        run(policy_of(tiny_engine()), tmp_path / name, settings=replace(SETTINGS, seed=seed))
    assert drawn(tmp_path / "one") == drawn(tmp_path / "two")
    assert drawn(tmp_path / "one") != drawn(tmp_path / "three")


def test_a_policy_is_trained_again_under_another_name(tiny_engine: Make, tmp_path: Path) -> None:
    policy = policy_of(tiny_engine())
    run(policy, tmp_path / "one")
    with pytest.raises(RunFolderError, match="already holds a run"):
        run(policy, tmp_path / "one")
    run(policy, tmp_path / "two")
    fresh = policy_of(tiny_engine())
    run(fresh, tmp_path / "three")
    two, three = drawn(tmp_path / "two", versions=False), drawn(tmp_path / "three", versions=False)
    assert two == three, "what was trained before leaves no mark"


class Both(TypedDict):
    question: str
    replies: Annotated[list[str], lambda a, b: a + b]


def test_policies_of_one_engine_are_trained_together_and_others_left_alone(tiny_engine: Make, tmp_path: Path) -> None:
    policy, frozen = policy_of(tiny_engine()), policy_of(tiny_engine(seed=7, name="other"))
    shorter = policy.with_options(max_tokens=2)

    def node(model: LocalChatModel) -> Callable[[Both], dict[str, Any]]:
        return lambda state: {"replies": [str(model.invoke(state["question"]).content)]}

    graph = StateGraph(Both)
    for name, model in (("plan", policy), ("act", shorter), ("check", frozen)):
        graph.add_node(name, node(model))
    graph.add_edge(START, "plan").add_edge("plan", "act").add_edge("act", "check")
    run(policy, tmp_path / "run", graph=graph.compile(), to_input=lambda t, key: {"question": t.instruction})
    traces, _ = read_traces(tmp_path / "run" / "traces" / "train.jsonl")
    acted = {(s.policy_id, s.tokens.model, s.tokens.adapter) for t in traces for s in t.steps if s.tokens}
    assert acted == {("plan", "tiny", "policy"), ("act", "tiny", "policy"), ("check", "other", None)}
    rl = [m for m in RunFolder.open(tmp_path / "run").metrics() if m["stage"] == "rl"]
    assert rl[0]["excluded"]["sampled by another policy (other, adapter None)"] > 0
    assert not hasattr(frozen.engine.model, "peft_config")


def test_what_an_abandoned_episode_is_worth_is_not_made_up(tiny_engine: Make, tmp_path: Path) -> None:
    policy = policy_of(tiny_engine())

    def say(state: MessagesState) -> dict[str, Any]:
        reply = policy.invoke(state["messages"])
        if len(str(reply.content)) % 2:
            interrupt("may I?")
        return {"messages": [reply]}

    graph = StateGraph(MessagesState).add_node("say", say).add_edge(START, "say").compile()

    def finished(trace: Trace, final: Any) -> dict[str, float]:
        return {"reward": even(trace, final)} if trace.outcome == "terminated" else {}

    run(policy, tmp_path / "run", graph=graph, reward=finished)
    rl = [m for m in RunFolder.open(tmp_path / "run").metrics() if m["stage"] == "rl"]
    assert any(m["outcomes"].get("abandoned") for m in rl)
    assert any("no advantage was assigned" in m["excluded"] for m in rl)


def test_a_crash_in_a_users_node_is_a_failed_episode(tiny_engine: Make, tmp_path: Path) -> None:
    policy = policy_of(tiny_engine())

    def say(state: MessagesState) -> dict[str, Any]:
        reply = policy.invoke(state["messages"])
        return {"messages": [reply], **({"x": 1 // 0} if len(str(reply.content)) % 2 else {})}

    graph = StateGraph(MessagesState).add_node("say", say).add_edge(START, "say").compile()
    judge = lambda t, final: {"reward": 1.0} if final is not None else {}  # noqa: E731
    run(policy, tmp_path / "run", graph=graph, reward=judge)
    rl = [m for m in RunFolder.open(tmp_path / "run").metrics() if m["stage"] == "rl"]
    failed = sum(m["outcomes"].get("failed", 0) for m in rl)
    assert 0 < failed < 12
    # it is worth the worst declared outcome, 0 here
    assert sum(m["return"] for m in rl) == pytest.approx((12 - failed) / 6)


# What is refused ---------------------------------------------------------------------------------------------------


def refused(kind: type[Exception], match: str, work: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=match) as error:
        work()
    assert "\n" not in str(error.value), "one sentence"


@pytest.mark.parametrize(
    ("given", "validation", "match"),
    [
        ([*tasks(3), *tasks(1, "heldout")], None, "1 of the 4 tasks.*'heldout-0'.*never train"),
        (tasks(2, "adversarial"), None, "2 of the 2 tasks.*never train"),
        ([], None, "No tasks to train on"),
        (tasks(1), None, "at least two"),
        (tasks(2), [], "validation is empty"),
        (tasks(2), tasks(1), "1 tasks are given for training and for validation"),
    ],
)
def test_tasks_that_must_not_train_are_refused(
    tiny_engine: Make, tmp_path: Path, given: list[Task], validation: Sequence[Task] | None, match: str
) -> None:
    policy = policy_of(tiny_engine())
    refused(SpecError, match, lambda: run(policy, tmp_path / "run", tasks=given, validation=validation))
    assert not (tmp_path / "run").exists()


def test_a_graph_without_a_policy_to_train_is_refused(tmp_path: Path) -> None:
    other = two_turns(ScriptedChatModel(script=lambda *_: AIMessage("amber")))
    silent = StateGraph(MessagesState).add_node("say", lambda s: {}).add_edge(START, "say").compile()
    broken = StateGraph(MessagesState).add_node("say", lambda s: 1 / 0).add_edge(START, "say").compile()  # type: ignore[arg-type, return-value]
    options: dict[str, Any] = {"to_input": ask, "reward": lambda t, final: 1.0, "folder": tmp_path / "run"}
    for graph, reason in ((other, "no call of a LocalChatModel"), (silent, "no call"), (broken, "ZeroDivisionError")):
        refused(PolicyError, rf"No policy that can be trained.*{reason}", lambda g=graph: train(g, tasks(), **options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("reward", "declared", "kind", "match"),
    [
        (lambda t, f: {"reward": 1.0, "style": 0.5}, None, UndeclaredRewardError, "'style'.*is not declared"),
        (lambda t, f: 2.0, None, SpecError, "outside its declared range"),
        (lambda t, f: "good", None, SpecError, "finite number"),
        (lambda t, f: {}, None, Exception, "carries no outcome component"),
        (None, None, Exception, "carries no outcome component"),
        (lambda t, f: 1.0, (RewardSpec("reward", 0, 1, "", "progress"),), SpecError, "No reward component of kind"),
    ],
)
def test_rewards_that_are_not_as_declared_are_refused_before_training(
    tiny_engine: Make, tmp_path: Path, reward: Any, declared: Any, kind: type[Exception], match: str
) -> None:
    policy = policy_of(tiny_engine())
    refused(kind, match, lambda: run(policy, tmp_path / "run", reward=reward, declared=declared))
    assert not (tmp_path / "run").exists() and policy.adapter is None


# Learning ----------------------------------------------------------------------------------------------------------


def test_a_bandit_learns_which_token_pays(tiny_engine: Make, tmp_path: Path) -> None:
    """One step, one token, two thirds of the vocabulary pay nothing: the best policy is known, and is nearly found."""
    policy = policy_of(tiny_engine(), max_tokens=1)
    graph = StateGraph(MessagesState).add_node("say", lambda s: {"messages": [policy.invoke(s["messages"])]})

    def pays(trace: Trace, final: Any) -> float:
        tokens = trace.steps[0].tokens
        return float(tokens is not None and tokens.reply_ids[0] % 3 == 0)

    settings = TrainSettings(
        lora=LoraSettings(rank=4, alpha=8),
        update=UpdateSettings(learning_rate=0.01, minibatches=2),
        rl=RlSettings(iterations=20, tasks=4, group_size=8, validate_every=20),
    )
    run(
        policy,
        tmp_path / "run",
        graph=graph.add_edge(START, "say").compile(),
        reward=pays,
        settings=settings,
        tasks=tasks(12),
    )
    success = [m["components"]["reward"] for m in RunFolder.open(tmp_path / "run").metrics() if m["stage"] == "rl"]
    assert success[0] < 0.6 and success[-1] > 0.9, success


# The alarm ---------------------------------------------------------------------------------------------------------

NAN = math.nan


@pytest.mark.parametrize(
    ("history", "rings"),
    [
        ([(0, NAN, 0.1), (2, 0.2, 0.5), (4, 0.3, 0.2)], True),  # success fell, the return rose
        ([(0, NAN, 0.1), (2, 0.3, 0.5), (4, 0.3, 0.2)], True),  # … or held
        ([(0, NAN, 0.6), (2, 0.2, 0.5), (4, 0.3, 0.2)], True),  # the best was before the first iteration
        ([(2, 0.3, 0.5), (4, 0.1, 0.2)], False),  # both fell: that is collapse, and plain to see
        ([(2, 0.2, 0.3), (4, 0.3, 0.5)], False),  # both rose
        ([(2, 0.2, 0.5), (4, 0.3, 0.45)], False),  # within what few tasks can tell
        ([(2, 0.2, 0.5), (4, 0.3, 0.1), (6, 0.4, 0.5)], False),  # it recovered
        ([(0, NAN, 0.6), (2, 0.3, 0.1)], False),  # one return alone holds nothing
        ([(0, NAN, 0.6)], False),
        ([], False),
    ],
)
def test_the_alarm_rings_when_success_falls_while_the_return_holds(
    history: list[tuple[int, float, float]], rings: bool
) -> None:
    text = hacking_alarm(history)
    assert (text is not None) == rings
    if text is not None:
        peak = max(h[2] for h in history)
        assert f"{peak:.0%}" in text and f"{history[-1][2]:.0%}" in text and "\n" not in text
