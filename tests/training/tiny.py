"""Episodes made by hand on the tiny random model: the mechanics of the trainer, and nothing about learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentcore import Task
from agentcore.environment import RewardSpec
from agentcore.policies.engine import Engine, GenerationRequest
from agentcore.trace import Reward, Step, Tokens, Trace
from training.adapters import create_adapter
from training.batch import TokenRow, build_sequences
from training.config import LoraSettings, UpdateSettings
from training.update import Updater
from training.updaters import Updaters

REWARD = RewardSpec("reward", 0.0, 1.0, "what the test gives")
LORA = LoraSettings(rank=4, alpha=8)
SYSTEM = tuple(range(40, 70))
"""Every prompt starts with these ids, long enough to be shared."""


def tokens(prompt: Sequence[int], reply: Sequence[int], **changes: Any) -> Tokens:
    fields: dict[str, Any] = {
        "prompt_ids": tuple(prompt),
        "reply_ids": tuple(reply),
        "logprobs": tuple(-1.0 for _ in reply),
        "temperature": 1.0,
        "model": "tiny",
        "adapter": "policy",
        "adapter_version": 1,
    }
    return Tokens(**(fields | changes))


def step(name: str, drawn: Tokens | None, **changes: Any) -> Step:
    fields: dict[str, Any] = {
        "id": name,
        "key": ("thread", f"act:{name}", 0),
        "node_run": None,
        "policy_id": "act",
        "messages": (),
        "reply": "",
        "tokens": drawn,
    }
    return Step(**(fields | changes))


def trace(name: str, steps: Sequence[Step], reward: float | None = None, task: str = "task") -> Trace:
    rewards = () if reward is None else (Reward("reward", reward, "trace", name),)
    return Trace(name, Task(task, "train", 0, "do"), "terminated", tuple(steps), rewards=rewards, edges="unknown")


def recorded(drawn: Step) -> Tokens:
    """The step's own tokens, as the trainer asks for them."""
    assert drawn.tokens is not None
    return drawn.tokens


def make_updater(engine: Engine, *, double: bool = False, move: float = 0.0, **settings: Any) -> Updater:
    """An updater of a fresh adapter ``policy``; ``move`` displaces its weights, which at first change nothing."""
    return make_updaters(engine, double=double, move=move, **settings)["policy"]


def make_updaters(
    engine: Engine, names: Sequence[str] = ("policy",), *, double: bool = False, move: float = 0.0, **settings: Any
) -> Updaters:
    """Updaters of fresh adapters, all displaced alike."""
    import torch

    for name in names:
        create_adapter(engine, name, LORA, seed=0)
    if double:
        engine.model.double()
    updaters = Updaters(engine, names, UpdateSettings(**settings))
    for name in names:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in updaters[name].parameters.values():
                parameter.add_(move * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
        engine.bump(name)
    return updaters


def sample(engine: Engine, prompt: Sequence[int], key: int, *, count: int = 6, temperature: float = 1.0) -> Tokens:
    request = GenerationRequest(tuple(prompt), key, count, temperature, adapter="policy")
    (result,) = engine.generate([request])
    return tokens(
        prompt,
        result.ids,
        logprobs=result.logprobs,
        temperature=temperature,
        adapter_version=result.adapter_version,
    )


def play(engine: Engine, name: str, turns: int, key: int, *, rewrite: bool = False, **options: Any) -> Trace:
    """One episode of the adapter: each prompt goes on from the last reply, or (``rewrite``) is rendered anew."""
    steps: list[Step] = []
    prompt: tuple[int, ...] = (*SYSTEM, 100 + key % 50)
    for turn in range(turns):
        drawn = sample(engine, prompt, key * 100 + turn, **options)
        steps.append(step(f"{name}-{turn}", drawn))
        prompt = (*SYSTEM, 200 + turn, 9, 9) if rewrite else (*prompt, *drawn.reply_ids, 200 + turn, 7)
    return trace(name, steps, task=f"task-{name}")


def rows_of(traces: Sequence[Trace], advantage: Callable[[Step], float | None]) -> list[TokenRow]:
    rows, _ = build_sequences(traces, {s.id: advantage(s) for t in traces for s in t.live_steps}, recorded)
    return rows
