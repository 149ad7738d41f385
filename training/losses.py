"""Losses on action tokens, as pure functions of tensors, and the log-probabilities they need.

Tensors with the suffix ``_T`` have one shape, [T] or [B, T]: one entry per token. ``mask_T`` (bool) picks the action
tokens; what lies elsewhere is never read, so it may be anything, NaN included. The losses return a scalar to minimise
and a dictionary of plain numbers for logging. Notation: r_t = exp(logprobs - old_logprobs), A_t the advantage.

How tokens are averaged (``aggregate``):

* ``token``: Σ_t x_t / (number of tokens) (DAPO, arXiv 2503.14476, eq. 8).
* ``step``: the mean over steps of the mean over a step's tokens (GRPO, arXiv 2402.03300). Steps are the rows of a
  [B, T] batch, or the equal labels of ``step_T``.
* ``dr``: Σ_t x_t / ``denominator``, with denominator B · L_max (Dr.GRPO, arXiv 2503.20783), which has to be given.

With gradient accumulation give each micro-batch the ``denominator`` of the whole batch (tokens, or steps), so that
their sum is the loss of the whole.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Aggregate = Literal["token", "step", "dr"]
Stats = dict[str, float]


# Averaging ---------------------------------------------------------------------------------------------------------


def _check(mask_T: Tensor, **tensors: Tensor | None) -> None:
    if mask_T.dtype != torch.bool or mask_T.ndim not in (1, 2):
        raise ValueError(f"mask_T must be a bool tensor [T] or [B, T], not {mask_T.dtype} {tuple(mask_T.shape)}")
    if not bool(mask_T.any()):
        raise ValueError("mask_T selects no token, so there is no loss; skip such a batch")
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.shape != mask_T.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, mask_T has {tuple(mask_T.shape)}")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.detach()[mask_T]).all()):
            raise ValueError(f"{name} holds values that are not finite on action tokens")


def _labels(mask_T: Tensor, step_T: Tensor | None) -> Tensor:
    """[N] labels 0..steps-1 of the selected tokens."""
    if step_T is None:
        if mask_T.ndim != 2:
            raise ValueError("tokens in one line [T] need step_T, which step each belongs to")
        step_T = torch.arange(mask_T.shape[0], device=mask_T.device)[:, None].expand_as(mask_T)
    if step_T.shape != mask_T.shape:
        raise ValueError(f"step_T has shape {tuple(step_T.shape)}, mask_T has {tuple(mask_T.shape)}")
    labels: Tensor = torch.unique(step_T[mask_T], return_inverse=True)[1]
    return labels


def _step_means(values_N: Tensor, label_N: Tensor) -> Tensor:
    """[steps] mean of each step's tokens."""
    size = int(label_N.max()) + 1
    total = values_N.new_zeros(size).index_add(0, label_N, values_N)
    return total / torch.bincount(label_N, minlength=size).to(values_N.dtype)


def aggregate_tokens(
    values_T: Tensor,
    mask_T: Tensor,
    aggregate: Aggregate = "token",
    *,
    step_T: Tensor | None = None,
    denominator: float | None = None,
) -> Tensor:
    """One number from a value per token (see the module's docstring).

    Args:
        denominator: what to divide by instead of the number of tokens or of steps; ``dr`` needs it.
    """
    _check(mask_T, values_T=values_T)
    return _aggregate(values_T[mask_T], mask_T, aggregate, step_T, denominator)


def _aggregate(
    values_N: Tensor, mask_T: Tensor, aggregate: Aggregate, step_T: Tensor | None, denominator: float | None
) -> Tensor:
    if denominator is not None and denominator <= 0:
        raise ValueError(f"denominator must be positive, not {denominator}")
    if aggregate == "token":
        return values_N.sum() / (values_N.numel() if denominator is None else denominator)
    if aggregate == "step":
        means = _step_means(values_N, _labels(mask_T, step_T))
        return means.sum() / (means.numel() if denominator is None else denominator)
    if aggregate == "dr":
        if denominator is None:
            raise ValueError("aggregate='dr' needs the denominator: number of replies times the longest reply allowed")
        return values_N.sum() / denominator
    raise ValueError(f"aggregate must be 'token', 'step' or 'dr', not {aggregate!r}")


