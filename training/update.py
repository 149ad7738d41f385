"""The update: forward, loss, backward and optimizer step of one adapter, through Accelerate, in micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import DynamicCache

from agentcore.policies.engine import Engine
from training.adapters import adapter_parameters
from training.attention import fused
from training.batch import TokenRow, micro_batches, shared_prefix
from training.config import UpdateSettings
from training.losses import aggregate_tokens, kl_k3, policy_gradient_loss, sft_loss, token_logprobs_and_entropy

Stats = dict[str, float]


class ActionLogprobs(nn.Module):
    """[N] log-probabilities and entropies of the action tokens of padded rows.

    What all rows start with is computed once, and its keys and values are shared by the rows, with their gradients;
    logits are computed for action tokens only. Equal to one row at a time, up to rounding.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, prefix: Tensor, ids: Tensor, mask: Tensor, row_N: Tensor, column_N: Tensor, temperature_N: Tensor
    ) -> Any:
        """prefix [P] is common to all rows; ids and mask [B, S] are what follows it; column_N indexes into S."""
        causal = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        body = causal.base_model
        rows, shared = ids.shape[0], prefix.shape[0]
        cache = None
        with fused(causal) as without_mask:
            if shared:
                cache = DynamicCache()
                body(input_ids=prefix[None], cache=cache, use_cache=True)
                cache.batch_repeat_interleave(rows)
                mask = torch.cat([mask.new_ones(rows, shared), mask], dim=1)
            positions = torch.arange(shared, shared + ids.shape[1], device=ids.device).expand(rows, -1)
            hidden = body(
                input_ids=ids,
                attention_mask=None if without_mask else mask,
                position_ids=positions,
                cache=cache,
                use_cache=cache is not None,
            ).last_hidden_state
        head = causal.get_output_embeddings()
        return token_logprobs_and_entropy(
            hidden[row_N, column_N - 1],
            head.weight,
            ids[row_N, column_N],
            temperature_N,
            bias_V=getattr(head, "bias", None),
        )


