"""LoRA adapters on a transformers model, by way of peft: reading, adding, switching."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from agentcore.errors import PolicyError

ANY = "(whichever)"
"""For :func:`activate`: adapters on, whichever was active last."""

POLICIES_FILE = "policies.json"
"""In a folder of several adapters: the adapter's name (a folder beside it) by policy id."""


def read_policies(folder: Path) -> dict[str, str]:
    """Which adapter each policy id acts with, in a folder of several; empty if it holds one adapter for all.

    Raises:
        PolicyError: if the file can't be read, or names what can't be a folder beside it.
    """
    file = folder / POLICIES_FILE
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyError(f"{file} can't be read ({error}). Save the adapters again.") from error
    if not isinstance(found, dict) or not all(re.fullmatch(r"[A-Za-z0-9_-]+", str(n)) for n in found.values()):
        raise PolicyError(f"{file} must hold one JSON object: the name of an adapter beside it by policy id.")
    return {str(policy_id): str(name) for policy_id, name in found.items()}


def read_adapter_config(folder: Path) -> Any:
    """The peft configuration of a saved adapter.

    Raises:
        PolicyError: if the folder holds none, or one that can't be read.
    """
    from peft import PeftConfig

    file = folder / "adapter_config.json"
    if not file.is_file():
        raise PolicyError(f"{folder} holds no adapter (no adapter_config.json). Name a folder saved by training.")
    try:
        return PeftConfig.from_pretrained(str(folder))
    except Exception as error:  # whatever a damaged file makes of it
        raise PolicyError(f"{file} can't be read ({error}). Save the adapter again.") from error


def put_adapter(model: Any, name: str, folder: Path, config: Any) -> Any:
    """The model with the saved adapter on it under ``name``; after an error, without it.

    Raises:
        Exception: of peft, safetensors or torch, if the weights are not there or not this model's.
    """
    from peft import PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict

    weights = load_peft_weights(str(folder), device="cpu")
    wrapped: Any = model
    if isinstance(model, PeftModel):
        if name in model.peft_config:
            model.delete_adapter(name)
        model.add_adapter(name, config)
    else:
        config.base_model_name_or_path = model.name_or_path  # peft warns where the two differ
        wrapped = get_peft_model(model, config, adapter_name=name)
    try:
        found: Any = set_peft_model_state_dict(wrapped, weights, adapter_name=name)
        wrong = [*found.unexpected_keys, *(k for k in found.missing_keys if f".{name}." in k)]
        if wrong:
            raise ValueError(f"its weights are not those of this model (the first: {wrong[0]})")
    except Exception:
        if wrapped is model:
            model.delete_adapter(name)
        else:
            wrapped.unload()  # peft puts its layers into the model itself
        raise
    return wrapped


def activate(model: Any, adapter: str | None) -> None:
    """Switch to ``adapter``, to the base model (None), or leave which one it is (:data:`ANY`)."""
    if not hasattr(model, "disable_adapter"):  # a model that never had an adapter
        return
    if adapter is None:
        model.base_model.disable_adapter_layers()
        return
    model.base_model.enable_adapter_layers()
    if adapter != ANY:
        model.set_adapter(adapter)
