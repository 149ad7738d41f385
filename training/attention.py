"""Attention for the update: what rows share is attended to once, and nothing of the size of a mask is ever made.

Rows of an update are right-padded and start after a prefix common to all. So plain causal attention within a row needs
no mask, and every query sees the whole prefix. Both parts are computed by torch's fused kernel and joined by their
log-sum-exp; backwards, the kernel is given the joined output and log-sum-exp, which makes each part's gradient exact
(as ring attention does, Liu et al. 2023, arXiv 2310.01889).

On a CPU only, and for models with plain causal attention; others keep their own (:func:`fused`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "agentcore_prefix"
_FORWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def prefix_attention(
    query: Tensor, prefix_key: Tensor, prefix_value: Tensor, key: Tensor, value: Tensor, scale: float
) -> Tensor:
    """[B, H, S, D]: each query attends to the whole prefix and, causally, to its own row.

    Args:
        query, key, value: [B, H, S, D], of the rows after the prefix.
        prefix_key, prefix_value: [1, H, P, D].
        scale: the scores' factor, 1/√D as a rule.
    """
    result: Tensor = _PrefixAttention.apply(query, prefix_key, prefix_value, key, value, scale)  # type: ignore[no-untyped-call]
    return result


class _PrefixAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, pk: Tensor, pv: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        flat = _flat(query)
        far, far_lse = _FORWARD(flat, pk, pv, 0.0, False, scale=scale)
        near, near_lse = _FORWARD(query, key, value, 0.0, True, scale=scale)
        far, far_lse = _rows(far, query), _rows(far_lse[..., None], query)[..., 0]
        lse = torch.logaddexp(far_lse, near_lse)
        out: Tensor = far * (far_lse - lse).exp()[..., None].to(far) + near * (near_lse - lse).exp()[..., None].to(near)
        ctx.save_for_backward(query, pk, pv, key, value, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        query, pk, pv, key, value, out, lse = ctx.saved_tensors
        flat_lse = _flat(lse[..., None])[..., 0]
        far = _BACKWARD(_flat(gradient), _flat(query), pk, pv, _flat(out), flat_lse, 0.0, False, scale=ctx.scale)
        near = _BACKWARD(gradient.contiguous(), query, key, value, out, lse, 0.0, True, scale=ctx.scale)
        return _rows(far[0], query) + near[0], far[1], far[2], near[1], near[2], None


def _flat(rows: Tensor) -> Tensor:
    """[B, H, S, D] -> [1, H, B·S, D]: the queries of all rows as those of one."""
    b, h, s, d = rows.shape
    return rows.transpose(0, 1).reshape(1, h, b * s, d)


def _rows(flat: Tensor, like: Tensor) -> Tensor:
    """The inverse of :func:`_flat`."""
    b, h, s, _ = like.shape
    return flat.reshape(h, b, s, flat.shape[-1]).transpose(0, 1)


def _forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """What transformers calls: keys and values [B, H_kv, P + S, D], the first P the same in all rows."""
    groups = query.shape[1] // key.shape[1]
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    shared = key.shape[2] - query.shape[2]
    own = [_expanded(x[:, :, shared:], groups) for x in (key, value)]
    if shared:
        # every row holds the same prefix: the gradient may all go to the first one's
        prefix = [_expanded(x[:1, :, :shared], groups) for x in (key, value)]
        out = prefix_attention(query, prefix[0], prefix[1], own[0], own[1], scale)
    else:
        out = torch.nn.functional.scaled_dot_product_attention(query, own[0], own[1], is_causal=True, scale=scale)
    return out.transpose(1, 2).contiguous(), None


def _expanded(x: Tensor, groups: int) -> Tensor:
    return x.repeat_interleave(groups, dim=1) if groups > 1 else x


AttentionInterface.register(NAME, _forward)


@contextlib.contextmanager
def fused(model: Any) -> Iterator[bool]:
    """Within it, ``model`` attends as above, if it can; yields whether it does."""
    config = model.config
    able = (
        _FORWARD is not None
        and _BACKWARD is not None
        and model.device.type == "cpu"
        and model.dtype in (torch.float32, torch.float64, torch.bfloat16)
        and config._attn_implementation == "sdpa"
        and not getattr(model, "is_gradient_checkpointing", False)  # what is computed again would be so outside
        and all(
            getattr(config, name, None) in (None, False, 0) for name in ("sliding_window", "attn_logit_softcapping")
        )
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and getattr(config, "attention_dropout", 0.0) in (None, 0.0)
    )
    if not able:
        yield False
        return
    config._attn_implementation = NAME
    try:
        yield True
    finally:
        config._attn_implementation = "sdpa"
