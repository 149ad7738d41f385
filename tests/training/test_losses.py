"""Losses on small tensors, against numbers worked out by hand and against plain torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from training.losses import (
    aggregate_tokens,
    cispo_loss,
    kl_k3,
    policy_gradient_loss,
    sft_loss,
    token_logprobs,
    token_logprobs_and_entropy,
    truncated_importance_weights,
)


def f(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def b(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


ALL = b(1, 1, 1, 1)
OLD = f(-1.0, -1.0, -1.0, -1.0)


def at(*ratios: float) -> Tensor:
    return OLD + torch.log(f(*ratios))


# Averaging ---------------------------------------------------------------------------------------------------------


def test_aggregation_by_hand() -> None:
    values, mask = f(1, 2, 4, 100).reshape(2, 2), b(1, 1, 1, 0).reshape(2, 2)
    assert aggregate_tokens(values, mask).item() == pytest.approx(7 / 3)
    assert aggregate_tokens(values, mask, "step").item() == pytest.approx((1.5 + 4) / 2)
    assert aggregate_tokens(values, mask, "dr", denominator=10).item() == pytest.approx(0.7)
    flat = aggregate_tokens(values.flatten(), mask.flatten(), "step", step_T=torch.tensor([7, 7, 3, 3]))
    assert flat.item() == pytest.approx((1.5 + 4) / 2)


@pytest.mark.parametrize(("aggregate", "denominator"), [("token", 3.0), ("step", 2.0), ("dr", 8.0)])
def test_micro_batches_with_the_whole_denominator_add_up(aggregate: str, denominator: float) -> None:
    values, mask = f(1, 2, 4, 100).reshape(2, 2), b(1, 1, 1, 0).reshape(2, 2)
    whole = aggregate_tokens(values, mask, aggregate, denominator=denominator)  # type: ignore[arg-type]
    parts = [
        aggregate_tokens(values[i : i + 1], mask[i : i + 1], aggregate, denominator=denominator)  # type: ignore[arg-type]
        for i in range(2)
    ]
    assert torch.stack(parts).sum().item() == pytest.approx(whole.item())


# Policy gradient ---------------------------------------------------------------------------------------------------


def test_clipping_by_hand() -> None:
    ratios, advantages = (1.5, 0.5, 1.5, 0.5), f(1, 1, -1, -1)
    loss, stats = policy_gradient_loss(at(*ratios), OLD, advantages, ALL, 0.2, 0.3)
    assert loss.item() == pytest.approx(-(1.3 + 0.5 - 1.5 - 0.8) / 4)
    assert stats["clip_high_fraction"] == stats["clip_low_fraction"] == 0.25
    assert stats["clip_fraction"] == 0.5
    assert stats["approx_kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / 4)
    assert stats["ratio_max"] == pytest.approx(1.5)
    assert stats["tokens"] == 4.0 and "entropy" not in stats


def test_a_clipped_token_has_no_gradient_and_the_others_have_minus_ratio_times_advantage() -> None:
    logprobs = at(1.5, 0.5, 1.5, 0.5).requires_grad_()
    policy_gradient_loss(logprobs, OLD, f(1, 1, -1, -1), ALL, 0.2, 0.3)[0].backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, -0.5 / 4, 1.5 / 4, 0.0])


def test_on_policy_it_is_the_plain_policy_gradient() -> None:
    logprobs = OLD.clone().requires_grad_()
    loss, stats = policy_gradient_loss(logprobs, OLD, f(1, 2, -3, 0), ALL, entropy_T=f(1, 2, 3, 6))
    loss.backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([-0.25, -0.5, 0.75, 0.0])
    assert stats["clip_fraction"] == stats["approx_kl"] == 0.0 and stats["entropy"] == 3.0


def test_what_the_mask_leaves_out_is_never_read() -> None:
    mask = b(1, 1, 0, 0)
    bad = f(0, 0, math.nan, math.inf)
    logprobs = (at(1.5, 0.5, 1.0, 1.0) + bad).requires_grad_()
    loss, _ = policy_gradient_loss(
        logprobs, OLD + bad, f(1, 1, 0, 0) + bad, mask, 0.2, 0.3, weight_T=f(1, 1, 1, 1) + bad
    )
    loss.backward()
    assert loss.item() == pytest.approx(-(1.3 + 0.5) / 2)
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([0.0, -0.25, 0.0, 0.0])


def test_step_ratio_is_the_geometric_mean_over_the_steps_tokens() -> None:
    logprobs = at(4.0, 1.0, 1.1, 1.1).reshape(2, 2)
    mask, advantages = ALL.reshape(2, 2), f(1, 1, -2, -2).reshape(2, 2)
    loss, stats = policy_gradient_loss(logprobs, OLD.reshape(2, 2), advantages, mask, 0.2, 0.5, "step", ratio="step")
    assert loss.item() == pytest.approx(-(1.5 - 2.2) / 2)
    assert stats["clip_fraction"] == 0.5 and stats["ratio_max"] == pytest.approx(2.0)
    labels = torch.tensor([0, 0, 1, 1])
    flat = policy_gradient_loss(
        logprobs.flatten(), OLD, advantages.flatten(), ALL, 0.2, 0.5, "step", ratio="step", step_T=labels
    )
    assert flat[0].item() == pytest.approx(loss.item())


def test_on_one_token_steps_the_step_ratio_is_the_token_ratio() -> None:
    arguments = at(1.5, 0.5, 1.5, 0.5), OLD, f(1, 1, -1, -1), ALL
    labels = torch.arange(4)
    step = policy_gradient_loss(*arguments, ratio="step", step_T=labels)[0]
    assert step.item() == pytest.approx(policy_gradient_loss(*arguments)[0].item())


def test_cispo_keeps_every_tokens_gradient_at_a_capped_weight() -> None:
    logprobs = at(9.0, 0.5, 9.0, 1.0).requires_grad_()
    loss, stats = cispo_loss(logprobs, OLD, f(1, 1, -1, 1), ALL, 3.0)
    loss.backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([-0.75, -0.125, 0.75, -0.25])
    assert stats["clip_fraction"] == 0.5


def test_importance_weights_are_truncated_and_carry_no_gradient() -> None:
    trainer = f(-1, -1, -1, -1).requires_grad_()
    weights = truncated_importance_weights(trainer, trainer.detach() - torch.log(f(1, 0.5, 1.5, 9)), 2.0)
    assert weights.tolist() == pytest.approx([1.0, 0.5, 1.5, 2.0]) and not weights.requires_grad
    loss, _ = policy_gradient_loss(trainer, OLD, f(1, 1, 1, 1), ALL, weight_T=weights)
    loss.backward()
    assert trainer.grad is not None and trainer.grad.tolist() == pytest.approx([-0.25, -0.125, -0.375, -0.5])


def test_k3_is_the_kl_in_expectation_and_never_negative() -> None:
    p, q = f(0.2, 0.3, 0.5), f(0.5, 0.25, 0.25)
    estimate = (p * kl_k3(torch.log(p), torch.log(q))).sum()
    assert estimate.item() == pytest.approx((p * torch.log(p / q)).sum().item())
    assert (kl_k3(torch.log(p), torch.log(q)) >= 0).all()
    assert kl_k3(torch.log(p), torch.log(p)).tolist() == [0.0, 0.0, 0.0]


def test_sft_is_the_cross_entropy() -> None:
    logits, target = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0])
    logprobs = torch.log_softmax(logits, -1).gather(1, target[:, None])[:, 0]
    mask = b(1, 0, 1, 1, 0, 1)
    loss, stats = sft_loss(logprobs, mask)
    expected = torch.nn.functional.cross_entropy(logits[mask], target[mask]).item()
    assert loss.item() == pytest.approx(expected)
    assert stats["perplexity"] == pytest.approx(math.exp(expected)) and stats["tokens"] == 4.0


def test_inputs_are_checked() -> None:
    for change, message in (
        ({"mask_T": b(0, 0, 0, 0)}, "no token"),
        ({"mask_T": ALL.long()}, "bool"),
        ({"advantages_T": f(1, 2)}, "advantages_T has shape"),
        ({"advantages_T": f(1, 2, 3, math.nan)}, "not finite"),
        ({"old_logprobs_T": f(1, 2, 3, -math.inf)}, "not finite"),
        ({"aggregate": "dr"}, "denominator"),
        ({"aggregate": "mean"}, "aggregate must be"),
        ({"aggregate": "step"}, "step_T"),
        ({"ratio": "sequence"}, "ratio must be"),
        ({"clip_low": 1.2}, "clip range"),
        ({"denominator": 0.0}, "positive"),
    ):
        given = {"logprobs_T": OLD, "old_logprobs_T": OLD, "advantages_T": OLD, "mask_T": ALL, **change}
        with pytest.raises(ValueError, match=message):
            policy_gradient_loss(**given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        cispo_loss(OLD, OLD, OLD, ALL, 0.5)
    with pytest.raises(ValueError, match="at least 1"):
        truncated_importance_weights(OLD, OLD, 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_precisions_work(dtype: torch.dtype) -> None:
    arguments = [t.to(dtype) for t in (at(1.5, 0.5, 1.5, 0.5), OLD, f(1, 1, -1, -1))]
    loss, _ = policy_gradient_loss(*arguments, ALL, 0.2, 0.3)
    assert loss.dtype == dtype and loss.item() == pytest.approx(0.125)


# Log-probabilities -------------------------------------------------------------------------------------------------


def layer(size: int = 23) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(size, 8, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(11, 8, generator=generator, dtype=torch.float64).requires_grad_()
    return hidden, weight, torch.randint(0, 11, (size,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 5, 23, 100])
def test_chunks_give_what_the_whole_gives_with_its_gradient(chunk: int) -> None:
    hidden, weight, target = layer()
    got, entropy = token_logprobs_and_entropy(hidden, weight, target, 0.7, chunk=chunk)
    whole = torch.log_softmax(hidden @ weight.T / 0.7, -1)
    expected = whole.gather(1, target[:, None])[:, 0]
    assert torch.allclose(got, expected, atol=1e-12)
    assert torch.allclose(entropy, -(whole.exp() * whole).sum(-1), atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(got.sum(), [hidden, weight]),
        torch.autograd.grad(expected.sum(), [hidden, weight]),
        strict=True,
    ):
        assert torch.allclose(mine, theirs, atol=1e-12)


def test_temperature_per_token_bias_and_banned_tokens() -> None:
    hidden, weight, target = layer()
    temperature = torch.linspace(0.5, 2.0, 23)
    bias = torch.linspace(-1, 1, 11, dtype=torch.float64)
    banned = torch.zeros(11, dtype=torch.bool)
    banned[3] = True
    target = torch.where(target == 3, 4, target)
    got, entropy = token_logprobs_and_entropy(
        hidden, weight, target, temperature, bias_V=bias, banned_V=banned, chunk=4
    )
    logits = (hidden @ weight.T + bias) / temperature.double()[:, None]
    kept = logits[:, ~banned]
    expected = torch.log_softmax(kept, -1).gather(1, torch.where(target > 3, target - 1, target)[:, None])[:, 0]
    assert torch.allclose(got, expected, atol=1e-12)
    assert torch.isfinite(entropy).all()
    with pytest.raises(ValueError, match="could not be sampled"):
        token_logprobs(hidden, weight, torch.full((23,), 3), banned_V=banned)


def test_low_precision_layers_are_normalised_in_float32() -> None:
    hidden, weight, target = layer()
    got = token_logprobs(hidden.bfloat16(), weight.bfloat16(), target)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), token_logprobs(hidden, weight, target), atol=0.2)


def test_log_probability_inputs_are_checked() -> None:
    hidden, weight, target = layer()
    assert token_logprobs(hidden[:0], weight, target[:0]).shape == (0,)
    for bad in (
        lambda: token_logprobs(hidden, weight[:, :4], target),
        lambda: token_logprobs(hidden, weight, target[:4]),
        lambda: token_logprobs(hidden, weight, target + 11),
        lambda: token_logprobs(hidden, weight, target, 0.0),
        lambda: token_logprobs(hidden, weight, target, chunk=0),
    ):
        with pytest.raises(ValueError):
            bad()
