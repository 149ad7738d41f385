"""LoRA adapters: made with a seed, saved so that plain peft loads them, with a manifest beside them."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from agentcore.errors import PolicyError
from agentcore.policies.engine import Engine
from agentcore.policies.models import require_space
from training.config import LoraSettings


def create_adapter(engine: Engine, name: str, settings: LoraSettings, seed: int) -> None:
    """Add a fresh LoRA adapter to the engine's model. The seed is set before the weights are drawn."""
    count = engine.model.config.num_hidden_layers
    last = settings.last_layers
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets),
        layers_to_transform=list(range(max(0, count - last), count)) if last is not None else None,
        task_type="CAUSAL_LM",
        base_model_name_or_path=engine.identity.name,
    )
    with engine.lock:
        torch.manual_seed(seed)
        try:
            if isinstance(engine.model, PeftModel):
                engine.model.add_adapter(name, config)
            else:
                engine.model = get_peft_model(engine.model, config, adapter_name=name)
        except ValueError as error:
            raise PolicyError(
                f"No adapter can be put on {engine.identity.name!r}: {error} Name its linear layers in "
                "LoraSettings.targets."
            ) from error
        # peft notes the folder the model was read from; what a user can load it by is its name
        engine.model.peft_config[name].base_model_name_or_path = engine.identity.name
        engine.model.eval()
        engine.bump(name)


def adapter_parameters(engine: Engine, name: str) -> dict[str, torch.nn.Parameter]:
    """The trainable parameters of one adapter; all others are frozen."""
    found = {}
    for key, parameter in engine.model.named_parameters():
        mine = f".{name}." in key and "lora_" in key
        parameter.requires_grad_(mine)
        if mine:
            found[key] = parameter
    if not found:
        raise PolicyError(f"The model has no adapter {name!r} to train.")
    return found


def save_adapter(engine: Engine, name: str, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the adapter to ``folder``, whole or not at all; ``PeftModel.from_pretrained(base, folder)`` loads it."""
    require_space(folder, 200 * 1024 * 1024, "the adapter")
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    partial.mkdir(parents=True)
    # embeddings are never trained here; asking peft to look would make it ask the hub
    engine.model.save_pretrained(str(partial), selected_adapters=[name], save_embedding_layers=False)
    inner = partial / name  # peft puts a named adapter into a folder of its name
    source = inner if inner.is_dir() else partial
    (source / "manifest.json").write_text(json.dumps(dict(manifest), indent=2, default=str))
    readme = source / "README.md"
    readme.unlink(missing_ok=True)  # peft's model card is an empty form
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(source, folder)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(partial, ignore_errors=True)
