"""From steps to rows: which steps are merged, which are left out and why, and how rows share micro-batches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcore.trace import Step, Trace
from tests.training.tiny import recorded, step, tokens, trace
from training.batch import MIN_SHARED, TokenRow, Trained, build_sequences, micro_batches, shared_prefix

TRAINED = Trained("tiny", {"policy": 1})

# Rows ------------------------------------------------------------------------------------------------------------


def test_steps_that_continue_each_other_become_one_row() -> None:
    first = tokens([1, 2, 3], [4, 5], logprobs=(-0.1, -0.2))
    second = tokens([1, 2, 3, 4, 5, 6, 7], [8], logprobs=(-0.3,))
    rows, excluded = build_sequences(
        [trace("t", [step("a", first), step("b", second)])], {"a": 1.0, "b": -2.0}, recorded
    )
    assert not excluded
    assert rows == [
        TokenRow(
            ids=(1, 2, 3, 4, 5, 6, 7, 8),
            positions=(3, 4, 7),
            advantages=(1.0, 1.0, -2.0),
            logprobs=(-0.1, -0.2, -0.3),
            steps=(0, 0, 1),
            temperature=1.0,
            adapter="policy",
        )
    ]


@pytest.mark.parametrize(
    "prompt",
    [
        [1, 2, 3, 4, 9, 6, 7],  # the reply was rendered with another token
        [1, 9, 3, 4, 5, 6, 7],  # the history was rewritten
        [1, 2, 3, 4],  # shorter than what came before
        [9, 1, 2, 3, 4, 5],  # shifted
    ],
)
def test_any_other_id_starts_a_row_of_its_own(prompt: list[int]) -> None:
    steps = [step("a", tokens([1, 2, 3], [4, 5])), step("b", tokens(prompt, [8]))]
    rows, _ = build_sequences([trace("t", steps)], {"a": 1.0, "b": 1.0}, recorded)
    assert [r.ids for r in rows] == [(1, 2, 3, 4, 5), (*prompt, 8)]


def test_another_temperature_or_another_episode_starts_a_row_of_its_own() -> None:
    first, second = tokens([1, 2], [3]), tokens([1, 2, 3, 4], [5])
    cooler = replace(second, temperature=0.5)
    rows, _ = build_sequences([trace("t", [step("a", first), step("b", cooler)])], {"a": 1.0, "b": 1.0}, recorded)
    assert [(r.ids, r.temperature) for r in rows] == [((1, 2, 3), 1.0), ((1, 2, 3, 4, 5), 0.5)]
    both = [trace("t", [step("a", first)]), trace("u", [step("b", second)])]
    rows, _ = build_sequences(both, {"a": 1.0, "b": 1.0}, recorded)
    assert len(rows) == 2


def test_a_step_between_that_is_left_out_does_not_act() -> None:
    steps = [
        step("a", tokens([1, 2], [3])),
        step("b", tokens([1, 2, 3, 4], [5])),
        step("c", tokens([1, 2, 3, 4, 5, 6], [7])),
    ]
    rows, _ = build_sequences([trace("t", steps)], {"a": 1.0, "b": None, "c": 1.0}, recorded)
    assert [(r.ids, r.positions) for r in rows] == [((1, 2, 3, 4, 5, 6, 7), (2, 6))]


@pytest.mark.parametrize(
    ("drawn", "advantage", "reason"),
    [
        (step("s", tokens([1], [2])), None, "no advantage was assigned"),
        (step("s", tokens([1], [2])), 0.0, "judged neutral (advantage 0)"),
        (step("s", tokens([1], [2]), error="Timeout: 3 s"), 1.0, "the call failed: Timeout: 3 s"),
        (step("s", tokens([1], [])), 1.0, "the reply or the prompt is empty"),
        (step("s", tokens([], [2])), 1.0, "the reply or the prompt is empty"),
        (
            step("s", tokens([1], [2], logprobs=None, retokenised=True)),
            1.0,
            "no log-probabilities were recorded (re-tokenised text)",
        ),
        (step("s", tokens([1], [2], temperature=0.0)), 1.0, "sampled greedily: it has no distribution to improve"),
        (step("s", tokens([1], [2], adapter=None)), 1.0, "sampled by another policy (tiny, adapter None)"),
        (step("s", tokens([1], [2], model="big")), 1.0, "sampled by another policy (big, adapter policy)"),
    ],
)
def test_what_is_left_out_is_said_with_its_reason(drawn: Step, advantage: float | None, reason: str) -> None:
    rows, excluded = build_sequences([trace("t", [drawn])], {"s": advantage}, recorded, trained=TRAINED)
    assert not rows
    assert [(e.step_id, e.reason) for e in excluded] == [("s", reason)]


def test_a_step_that_no_estimator_spoke_of_is_left_out_and_a_superseded_one_does_not_count() -> None:
    steps = [step("a", tokens([1], [2])), step("b", tokens([1], [3]), superseded=True)]
    rows, excluded = build_sequences([trace("t", steps)], {"b": 1.0}, recorded)
    assert not rows and [e.step_id for e in excluded] == ["a"]


def test_imitation_takes_what_was_not_sampled_here_at_temperature_one() -> None:
    steps = [
        step("a", tokens([1], [2], logprobs=None, retokenised=True)),
        step("b", tokens([1, 2], [3], temperature=0.0)),
        step("c", tokens([1, 2, 3], [4], temperature=0.7)),
    ]
    rows, excluded = build_sequences([trace("t", steps)], dict.fromkeys("abc", 1.0), recorded, on_policy=False)
    assert not excluded
    assert [(r.ids, r.positions, r.temperature) for r in rows] == [((1, 2, 3, 4), (1, 2, 3), 1.0)]
    assert math.isnan(rows[0].logprobs[0])


ids = st.lists(st.integers(0, 2), min_size=1, max_size=4)


@st.composite
def traces(draw: st.DrawFn) -> list[Trace]:
    """Episodes whose prompts go on from what came before, or are cut, changed or made anew."""
    result = []
    for t in range(draw(st.integers(1, 3))):
        steps: list[Step] = []
        history: list[int] = []
        for s in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(["goes on", "goes on", "cut", "anew"]))
            before = {"goes on": history, "cut": history[:-1], "anew": []}[kind]
            prompt, reply = before + draw(ids), draw(ids)
            steps.append(step(f"{t}-{s}", tokens(prompt, reply, temperature=draw(st.sampled_from([1.0, 0.5])))))
            history = prompt + reply
        result.append(trace(f"t{t}", steps))
    return result


@settings(max_examples=150, deadline=None)
@given(traces(), st.data())
def test_every_token_that_was_sampled_is_trained_once_after_exactly_what_it_was_sampled_after(
    episodes: list[Trace], data: st.DataObject
) -> None:
    steps = [s for t in episodes for s in t.live_steps]
    advantages = {s.id: data.draw(st.sampled_from([None, 0.0, 1.0, -0.5])) for s in steps}
    rows, excluded = build_sequences(episodes, advantages, recorded)
    kept = [s for s in steps if advantages[s.id]]
    assert {e.step_id for e in excluded} == {s.id for s in steps} - {s.id for s in kept}
    found: dict[int, tuple[tuple[int, ...], tuple[int, ...], float]] = {}
    for row in rows:
        assert list(row.positions) == sorted(set(row.positions)) and row.positions[0] > 0
        for number in dict.fromkeys(row.steps):
            places = [p for p, n in zip(row.positions, row.steps, strict=True) if n == number]
            assert places == list(range(places[0], places[0] + len(places)))
            (advantage,) = {a for a, n in zip(row.advantages, row.steps, strict=True) if n == number}
            assert number not in found
            found[number] = (row.ids[: places[0]], row.ids[places[0] : places[-1] + 1], advantage)
    wanted = [(recorded(s).prompt_ids, recorded(s).reply_ids, advantages[s.id]) for s in kept]
    assert [found[n] for n in sorted(found)] == wanted


# Micro-batches ---------------------------------------------------------------------------------------------------


@st.composite
def token_rows(draw: st.DrawFn) -> list[TokenRow]:
    """Rows that start with parts of one long prefix and then go their own ways."""
    stem = draw(st.lists(st.integers(0, 1), min_size=40, max_size=40))
    rows = []
    for number in range(draw(st.integers(1, 8))):
        body = stem[: draw(st.integers(0, 40))] + draw(st.lists(st.integers(0, 1), min_size=2, max_size=12))
        positions = sorted(draw(st.sets(st.integers(1, len(body) - 1), min_size=1, max_size=4)))
        n = len(positions)
        rows.append(TokenRow(tuple(body), tuple(positions), (1.0,) * n, (-1.0,) * n, (number,) * n, 1.0))
    return rows


@settings(max_examples=200, deadline=None)
@given(token_rows())
def test_a_shared_prefix_is_shared_and_holds_neither_an_action_nor_the_token_before_one(rows: list[TokenRow]) -> None:
    shared = shared_prefix(rows)
    assert shared == 0 or (len(rows) > 1 and shared >= MIN_SHARED)
    assert len({r.ids[:shared] for r in rows}) == 1
    assert all(shared <= r.positions[0] - 1 and shared < len(r.ids) for r in rows)
    longer = shared + 1
    if shared and all(longer <= r.positions[0] - 1 and longer < len(r.ids) for r in rows):
        assert len({r.ids[:longer] for r in rows}) > 1, "more could have been shared"


@settings(max_examples=200, deadline=None)
@given(token_rows(), st.integers(8, 200))
def test_micro_batches_hold_every_row_once_and_keep_to_their_budget(rows: list[TokenRow], budget: int) -> None:
    batches = micro_batches(rows, budget)
    assert sorted(r.steps for b in batches for r in b) == sorted(r.steps for r in rows)
    for batch in batches:
        shared = shared_prefix(batch)
        computed = shared + len(batch) * (max(len(r.ids) for r in batch) - shared)
        assert computed <= budget or len(batch) == 1
