"""The supervised warm start: which logged traces are imitated, when it stops, how it goes on after a break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentcore import LocalChatModel, make_environment
from agentcore.errors import SpecError
from agentcore.policies.engine import Engine
from agentcore.trace import Trace
from agentcore.tracefile import read_traces
from tests.training.tiny import make_updaters
from training.adapters import load_weights, save_adapter
from training.config import SftSettings
from training.warmstart import Demonstrations, demonstrations, warm_start, write_expert_traces

Make = Callable[..., Engine]


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    """The oracle's traces of easy tasks, as a user would have logged an expert's."""
    path = tmp_path_factory.mktemp("expert") / "expert.jsonl"
    write_expert_traces(make_environment("assistant", level="easy"), 6, path, seed=0, tool_format="compact")
    assert [p.name for p in path.parent.iterdir()] == ["expert.jsonl"]
    traces, problems = read_traces(path)
    assert len(traces) == 6 and not problems
    return traces


def test_expert_traces_are_successes_on_training_tasks(expert: list[Trace]) -> None:
    assert {t.task.split for t in expert} == {"train"}
    assert all(t.component_totals()["success"] == 1.0 and t.live_steps for t in expert)
    assert all(s.tokens is None for t in expert for s in t.steps), "an expert that only wrote text"


def test_expert_text_becomes_the_tokens_that_the_model_would_have_sampled(
    tiny_engine: Make, expert: list[Trace]
) -> None:
    policy = LocalChatModel(engine=tiny_engine())
    data = demonstrations(expert, policy)
    assert len(data.train) == 5 and data.validation
    row = data.train[0][0]
    text = policy.engine.tokenizer.decode([row.ids[p] for p in row.positions if row.steps[0] == 0])
    assert text.startswith(expert[0].live_steps[0].reply) and "<|im_end|>" in text
    assert {a for rows in data.train for r in rows for a in r.advantages} == {1.0}


def test_only_successes_of_training_tasks_are_imitated(tiny_engine: Make, expert: list[Trace]) -> None:
    policy = LocalChatModel(engine=tiny_engine())
    unlucky = [replace(t, rewards=tuple(replace(r, value=0.0) for r in t.rewards)) for t in expert[:2]]
    cut = [replace(expert[2], outcome="truncated")]
    data = demonstrations([*unlucky, *cut, *expert[3:]], policy)
    assert len(data.train) == 2
    held = replace(expert[0], task=replace(expert[0].task, split="heldout"))
    with pytest.raises(SpecError, match="1 of 7 traces come from tasks that must not train"):
        demonstrations([*expert, held], policy)
    with pytest.raises(SpecError, match="can be imitated; a warm start needs at least 2"):
        demonstrations([*unlucky, expert[3]], policy)


def test_tokens_of_another_model_are_read_as_text(tiny_engine: Make, expert: list[Trace]) -> None:
    policy = LocalChatModel(engine=tiny_engine())
    read = demonstrations(expert, policy)

    def logged(model: str) -> list[Trace]:
        return [
            replace(
                t,
                steps=tuple(
                    replace(
                        s, tokens=replace(policy.tokens_of(s), model=model, reply_ids=(1, 2), logprobs=(-1.0, -1.0))
                    )
                    for s in t.steps
                ),
            )
            for t in expert
        ]

    found = demonstrations(logged("someone/else"), policy)
    assert [(r.ids, r.positions) for rows in found.train for r in rows] == [
        (r.ids, r.positions) for rows in read.train for r in rows
    ]
    own = demonstrations(logged("tiny"), policy).train[0][0]
    assert [own.ids[p] for p in own.positions[:2]] == [1, 2], "its own are taken as they were sampled"


def test_it_learns_to_write_as_the_expert_did(tiny_engine: Make, expert: list[Trace]) -> None:
    engine = tiny_engine()
    updater = make_updaters(engine)
    data = demonstrations(expert, LocalChatModel(engine=engine, adapter="policy"))
    seen: list[tuple[int, float | None]] = []
    settings = SftSettings(steps=6, batch_traces=3, learning_rate=0.01, validate_every=2)
    last = warm_start(updater, data, settings, seed=0, on_step=lambda n, stats, loss: seen.append((n, loss)))
    assert last == 6 and [n for n, _ in seen] == [1, 2, 3, 4, 5, 6]
    losses = [loss for _, loss in seen if loss is not None]
    assert [n for n, loss in seen if loss is not None] == [2, 4, 6]
    assert losses[-1] < losses[0] - 0.2


def test_it_goes_on_after_a_break_as_if_there_had_been_none(
    tiny_engine: Make, expert: list[Trace], tmp_path: Path
) -> None:
    settings = SftSettings(steps=4, batch_traces=2, learning_rate=0.01, validate_every=2)
    whole = make_updaters(tiny_engine())
    data = demonstrations(expert, LocalChatModel(engine=whole.engine, adapter="policy"))
    warm_start(whole, data, settings, seed=3)

    first = make_updaters(tiny_engine())
    assert warm_start(first, data, settings, seed=3, stop=lambda n: n == 2) == 2
    save_adapter(first.engine, "policy", tmp_path / "adapter", {})
    second = make_updaters(tiny_engine())
    load_weights(second.engine, "policy", tmp_path / "adapter")
    second.load_state(first.state())
    assert warm_start(second, data, settings, seed=3, start=2) == 4
    assert all(torch.equal(p, second["policy"].parameters[n]) for n, p in whole["policy"].parameters.items())


def test_it_stops_when_validation_stops_improving_also_across_a_break(tiny_engine: Make, expert: list[Trace]) -> None:
    updater = make_updaters(tiny_engine())
    data = demonstrations(expert, LocalChatModel(engine=updater.engine, adapter="policy"))
    still = SftSettings(steps=20, batch_traces=1, learning_rate=0.0, validate_every=1, patience=3)
    assert warm_start(updater, data, still, seed=0) == 4  # the first is the best, three more bring nothing
    assert warm_start(updater, data, still, seed=0, start=2, losses=[1.0, 1.0]) == 4
    assert warm_start(updater, data, still, seed=0, start=4, losses=[1.0, 1.0, 1.0, 1.0]) == 4, "it had stopped"
    assert warm_start(updater, data, replace(still, patience=0, steps=6), seed=0) == 6
    assert warm_start(updater, data, still, seed=0, start=20, losses=[2.0, 1.0]) == 20


def test_a_batch_is_never_larger_than_what_there_is(tiny_engine: Make, expert: list[Trace]) -> None:
    updater = make_updaters(tiny_engine())
    data = demonstrations(expert, LocalChatModel(engine=updater.engine, adapter="policy"))
    few = Demonstrations(data.train[:1], data.validation)
    stats: list[Any] = []
    warm_start(
        updater,
        few,
        SftSettings(steps=1, batch_traces=8),
        seed=0,
        on_step=lambda n, s, loss: stats.append(s["tokens"]),
    )
    assert stats == [sum(len(r.positions) for r in few.train[0])]