# Policy gradient ---------------------------------------------------------------------------------------------------


def policy_gradient_loss(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    mask_T: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    aggregate: Aggregate = "token",
    *,
    ratio: Literal["token", "step"] = "token",
    step_T: Tensor | None = None,
    weight_T: Tensor | None = None,
    entropy_T: Tensor | None = None,
    denominator: float | None = None,
) -> tuple[Tensor, Stats]:
    """-min(r_t A_t, clip(r_t, 1 - ε_low, 1 + ε_high) A_t) (PPO, arXiv 1707.06347, eq. 7; DAPO, 2503.14476, eq. 8).

    Args:
        logprobs_T: of the policy being trained; the gradient flows through these only.
        old_logprobs_T: of the policy before the update, at the same temperature and mask.
        ratio: ``step`` replaces r_t by s = exp(mean over the step's tokens of log r_t) (GSPO, arXiv 2507.18071, eq. 7;
            there with ``aggregate="step"`` and ε of about 3e-4 and 4e-4).
        step_T: which step each token belongs to, where steps are needed and are not the rows of the batch.
        weight_T: a constant factor per token, e.g. :func:`truncated_importance_weights`.
        entropy_T: only logged.

    Returns:
        The loss, and: ``clip_fraction`` (tokens where the clip holds back the gradient), ``clip_low_fraction``,
        ``clip_high_fraction``, ``approx_kl`` (k3 of old to new), ``ratio_max``, ``tokens``, and ``entropy`` if given.
    """
    log_ratio_N, advantage_N = _ratio_inputs(logprobs_T, old_logprobs_T, advantages_T, mask_T, weight_T)
    if not (0.0 <= clip_low < 1.0 and clip_high >= 0.0):
        raise ValueError(f"the clip range [1 - {clip_low}, 1 + {clip_high}] does not surround 1")
    if ratio == "step":
        label_N = _labels(mask_T, step_T)
        r_N = torch.exp(_step_means(log_ratio_N, label_N))[label_N]
    elif ratio == "token":
        r_N = torch.exp(log_ratio_N)
    else:
        raise ValueError(f"ratio must be 'token' or 'step', not {ratio!r}")
    clipped_N = torch.clamp(r_N, 1.0 - clip_low, 1.0 + clip_high)
    loss_N = -torch.minimum(r_N * advantage_N, clipped_N * advantage_N)
    if weight_T is not None:
        loss_N = loss_N * weight_T[mask_T].detach()
    loss = _aggregate(loss_N, mask_T, aggregate, step_T, denominator)
    low = (r_N < 1.0 - clip_low) & (advantage_N < 0)
    high = (r_N > 1.0 + clip_high) & (advantage_N > 0)
    return loss, _stats(log_ratio_N, r_N, low, high, mask_T, entropy_T)


def cispo_loss(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    mask_T: Tensor,
    ratio_max: float = 5.0,
    aggregate: Aggregate = "token",
    *,
    step_T: Tensor | None = None,
    weight_T: Tensor | None = None,
    entropy_T: Tensor | None = None,
    denominator: float | None = None,
) -> tuple[Tensor, Stats]:
    """-sg[min(r_t, ε_max)] A_t log π_t (CISPO: MiniMax-M1, arXiv 2506.13585, eqs. 4, 5): no token loses its gradient.

    Arguments and statistics as in :func:`policy_gradient_loss`; ``clip_fraction`` counts tokens whose weight was cut.
    """
    log_ratio_N, advantage_N = _ratio_inputs(logprobs_T, old_logprobs_T, advantages_T, mask_T, weight_T)
    if ratio_max < 1.0:
        raise ValueError(f"ratio_max must be at least 1, not {ratio_max}")
    r_N = torch.exp(log_ratio_N).detach()
    loss_N = -torch.clamp(r_N, max=ratio_max) * advantage_N * logprobs_T[mask_T]
    if weight_T is not None:
        loss_N = loss_N * weight_T[mask_T].detach()
    loss = _aggregate(loss_N, mask_T, aggregate, step_T, denominator)
    high = r_N > ratio_max
    return loss, _stats(log_ratio_N, r_N, torch.zeros_like(high), high, mask_T, entropy_T)


