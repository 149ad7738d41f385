"""A belief kept in a store, whichever store it is, and the measures of a belief against known truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

from memory import BeliefError, BeliefState, FaissStore, HashingEmbedder, RuleUpdater, Statement
from memory.belief_memory import BeliefMemory, Observation, change_from_json, change_to_json
from memory.measures import (
    brier,
    calibration,
    contradiction_rate,
    evidence_recall,
    key_of,
    measure,
    staleness,
    update_error,
)
from memory.synthetic import World, stream

NS = ("agent", "ana")


def ours() -> FaissStore:
    return FaissStore(embedder=HashingEmbedder(64), fields=["text"])


def theirs() -> InMemoryStore:
    return InMemoryStore(index={"dims": 64, "embed": HashingEmbedder(64), "fields": ["text"]})


def claim(text: str, evidence: str, value: str, kind: Any = "fact") -> Statement:
    return Statement(text, evidence, "Ana", "lives in", value, kind)


def observe(held: BeliefMemory) -> None:
    held.observe(
        [Observation("o1", "Ana: I found a flat in Rome!", 1, {"speaker": "Ana", "episode": 1, "position": 0})],
        [claim("Ana lives in Rome", "o1", "Rome")],
        time=1,
    )
    held.observe(
        [Observation("o2", "Bo: the ferry was late", 2, {"speaker": "Bo", "episode": 1, "position": 1})],
        [Statement("Bo: the ferry was late", "o2", kind="note")],
        time=2,
    )
    held.observe(
        [Observation("o3", "Ana: no, it is Oslo", 3, {})],
        [claim("Ana lives in Oslo", "o3", "Oslo", "correction")],
        time=3,
    )


@pytest.mark.parametrize("make", [ours, theirs, lambda: ours().overlay()])
def test_it_is_all_kept_in_the_store(make: Any) -> None:
    store = make()
    held = BeliefMemory(store, NS)
    observe(held)
    held.replace(held.belief.ask("Which street?", time=4))
    again = BeliefMemory(store, NS)
    assert again.belief == held.belief and again.belief.open_questions[0].text == "Which street?"
    assert again.evidence("o2") == Observation(
        "o2", "Bo: the ferry was late", 2, {"speaker": "Bo", "episode": 1, "position": 1}
    )
    log = again.changes()
    assert [change.op for change in log] == ["ADD", "ADD", "UPDATE"]
    replayed = BeliefState()
    for change in log:
        replayed, _ = replayed.apply(change)
    assert replayed.facts == held.belief.facts
    shown = again.project("Where was the ferry?", budget=12, count_tokens=lambda text: len(text.split()))
    assert "ferry" in shown.text and shown.tokens <= 12
    with pytest.raises(BeliefError, match="o9"):
        again.evidence("o9")
    with pytest.raises(BeliefError, match="older"):
        again.replace(BeliefState())


def test_scores_come_from_the_evidence() -> None:
    held = BeliefMemory(ours(), NS)
    observe(held)
    scores = held.scores("late ferry")
    assert max(scores, key=lambda name: scores[name]) == "f2" and all(0 <= score <= 1 for score in scores.values())
    folded = held.belief.compress(["f2"], "Transport trouble", time=5)
    held.replace(folded)
    scores = held.scores("late ferry")
    assert scores[folded.active[-1].id] == max(scores.values()), "a summary is found by the evidence behind it"


def test_it_survives_reopening(tmp_path: Path) -> None:
    with FaissStore(tmp_path, embedder=HashingEmbedder(64)) as store:
        observe(BeliefMemory(store, NS))
    with FaissStore(tmp_path, embedder=HashingEmbedder(64)) as store:
        assert [fact.value for fact in BeliefMemory(store, NS).belief.find("ana", "lives in")] == ["Oslo"]


def test_changes_survive_json() -> None:
    _, (change,) = BeliefState().update([claim("Ana lives in Rome", "o1", "Rome")], 1)
    assert change_from_json(json.loads(json.dumps(change_to_json(change)))) == change
    with pytest.raises(BeliefError):
        change_from_json({"op": "ADD"})


KEY = key_of("Ana", "lives in")


def belief(*statements: Statement) -> BeliefState:
    held = BeliefState()
    for time, statement in enumerate(statements, 1):
        held, _ = held.update([statement], time)
    return held


def test_measures() -> None:
    rome = belief(claim("Ana lives in Rome", "o1", "Rome"))
    assert update_error(rome, {KEY: "rome "}) == 0 and update_error(rome, {KEY: "Oslo"}) == 1
    assert update_error(rome, {KEY: None}) == 1 and update_error(BeliefState(), {KEY: None}) == 0
    assert update_error(rome, {KEY: "Rome", key_of("Bo", "is"): "x"}) == 0.5
    assert staleness(rome, {KEY: "Oslo"}, {KEY: {"Rome", "Oslo"}}) == 1
    assert staleness(rome, {KEY: "Oslo"}, {KEY: {"Oslo"}}) == 0, "never true, so wrong but not stale"
    assert calibration(rome, {KEY: "Rome"}) == pytest.approx(0.15**2)
    assert contradiction_rate(rome) == 0
    several, _ = rome.update(
        [claim("Ana lives in Oslo", "o2", "Oslo")], 2, updater=RuleUpdater(multivalued=("lives in",))
    )
    assert contradiction_rate(several) == 1 and contradiction_rate(several, ["lives in"]) == 0
    assert evidence_recall("a b c", ["a b", "d"]) == 0.5 and evidence_recall("", []) == 1
    assert brier([(1.0, True), (0.0, True)]) == 0.5 and brier([]) == 0
    every = measure(rome, {KEY: "Rome"}, {}, lambda text: len(text.split()))
    assert (every.update_error, every.facts, every.tokens) == (0, 1, 6) and every.bytes > 100


def test_streams_are_reproducible_and_know_the_truth() -> None:
    one, two = list(stream(60, seed=4)), list(stream(60, seed=4))
    assert one == two != list(stream(60, seed=5))
    kinds = {step.statement.kind for step in stream(300, seed=1)}
    assert kinds == {"fact", "correction", "retraction", "note"}
    for step in one:
        for key, value in step.truth.items():
            assert value is None or value in step.past[key]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_without_falsehoods_the_rules_make_no_errors(seed: int) -> None:
    """Facts, repetitions, corrections, silent changes and retractions alone: newest wins is exactly right."""
    held = BeliefState()
    for step in stream(60, seed=seed, world=World(contradiction=0)):
        held, _ = held.update([step.statement], step.time)
        assert update_error(held, step.truth) == 0 and staleness(held, step.truth, step.past) == 0
        assert contradiction_rate(held) == 0


def test_with_falsehoods_the_confidence_is_calibrated() -> None:
    """Mean over streams in which 8 % of the statements are false: better than saying one half, or always being sure."""
    briers, errors, sure = [], [], []
    for seed in range(10):
        held = BeliefState()
        for step in stream(100, seed=seed):
            held, _ = held.update([step.statement], step.time)
        briers.append(calibration(held, step.truth))
        errors.append(update_error(held, step.truth))
        known = [fact for fact in held.active if key_of(fact.subject, fact.relation) in step.truth]
        sure.append(brier((1.0, fact.value == step.truth[key_of(fact.subject, fact.relation)]) for fact in known))
    assert sum(briers) < sum(sure) and sum(briers) / 10 < 0.12 and sum(errors) / 10 < 0.2
