"""From a step's advantage to its tokens: tool calls of one message differ where their rewards do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from agentcore.trace import Step
from training.credit.dag import FloatArray
from training.credit.errors import CreditError


def token_advantages(step: Step, advantage: float, call_rewards: Mapping[str, float]) -> FloatArray:
    """[T] A_t = A(s) - Σ_i r_i over the calls i of the reply that were written out before token t.

    A token cannot have earned what an earlier call of the same message was paid for; what remains is its return-to-go
    within the message, minus the step's baseline. With one call, or rewards on no call, all tokens get A(s). A
    rewarded call whose tokens are not known (no segment) stays with the whole reply.

    Args:
        call_rewards: weighted reward by call id (training.rewards.call_rewards); absent calls earned nothing.

    Raises:
        CreditError: the step has no tokens, or a segment that lies outside them.
    """
    if step.tokens is None:
        raise CreditError(f"Step {step.id} has no recorded tokens to spread an advantage over.")
    size = len(step.tokens.reply_ids)
    result = np.full(size, advantage, dtype=np.float64)
    for segment in step.tokens.segments:
        if not 0 <= segment.start <= segment.end <= size:
            raise CreditError(
                f"Step {step.id}: a segment [{segment.start}, {segment.end}) lies outside its {size} tokens."
            )
        if segment.kind == "call" and segment.call_id is not None:
            result[segment.end :] -= call_rewards.get(segment.call_id, 0.0)
    return result