def _ratio_inputs(
    logprobs_T: Tensor, old_logprobs_T: Tensor, advantages_T: Tensor, mask_T: Tensor, weight_T: Tensor | None
) -> tuple[Tensor, Tensor]:
    _check(mask_T, logprobs_T=logprobs_T, old_logprobs_T=old_logprobs_T, advantages_T=advantages_T, weight_T=weight_T)
    return logprobs_T[mask_T] - old_logprobs_T[mask_T].detach(), advantages_T[mask_T].detach()


def _stats(
    log_ratio_N: Tensor, r_N: Tensor, low: Tensor, high: Tensor, mask_T: Tensor, entropy_T: Tensor | None
) -> Stats:
    with torch.no_grad():
        stats = {
            "clip_fraction": float((low | high).double().mean()),
            "clip_low_fraction": float(low.double().mean()),
            "clip_high_fraction": float(high.double().mean()),
            "approx_kl": float((torch.expm1(log_ratio_N) - log_ratio_N).mean()),
            "ratio_max": float(r_N.max()),
            "tokens": float(r_N.numel()),
        }
        if entropy_T is not None:
            _check(mask_T, entropy_T=entropy_T)
            stats["entropy"] = float(entropy_T[mask_T].mean())
    return stats


def truncated_importance_weights(old_logprobs_T: Tensor, sampler_logprobs_T: Tensor, cap: float = 2.0) -> Tensor:
    """min(π_trainer / π_sampler, C) per token, without gradient: truncated importance sampling (Ionides 2008).

    For ``weight_T``, where the engine that sampled and the model that trains give the same tokens different
    log-probabilities. ``old_logprobs_T`` are then the trainer's own, before the update. Equal ones give 1.
    """
    if old_logprobs_T.shape != sampler_logprobs_T.shape:
        raise ValueError(f"shapes differ: {tuple(old_logprobs_T.shape)} and {tuple(sampler_logprobs_T.shape)}")
    if cap < 1.0:
        raise ValueError(f"cap must be at least 1, not {cap}")
    return torch.exp(old_logprobs_T.detach() - sampler_logprobs_T.detach()).clamp(max=cap)


def kl_k3(logprobs_T: Tensor, ref_logprobs_T: Tensor) -> Tensor:
    """e^d - d - 1, d = log π_ref - log π: unbiased, non-negative estimate of KL(π, π_ref) (Schulman 2020, k3).

    Add β · ``aggregate_tokens(kl_k3(…), mask_T, …)`` to the loss to stay near the reference.
    """
    if logprobs_T.shape != ref_logprobs_T.shape:
        raise ValueError(f"shapes differ: {tuple(logprobs_T.shape)} and {tuple(ref_logprobs_T.shape)}")
    d = ref_logprobs_T.detach() - logprobs_T
    return torch.expm1(d) - d


def sft_loss(
    logprobs_T: Tensor,
    mask_T: Tensor,
    aggregate: Aggregate = "token",
    *,
    step_T: Tensor | None = None,
    denominator: float | None = None,
) -> tuple[Tensor, Stats]:
    """-log π_t, the cross-entropy of imitated action tokens. Statistics: ``perplexity`` (per token) and ``tokens``."""
    _check(mask_T, logprobs_T=logprobs_T)
    loss = _aggregate(-logprobs_T[mask_T], mask_T, aggregate, step_T, denominator)
    mean = float(-logprobs_T.detach()[mask_T].mean())
    return loss, {"perplexity": float(torch.exp(torch.tensor(mean))), "tokens": float(mask_T.sum())}


