"""Fine-tuning of graph policies from execution traces: rewards, credit, update, evaluation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.config import LoraSettings, RlSettings, SftSettings, TrainSettings, UpdateSettings
    from training.finetune import TrainResult, train

_EXPORTS = {
    "LoraSettings": "training.config",
    "RlSettings": "training.config",
    "SftSettings": "training.config",
    "TrainResult": "training.finetune",
    "TrainSettings": "training.config",
    "UpdateSettings": "training.config",
    "train": "training.finetune",
}

__all__ = ["LoraSettings", "RlSettings", "SftSettings", "TrainResult", "TrainSettings", "UpdateSettings", "train"]


def __getattr__(name: str) -> Any:
    """Public names load on first use: ``import training`` loads no torch."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'training' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
