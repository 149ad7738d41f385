"""Sampling: what a request gives depends on its weights, prompt, key and temperature, and on nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentcore.errors import ContextOverflowError, PolicyError
from agentcore.policies.engine import Engine, GenerationRequest, GenerationResult
from agentcore.policies.sampling import draw, uniforms

Make = Callable[..., Engine]


def request(length: int, *, key: int | None = None, seed: int = 0, **options: Any) -> GenerationRequest:
    """A prompt of ``length`` random tokens; prompts of one seed start alike."""
    generator = torch.Generator().manual_seed(seed)
    ids = tuple(torch.randint(3, 300, (200,), generator=generator).tolist()[:length])
    settings = {"max_new_tokens": 12, "temperature": 1.0, **options}
    return GenerationRequest(prompt_ids=ids, key=length * 7919 if key is None else key, **settings)


def assert_equal(a: GenerationResult, b: GenerationResult) -> None:
    assert (a.ids, a.finish, a.adapter_version) == (b.ids, b.finish, b.adapter_version)
    assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def add_adapter(engine: Engine, name: str, seed: int, scale: float = 0.5) -> None:
    """A LoRA adapter whose weights matter (a fresh one changes nothing)."""
    from peft import LoraConfig, PeftModel, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    with engine.using(None):  # nothing folded in
        if isinstance(engine.model, PeftModel):
            engine.model.add_adapter(name, config)
        else:
            engine.model = get_peft_model(engine.model, config, adapter_name=name)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in engine.model.named_parameters():
            if f".{name}." in key:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    engine.model.eval()
    engine.bump(name)


def forward_logprobs(
    engine: Engine, adapter: str | None, r: GenerationRequest, result: GenerationResult
) -> list[float]:
    """Log-probabilities of the sampled tokens by a plain forward pass."""
    ids = torch.tensor([[*r.prompt_ids, *result.ids]])
    with engine.using(adapter) as model, torch.no_grad():
        logits = model(input_ids=ids).logits[0].float() / (r.temperature or 1.0)
    logp = torch.log_softmax(logits, -1)
    first = len(r.prompt_ids) - 1
    return [float(logp[first + t, token]) for t, token in enumerate(result.ids)]


# Batches


def test_a_batch_of_mixed_lengths_equals_singles(tiny_engine: Make) -> None:
    requests = [
        request(5, seed=1),
        request(40, seed=2, max_new_tokens=3),
        request(17, seed=3, temperature=0.7),
        request(90, seed=4, temperature=0.0),
        request(1, seed=5, max_new_tokens=20),
    ]
    together = tiny_engine().generate(requests)
    for r, result in zip(requests, together, strict=True):
        assert_equal(result, tiny_engine().generate([r])[0])
        assert len(result.ids) == len(result.logprobs) <= r.max_new_tokens
        assert (result.finish == "stop") == (result.ids[-1] == 2)


def test_a_reply_depends_on_its_key_and_not_on_its_batch(tiny_engine: Make) -> None:
    engine = tiny_engine()
    mine = request(30, key=5)
    alone = engine.generate([mine])[0]
    mates = [request(30, key=k, max_new_tokens=4 * k + 1) for k in range(1, 5)]
    for batch in ([mine, *mates], [*mates, mine], [mates[0], mine, mates[1]]):
        assert_equal(engine.generate(batch)[batch.index(mine)], alone)
    others = {engine.generate([request(30, key=k)])[0].ids for k in range(8)}
    assert len(others) > 1, "another key, another reply"


def test_a_shared_prefix_is_computed_once_and_changes_nothing(tiny_engine: Make) -> None:
    engine = tiny_engine()
    batch = [request(60 + i, key=i) for i in range(4)]
    first = engine.generate(batch)
    again = engine.generate(batch)  # from the kept prefix
    for r, a, b in zip(batch, first, again, strict=True):
        alone = tiny_engine().generate([r])[0]
        assert_equal(a, alone)
        assert_equal(b, alone)


def test_nothing_to_do_is_nothing_done(tiny_engine: Make) -> None:
    assert tiny_engine().generate([]) == []


# Turns


def test_turns_from_kept_keys_and_values_equal_fresh_ones(tiny_engine: Make) -> None:
    engine = tiny_engine()
    prompts = {name: request(20 + 9 * i, seed=i).prompt_ids for i, name in enumerate("abc")}
    for turn in range(4):
        batch = [
            GenerationRequest(ids, key=turn, max_new_tokens=6, temperature=1.0, episode=name)
            for name, ids in prompts.items()
        ]
        results = engine.generate(batch)
        for r, result in zip(batch, results, strict=True):
            fresh = GenerationRequest(r.prompt_ids, r.key, r.max_new_tokens, r.temperature)
            assert_equal(result, tiny_engine().generate([fresh])[0])
            new = request(5 + turn, seed=turn).prompt_ids
            prompts[r.episode or ""] = (*r.prompt_ids, *result.ids, *new)


def test_a_rewritten_prompt_uses_only_what_it_starts_with(tiny_engine: Make) -> None:
    engine = tiny_engine()
    old = request(50, episode="e")
    engine.generate([old])
    for changed in ((*old.prompt_ids[:30], 9, 9, 9), (7, *old.prompt_ids[1:]), old.prompt_ids[:20], old.prompt_ids):
        r = GenerationRequest(changed, 3, 8, 1.0, episode="e")
        assert_equal(engine.generate([r])[0], tiny_engine().generate([GenerationRequest(changed, 3, 8, 1.0)])[0])


def test_a_full_cache_forgets_and_stays_right(tiny_engine: Make) -> None:
    engine, fresh = tiny_engine(cache_tokens=60), tiny_engine()
    for i in range(6):
        r = request(40, key=i, seed=i % 3, episode=f"e{i % 3}")
        assert_equal(engine.generate([r])[0], fresh.generate([request(40, key=i, seed=i % 3)])[0])


# Log-probabilities


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_recorded_logprobs_are_those_of_a_plain_forward_pass(tiny_engine: Make, temperature: float) -> None:
    engine = tiny_engine()
    batch = [request(25 + i, key=i, temperature=temperature) for i in range(3)]
    for r, result in zip(batch, engine.generate(batch), strict=True):
        assert result.logprobs == pytest.approx(forward_logprobs(engine, None, r, result), abs=1e-4)


def test_greedy_takes_the_most_likely_token(tiny_engine: Make) -> None:
    engine = tiny_engine()
    r = request(25, temperature=0.0)
    result = engine.generate([r])[0]
    ids = torch.tensor([[*r.prompt_ids, *result.ids]])
    with torch.no_grad():
        best = engine.model(input_ids=ids).logits[0].argmax(-1).tolist()
    assert list(result.ids) == best[len(r.prompt_ids) - 1 : -1]
    assert engine.generate([request(25, key=99, temperature=0.0)])[0].ids == result.ids, "whatever the key"
    assert result.logprobs == pytest.approx(forward_logprobs(engine, None, r, result), abs=1e-4)


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -50.0]]).repeat(4000, 1)
    noise = torch.stack([uniforms(k, 3) for k in range(4000)])[:, 1]
    token, logprob = draw(logits, torch.full((4000,), 0.5), noise)
    expected = torch.softmax(logits[0] / 0.5, -1)
    counts = torch.bincount(token, minlength=4) / 4000
    assert counts.tolist() == pytest.approx(expected.tolist(), abs=0.03)
    assert logprob.exp().tolist() == pytest.approx(expected[token].tolist(), abs=1e-5)


def test_random_numbers_do_not_depend_on_how_many_are_asked_for() -> None:
    assert uniforms(7, 3).tolist() == uniforms(7, 40)[:3].tolist()
    assert uniforms(2**70 + 1, 1).tolist() != uniforms(2, 1).tolist()


# Adapters


@pytest.mark.parametrize("fold", [True, False])
def test_rows_of_different_adapters_in_one_call(tiny_engine: Make, fold: bool) -> None:
    engine = tiny_engine(fold=fold)
    add_adapter(engine, "one", 1)
    add_adapter(engine, "two", 2)
    names = [None, "one", "two", "one", None]
    batch = [request(30, key=1, adapter=name, episode=f"e{i}") for i, name in enumerate(names)]
    for _ in range(2):  # the second time from kept keys and values
        results = engine.generate(batch)
        assert results[0].ids == results[4].ids and results[1].ids == results[3].ids
        assert len({results[i].ids for i in range(3)}) == 3
        for name, r, result in zip(names, batch, results, strict=True):
            assert result.logprobs == pytest.approx(forward_logprobs(engine, name, r, result), abs=1e-4)
            assert result.adapter_version == (0 if name is None else 1)
    assert_equal(results[0], tiny_engine().generate([request(30, key=1)])[0])


@pytest.mark.parametrize("fold", [True, False])
def test_a_new_version_forgets_the_old_ones_keys_and_values(tiny_engine: Make, fold: bool) -> None:
    engine = tiny_engine(fold=fold)
    add_adapter(engine, "one", 1)
    r = request(40, adapter="one", episode="e")
    before = engine.generate([r])[0]
    with engine.using("one") as model, torch.no_grad():
        for key, parameter in model.named_parameters():
            if ".one." in key:
                parameter.mul_(-1.5)
        engine.bump("one")
    after = engine.generate([r])[0]
    assert (before.adapter_version, after.adapter_version) == (1, 2)
    assert after.logprobs == pytest.approx(forward_logprobs(engine, "one", r, after), abs=1e-4)
    assert before.ids != after.ids


def test_folding_gives_back_the_very_same_weights(tiny_engine: Make) -> None:
    engine = tiny_engine(fold=True)
    add_adapter(engine, "one", 1)
    before = {k: v.clone() for k, v in engine.model.state_dict().items()}
    engine.generate([request(20, adapter="one")])
    with engine.using("one"):
        pass
    after = engine.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("fold", [True, False])
def test_using_switches_and_switches_back(tiny_engine: Make, fold: bool) -> None:
    engine = tiny_engine(fold=fold)
    ids = torch.tensor([request(20).prompt_ids])

    def logits() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = engine.model(input_ids=ids).logits
        return found

    base = logits()
    with engine.using(None):  # before there is any adapter
        assert torch.equal(logits(), base)
    add_adapter(engine, "one", 1)
    add_adapter(engine, "two", 2)
    with engine.using("one"):
        a = logits()
        with engine.using("two"):
            b = logits()
        with engine.using(None):
            assert torch.equal(logits(), base)
            with engine.using("two"):
                assert torch.equal(logits(), b)
            assert torch.equal(logits(), base)
        engine.generate([request(20, adapter=n) for n in ("one", "two", None)])
        assert torch.equal(logits(), a)
    with pytest.raises(RuntimeError), engine.using(None):
        raise RuntimeError
    with engine.using("two"):
        assert torch.equal(logits(), b)
    assert not torch.equal(a, base) and not torch.equal(a, b)


def test_gradients_reach_the_adapter_after_anything_else_was_used(tiny_engine: Make) -> None:
    engine = tiny_engine(fold=True)
    add_adapter(engine, "one", 1)
    add_adapter(engine, "two", 2)
    engine.generate([request(20, adapter=n) for n in ("one", "two", None)])
    with engine.using(None):
        pass
    with engine.using("one") as model:
        model(input_ids=torch.tensor([request(20).prompt_ids])).logits.sum().backward()
    grads = {k for k, p in engine.model.named_parameters() if p.grad is not None}
    assert grads and all(".one." in k for k in grads)


def test_an_unknown_adapter_is_refused(tiny_engine: Make) -> None:
    engine = tiny_engine()
    with pytest.raises(PolicyError, match=r"No adapter 'x' is loaded \(loaded: none\)"):
        engine.generate([request(5, adapter="x")])
    add_adapter(engine, "one", 1)
    with pytest.raises(PolicyError, match=r"loaded: one\)"), engine.using("x"):
        pass
    assert engine.generate([request(5)]), "the lock was given back"


# Saved adapters


def save(engine: Engine, name: str, folder: Path) -> Path:
    """As peft saves it, noting the engine's name as the base."""
    engine.model.peft_config[name].base_model_name_or_path = engine.identity.name
    engine.model.save_pretrained(str(folder), selected_adapters=[name], save_embedding_layers=False)
    return folder / name if (folder / name).is_dir() else folder


