"""Several adapters in one graph: each learns from its own steps only, is saved apart, and is served by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from langgraph.graph import START, MessagesState, StateGraph
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentcore import Task
from agentcore.errors import PolicyError, SpecError
from agentcore.policies.local import LocalChatModel
from agentcore.policies.lora import read_policies
from agentcore.runcommand import load_policy
from agentcore.runner import episodes, rollout
from agentcore.trace import Trace
from agentcore.tracefile import read_traces
from tests.training.tiny import make_updater, make_updaters, recorded, step, tokens, trace
from training import LoraSettings, RlSettings, TrainSettings, train
from training.batch import Trained, build_sequences

Make = Callable[..., Any]

SETTINGS = TrainSettings(
    lora=LoraSettings(rank=4, alpha=8), rl=RlSettings(iterations=1, tasks=2, group_size=3, validate_every=1)
)


def rows_of(adapter: str) -> list[Any]:
    drawn = [
        step(f"{adapter}{i}", tokens(range(30, 50), (60 + i, 7), adapter=adapter, logprobs=(-6.0, -6.0)))
        for i in range(3)
    ]
    rows, _ = build_sequences([trace("t", drawn)], {s.id: (-1.0) ** i for i, s in enumerate(drawn)}, recorded)
    return rows


# The update --------------------------------------------------------------------------------------------------------


def test_each_adapter_learns_from_its_own_rows_as_if_it_were_alone(tiny_engine: Make) -> None:
    both = make_updaters(tiny_engine(), ["a", "b"], move=0.1, learning_rate=0.01)
    stats = both.reinforce([*rows_of("a"), *rows_of("b")[:2]])
    for name, rows in (("a", rows_of("a")), ("b", rows_of("b")[:2])):
        alone = make_updaters(tiny_engine(), [name], move=0.1, learning_rate=0.01)
        own = alone.reinforce(rows)
        assert all(torch.equal(p, alone[name].parameters[k]) for k, p in both[name].parameters.items())
        assert stats[f"{name}/loss"] == own["loss"]
        assert both.trained.versions[name] == alone.trained.versions[name]
    assert stats["tokens"] == 10


def test_what_no_adapter_here_did_is_not_trained_on_in_silence(tiny_engine: Make) -> None:
    updaters = make_updaters(tiny_engine(), ["a"])
    with pytest.raises(PolicyError, match="A row of adapter 'b' was given to train a"):
        updaters.imitate(rows_of("b"))


def test_a_rollout_served_by_other_weights_is_an_error(tiny_engine: Make) -> None:
    updater = make_updater(tiny_engine())
    drawn = trace("t", [step("s", tokens([1, 2], [3], adapter_version=updater.engine.versions["policy"]))])
    trained = Trained("tiny", updater.engine.versions)
    assert build_sequences([drawn], {"s": 1.0}, recorded, trained=trained)[0]
    updater.engine.bump("policy")
    with pytest.raises(
        PolicyError, match=r"Step s of trace t was sampled by version 2 of adapter 'policy', but ver.* 3"
    ):
        build_sequences([drawn], {"s": 1.0}, recorded, trained=trained)


# From graph to adapters --------------------------------------------------------------------------------------------


def planner_and_actor(policy: LocalChatModel) -> Any:
    """Both nodes use one chat model; a third uses it too and is nobody's adapter."""

    def node(name: str) -> Callable[[MessagesState], dict[str, Any]]:
        def speak(state: MessagesState) -> dict[str, Any]:
            return {"messages": [policy.invoke(state["messages"]), ("user", f"{name} spoke. Go on.")]}

        return speak

    graph = StateGraph(MessagesState)
    for name in ("planner", "actor", "critic"):
        graph.add_node(name, node(name))
    graph.add_edge(START, "planner").add_edge("planner", "actor").add_edge("actor", "critic")
    return graph.compile()


def even(trace: Trace, final: Any) -> float:
    tokens = trace.steps[0].tokens
    return float(tokens is not None and tokens.reply_ids[0] % 2 == 0)


