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