# Log-probabilities -------------------------------------------------------------------------------------------------


def token_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    temperature: float | Tensor = 1.0,
    *,
    bias_V: Tensor | None = None,
    banned_V: Tensor | None = None,
    chunk: int = 512,
) -> Tensor:
    """[N] log-probabilities of the tokens ``target_N``; as :func:`token_logprobs_and_entropy`, without the entropy."""
    return token_logprobs_and_entropy(
        hidden_ND, weight_VD, target_N, temperature, bias_V=bias_V, banned_V=banned_V, chunk=chunk
    )[0]


def token_logprobs_and_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    temperature: float | Tensor = 1.0,
    *,
    bias_V: Tensor | None = None,
    banned_V: Tensor | None = None,
    chunk: int = 512,
) -> tuple[Tensor, Tensor]:
    """log softmax(h W^T / temperature)[target] and the entropy of that distribution, for action tokens only.

    Pass the hidden states of the positions *before* the action tokens, and nothing else: logits are computed for
    ``chunk`` of them at a time and, where a gradient is needed, computed again in the backward pass, so that [N, V]
    never exists.

    Args:
        hidden_ND: last hidden states, after the final norm.
        weight_VD: of the output layer.
        target_N: the sampled token ids.
        temperature: that they were sampled with, one for all or [N].
        banned_V: bool, True for tokens that could not be sampled.

    Returns:
        Two [N] tensors, float32 (float64 for float64 input). Only the first carries a gradient.
    """
    if hidden_ND.ndim != 2 or weight_VD.ndim != 2 or hidden_ND.shape[1] != weight_VD.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden_ND.shape)} and weight {tuple(weight_VD.shape)} must be [N, D] and [V, D]"
        )
    size, vocabulary = hidden_ND.shape[0], weight_VD.shape[0]
    if target_N.shape != (size,) or target_N.is_floating_point():
        raise ValueError(f"target_N must be token ids of shape ({size},), not {target_N.dtype} {tuple(target_N.shape)}")
    if size and (int(target_N.min()) < 0 or int(target_N.max()) >= vocabulary):
        raise ValueError(f"target_N holds ids outside the vocabulary of {vocabulary}")
    temperature_N = torch.as_tensor(temperature, dtype=_wide(hidden_ND), device=hidden_ND.device).expand(size)
    if size and not bool(temperature_N.gt(0).all()):
        raise ValueError("temperature must be positive; greedy decoding has no log-probabilities to train on")
    if banned_V is not None and bool(banned_V[target_N].any()):
        raise ValueError("target_N holds a token that banned_V says could not be sampled")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    logprobs, entropies = [], []
    for start in range(0, size, chunk):
        part = slice(start, start + chunk)
        inputs = (hidden_ND[part], weight_VD, target_N[part], temperature_N[part], bias_V, banned_V)
        if size > chunk and torch.is_grad_enabled():
            logprob, entropy = checkpoint(_chunk_logprobs, *inputs, use_reentrant=False)
        else:
            logprob, entropy = _chunk_logprobs(*inputs)
        logprobs.append(logprob)
        entropies.append(entropy)
    empty = hidden_ND.new_zeros(0, dtype=_wide(hidden_ND))
    return torch.cat([empty, *logprobs]), torch.cat([empty, *entropies])


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _chunk_logprobs(
    hidden: Tensor, weight: Tensor, target: Tensor, temperature: Tensor, bias: Tensor | None, banned: Tensor | None
) -> tuple[Tensor, Tensor]:
    logits = torch.nn.functional.linear(hidden, weight, bias).to(_wide(hidden)) / temperature[:, None]
    if banned is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    normaliser = torch.logsumexp(logits, dim=-1)
    logprob = logits.gather(1, target[:, None]).squeeze(1) - normaliser
    with torch.no_grad():
        p = torch.exp(logits - normaliser[:, None])
        entropy = normaliser - torch.where(p > 0, p * logits, 0.0).sum(-1)
    return logprob, entropy
