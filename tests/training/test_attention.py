"""The joined attention against the plain one, forwards and backwards, and where it is not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.attention import NAME, fused, prefix_attention


def plain(q: Any, pk: Any, pv: Any, k: Any, v: Any, scale: float) -> torch.Tensor:
    """softmax over [prefix, own row up to here], written out."""
    keys, values = (torch.cat([p.expand(q.shape[0], -1, -1, -1), o], dim=2) for p, o in ((pk, k), (pv, v)))
    scores = q @ keys.transpose(-1, -2) * scale
    size, shared = q.shape[2], pk.shape[2]
    hidden = torch.ones(size, size).triu(1).bool()
    scores = scores.masked_fill(torch.cat([torch.zeros(size, shared).bool(), hidden], dim=1), -torch.inf)
    return scores.softmax(-1) @ values


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(0, 10_000))
def test_it_is_attention_over_the_prefix_and_the_row_itself(b: int, h: int, s: int, p: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, length: int) -> torch.Tensor:
        return (2 * torch.randn(rows, h, length, 16, generator=generator, dtype=torch.float64)).requires_grad_()

    inputs = [draw(b, s), draw(1, p), draw(1, p), draw(b, s), draw(b, s)]
    weight = torch.randn(b, h, s, 16, generator=generator, dtype=torch.float64)
    found = prefix_attention(*inputs, scale=0.3)
    wanted = plain(*inputs, scale=0.3)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((wanted * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_models_that_attend_otherwise_are_left_alone(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model(attn_implementation="sdpa")
    with fused(model) as used:
        assert used and model.config._attn_implementation == NAME
    assert model.config._attn_implementation == "sdpa"
    for name, value in (("sliding_window", 8), ("attention_dropout", 0.1), ("layer_types", ["sliding_attention"])):
        setattr(model.config, name, value)
        with fused(model) as used:
            assert not used and model.config._attn_implementation == "sdpa"
        setattr(model.config, name, None)


def test_the_models_own_attention_is_back_after_an_error(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model(attn_implementation="sdpa")
    with pytest.raises(KeyboardInterrupt), fused(model):
        raise KeyboardInterrupt
    assert model.config._attn_implementation == "sdpa"
