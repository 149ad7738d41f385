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

from agentcore.errors import ContextOverflowError, PolicyError
from agentcore.policies.kvcache import Slot, SlotCache, SlotKey, common_prefix, keys_and_values, prefill
from agentcore.policies.lora import ANY, activate, put_adapter, read_adapter_config
from agentcore.policies.merging import FoldedAdapter
from agentcore.policies.models import DEFAULT_MODEL, LoadedModel, ModelIdentity, load_model, same_model
from agentcore.policies.sampling import draw, uniforms

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

    def __init__(self, loaded: LoadedModel, *, cache_tokens: int = 48_000, fold: bool | None = None) -> None:
        """Args:
        cache_tokens: bound of the keys and values kept between turns.
        fold: fold the adapter into the weights while sampling (costs a copy of the adapted weights in memory); None
            does so on a CPU for models below a billion parameters.
        """
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.identity: ModelIdentity = loaded.identity
        self.versions: dict[str, int] = {}
        self.lock = threading.RLock()
        self._in_use: str | None = ANY
        self.stop_ids = self._stop_ids()
        self._slots = SlotCache(cache_tokens)
        small = sum(p.numel() for p in self.model.parameters()) < 1_000_000_000
        self._fold = (self.model.device.type == "cpu" and small) if fold is None else fold
        self._folded = FoldedAdapter()
        self._pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else min(self.stop_ids)

    @classmethod
    def load(cls, name: str = DEFAULT_MODEL, *, dtype: str = "float32", device: str = "auto") -> Engine:
        """Load a model by name or folder; see :func:`agentcore.policies.models.load_model`."""
        return cls(load_model(name, dtype=dtype, device=device))

    def _stop_ids(self) -> frozenset[int]:
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        ids = configured if isinstance(configured, list) else [configured]
        stop = frozenset(i for i in (*ids, self.tokenizer.eos_token_id) if i is not None)
        if not stop:
            raise PolicyError(f"Model {self.identity.name!r} has no end-of-turn token; sampling would never stop.")
        return stop

    # -- adapters -------------------------------------------------------------------------------------------

    def load_adapter(self, name: str, folder: str | Path) -> None:
        """Load a saved LoRA adapter under ``name``.

        Raises:
            PolicyError: if the folder holds no adapter, or one made for another base model.
        """
        folder = Path(folder)
        config = read_adapter_config(folder)
        base = config.base_model_name_or_path
        if base and not same_model(base, self.identity.name):
            raise PolicyError(
                f"The adapter in {folder} was trained on {base!r}, but the loaded model is {self.identity.name!r}. "
                f"Load it with --model {base}, or name another adapter."
            )
        with self.lock:
            self._folded.restore()
            try:
                self.model = put_adapter(self.model, name, folder, config)
            except Exception as error:  # peft, safetensors and torch each have errors of their own
                self.versions.pop(name, None)
                reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                raise PolicyError(f"The adapter in {folder} does not fit {self.identity.name!r}: {reason}") from error
            self.model.peft_config[name].base_model_name_or_path = self.identity.name
            self.model.eval()
            self.bump(name)

    def bump(self, name: str) -> int:
        """Note that the weights of adapter ``name`` changed; its cached keys and values are of no use any more."""
        self._folded.restore()
        self.versions[name] = self.versions.get(name, 0) + 1
        self._slots.clear()
        return self.versions[name]

    def _require(self, adapter: str | None) -> None:
        if adapter is not None and adapter not in self.versions:
            raise PolicyError(
                f"No adapter {adapter!r} is loaded (loaded: {', '.join(sorted(self.versions)) or 'none'}). Load it "
                "with Engine.load_adapter, or create it for training."
            )

    @contextlib.contextmanager
    def using(self, adapter: str | None) -> Iterator[Any]:
        """The model with ``adapter`` active and unmerged (None: the base model). Holds the lock."""
        with self.lock:
            self._require(adapter)
            self._folded.restore()
            before, self._in_use = self._in_use, adapter
            activate(self.model, adapter)
            try:
                yield self.model
            finally:
                self._in_use = before
                if before != ANY or adapter is None:
                    activate(self.model, before)

    @contextlib.contextmanager
    def _sampling(self, adapter: str | None) -> Iterator[Any]:
        """As :meth:`using`, with the adapter folded in where that is faster; it stays so until it is used otherwise."""
        with self.lock:
            version = self.version_of(adapter)
            # inside a using(), whose weights must stay as they are, nothing is folded
            if not self._fold or adapter is None or not version or self._in_use != ANY:
                with self.using(adapter) as model:
                    yield model
                return
            if not self._folded.holds(adapter, version):
                with self.using(adapter) as model:
                    self._folded.fold(model, adapter, version)
            yield self.model

    @contextlib.contextmanager
    def _mixed(self, adapters: list[str | None]) -> Iterator[Any]:
        """The model for a batch whose rows act with different adapters."""
        with self.lock:
            for name in adapters:
                self._require(name)
            first = next(a for a in adapters if a is not None)
            with self.using(first) as model:
                yield _PerRow(model, adapters)

    # -- sampling -------------------------------------------------------------------------------------------

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request that can't be served.

        Raises:
            ContextOverflowError: if prompt and reply don't fit the model's context.
            PolicyError: if the prompt is empty.
        """
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit and len(request.prompt_ids) + request.max_new_tokens > limit:
            raise ContextOverflowError(
                f"A prompt of {len(request.prompt_ids)} tokens plus {request.max_new_tokens} new ones exceeds the "
                f"model's context of {limit}. Lower the context budget of the agent."
            )
        if not request.prompt_ids:
            raise PolicyError("The prompt is empty; give at least one message.")

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Sample a reply for each request, in one batch, whichever adapters they act with."""
        for request in requests:
            self.check(request)
        if not requests:
            return []
        adapters = dict.fromkeys(r.adapter for r in requests)
        sampling = self._sampling(requests[0].adapter) if len(adapters) == 1 else self._mixed(list(adapters))
        with sampling as model:
            return self._sample(model, list(requests))

    def version_of(self, adapter: str | None) -> int:
        """How often the adapter's weights have changed; 0 for the base model."""
        return self.versions.get(adapter, 0) if adapter is not None else 0

    def _sample(self, model: Any, batch: list[GenerationRequest]) -> list[GenerationResult]:
        import torch

        with torch.inference_mode():
            cached = [self._cached(model, r, batch) for r in batch]
            model = _PerRow.of(model, [r.adapter for r in batch])
            cache, mask, positions, logits = prefill(model, [r.prompt_ids for r in batch], cached, self._pad)
            device = logits.device
            longest = max(r.max_new_tokens for r in batch)
            noise = torch.stack([uniforms(r.key, longest) for r in batch]).to(device)
            temperature = torch.tensor([r.temperature for r in batch], device=device, dtype=torch.float32)
            ids: list[list[int]] = [[] for _ in batch]
            logprobs: list[list[float]] = [[] for _ in batch]
            done = [False] * len(batch)
            for t in range(longest):
                token, logprob = draw(logits.float(), temperature, noise[:, t])
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
            self._keep(batch, ids, cache, mask)
        return [
            GenerationResult(
                tuple(i),
                tuple(p),
                "stop" if i and i[-1] in self.stop_ids else "length",
                adapter_version=self.version_of(r.adapter),
            )
            for r, i, p in zip(batch, ids, logprobs, strict=True)
        ]

    def _cached(
        self, model: Any, request: GenerationRequest, batch: list[GenerationRequest]
    ) -> tuple[Slot, int] | None:
        """What is already computed of this prompt: its episode's slot, else the shared prefix."""
        adapter, version = request.adapter, self.version_of(request.adapter)
        limit = len(request.prompt_ids) - 1  # the last token is always computed: its logits are needed
        best: tuple[Slot, int] | None = None
        for name in (request.episode, _SHARED):
            if name is None:
                continue
            found = self._slots.longest_prefix((name, adapter, version), request.prompt_ids)
            if found is not None and (best is None or found[1] > best[1]):
                best = found
        if best is None or best[1] < _MIN_SHARED:
            shared = self._share(model, adapter, version, [r for r in batch if r.adapter == adapter])
            if shared is not None:
                best = (shared, common_prefix(shared.ids, request.prompt_ids))
        return (best[0], min(best[1], limit)) if best is not None and best[1] > 0 else None

    def _share(self, model: Any, adapter: str | None, version: int, batch: list[GenerationRequest]) -> Slot | None:
        """Compute once what all prompts of this batch, which is of one adapter, start with."""
        first = batch[0].prompt_ids
        length = min(common_prefix(first, r.prompt_ids) for r in batch)
        length = min(length, min(len(r.prompt_ids) for r in batch) - 1)
        if len(batch) < 2 or length < _MIN_SHARED:
            return None
        cache, _, _, _ = prefill(_PerRow.of(model, [adapter]), [first[:length]], [None], self._pad)
        slot = Slot(tuple(first[:length]), keys_and_values(cache, 0))
        self._slots.put((_SHARED, adapter, version), slot)
        return slot

    def _keep(
        self,
        batch: list[GenerationRequest],
        ids: list[list[int]],
        cache: Any,
        mask: Any,
    ) -> None:
        """Store each episode's keys and values: all of the prompt and reply but the last, unread token."""
        for b, request in enumerate(batch):
            if request.episode is None:
                continue
            covered = (*request.prompt_ids, *ids[b][:-1])
            kv = keys_and_values(cache, b, mask[b].nonzero().squeeze(1)[: len(covered)])
            key: SlotKey = (request.episode, request.adapter, self.version_of(request.adapter))
            self._slots.put(key, Slot(covered[: kv.shape[3]], kv))


class _PerRow:
    """A model with several adapters on, called with the adapter of each row (peft can do so when it isn't trained)."""

    def __init__(self, model: Any, adapters: list[str | None]) -> None:
        self.model = model
        self.names = [a if a is not None else "__base__" for a in adapters]  # peft's name for no adapter

    @staticmethod
    def of(model: Any, adapters: list[str | None]) -> Any:
        """``model`` itself unless it is a mixed one."""
        return _PerRow(model.model, adapters) if isinstance(model, _PerRow) else model

    @property
    def device(self) -> Any:
        return self.model.device

    def __call__(self, **inputs: Any) -> Any:
        return self.model(**inputs, adapter_names=self.names)
