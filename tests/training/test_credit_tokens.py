"""The tool calls of one message differ where their rewards do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcore.trace import Reward, Segment, Tokens, Trace
from tests.golden.credit_traces import DECLARED, step, task
from training.credit import CreditError, token_advantages
from training.rewards import RewardConfig, call_rewards, step_rewards

SEGMENTS = (Segment("text", 0, 2), Segment("call", 2, 4, "c0"), Segment("call", 4, 6, "c1"))
TOKENS = Tokens((1,), tuple(range(7)), (0.0,) * 7, 1.0, "m", None, 0, SEGMENTS)
STEP = replace(step("s", calls=["c0", "c1"]), tokens=TOKENS)


def trace() -> Trace:
    rewards = (
        Reward("score", 3.0, "trace", "a"),
        Reward("call_ok", -1.0, "call", "c0"),
        Reward("call_ok", 0.5, "call", "c1"),
    )
    return Trace("a", task(), "terminated", (STEP,), rewards=rewards)


def test_a_later_call_is_not_punished_for_an_earlier_one() -> None:
    given = call_rewards(trace(), DECLARED)
    assert given == {"c0": -2.0, "c1": 1.0}
    (total,) = step_rewards(trace(), DECLARED).values()
    assert total == 2.0  # 3 - 2 + 1
    assert token_advantages(STEP, 2.0, given).tolist() == [2.0, 2.0, 2.0, 2.0, 4.0, 4.0, 3.0]
    assert call_rewards(trace(), DECLARED, RewardConfig({"call_ok": 0.0})) == {"c0": 0.0, "c1": 0.0}


def test_without_call_rewards_all_tokens_get_the_steps_advantage() -> None:
    assert token_advantages(STEP, 2.0, {}).tolist() == [2.0] * 7
    bare = replace(STEP, tokens=replace(TOKENS, segments=()))
    assert token_advantages(bare, 2.0, {"c0": -2.0}).tolist() == [2.0] * 7


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(CreditError, match="no recorded tokens"):
        token_advantages(step("s"), 1.0, {})
    with pytest.raises(CreditError, match="outside"):
        token_advantages(replace(STEP, tokens=replace(TOKENS, segments=(Segment("call", 5, 9, "c0"),))), 1.0, {})


def test_rewards_on_superseded_calls_are_left_out() -> None:
    retried = replace(trace(), steps=(replace(STEP, superseded=True), step("t", ordinal=1)))
    assert call_rewards(retried, DECLARED) == {}