class Updater:
    """Trains one adapter of one engine. Keeps the optimizer between calls."""

    def __init__(
        self, engine: Engine, adapter: str, settings: UpdateSettings, accelerator: Accelerator | None = None
    ) -> None:
        self.engine = engine
        self.adapter = adapter
        self.settings = settings
        self.accelerator = accelerator or Accelerator()
        self.parameters = adapter_parameters(engine, adapter)
        optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )
        self.model, self.optimizer = self.accelerator.prepare(ActionLogprobs(engine.model), optimizer)

    # -- what is minimised ----------------------------------------------------------------------------------

    def reinforce(self, rows: Sequence[TokenRow], on_rows: Callable[[int], None] | None = None) -> Stats:
        """Clipped policy gradient on exactly the sampled tokens (:func:`training.losses.policy_gradient_loss`).

        ``on_rows`` is called with the number of rows done since the last call.
        """
        collected: list[Stats] = []
        for part in self._split(rows):
            collected += self._step(part, self._policy_loss, on_rows)
        return weighted_mean(collected)

    def imitate(self, rows: Sequence[TokenRow]) -> Stats:
        """One supervised step on the rows' action tokens."""
        return weighted_mean(self._step(rows, self._imitation_loss, None))

    def imitation_loss(self, rows: Sequence[TokenRow]) -> float:
        """Mean negative log-probability per action token, without a step (for validation)."""
        total, count = 0.0, 0
        with self.engine.using(self.adapter), torch.no_grad():
            for batch in micro_batches(rows, self.settings.batch_tokens):
                logprobs, _, _ = self._forward(batch)
                total -= float(logprobs.sum())
                count += logprobs.numel()
        return total / max(count, 1)

    def _policy_loss(self, batch: list[TokenRow], tokens: int, steps: int) -> tuple[Tensor, Stats]:
        logprobs, entropy, step_N = self._forward(batch)
        device, s = logprobs.device, self.settings
        old = torch.tensor([p for r in batch for p in r.logprobs], device=device, dtype=logprobs.dtype)
        advantage = torch.tensor([a for r in batch for a in r.advantages], device=device, dtype=logprobs.dtype)
        mask = torch.ones_like(logprobs, dtype=torch.bool)
        denominator = float(tokens if s.aggregate == "token" else steps)
        loss, stats = policy_gradient_loss(
            logprobs,
            old,
            advantage,
            mask,
            s.clip_low,
            s.clip_high,
            s.aggregate,
            step_T=step_N,
            entropy_T=entropy,
            denominator=denominator,
        )
        if s.kl_coef > 0:
            kl_N = kl_k3(logprobs, self._reference(batch))
            kl = aggregate_tokens(kl_N, mask, s.aggregate, step_T=step_N, denominator=denominator)
            loss = loss + s.kl_coef * kl
            stats["kl_to_base"] = float(kl_N.detach().mean())
        return loss, stats

    def _imitation_loss(self, batch: list[TokenRow], tokens: int, steps: int) -> tuple[Tensor, Stats]:
        logprobs, _, _ = self._forward(batch)
        weight = torch.tensor([a for r in batch for a in r.advantages], device=logprobs.device, dtype=logprobs.dtype)
        if bool((weight == 1).all()):
            return sft_loss(logprobs, torch.ones_like(logprobs, dtype=torch.bool), denominator=float(tokens))
        loss = -(logprobs * weight).sum() / tokens
        return loss, {"perplexity": math.exp(float(-logprobs.detach().mean())), "tokens": float(logprobs.numel())}

    # -- mechanics ------------------------------------------------------------------------------------------

    def _split(self, rows: Sequence[TokenRow]) -> list[list[TokenRow]]:
        """The rows in ``minibatches`` parts of about equal size, every n-th row together."""
        n = max(1, min(self.settings.minibatches, len(rows)))
        return [list(rows[i::n]) for i in range(n)]

    def _step(
        self,
        rows: Sequence[TokenRow],
        loss_of: Callable[[list[TokenRow], int, int], tuple[Tensor, Stats]],
        on_rows: Callable[[int], None] | None,
    ) -> list[Stats]:
        """One optimizer step over all rows, micro-batch by micro-batch."""
        if not rows:
            return []
        tokens = sum(len(r.positions) for r in rows)
        steps = len({s for r in rows for s in r.steps})
        collected = []
        with self.engine.using(self.adapter):
            self.optimizer.zero_grad()  # an update that was broken off leaves gradients behind
            for batch in micro_batches(rows, self.settings.batch_tokens):
                loss, stats = loss_of(batch, tokens, steps)
                self.accelerator.backward(loss)
                collected.append({**stats, "loss": float(loss.detach()) * tokens / max(stats["tokens"], 1.0)})
                if on_rows is not None:
                    on_rows(len(batch))
            norm = self.accelerator.clip_grad_norm_(self.parameters.values(), self.settings.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.engine.bump(self.adapter)
        for stats in collected:
            stats["grad_norm"] = float(norm) if norm is not None else math.nan
        return collected

    def _forward(self, batch: list[TokenRow]) -> tuple[Tensor, Tensor, Tensor]:
        device = self.accelerator.device
        shared = shared_prefix(batch)
        width = max(len(r.ids) for r in batch) - shared
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros(len(batch), width, dtype=torch.long)
        for b, row in enumerate(batch):
            ids[b, : len(row.ids) - shared] = torch.tensor(row.ids[shared:])
            mask[b, : len(row.ids) - shared] = 1
        prefix = torch.tensor(batch[0].ids[:shared], dtype=torch.long)
        row_N = torch.tensor([b for b, r in enumerate(batch) for _ in r.positions])
        column_N = torch.tensor([p - shared for r in batch for p in r.positions])
        temperature_N = torch.tensor([r.temperature for r in batch for _ in r.positions])
        step_N = torch.tensor([s for r in batch for s in r.steps])
        inputs = [t.to(device) for t in (prefix, ids, mask, row_N, column_N, temperature_N)]
        logprobs, entropy = self.model(*inputs)
        return logprobs, entropy, step_N.to(device)

    def _reference(self, batch: list[TokenRow]) -> Tensor:
        """Log-probabilities of the base model (the adapter switched off)."""
        with torch.no_grad(), self.engine.model.disable_adapter():
            logprobs, _, _ = self._forward(batch)
        return logprobs

    def start_phase(self, learning_rate: float) -> None:
        """Forget the optimizer's moments and set the rate: another loss has gradients of another scale."""
        self.optimizer.state.clear()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def state(self) -> dict[str, Any]:
        """The optimizer's state, for resuming."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(dict(state))


def normalised(rows: Sequence[TokenRow]) -> list[TokenRow]:
    """Advantages divided by their root mean square over the batch's action tokens; signs and ratios stay."""
    values = [a for r in rows for a in r.advantages]
    if not values:
        return list(rows)
    scale = math.sqrt(sum(v * v for v in values) / len(values))
    if scale <= 1e-8:
        return list(rows)
    return [replace(r, advantages=tuple(a / scale for a in r.advantages)) for r in rows]


def weighted_mean(collected: Sequence[Stats]) -> Stats:
    """Token-weighted means of the micro-batches' statistics; tokens are summed, maxima kept."""
    if not collected:
        return {"tokens": 0.0}
    total = sum(s["tokens"] for s in collected)
    result = {k: sum(s[k] * s["tokens"] for s in collected) / total for k in collected[0] if k != "tokens"}
    if "ratio_max" in result:
        result["ratio_max"] = max(s["ratio_max"] for s in collected)
    return {**result, "tokens": total}
