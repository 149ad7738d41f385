"""Adapters: made from a seed, saved whole, loadable by plain peft."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from agentcore.errors import PolicyError
from agentcore.policies.engine import Engine
from agentcore.runcommand import load_policy
from tests.training.tiny import LORA, make_updater, play, rows_of
from training.adapters import adapter_parameters, create_adapter, load_weights, save_adapter
from training.files import mend

Make = Callable[..., Engine]
PROBE = torch.tensor([[41, 42, 43, 120, 7, 300]])


def weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in adapter_parameters(engine, "policy").items()}


def trained(engine: Engine) -> Engine:
    """The engine with an adapter that has learned something."""
    updater = make_updater(engine, learning_rate=0.05)
    updater.reinforce(rows_of([play(engine, "t", 2, 1)], lambda s: 1.0))
    return engine


def logits(engine: Engine, adapter: str | None = "policy") -> torch.Tensor:
    with engine.using(adapter) as model, torch.no_grad():
        found: torch.Tensor = model(input_ids=PROBE).logits
    return found


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def test_the_seed_decides_the_first_weights_and_nothing_else_does(tiny_engine: Make) -> None:
    engines = [tiny_engine() for _ in range(3)]
    for engine, seed, disturb in zip(engines, (5, 5, 6), (1, 2, 1), strict=True):
        torch.manual_seed(disturb)
        before = torch.random.get_rng_state()
        create_adapter(engine, "policy", LORA, seed)
        assert torch.equal(torch.random.get_rng_state(), before)
    first, same, other = (weights(e) for e in engines)
    assert equal(first, same) and not equal(first, other)
    # a fresh adapter changes nothing yet
    assert torch.equal(logits(engines[0]), logits(engines[0], None))


def test_the_last_layers_alone_can_be_adapted(tiny_engine: Make) -> None:
    engine = tiny_engine()
    create_adapter(engine, "policy", replace(LORA, last_layers=1, targets=("q_proj",)), 0)
    assert all("layers.1." in name and "q_proj" in name for name in weights(engine))


def test_an_adapter_is_made_anew_in_place_of_one_of_its_name(tiny_engine: Make) -> None:
    engine, fresh = trained(tiny_engine(fold=True)), tiny_engine()
    play(engine, "folded", 1, 1)  # leaves it folded into the base weights
    create_adapter(engine, "policy", replace(LORA, rank=2), 3)
    create_adapter(fresh, "policy", replace(LORA, rank=2), 3)
    assert equal(weights(engine), weights(fresh))
    assert torch.equal(logits(engine), logits(fresh)) and torch.equal(logits(engine, None), logits(fresh, None))
    updater = make_updater(engine)  # and it can be trained
    updater.reinforce(rows_of([play(engine, "t", 2, 1)], lambda s: 1.0))


def test_layers_that_are_not_there_are_refused_in_one_sentence(tiny_engine: Make) -> None:
    with pytest.raises(PolicyError, match=r"LoraSettings\.targets") as error:
        create_adapter(tiny_engine(), "policy", replace(LORA, targets=("c_attn",)), 0)
    assert "\n" not in str(error.value)
    with pytest.raises(PolicyError, match="no adapter 'other'"):
        adapter_parameters(trained(tiny_engine()), "other")


def test_plain_peft_loads_what_was_saved(tiny_engine: Make, tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    engine = trained(tiny_engine(fold=True))
    play(engine, "folded", 1, 1)
    save_adapter(engine, "policy", tmp_path / "adapter", {"model": {"name": "tiny"}, "seed": 3})
    plain = PeftModel.from_pretrained(tiny_model(0), str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        assert torch.equal(plain(input_ids=PROBE).logits, logits(engine))
    assert not torch.equal(logits(engine), logits(engine, None))
    names = {p.name for p in (tmp_path / "adapter").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}
    assert json.loads((tmp_path / "adapter" / "manifest.json").read_text()) == {"model": {"name": "tiny"}, "seed": 3}
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"


def test_of_two_adapters_the_one_asked_for_is_saved(tiny_engine: Make, tmp_path: Path) -> None:
    engine = trained(tiny_engine())
    wanted = weights(engine)
    create_adapter(engine, "other", LORA, 9)
    save_adapter(engine, "policy", tmp_path / "adapter", {})
    create_adapter(engine, "policy", LORA, 1)
    load_weights(engine, "policy", tmp_path / "adapter")
    assert equal(weights(engine), wanted)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapter"]


def test_a_save_that_fails_leaves_the_earlier_adapter(tiny_engine: Make, tmp_path: Path) -> None:
    engine = trained(tiny_engine())
    save_adapter(engine, "policy", tmp_path / "best", {"iteration": 1})
    endless: dict[str, Any] = {}
    endless["itself"] = endless
    with pytest.raises(ValueError, match="Circular"):
        save_adapter(engine, "policy", tmp_path / "best", endless)
    mend(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["best"]
    assert json.loads((tmp_path / "best" / "manifest.json").read_text()) == {"iteration": 1}
    load_weights(engine, "policy", tmp_path / "best")


def test_what_was_being_replaced_when_the_process_died_comes_back(tiny_engine: Make, tmp_path: Path) -> None:
    engine = trained(tiny_engine())
    save_adapter(engine, "policy", tmp_path / "best", {})
    (tmp_path / "best").rename(tmp_path / ".best.old")
    (tmp_path / ".best.12345678.partial").mkdir()
    mend(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


def test_weights_that_do_not_fit_are_refused_in_one_sentence(tiny_engine: Make, tmp_path: Path) -> None:
    engine = trained(tiny_engine())
    save_adapter(engine, "policy", tmp_path / "adapter", {})
    narrow, partly = tiny_engine(), tiny_engine()
    create_adapter(narrow, "policy", replace(LORA, rank=2), 0)
    create_adapter(partly, "policy", replace(LORA, targets=("q_proj",)), 0)
    for other, folder in ((narrow, tmp_path / "adapter"), (partly, tmp_path / "adapter"), (engine, tmp_path / "none")):
        before = weights(other)
        with pytest.raises(PolicyError, match=str(folder)) as error:
            load_weights(other, "policy", folder)
        assert "\n" not in str(error.value)
        assert equal(weights(other), before)


def test_an_adapter_of_another_base_is_refused(tiny_engine: Make, tiny_folder: Path, tmp_path: Path) -> None:
    save_adapter(trained(tiny_engine(name="someone/else")), "policy", tmp_path / "adapter", {})
    with pytest.raises(PolicyError, match="was trained on 'someone/else'") as error:
        load_policy(str(tiny_folder), str(tmp_path / "adapter"))
    assert "\n" not in str(error.value)
    with pytest.raises(PolicyError, match="holds no adapter"):
        load_policy("no-such-model-is-looked-for", str(tmp_path))