@pytest.mark.parametrize("fold", [True, False])
def test_a_saved_adapter_gives_the_same_replies(tiny_engine: Make, tmp_path: Path, fold: bool) -> None:
    trained = tiny_engine(fold=fold)
    add_adapter(trained, "policy", 1)
    expected = trained.generate([request(30, adapter="policy")])[0]
    folder = save(trained, "policy", tmp_path / "saved")
    engine = tiny_engine(fold=fold)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # peft warns where base names differ, and of modules it finds twice
        for _ in range(2):  # the second time in place of the first
            engine.load_adapter("mine", folder)
        engine.load_adapter("again", folder)
    assert engine.versions == {"mine": 2, "again": 1}
    for name in ("mine", "again"):
        result = engine.generate([request(30, adapter=name)])[0]
        assert result.ids == expected.ids
        assert result.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert_equal(engine.generate([request(30)])[0], tiny_engine().generate([request(30)])[0])


def test_an_adapter_of_another_base_is_refused(tiny_engine: Make, tmp_path: Path) -> None:
    engine = tiny_engine(name="other/model")
    add_adapter(engine, "policy", 1)
    folder = save(engine, "policy", tmp_path / "saved")
    with pytest.raises(PolicyError, match="was trained on 'other/model', but the loaded model is 'tiny'"):
        tiny_engine().load_adapter("policy", folder)
    with pytest.raises(PolicyError, match="holds no adapter"):
        tiny_engine().load_adapter("policy", tmp_path)


