"""Drawing tokens: inverse-CDF sampling from random numbers that depend on a request's key alone."""

from __future__ import annotations

from typing import Any


def uniforms(key: int, count: int) -> Any:
    """``count`` uniform numbers in [0, 1) that depend on ``key`` alone, float64."""
    import torch

    generator = torch.Generator().manual_seed(key % (1 << 63))
    return torch.rand(count, generator=generator, dtype=torch.float64)


def draw(logits: Any, temperature: Any, uniform: Any) -> tuple[Any, Any]:
    """Inverse-CDF sampling: logits [B, V], temperature [B], uniform [B] -> token [B], log-probability [B].

    A greedy row (temperature 0) takes the most likely token; its log-probability is that at temperature 1.
    """
    import torch

    greedy = temperature <= 0
    scaled = logits / torch.where(greedy, torch.ones_like(temperature), temperature)[:, None]
    logp = torch.log_softmax(scaled, dim=-1)
    cdf = logp.double().exp().cumsum(-1)
    threshold = (uniform * cdf[:, -1])[:, None]
    token = torch.searchsorted(cdf, threshold, right=True).squeeze(1).clamp_max(logits.shape[-1] - 1)
    token = torch.where(greedy, logp.argmax(-1), token)
    return token, logp.gather(1, token[:, None]).squeeze(1)
