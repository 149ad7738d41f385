"""How fast are many episodes at once, against the ways people run them?

The same episodes of the built-in environment with the same local model, greedily, so that every way samples the same
tokens (how many replies agree is reported):

* ours: `rollout(...)`: graph runs side by side, their calls gathered into batches, keys and values kept between turns;
* sequential: one episode after another, each call one `transformers` `generate` that reads the whole prompt;
* one by one: one episode after another on our engine, which keeps keys and values (not a goal, for comparison);
* reprefill: graph runs side by side, each batch one `generate` that reads the whole prompts of the turn;
* raw: the very batches that our run made, as bare `generate` calls of as many new tokens, without graph, environment
  or recorder.

    python benchmarks/rollout.py --json rollout.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agentcore.environments import make_environment
from agentcore.graph import build_agent
from agentcore.policies.engine import Engine, GenerationRequest, GenerationResult
from agentcore.policies.local import LocalChatModel
from agentcore.policies.models import DEFAULT_MODEL
from agentcore.runcommand import load_policy
from agentcore.runner import Episode, episodes, rollout
from agentcore.trace import Trace
from training.manifest import build_manifest


class GenerateEngine(Engine):
    """Serves each batch by one `transformers` `generate` that reads the whole prompts, padded on the left."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        with self._sampling(requests[0].adapter) as model, torch.inference_mode():
            rows = plain_generate(model, [r.prompt_ids for r in requests], requests[0].max_new_tokens, self)
        return [GenerationResult(r, (0.0,) * len(r), "stop", self.version_of(requests[0].adapter)) for r in rows]


def plain_generate(
    model: Any, prompts: Sequence[Sequence[int]], new: int, engine: Engine, *, exactly: bool = False
) -> list[tuple[int, ...]]:
    """One greedy `generate`; rows end with their first end token."""
    width = max(len(p) for p in prompts)
    ids = torch.tensor([[engine._pad] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=new,
        min_new_tokens=new if exactly else 1,
        do_sample=False,
        temperature=None,
        top_p=None,
        top_k=None,
        eos_token_id=sorted(engine.stop_ids),
        pad_token_id=engine._pad,
    )
    rows = []
    for row in out[:, width:].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in engine.stop_ids), len(row))
        rows.append(tuple(row[:end]))
    return rows


class Recording(Engine):
    """Our engine, noting the shape of each batch."""

    shapes: list[tuple[list[tuple[int, ...]], int]]

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        results = super().generate(requests)
        self.shapes.append(([r.prompt_ids for r in requests], max(len(r.ids) for r in results)))
        return results


def timed(policy: LocalChatModel, planned: Sequence[Episode], options: argparse.Namespace, at_once: int) -> Any:
    """Traces and seconds of the episodes, ``at_once`` side by side."""
    environment = make_environment("assistant", level=options.level, step_limit=options.step_limit)
    graph = build_agent(policy, environment, layout=options.layout, context_budget=options.context_budget)
    started = time.perf_counter()
    traces = rollout(graph, planned, concurrency=at_once).traces
    return traces, time.perf_counter() - started