@pytest.mark.parametrize("already", [False, True])
@pytest.mark.parametrize("damage", ["shape", "cut", "missing", "config", "names"])
def test_an_adapter_that_does_not_fit_leaves_the_model_as_it_was(
    tiny_engine: Make, tmp_path: Path, damage: str, already: bool
) -> None:
    from safetensors.torch import load_file, save_file

    made = tiny_engine()
    add_adapter(made, "policy", 1)
    folder = save(made, "policy", tmp_path / "saved")
    weights = folder / "adapter_model.safetensors"
    tensors = load_file(str(weights))
    if damage == "shape":
        save_file({k: v[:, :2].contiguous() for k, v in tensors.items()}, str(weights))
    elif damage == "names":
        save_file({k.replace("layers.1", "layers.9"): v for k, v in tensors.items()}, str(weights))
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:100])
    elif damage == "missing":
        weights.unlink()
    else:
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r":')
    engine = tiny_engine()
    if already:
        add_adapter(engine, "good", 3)
    r = request(30, adapter="good" if already else None)
    before = engine.generate([r])[0]
    with pytest.raises(PolicyError, match=r"does not fit 'tiny'|can't be read") as caught:
        engine.load_adapter("bad", folder)
    assert "\n" not in str(caught.value)
    assert_equal(engine.generate([r])[0], before)
    with pytest.raises(PolicyError, match="No adapter 'bad'"):
        engine.generate([request(5, adapter="bad")])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        add_adapter(engine, "later", 1)
    assert engine.generate([request(5, adapter="later")])


