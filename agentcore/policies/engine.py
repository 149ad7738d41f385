"""Batched sampling from one transformers model with named LoRA adapters.

Each row draws from its own random numbers, seeded by the request's key, so that a result does not depend on which
requests happened to share a batch. Prompts are prefilled once per episode (:mod:`agentcore.policies.kvcache`), what all
new episodes share (the system prompt) once for all.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentcore.errors import PolicyError
from agentcore.policies.kvcache import Slot, SlotCache, SlotKey, common_prefix
from agentcore.policies.models import DEFAULT_MODEL, LoadedModel, ModelIdentity, load_model

_SHARED = "(shared prefix)"
_MIN_SHARED = 16


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One reply to sample."""

    prompt_ids: tuple[int, ...]
    key: int
    """Random key; the reply is a function of (weights, prompt, key, temperature)."""
    max_new_tokens: int
    temperature: float
    """0 means greedy."""
    adapter: str | None = None
    episode: str | None = None
    """Episodes keep their keys and values between calls."""


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """``ids`` [T] ends with an end token if ``finish`` is ``stop``; ``logprobs`` [T] of the sampled distribution."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length"]
    adapter_version: int


class Engine:
    """A model, its tokeniser, its adapters and their versions. Thread-safe: one batch at a time."""

    def __init__(self, loaded: LoadedModel, *, cache_tokens: int = 48_000) -> None:
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.identity: ModelIdentity = loaded.identity
        self.versions: dict[str, int] = {}
        self.lock = threading.RLock()
        self.stop_ids = self._stop_ids()
        self._slots = SlotCache(cache_tokens)
        self._pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else min(self.stop_ids)

    @classmethod
    def load(cls, name: str = DEFAULT_MODEL, *, dtype: str = "float32", device: str = "auto") -> Engine:
        """Load a model by name or folder; see :func:`agentcore.policies.models.load_model`."""
        return cls(load_model(name, dtype=dtype, device=device))

    def _stop_ids(self) -> frozenset[int]:
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        ids = configured if isinstance(configured, list) else [configured]
        ids.append(self.tokenizer.eos_token_id)
        stop = frozenset(i for i in ids if i is not None)
        if not stop:
            raise PolicyError(f"Model {self.identity.name!r} has no end-of-turn token; sampling would never stop.")
        return stop

    # -- adapters -------------------------------------------------------------------------------------------

    def load_adapter(self, name: str, folder: str | Path) -> None:
        """Load a saved LoRA adapter under ``name``.

        Raises:
            PolicyError: if the folder holds no adapter, or one made for another base model.
        """
        from peft import PeftConfig, PeftModel

        folder = Path(folder)
        if not (folder / "adapter_config.json").is_file():
            raise PolicyError(f"{folder} holds no adapter (no adapter_config.json). Name a folder saved by training.")
        config = PeftConfig.from_pretrained(str(folder))
        base = config.base_model_name_or_path
        if base and base != self.identity.name:
            raise PolicyError(
                f"The adapter in {folder} was trained on {base!r}, but the loaded model is {self.identity.name!r}. "
                f"Load it with --model {base}, or name another adapter."
            )
        with self.lock:
            try:
                if hasattr(self.model, "peft_config"):
                    if name in self.model.peft_config:
                        self.model.delete_adapter(name)
                    self.model.load_adapter(str(folder), adapter_name=name)
                else:
                    self.model = PeftModel.from_pretrained(self.model, str(folder), adapter_name=name)
            except (RuntimeError, ValueError) as error:
                raise PolicyError(
                    f"The adapter in {folder} does not fit {self.identity.name!r}: {str(error).splitlines()[0][:200]}"
                ) from error
            self.model.eval()
            self.bump(name)

    def bump(self, name: str) -> int:
        """Note that the weights of adapter ``name`` changed; its cached keys and values are of no use any more."""
        self.versions[name] = self.versions.get(name, 0) + 1
        self._slots.clear()
        return self.versions[name]

    @contextlib.contextmanager
    def using(self, adapter: str | None) -> Iterator[Any]:
        """The model with ``adapter`` active (None: the base model). Holds the lock."""
        with self.lock:
            if adapter is None:
                if hasattr(self.model, "disable_adapter"):
                    with self.model.disable_adapter():
                        yield self.model
                else:
                    yield self.model
                return
            if adapter not in self.versions:
                raise PolicyError(
                    f"No adapter {adapter!r} is loaded (loaded: {', '.join(sorted(self.versions)) or 'none'}). "
                    "Load it with Engine.load_adapter, or create it for training."
                )
            self.model.set_adapter(adapter)
            yield self.model

    # -- sampling -------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Sample a reply for each request. Rows of different adapters are sampled one adapter after another."""
        results: dict[int, GenerationResult] = {}
        by_adapter: dict[str | None, list[int]] = {}
        for i, request in enumerate(requests):
            by_adapter.setdefault(request.adapter, []).append(i)
        for adapter, rows in by_adapter.items():
            with self.using(adapter) as model:
                version = self.versions.get(adapter, 0) if adapter is not None else 0
                batch = [requests[i] for i in rows]
                for i, result in zip(rows, self._sample(model, batch, version), strict=True):
                    results[i] = result
        return [results[i] for i in range(len(requests))]

    def _sample(self, model: Any, batch: list[GenerationRequest], version: int) -> list[GenerationResult]:
        import torch

        adapter = batch[0].adapter
        limit = getattr(model.config, "max_position_embeddings", None)
        for r in batch:
            if limit and len(r.prompt_ids) + r.max_new_tokens > limit:
                raise PolicyError(
                    f"A prompt of {len(r.prompt_ids)} tokens plus {r.max_new_tokens} new ones exceeds the model's "
                    f"context of {limit}. Lower the context budget of the agent."
                )
        with torch.inference_mode():
            cached = [self._cached(model, r, adapter, version, batch) for r in batch]
            cache, mask, positions, logits = self._prefill(model, batch, cached)
            device = logits.device
            longest = max(r.max_new_tokens for r in batch)
            uniforms = torch.stack([_uniforms(r.key, longest) for r in batch]).to(device)
            temperature = torch.tensor([r.temperature for r in batch], device=device, dtype=torch.float32)
            ids: list[list[int]] = [[] for _ in batch]
            logprobs: list[list[float]] = [[] for _ in batch]
            done = [False] * len(batch)
            for t in range(longest):
                token, logprob = _draw(logits.float(), temperature, uniforms[:, t])
                for row, (tok, lp) in enumerate(zip(token.tolist(), logprob.tolist(), strict=True)):
                    if not done[row]:
                        ids[row].append(tok)
                        logprobs[row].append(lp)
                        done[row] = tok in self.stop_ids or len(ids[row]) >= batch[row].max_new_tokens
                if all(done):
                    break
                mask = torch.cat([mask, mask.new_ones(len(batch), 1)], dim=1)
                out = model(
                    input_ids=token[:, None],
                    attention_mask=mask,
                    position_ids=(positions + t)[:, None],
                    cache=cache,
                    use_cache=True,
                )
                logits = out.logits[:, -1]
            self._keep(batch, ids, cache, mask, adapter, version)
        return [
            GenerationResult(
                tuple(i), tuple(p), "stop" if i and i[-1] in self.stop_ids else "length", adapter_version=version
            )
            for i, p in zip(ids, logprobs, strict=True)
        ]

    def _cached(
        self, model: Any, request: GenerationRequest, adapter: str | None, version: int, batch: list[GenerationRequest]
    ) -> tuple[Slot, int] | None:
        """What is already computed of this prompt: its episode's slot, else the shared prefix."""
        limit = len(request.prompt_ids) - 1  # the last token is always computed: its logits are needed
        best: tuple[Slot, int] | None = None
        for name in (request.episode, _SHARED):
            if name is None:
                continue
            found = self._slots.longest_prefix((name, adapter, version), request.prompt_ids)
            if found is not None and (best is None or found[1] > best[1]):
                best = found
        if best is None or best[1] < _MIN_SHARED:
            shared = self._share(model, adapter, version, batch)
            if shared is not None:
                best = (shared, common_prefix(shared.ids, request.prompt_ids))
        return (best[0], min(best[1], limit)) if best is not None and best[1] > 0 else None

    def _share(self, model: Any, adapter: str | None, version: int, batch: list[GenerationRequest]) -> Slot | None:
        """Compute once what all prompts of this batch start with."""
        import torch
        from transformers import DynamicCache

        first = batch[0].prompt_ids
        length = min(common_prefix(first, r.prompt_ids) for r in batch)
        length = min(length, min(len(r.prompt_ids) for r in batch) - 1)
        if len(batch) < 2 or length < _MIN_SHARED:
            return None
        cache = DynamicCache()
        model(input_ids=torch.tensor([first[:length]], device=model.device), cache=cache, logits_to_keep=1)
        kv = torch.stack([torch.stack([layer.keys[0], layer.values[0]]) for layer in cache.layers])
        slot = Slot(tuple(first[:length]), kv)
        self._slots.put((_SHARED, adapter, version), slot)
        return slot

    def _prefill(
        self, model: Any, batch: list[GenerationRequest], cached: list[tuple[Slot, int] | None]
    ) -> tuple[Any, Any, Any, Any]:
        """Lay out [pad | cached | pad | new] per row and run the new part.

        Returns the cache, the mask [B, columns], the next position [B] and the last logits [B, V].
        """
        import torch
        from transformers import DynamicCache

        device = model.device
        have = [c[1] if c is not None else 0 for c in cached]
        new = [r.prompt_ids[h:] for r, h in zip(batch, have, strict=True)]
        past_n, new_n, rows = max(have), max(len(n) for n in new), len(batch)
        mask = torch.zeros(rows, past_n + new_n, dtype=torch.long, device=device)
        ids = torch.full((rows, new_n), self._pad, dtype=torch.long, device=device)
        positions = torch.zeros(rows, new_n, dtype=torch.long, device=device)
        for b, (h, n) in enumerate(zip(have, new, strict=True)):
            mask[b, past_n - h : past_n] = 1
            mask[b, past_n + new_n - len(n) :] = 1
            ids[b, new_n - len(n) :] = torch.tensor(n, device=device)
            positions[b, new_n - len(n) :] = torch.arange(h, h + len(n), device=device)
        cache = DynamicCache()
        if past_n:
            self._load(cache, cached, past_n)
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return cache, mask, positions[:, -1] + 1, out.logits[:, -1]

    @staticmethod
    def _load(cache: Any, cached: list[tuple[Slot, int] | None], past_n: int) -> None:
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

    def _keep(
        self,
        batch: list[GenerationRequest],
        ids: list[list[int]],
        cache: Any,
        mask: Any,
        adapter: str | None,
        version: int,
    ) -> None:
        """Store each episode's keys and values: all of the prompt and reply but the last, unread token."""
        import torch

        for b, request in enumerate(batch):
            if request.episode is None:
                continue
            covered = (*request.prompt_ids, *ids[b][:-1])
            columns = mask[b].nonzero().squeeze(1)[: len(covered)]
            kv = torch.stack(
                [torch.stack([la.keys[b][:, columns], la.values[b][:, columns]]) for la in cache.layers]
            )
            key: SlotKey = (request.episode, adapter, version)
            self._slots.put(key, Slot(covered[: kv.shape[3]], kv))


def _uniforms(key: int, count: int) -> Any:
    """``count`` uniform numbers in [0, 1) that depend on ``key`` alone, float64."""
    import torch

    generator = torch.Generator().manual_seed(key % (1 << 63))
    return torch.rand(count, generator=generator, dtype=torch.float64)


def _draw(logits: Any, temperature: Any, uniform: Any) -> tuple[Any, Any]:
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
