"""Fine-tuning of graph policies from execution traces: rewards, credit, update, evaluation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.config import LoraSettings, RlSettings, SftSettings, TrainSettings, UpdateSettings
    from training.train import TrainResult, train

_EXPORTS = {
    "LoraSettings": "training.config",
    "RlSettings": "training.config",
    "SftSettings": "training.config",
    "TrainResult": "training.train",
    "TrainSettings": "training.config",
    "UpdateSettings": "training.config",
    "train": "training.train",
}

__all__ = ["LoraSettings", "RlSettings", "SftSettings", "TrainResult", "TrainSettings", "UpdateSettings", "train"]


def __getattr__(name: str) -> Any:
    """Public names load on first use: ``import training`` loads no torch."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'training' has no attribute {name!r}")
    # the module training.train would hide the function of that name once it is imported: set the name to the function
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value