def go(policy: LocalChatModel, folder: Path, **options: Any) -> Any:
    return train(
        planner_and_actor(policy),
        [Task(f"t{i}", "train", i, f"Say {i}.") for i in range(6)],
        to_input=lambda task, key: {"messages": [("user", task.instruction)]},
        reward=even,
        settings=SETTINGS,
        folder=folder,
        quiet=True,
        **options,
    )


def adapters_by_node(file: Path) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for one in read_traces(file)[0]:
        for s in one.steps:
            assert s.tokens is not None
            found.setdefault(s.policy_id, set()).add((s.tokens.adapter, s.tokens.adapter_version))
    return found


def test_chosen_nodes_train_adapters_of_their_own(tiny_engine: Make, tiny_folder: Path, tmp_path: Path) -> None:
    engine = tiny_engine(name=str(tiny_folder))
    policy = LocalChatModel(engine=engine, max_tokens=3)
    result = go(policy, tmp_path / "run", adapters={"planner": "a", "actor": "b"})
    seen = adapters_by_node(tmp_path / "run" / "traces" / "train.jsonl")
    assert seen == {"planner": {("a", 1)}, "actor": {("b", 1)}, "critic": {(None, 0)}}
    assert read_policies(result.adapter) == {"planner": "a", "actor": "b"}
    weights = {n: load_file(str(result.folder / "adapters" / "last" / n / "adapter_model.safetensors")) for n in "ab"}
    assert any(not torch.equal(weights["a"][k], weights["b"][k]) for k in weights["a"])
    base: Any = AutoModelForCausalLM.from_pretrained(tiny_folder)
    PeftModel.from_pretrained(base, str(result.adapter / "a"))  # plain peft loads each

    # loaded elsewhere, every node acts with its own again
    planned = episodes([Task("t", "heldout", 0, "Say 7.")])
    ask = {"to_input": lambda task, key: {"messages": [("user", task.instruction)]}}
    loaded = load_policy(str(tiny_folder), str(result.adapter), max_tokens=3)
    replies = []
    for acting in (policy, loaded):
        acting.temperature = 0.0
        (one,) = rollout(planner_and_actor(acting), planned, **ask).traces
        assert [s.tokens.adapter for s in one.steps if s.tokens] == ["a", "b", None]
        replies.append([s.reply for s in one.steps])
    assert result.adapter.joinpath("a", "manifest.json").is_file()


def test_one_adapter_per_node(tiny_engine: Make, tmp_path: Path) -> None:
    result = go(LocalChatModel(engine=tiny_engine(), max_tokens=3), tmp_path / "run", adapters="per-node")
    seen = adapters_by_node(tmp_path / "run" / "traces" / "train.jsonl")
    assert seen == {n: {(n, 1)} for n in ("planner", "actor", "critic")}
    assert read_policies(result.adapter) == {n: n for n in seen}


@pytest.mark.parametrize(
    ("adapters", "words"),
    [
        ("each", "give 'shared', 'per-node', or an adapter for each policy id"),
        ({}, "give 'shared'"),
        ({"planner": "../evil"}, "may hold letters, digits"),
    ],
)
def test_wrong_assignments_are_refused(adapters: Any, words: str, tiny_engine: Make, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=words):
        go(LocalChatModel(engine=tiny_engine(), max_tokens=3), tmp_path / "run", adapters=adapters)
    assert not (tmp_path / "run").exists()


def test_a_policy_that_never_acts_is_said(
    tiny_engine: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go(LocalChatModel(engine=tiny_engine(), max_tokens=3), tmp_path / "run", adapters={"planner": "a", "plamner": "b"})
    said = " ".join(capsys.readouterr().err.split())
    assert "No policy 'plamner' acted in the first episode" in said


@pytest.mark.parametrize("content", ["not json", "[]", json.dumps({"planner": "../../x"})])
def test_a_damaged_policies_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "policies.json").write_text(content)
    with pytest.raises(PolicyError, match=r"policies\.json"):
        read_policies(tmp_path)