def replies(traces: Sequence[Trace]) -> list[tuple[int, ...]]:
    return [s.tokens.reply_ids for t in traces for s in t.steps if s.tokens is not None]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All ways, one after another, on one set of weights."""
    loaded: LocalChatModel = load_policy(
        options.model, options.adapter, temperature=0.0, max_tokens=options.max_tokens, dtype=options.dtype
    )
    base, adapter = loaded.engine, loaded.adapter
    environment = make_environment("assistant", level=options.level, step_limit=options.step_limit)
    planned = episodes(environment.tasks("heldout", options.episodes), seed=1)

    def policy_with(kind: type[Engine]) -> LocalChatModel:
        engine = Engine.__new__(kind)
        engine.__dict__ = {**base.__dict__}
        if isinstance(engine, Recording):
            engine.shapes = []
        return LocalChatModel(engine=engine, adapter=adapter, temperature=0.0, max_tokens=options.max_tokens)

    found: dict[str, Any] = {}
    kept: dict[str, list[Trace]] = {}

    def run(name: str, policy: LocalChatModel, some: Sequence[Episode], at_once: int) -> None:
        base._slots.clear()
        kept[name], seconds = timed(policy, some, options, at_once)
        tokens = sum(len(r) for r in replies(kept[name]))
        found[name] = {
            "episodes": len(some),
            "seconds": seconds,
            "episodes_per_s": len(some) / seconds,
            "steps": sum(len(t.steps) for t in kept[name]),
            "new_tokens": tokens,
            "new_tokens_per_s": tokens / seconds,
        }
        print(f"{name:<12} {len(some):>3} episodes {seconds:>7.1f} s {tokens / seconds:>7.1f} new tokens/s", flush=True)

    run("warm up", policy_with(Engine), planned[:4], 4)
    ours = policy_with(Recording)
    run("ours", ours, planned, options.episodes)
    run("reprefill", policy_with(GenerateEngine), planned, options.episodes)
    few = planned[: options.sequential_episodes]
    run("sequential", policy_with(GenerateEngine), few, 1)
    run("one by one", policy_with(Engine), few, 1)
    raw = raw_generate(base, adapter, ours.engine.shapes)  # type: ignore[attr-defined]
    print(f"raw          {raw['new_tokens_per_s']:.1f} new tokens/s in {len(ours.engine.shapes)} batches")  # type: ignore[attr-defined]
    same = sum(a == b for a, b in zip(replies(kept["ours"]), replies(kept["reprefill"]), strict=False))
    computed = sum(rows * new for rows, new in ((len(p), n) for p, n in ours.engine.shapes))  # type: ignore[attr-defined]
    return {
        "figures": {
            "episodes_vs_sequential": found["ours"]["episodes_per_s"] / found["sequential"]["episodes_per_s"],
            "episodes_vs_reprefill": found["ours"]["episodes_per_s"] / found["reprefill"]["episodes_per_s"],
            "tokens_vs_raw_generate": computed / found["ours"]["seconds"] / raw["new_tokens_per_s"],
        },
        "ways": found,
        "raw": raw,
        "replies_equal_to_reprefill": same / max(1, len(replies(kept["ours"]))),
        "prompt_tokens_mean": sum(len(p) for ps, _ in ours.engine.shapes for p in ps)  # type: ignore[attr-defined]
        / max(1, sum(len(ps) for ps, _ in ours.engine.shapes)),  # type: ignore[attr-defined]
        "threads": torch.get_num_threads(),
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()},
        "manifest": build_manifest(engine=base, settings={}, seed=1, spec=environment.spec),
    }


def raw_generate(engine: Engine, adapter: str | None, shapes: list[Any]) -> dict[str, float]:
    """The same batches with as many new tokens each, as bare calls (padded rows count as computed, as in ours)."""
    started, tokens = time.perf_counter(), 0
    with engine._sampling(adapter) as model, torch.inference_mode():
        for prompts, new in shapes:
            plain_generate(model, prompts, new, engine, exactly=True)
            tokens += len(prompts) * new
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "new_tokens": tokens, "new_tokens_per_s": tokens / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--sequential-episodes", type=int, default=6, help="episodes run one after another")
    parser.add_argument("--level", default="medium")
    parser.add_argument("--layout", choices=["append", "rewrite"], default="append")
    parser.add_argument("--context-budget", type=int, default=1024, help="tokens up to which a prompt grows")
    parser.add_argument("--step-limit", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--adapter", type=Path, default=None, help="a trained adapter; by default the base model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    output = measure(options)
    for name, value in output["figures"].items():
        print(f"{name} = {value:.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(output, indent=1, default=str))


if __name__ == "__main__":
    main()
