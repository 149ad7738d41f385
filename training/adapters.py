"""LoRA adapters: made with a seed, saved so that plain peft loads them, with a manifest beside them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    load_peft_weights,
    set_peft_model_state_dict,
)
from safetensors import SafetensorError

from agentcore.errors import PolicyError
from agentcore.policies.engine import Engine
from agentcore.policies.lora import POLICIES_FILE
from agentcore.policies.models import require_space
from training.config import LoraSettings
from training.files import partial_of, put_in_place, write_json


def create_adapter(engine: Engine, name: str, settings: LoraSettings, seed: int) -> None:
    """Add a fresh LoRA adapter to the engine's model, in place of one of that name.

    The weights depend on the seed alone; the global random state is left as it was.

    Raises:
        PolicyError: if the model has no linear layers of the names in ``settings.targets``.
    """
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
    with engine.using(None), torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            if isinstance(engine.model, PeftModel):
                if name in engine.model.peft_config:
                    engine.model.delete_adapter(name)
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
    partial = partial_of(folder)
    partial.mkdir(parents=True)
    with engine.using(name) as model:
        # embeddings are never trained here; asking peft to look would make it ask the hub
        model.save_pretrained(str(partial), selected_adapters=[name], save_embedding_layers=False)
    inner = partial / name  # peft puts a named adapter into a folder of its name
    source = inner if inner.is_dir() else partial
    write_json(source / "manifest.json", manifest)
    (source / "README.md").unlink(missing_ok=True)  # peft's model card is an empty form
    put_in_place(source, folder)
    shutil.rmtree(partial, ignore_errors=True)


def save_adapters(
    engine: Engine,
    names: Sequence[str],
    folder: Path,
    manifest: Mapping[str, Any],
    assigned: Mapping[str, str] | None = None,
) -> None:
    """One adapter for all nodes is written to ``folder`` itself; adapters of their own (``assigned``: adapter by policy
    id) to a folder each in it, with ``policies.json`` beside them. Whole or not at all.
    """
    if not assigned:
        save_adapter(engine, names[0], folder, manifest)
        return
    partial = partial_of(folder)
    for name in names:
        save_adapter(engine, name, partial / name, manifest)
    write_json(partial / POLICIES_FILE, assigned)
    put_in_place(partial, folder)


def load_adapters(engine: Engine, names: Sequence[str], folder: Path) -> None:
    """Put what :func:`save_adapters` wrote into the adapters ``names``."""
    nested = (folder / POLICIES_FILE).is_file()
    for name in names:
        load_weights(engine, name, folder / name if nested else folder)


def load_weights(engine: Engine, name: str, folder: Path) -> None:
    """Put a saved adapter's weights into the adapter ``name``, which was made with the same settings.

    Raises:
        PolicyError: if the folder holds no weights, or those of an adapter of another shape.
    """
    with engine.using(name) as model:
        try:
            weights = load_peft_weights(str(folder), device="cpu")
        except (OSError, ValueError, SafetensorError) as error:  # not there, or damaged
            raise PolicyError(f"The adapter in {folder} can't be loaded: {str(error).splitlines()[0][:200]}") from error
        held = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
        own = {k: v.shape for k, v in held.items()}
        given = {k: v.shape for k, v in weights.items()}
        if own != given:
            wrong = next(k for k in sorted({*own, *given}) if own.get(k) != given.get(k))
            raise PolicyError(f"The adapter in {folder} was made with other LoRA settings (the first: {wrong}).")
        set_peft_model_state_dict(model, weights, adapter_name=name)
        engine.bump(name)
