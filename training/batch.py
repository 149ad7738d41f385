"""From steps with advantages to token sequences.

Steps whose prompts extend each other become one sequence, so that each token is computed once: step k+1 joins step k's
sequence where its prompt really starts with step k's prompt and sampled reply, id by id. Anything else starts a
sequence of its own; nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentcore.errors import PolicyError
from agentcore.policies.kvcache import common_prefix
from agentcore.trace import Step, Tokens, Trace

MIN_SHARED = 16
"""Shorter common prefixes are not worth a pass of their own."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One row. The action token at ``positions[n]`` is predicted from the one before it."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    """[N] indices of action tokens in ``ids``, ascending."""
    advantages: tuple[float, ...]
    """[N]; 1.0 where the row is imitated."""
    logprobs: tuple[float, ...]
    """[N] as sampled; NaN where none were recorded."""
    steps: tuple[int, ...]
    """[N] which step of the batch each token belongs to."""
    temperature: float
    adapter: str | None = None
    """The adapter whose policy these are the actions of."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Which policies are trained: a model and its adapters, each with the version that is."""

    model: str
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Excluded:
    """A step that is not trained on, and why."""

    step_id: str
    reason: str


def build_sequences(
    traces: Sequence[Trace],
    advantages: Mapping[str, float | None],
    tokens_of: Callable[[Step], Tokens],
    *,
    on_policy: bool = True,
    trained: Trained | None = None,
) -> tuple[list[TokenRow], list[Excluded]]:
    """Rows for the update.

    Args:
        advantages: by step id; None leaves a step out, and so does 0.0 (its gradient is zero).
        tokens_of: the step's tokens, re-tokenised if need be (``LocalChatModel.tokens_of``).
        on_policy: refuse tokens without the log-probabilities they were sampled with. Otherwise they are imitated, at
            temperature 1.
        trained: what another model or adapter sampled in the graph is left out. None takes all.

    Raises:
        PolicyError: if a step was sampled by another version of an adapter than the one that is trained.
    """
    rows: list[_Row] = []
    excluded: list[Excluded] = []
    number = 0
    for trace in traces:
        open_rows: list[_Row] = []
        for step in trace.live_steps:
            advantage = advantages.get(step.id)
            reason = _why_not(step, advantage)
            tokens = tokens_of(step) if reason is None else None
            if tokens is not None:
                reason = _why_not_tokens(tokens, on_policy, trained)
                if reason is None and on_policy and trained is not None:
                    _refuse_other_version(trace, step, tokens, trained)
            if reason is not None or tokens is None or advantage is None:
                excluded.append(Excluded(step.id, reason or "no advantage"))
                continue
            temperature = tokens.temperature if on_policy else 1.0
            row = next((r for r in open_rows if r.extends(tokens, temperature)), None)
            if row is None:
                row = _Row(temperature, tokens.adapter)
                open_rows.append(row)
            row.add(tokens, advantage, number)
            number += 1
        rows += open_rows
    return [r.freeze() for r in rows], excluded


def _why_not(step: Step, advantage: float | None) -> str | None:
    if advantage is None:
        return "no advantage was assigned"
    if advantage == 0.0:
        return "judged neutral (advantage 0)"
    if step.error is not None:
        return f"the call failed: {step.error}"
    return None


def _refuse_other_version(trace: Trace, step: Step, tokens: Tokens, trained: Trained) -> None:
    """A rollout that was served with other weights than those trained is a fault of the set-up, not a bad rollout."""
    version = trained.versions[str(tokens.adapter)]
    if tokens.adapter_version != version:
        raise PolicyError(
            f"Step {step.id} of trace {trace.id} was sampled by version {tokens.adapter_version} of adapter "
            f"{tokens.adapter!r}, but version {version} is trained. Sample with the present weights: load them "
            "wherever the rollouts are served before the next iteration."
        )


def _why_not_tokens(tokens: Tokens, on_policy: bool, trained: Trained | None) -> str | None:
    if not tokens.reply_ids or not tokens.prompt_ids:
        return "the reply or the prompt is empty"
    if trained is not None and (tokens.model != trained.model or tokens.adapter not in trained.versions):
        return f"sampled by another policy ({tokens.model}, adapter {tokens.adapter})"
    if on_policy and tokens.logprobs is None:
        return "no log-probabilities were recorded (re-tokenised text)"
    if on_policy and tokens.temperature <= 0:
        return "sampled greedily: it has no distribution to improve"
    return None


class _Row:
    def __init__(self, temperature: float, adapter: str | None) -> None:
        self.temperature = temperature
        self.adapter = adapter
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.advantages: list[float] = []
        self.logprobs: list[float] = []
        self.steps: list[int] = []

    def extends(self, tokens: Tokens, temperature: float) -> bool:
        n = len(self.ids)
        same = (temperature, tokens.adapter) == (self.temperature, self.adapter)
        return same and list(tokens.prompt_ids[:n]) == self.ids

    def add(self, tokens: Tokens, advantage: float, step: int) -> None:
        self.ids += tokens.prompt_ids[len(self.ids) :]
        start = len(self.ids)
        self.ids += tokens.reply_ids
        count = len(tokens.reply_ids)
        self.positions += range(start, start + count)
        self.advantages += [advantage] * count
        self.logprobs += tokens.logprobs if tokens.logprobs is not None else [float("nan")] * count
        self.steps += [step] * count

    def freeze(self) -> TokenRow:
        return TokenRow(
            tuple(self.ids),
            tuple(self.positions),
            tuple(self.advantages),
            tuple(self.logprobs),
            tuple(self.steps),
            self.temperature,
            self.adapter,
        )


def micro_batches(rows: Sequence[TokenRow], max_tokens: int) -> list[list[TokenRow]]:
    """Rows that start alike together, each batch computing at most ``max_tokens`` (a longer row goes alone).

    What counts is what is computed: the common prefix once, and the rest of each row with its padding.
    """
    batches: list[list[TokenRow]] = []
    for row in sorted(rows, key=lambda r: r.ids):
        if batches and _cost([*batches[-1], row]) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def shared_prefix(rows: Sequence[TokenRow]) -> int:
    """How many tokens all rows start with and none acts in; the token before an action token is not among them."""
    limit = min(min(r.positions[0] - 1, len(r.ids) - 1) for r in rows)
    if len(rows) < 2 or limit < MIN_SHARED:
        return 0
    first, last = min(rows, key=lambda r: r.ids), max(rows, key=lambda r: r.ids)
    shared = min(common_prefix(first.ids, last.ids), limit)  # of sorted rows the ends differ first
    return shared if shared >= MIN_SHARED else 0


def _cost(rows: Sequence[TokenRow]) -> int:
    shared = shared_prefix(rows)
    return shared + len(rows) * (max(len(r.ids) for r in rows) - shared)
