"""Fixtures shared by the tests: a tiny random chat model that shows the mechanics in milliseconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

CHATML = (
    "{% for m in messages %}"
    "{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "{% if not loop.first and m.role == loop.previtem.role %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML that insists on alternating roles and knows no tools, as small models' templates do."""

_CORPUS = (
    "user assistant system lookup(name= compute(expression= search_notes(query= answer(value= "
    "What does amber cost? What do brass and lemon cost together? amber costs 12. Lyon sells honey. "
    "Messages to come: 2. Correction: amber costs 45. News: Use tools. Write one call per turn and nothing else."
)


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """A byte-level BPE tokeniser of about 400 tokens: any text is encoded and comes back."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS] * 3, trainer)
    wrap: Any = PreTrainedTokenizerFast
    fast = wrap(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>")
    fast.chat_template = CHATML
    return fast


@pytest.fixture(scope="session")
def tiny_model(tiny_tokenizer: Any) -> Callable[..., Any]:
    """Makes Llamas of two layers with random weights; equal seeds give equal weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)

    def make(seed: int = 0, **changes: Any) -> Any:
        config = LlamaConfig(
            vocab_size=len(tiny_tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            initializer_range=0.3,  # peaked enough that a wrong position or mask shows
            eos_token_id=tiny_tokenizer.eos_token_id,
            pad_token_id=tiny_tokenizer.pad_token_id,
            bos_token_id=None,
            **changes,
        )
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
        return model.eval()

    return make


@pytest.fixture
def tiny_engine(tiny_tokenizer: Any, tiny_model: Callable[..., Any]) -> Callable[..., Any]:
    """Makes engines over tiny models: ``tiny_engine(seed=0, name="tiny", fold=None, cache_tokens=48_000)``."""
    from agentcore.policies.engine import Engine
    from agentcore.policies.models import LoadedModel, ModelIdentity

    def make(seed: int = 0, name: str = "tiny", **options: Any) -> Any:
        model = tiny_model(seed)
        model.name_or_path = name
        return Engine(LoadedModel(model, tiny_tokenizer, ModelIdentity(name, "local", f"seed-{seed}")), **options)

    return make


@pytest.fixture(scope="session")
def tiny_folder(tiny_tokenizer: Any, tiny_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model saved as Hugging Face saves models."""
    folder = tmp_path_factory.mktemp("tiny-model")
    tiny_model(0).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder
