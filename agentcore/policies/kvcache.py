"""Keys and values kept between the turns of an episode, so that each token is prefilled once.

A slot holds the token ids it covers and one tensor [layers, 2, heads, T, head_dim]. Slots are keyed by the
adapter and its version: other weights give other keys and values. The oldest slots go when the budget is full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SlotKey = tuple[str, str | None, int]
"""(episode, adapter, adapter version)"""


@dataclass(slots=True)
class Slot:
    """``ids`` has length T; ``kv`` has shape [layers, 2, heads, T, head_dim]."""

    ids: tuple[int, ...]
    kv: Any


class SlotCache:
    """Slots by episode, bounded by a number of tokens."""

    def __init__(self, max_tokens: int = 48_000) -> None:
        self.max_tokens = max_tokens
        self._slots: OrderedDict[SlotKey, Slot] = OrderedDict()
        self._tokens = 0

    def put(self, key: SlotKey, slot: Slot) -> None:
        self.drop(key)
        self._slots[key] = slot
        self._tokens += len(slot.ids)
        while self._tokens > self.max_tokens and len(self._slots) > 1:
            _, old = self._slots.popitem(last=False)
            self._tokens -= len(old.ids)

    def drop(self, key: SlotKey) -> None:
        old = self._slots.pop(key, None)
        if old is not None:
            self._tokens -= len(old.ids)

    def clear(self) -> None:
        self._slots.clear()
        self._tokens = 0

    def longest_prefix(self, key: SlotKey, ids: Sequence[int]) -> tuple[Slot, int] | None:
        """The slot of ``key`` and how many of its tokens ``ids`` starts with, id by id."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        self._slots.move_to_end(key)
        return slot, common_prefix(slot.ids, ids)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def prefill(
    model: Any, prompts: Sequence[Sequence[int]], cached: Sequence[tuple[Slot, int] | None], pad: int
) -> tuple[Any, Any, Any, Any]:
    """Lay out [pad | cached | pad | new] per row and run the new part.

    Args:
        cached: per row, a slot and how many of its first tokens the prompt starts with (fewer than the prompt has).
        pad: any token id.

    Returns:
        The cache, the mask [B, columns], the next position [B] and the last logits [B, V].
    """
    import torch
    from transformers import DynamicCache

    device = model.device
    have = [c[1] if c is not None else 0 for c in cached]
    new = [p[h:] for p, h in zip(prompts, have, strict=True)]
    past_n, new_n, rows = max(have), max(len(n) for n in new), len(prompts)
    mask = torch.zeros(rows, past_n + new_n, dtype=torch.long, device=device)
    ids = torch.full((rows, new_n), pad, dtype=torch.long, device=device)
    positions = torch.zeros(rows, new_n, dtype=torch.long, device=device)
    for b, (h, n) in enumerate(zip(have, new, strict=True)):
        mask[b, past_n - h : past_n] = 1
        mask[b, past_n + new_n - len(n) :] = 1
        ids[b, new_n - len(n) :] = torch.tensor(n, device=device)
        positions[b, new_n - len(n) :] = torch.arange(h, h + len(n), device=device)
    cache = DynamicCache()
    if past_n:
        _load(cache, cached, past_n)
    out = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return cache, mask, positions[:, -1] + 1, out.logits[:, -1]


def _load(cache: Any, cached: Sequence[tuple[Slot, int] | None], past_n: int) -> None:
    """Put what is cached of each row into the last of ``past_n`` columns."""
    sample = next(c[0].kv for c in cached if c is not None)
    layers, _, heads, _, dim = sample.shape
    for layer in range(layers):
        keys = sample.new_zeros(len(cached), heads, past_n, dim)
        values = sample.new_zeros(len(cached), heads, past_n, dim)
        for b, entry in enumerate(cached):
            if entry is not None:
                slot, n = entry
                keys[b, :, past_n - n :] = slot.kv[layer, 0, :, :n]
                values[b, :, past_n - n :] = slot.kv[layer, 1, :, :n]
        cache.update(keys, values, layer)


def keys_and_values(cache: Any, row: int, columns: Any = slice(None)) -> Any:
    """[layers, 2, heads, T, head_dim] of one row; ``columns`` [T] picks what is kept."""
    import torch

    return torch.stack([torch.stack([la.keys[row][:, columns], la.values[row][:, columns]]) for la in cache.layers])
