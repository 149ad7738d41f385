"""Folds an adapter into the weights while sampling, where that is faster, and gives back the very same bits.

An unmerged LoRA adds two small matrix products to every linear layer, which costs about a third of a decoding step on a
CPU. peft's own ``unmerge`` subtracts what was added, which rounds; here the original weights are kept and restored.
"""

from __future__ import annotations

from typing import Any


class FoldedAdapter:
    """At most one adapter is folded in at a time."""

    def __init__(self) -> None:
        self._original: dict[str, Any] = {}
        """Weights of the adapted layers, by module name; copied once, they never change."""
        self._active: tuple[str, int] | None = None
        self._layers: list[tuple[str, Any]] = []

    def holds(self, adapter: str, version: int) -> bool:
        """Whether this version of this adapter is folded in now."""
        return self._active == (adapter, version)

    def fold(self, model: Any, adapter: str, version: int) -> None:
        """W + s·B·A in place of W."""
        self.restore()
        self._layers = [(n, m) for n, m in model.named_modules() if hasattr(m, "lora_A") and adapter in m.lora_A]
        for name, layer in self._layers:
            if name not in self._original:
                self._original[name] = layer.get_base_layer().weight.data.clone()
            layer.merge(adapter_names=[adapter])
        self._active = (adapter, version)

    def restore(self) -> None:
        """Put the original weights back, bit by bit."""
        if self._active is None:
            return
        for name, layer in self._layers:
            layer.unmerge()
            layer.get_base_layer().weight.data.copy_(self._original[name])
        self._active = None