# Limits


def test_a_prompt_beyond_the_context_is_refused(tiny_engine: Make) -> None:
    engine = tiny_engine()
    long = GenerationRequest(tuple([5] * 1020), 0, 8, 1.0)
    with pytest.raises(ContextOverflowError, match="1020 tokens plus 8 new ones exceeds the model's context of 1024"):
        engine.generate([request(5), long])
    assert engine.generate([GenerationRequest(tuple([5] * 1020), 0, 4, 1.0)])[0].ids
    with pytest.raises(PolicyError, match="The prompt is empty"):
        engine.generate([GenerationRequest((), 0, 4, 1.0)])


def test_a_model_without_an_end_is_refused_and_configured_ends_are_used(tiny_engine: Make, tiny_tokenizer: Any) -> None:
    engine = tiny_engine()
    assert engine.stop_ids == {tiny_tokenizer.eos_token_id}
    model = engine.model
    model.generation_config.eos_token_id = [7, 8]
    from agentcore.policies.models import LoadedModel

    again = Engine(LoadedModel(model, tiny_tokenizer, engine.identity))
    assert again.stop_ids == {7, 8, tiny_tokenizer.eos_token_id}
    assert model.generation_config.eos_token_id == [7, 8], "the model's own list is not touched"
    import copy

    endless = copy.deepcopy(tiny_tokenizer)
    endless.eos_token = None
    model.generation_config.eos_token_id = None
    with pytest.raises(PolicyError, match="has no end-of-turn token"):
        Engine(LoadedModel(model, endless, engine.identity))
