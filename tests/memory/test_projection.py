"""Projection: within the budget whatever the tokenizer, most relevant first, nothing unaccounted for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory import BeliefState, BudgetError, Statement

COUNTERS: dict[str, Callable[[str], int]] = {
    "characters": len,
    "words": lambda text: len(text.split()),
    "with start token": lambda text: len(text.split()) + 1,
    # Merges across lines, so that the whole costs less than its lines.
    "pairs": lambda text: (len(text) + 1) // 2,
    # And more than its lines: every line break of a longer text costs two.
    "breaks": lambda text: len(text) + text.count("\n") * (2 if text.count("\n") > 3 else 0),
}


def belief_of(texts: list[str]) -> BeliefState:
    belief, _ = BeliefState().update([Statement(text, f"o{i}", kind="note") for i, text in enumerate(texts)], time=1)
    return belief


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text(alphabet="ab \n", min_size=1, max_size=20), max_size=12),
    st.integers(0, 120),
    st.sampled_from(sorted(COUNTERS)),
    st.text(alphabet="ab ", max_size=6),
)
def test_never_above_the_budget_and_nothing_lost(texts: list[str], budget: int, name: str, query: str) -> None:
    count = COUNTERS[name]
    belief = belief_of(texts).ask("why?").suppose("maybe").set_progress("goal", "half")
    if budget < count(""):
        with pytest.raises(BudgetError):
            belief.project(query, budget=budget, count_tokens=count)
        return
    shown = belief.project(query, budget=budget, count_tokens=count)
    assert shown.tokens == count(shown.text) <= budget
    ids = {f.id for f in belief.active} | {
        f"q{len(belief.facts) + 1}",
        f"h{len(belief.facts) + 2}",
        "progress:goal",
    }
    assert sorted([*shown.kept, *shown.dropped]) == sorted(ids)
    assert len(shown.kept) + len(shown.dropped) == len(ids)
    for fact in belief.active:
        assert fact.id in shown.dropped or f"- {fact.text}" in shown.text
    assert belief.project(query, budget=budget, count_tokens=count) == shown


def test_the_relevant_is_kept() -> None:
    belief = belief_of([f"Filler number {i} about nothing" for i in range(30)] + ["Amber costs 45 coins"])
    shown = belief.project("What does amber cost?", budget=10, count_tokens=COUNTERS["words"])
    assert "Amber costs 45 coins" in shown.text and "f31" in shown.kept and len(shown.dropped) == 30


def test_sections_and_order_are_stable() -> None:
    belief = (
        belief_of(["one", "two"])
        .ask("where?")
        .suppose("far")
        .set_progress("goal", "1 of 2")
        .set_progress("goal", "2 of 2")
    )
    shown = belief.project(budget=1000, count_tokens=len)
    assert shown.text == (
        "Progress:\n- goal: 2 of 2\nOpen questions:\n- where?\nKnown:\n- one\n- two\nUnsure:\n- far (confidence 0.50)"
    )
    assert shown.kept == ("progress:goal", "q3", "f1", "f2", "h4") and shown.dropped == ()


def test_progress_and_questions_come_before_facts() -> None:
    belief = belief_of(["goal goal goal"]).set_progress("goal", "half")
    shown = belief.project("goal", budget=4, count_tokens=COUNTERS["words"])
    assert shown.kept == ("progress:goal",) and shown.dropped == ("f1",)


def test_doubt_is_shown() -> None:
    belief, _ = BeliefState().update(
        [
            Statement("Ana is in Rome", "o1", "Ana", "is in", "Rome"),
            Statement("Ana is in Oslo", "o2", "Ana", "is in", "Oslo"),
        ],
        1,
    )
    assert "- Ana is in Oslo (confidence 0." in belief.project(budget=99, count_tokens=len).text


def test_given_scores_decide() -> None:
    belief = belief_of(["first", "second", "third"])
    shown = belief.project("first", budget=3, count_tokens=COUNTERS["words"], scores={"f3": 1.0})
    assert shown.kept == ("f3",)


def test_summaries_stand_for_their_facts() -> None:
    belief = belief_of(["long one", "long two"]).compress(["f1", "f2"], "both")
    shown = belief.project(budget=99, count_tokens=len)
    assert shown.text == "Known:\n- both" and shown.kept == ("f3",)


def test_an_empty_belief_is_an_empty_text() -> None:
    shown = BeliefState().project("x", budget=0, count_tokens=len)
    assert (shown.text, shown.kept, shown.dropped, shown.tokens) == ("", (), (), 0)
    with pytest.raises(BudgetError):
        BeliefState().project("x", budget=-1, count_tokens=len)
