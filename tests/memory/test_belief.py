"""The belief as a filter: what each kind of statement does, history, questions, summaries, JSON, purity."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory import BeliefChange, BeliefError, BeliefState, RuleUpdater, Statement
from memory.records import Fact, logit, sigmoid


def say(value: str, evidence: str, kind: Any = "fact", subject: str = "Ana", relation: str = "lives in") -> Statement:
    return Statement(f"{subject} {relation} {value}", evidence, subject, relation, value, kind)


def after(*statements: Statement, **options: Any) -> tuple[BeliefState, list[BeliefChange]]:
    belief, log = BeliefState(), []
    for time, statement in enumerate(statements, 1):
        belief, changes = belief.update([statement], time, updater=RuleUpdater(**options))
        log += changes
    return belief, log


def held(belief: BeliefState) -> list[tuple[str | None, float]]:
    return [(fact.value, round(fact.confidence, 3)) for fact in belief.active]


def test_a_first_statement_is_added() -> None:
    belief, (change,) = after(say("Rome", "o1"))
    assert change.op == "ADD" and change.before is None and change.after == belief.active[0]
    assert change.fact_id == belief.active[0].id and change.evidence_id == "o1"
    assert held(belief) == [("Rome", 0.85)] and belief.active[0].supporting == ("o1",)


def test_repetition_raises_confidence_once_per_observation() -> None:
    belief, log = after(say("Rome", "o1"), say(" ROME ", "o2"), say("Rome", "o2"))
    assert [change.op for change in log] == ["ADD", "NOOP", "NOOP"]
    assert belief.active[0].supporting == ("o1", "o2") and held(belief) == [("Rome", 0.97)]
    assert log[1].before != log[1].after and log[2].before == log[2].after


def test_a_correction_retires_the_old_fact() -> None:
    belief, log = after(say("Rome", "o1"), say("Oslo", "o2", "correction"))
    change = log[-1]
    assert change.op == "UPDATE" and change.before is not None and change.after is not None
    assert (change.before.value, change.after.value, change.fact_id) == ("Rome", "Oslo", change.after.id)
    assert held(belief) == [("Oslo", 0.92)]
    old = belief.fact(change.before.id)
    assert old.until == 2 and old.replaced_by == change.after.id and old.contradicting == ("o2",)
    assert old.confidence < 0.5
    assert [fact.value for fact in belief.history("ana", "LIVES  in")] == ["Rome", "Oslo"]


def test_a_plain_conflict_is_doubted() -> None:
    clean, _ = after(say("Oslo", "o2"))
    belief, log = after(say("Rome", "o1"), say("Oslo", "o2"))
    assert log[-1].op == "UPDATE" and belief.active[0].contradicting == ("o1",)
    assert belief.active[0].value == "Oslo" and belief.active[0].confidence < clean.active[0].confidence


def test_the_strongest_may_be_preferred() -> None:
    belief, log = after(say("Rome", "o1"), say("Rome", "o2"), say("Oslo", "o3"), prefer="strongest")
    assert log[-1].op == "UPDATE" and held(belief) == [("Rome", 0.85)] and belief.active[0].contradicting == ("o3",)
    belief, _ = belief.update([say("Oslo", "o4"), say("Oslo", "o5")], 9, updater=RuleUpdater(prefer="strongest"))
    assert [fact.value for fact in belief.active] == ["Oslo"]


def test_a_retraction_retires() -> None:
    gone = Statement("Ana moved out", "o2", "Ana", "lives in", kind="retraction")
    belief, log = after(say("Rome", "o1"), gone, gone)
    assert [change.op for change in log] == ["ADD", "DELETE", "NOOP"] and belief.active == ()
    assert log[1].fact_id == "f1" and log[2].fact_id is None
    belief, log = after(say("Rome", "o1"), say("Oslo", "o2", "retraction"))
    assert log[-1].op == "NOOP" and held(belief) == [("Rome", 0.85)], "another value was retracted"


def test_notes_and_claims_without_subject_are_compared_by_text() -> None:
    belief, log = after(
        Statement("It rains", "o1", kind="note"),
        Statement("it  RAINS", "o2", kind="note"),
        Statement("Anything", "o3"),
        Statement("It rains", "o4", kind="retraction"),
    )
    assert [change.op for change in log] == ["ADD", "NOOP", "ADD", "DELETE"]
    assert [fact.text for fact in belief.active] == ["Anything"]


def test_relations_with_several_values() -> None:
    belief, log = after(
        say("tea", "o1", relation="likes"),
        say("cake", "o2", relation="likes"),
        say("tea", "o3", "retraction", relation="likes"),
        multivalued=("Likes",),
    )
    assert [change.op for change in log] == ["ADD", "ADD", "DELETE"] and [f.value for f in belief.active] == ["cake"]


def test_as_of() -> None:
    belief, _ = after(say("Rome", "o1"), say("Rome", "o2"), say("Oslo", "o3", "correction"))
    belief = belief.ask("Why?", time=4)
    belief = belief.resolve(belief.open_questions[0].id, "Work", time=6).set_progress("goal", "done", time=7)
    assert held(belief.as_of(1)) == [("Rome", 0.85)] and held(belief.as_of(2)) == [("Rome", 0.97)]
    assert held(belief.as_of(3)) == [("Oslo", 0.92)] and held(belief.as_of(0)) == []
    assert [q.text for q in belief.as_of(5).open_questions] == ["Why?"] and belief.as_of(6).open_questions == ()
    assert belief.as_of(6).current_progress == {} and belief.as_of(7).current_progress["goal"].text == "done"


def test_as_of_gives_the_beliefs_that_were() -> None:
    statements = [
        say("Rome", "o1"),
        say("Oslo", "o2"),
        say("Bonn", "o3", "correction"),
        say("Bonn", "o4"),
        say("Rome", "o5"),
    ]
    belief, past = BeliefState(), []
    for time, statement in enumerate(statements, 1):
        belief, _ = belief.update([statement], time)
        past.append(belief)
    for time, then in enumerate(past, 1):
        assert belief.as_of(time).facts == then.facts


def test_questions_hypotheses_progress() -> None:
    belief = BeliefState().ask("Where?").ask("where? ").suppose("It is far").set_progress("goal", "0 of 2")
    (question,), (guess,) = belief.open_questions, belief.open_hypotheses
    assert guess.confidence == 0.5
    belief = belief.weigh(guess.id, "o1", supports=True, weight=2).weigh(guess.id, "o2", supports=False, weight=1)
    assert belief.open_hypotheses[0].confidence == pytest.approx(sigmoid(1))
    belief = (
        belief.settle(guess.id, "confirmed")
        .resolve(question.id, "Here", evidence_id="o3")
        .set_progress("goal", "1 of 2")
    )
    assert belief.open_questions == () and belief.open_hypotheses == () and belief.questions[0].answer == "Here"
    assert [entry.text for entry in belief.progress] == ["0 of 2", "1 of 2"]
    assert belief.current_progress["goal"].text == "1 of 2"
    for wrong in (
        lambda: belief.resolve("q9", "x"),
        lambda: belief.settle(guess.id, "rejected"),
        lambda: belief.weigh("h1", "o", supports=True, weight=-1),
        lambda: belief.fact("f9"),
    ):
        with pytest.raises(BeliefError):
            wrong()


def test_compression_is_reversible() -> None:
    belief, _ = after(say("Rome", "o1"), say("Oslo", "o2", subject="Bo"), say("red", "o3", relation="likes"))
    folded = belief.compress(["f1", "f2"], "Ana and Bo live in Rome and Oslo", time=5)
    summary = folded.active[-1]
    assert [f.id for f in folded.active] == ["f3", summary.id] and summary.parents == ("f1", "f2")
    assert summary.confidence == pytest.approx(0.85) and len(folded.facts) == 4
    again = folded.expand(summary.id, time=7)
    assert {f.id for f in again.active} == {"f1", "f2", "f3"}
    assert [f.evidence for f in again.facts[:2]] == [f.evidence for f in belief.facts[:2]]
    assert [f.id for f in again.as_of(6).active] == [f.id for f in folded.active]
    assert {f.id for f in again.as_of(4).active} == {"f1", "f2", "f3"}
    assert BeliefState.from_json(again.to_json()) == again
    for wrong in (lambda: belief.expand("f1"), lambda: belief.compress([], "x"), lambda: folded.compress(["f1"], "x")):
        with pytest.raises(BeliefError):
            wrong()


def test_time_does_not_run_backwards() -> None:
    belief, _ = after(say("Rome", "o1"), say("Rome", "o2"))
    for wrong in (lambda: belief.update([], 1), lambda: belief.ask("x", time=0), lambda: belief.at(float("nan"))):
        with pytest.raises(BeliefError, match="backwards"):
            wrong()


def test_updates_are_pure_and_logged() -> None:
    start, _ = after(say("Rome", "o1"))
    copy = json.dumps(start.to_json())
    one, log = start.update([say("Oslo", "o2"), say("Bonn", "o3")], 5)
    two, _ = start.update([say("Oslo", "o2"), say("Bonn", "o3")], 5)
    assert json.dumps(start.to_json()) == copy and one == two and one.revision == two.revision != start.revision
    assert [c.revision_before for c in log] == [start.revision, log[0].revision_after]
    assert log[-1].revision_after == one.revision
    replayed = start.at(5)
    for change in log:
        replayed, _ = replayed.apply(change)
    assert replayed == one
    with pytest.raises(BeliefError, match="order"):
        start.apply(log[1])


def test_another_updater_may_take_the_place_of_the_rules() -> None:
    def forgetful(belief: BeliefState, statement: Statement, time: float) -> Iterable[BeliefChange]:
        assert belief.time == time
        return [BeliefChange("NOOP", None, None, None, statement.evidence_id)]

    belief, changes = BeliefState().update([say("Rome", "o1")], 3, updater=forgetful)
    assert belief.facts == () and changes[0].op == "NOOP" and changes[0].time == 3 and changes[0].revision_after


@pytest.mark.parametrize(
    "broken",
    [None, {}, {"schema": 2}, {"schema": 1}, {"schema": 1, "facts": [{}]}, {"schema": 1, "facts": 3}, [1], "text"],
)
def test_malformed_json_is_refused(broken: Any) -> None:
    with pytest.raises(BeliefError):
        BeliefState.from_json(broken)


@pytest.mark.parametrize("field", ["facts", "hypotheses", "questions", "progress", "time", "counter"])
def test_json_with_a_damaged_field_is_refused(field: str) -> None:
    data = after(say("Rome", "o1"))[0].ask("x").suppose("y").set_progress("a", "b").to_json()
    for wrong in ({"x": 1}, "zzz", [["a"]], [{"id": 1}]):
        with pytest.raises(BeliefError):
            BeliefState.from_json({**data, field: wrong})


statements = st.builds(
    Statement,
    st.sampled_from(["one thing", "another", ""]),
    st.sampled_from([f"o{i}" for i in range(6)]),
    st.sampled_from([None, "Ana", "ana ", "Bo"]),
    st.sampled_from(["is", "has"]),
    st.sampled_from([None, "x", "y", "X"]),
    st.sampled_from(["fact", "correction", "retraction", "note"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(statements, max_size=25), st.sampled_from(["newest", "strongest"]), st.integers(0, 24))
def test_invariants(stream: list[Statement], prefer: Any, then: int) -> None:
    belief, past, log = BeliefState(), [], []
    for time, statement in enumerate(stream):
        before = belief
        belief, changes = belief.update([statement], time, updater=RuleUpdater(prefer=prefer))
        past.append(belief)
        log += changes
        # Nothing that was ever known is lost.
        assert {f.id for f in before.facts} <= {f.id for f in belief.facts}
        for old in before.facts:
            assert set(old.evidence) <= set(belief.fact(old.id).evidence)
        # One value per subject and relation.
        keys = [
            ((f.subject or "").casefold().strip(), f.relation) for f in belief.active if f.subject and f.kind == "fact"
        ]
        assert len(keys) == len(set(keys))
        assert all(0 < f.confidence < 1 for f in belief.facts)
    assert BeliefState.from_json(json.loads(json.dumps(belief.to_json()))) == belief
    replayed = BeliefState()
    for change in log:
        replayed, _ = replayed.apply(change)
    assert replayed.facts == belief.facts and (not log or replayed.revision == belief.revision)
    if then < len(past):
        assert belief.as_of(then).facts == past[then].facts


def test_probabilities() -> None:
    assert sigmoid(0) == 0.5 and sigmoid(logit(0.9)) == pytest.approx(0.9)
    assert 0 <= sigmoid(-1e9) < 1e-300 and sigmoid(1e9) == 1
    with pytest.raises(BeliefError):
        logit(1.0)
    assert Fact("f", "t", (), 0).confidence == 0.5
