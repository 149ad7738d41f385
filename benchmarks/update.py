"""One update of what agents really have, against TRL's GRPOTrainer on the same tokens and the same LoRA adapter.

A group of rollouts shares a prompt of instructions and tool schemas; then come turns of action and observation tokens.
Both sides compute the clipped policy gradient of the action tokens (mean over them), backward, clip and step, in a
process of its own each. `tokens` are those of the sequences as they stand, however a side computes them.

    python -m venv peer && peer/bin/pip install trl==1.16.0 peft torch==2.13.0
    python benchmarks/update.py --peer-python peer/bin/python --json update.json
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
VOCABULARY = 49_000


def sequences(prompt: int, options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """A group of rollouts: ids, which of them are actions, sampled log-probabilities, one advantage per turn."""
    draw = random.Random(seed)
    shared = [draw.randrange(3, VOCABULARY) for _ in range(prompt)]
    rows = []
    for _ in range(options.group):
        completion, action, advantages = [], [], []
        for turn in range(options.turns):
            acted, seen = draw.randint(15, 25), draw.randint(25, 35)
            value = draw.uniform(-1, 1)
            seen = 0 if turn == options.turns - 1 else seen  # what follows the last action is not read
            completion += [draw.randrange(3, VOCABULARY) for _ in range(acted + seen)]
            action += [1] * acted + [0] * seen
            advantages += [value] * (acted + seen)
        rows.append({"prompt": shared, "completion": completion, "action": action, "advantages": advantages})
    return rows


def ours(job: dict[str, Any]) -> dict[str, Any]:
    """This project's side, in this process."""
    import torch

    from agentcore.policies.engine import Engine
    from training.batch import TokenRow, micro_batches, shared_prefix
    from training.config import UpdateSettings
    from training.update import Updater

    torch.set_num_threads(job["threads"])
    engine = Engine.load(job["model"])
    engine.load_adapter("policy", job["adapter"])
    settings = UpdateSettings(
        learning_rate=job["learning_rate"],
        minibatches=1,
        clip_low=job["clip_low"],
        clip_high=job["clip_high"],
        batch_tokens=job["batch_tokens"],
        betas=(0.9, 0.999),
    )
    updater = Updater(engine, "policy", settings)
    rows = []
    for i, r in enumerate(job["rows"]):
        n = len(r["prompt"])
        at = [t for t, acts in enumerate(r["action"]) if acts]
        rows.append(
            TokenRow(
                ids=(*r["prompt"], *r["completion"]),
                positions=tuple(n + t for t in at),
                advantages=tuple(r["advantages"][t] for t in at),
                logprobs=tuple(r["logprobs"][t] for t in at) if "logprobs" in r else (0.0,) * len(at),
                steps=(i,) * len(at),
                temperature=1.0,
                adapter="policy",
            )
        )
    if "logprobs" not in job["rows"][0]:
        return {"logprobs": sampled_logprobs(updater, rows)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    losses, seconds = [], []
    for _ in range(job["repeats"] + 1):
        started = time.perf_counter()
        losses.append(updater.reinforce(rows)["loss"])
        seconds.append(time.perf_counter() - started)
    batches = micro_batches(rows, settings.batch_tokens)
    computed = sum((s := shared_prefix(b)) + len(b) * (max(len(r.ids) for r in b) - s) for b in batches)
    return {
        "loss": losses[0],
        "seconds": seconds[1:],
        "loaded_mib": before,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "micro_batches": len(batches),
        "tokens_computed": computed,
    }


def sampled_logprobs(updater: Any, rows: list[Any]) -> list[list[float]]:
    """Something like what a sampler would have recorded: the policy's own, a little off."""
    import torch

    draw = random.Random(0)
    found = []
    with updater.engine.using("policy"), torch.no_grad():
        for row in rows:
            logprobs, _, _ = updater._forward([row])
            found.append([float(p) + draw.gauss(0, 0.05) for p in logprobs])
    return found


def in_process(command: list[str], job: dict[str, Any], folder: Path) -> dict[str, Any]:
    job_file, result_file = folder / "job.json", folder / "result.json"
    job_file.write_text(json.dumps({**job, "folder": str(folder)}))
    done = subprocess.run([*command, str(job_file), str(result_file)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(result_file.read_text())
    return found


def compare(name: str, prompt: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both sides on one shape, several alternating runs."""
    rows = sequences(prompt, options, seed=prompt)
    job = {
        "model": options.model,
        "adapter": options.adapter,
        "rows": rows,
        "threads": options.threads,
        "repeats": options.repeats,
        "clip_low": 0.2,
        "clip_high": 0.28,
        "learning_rate": 1e-5,
        "batch_tokens": options.batch_tokens,
        "gradient_checkpointing": options.trl_checkpointing,
    }
    own = [sys.executable, __file__, "--worker"]
    for row, logprobs in zip(rows, in_process(own, job, folder)["logprobs"], strict=True):
        values = iter(logprobs)
        row["logprobs"] = [next(values) if acts else 0.0 for acts in row["action"]]
    tokens = sum(len(r["prompt"]) + len(r["completion"]) for r in rows)
    sides: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
    for turn in range(options.rounds):
        sides["ours"].append(in_process(own, job, folder))
        sides["trl"].append(in_process([options.peer_python, str(HERE / "peers" / "trl_update.py")], job, folder))
        for side, runs in sides.items():
            last = runs[-1]
            print(f"{name} round {turn} {side:<5} {median(last['seconds']):>6.2f} s  {last['peak_mib']:>6.0f} MiB peak")
    seconds = {side: median(s for run in runs for s in run["seconds"]) for side, runs in sides.items()}
    peak = {side: median(run["peak_mib"] for run in runs) for side, runs in sides.items()}
    grown = {side: median(run["peak_mib"] - run["loaded_mib"] for run in runs) for side, runs in sides.items()}
    loss = {side: runs[0]["loss"] for side, runs in sides.items()}
    return {
        "tokens": tokens,
        "tokens_per_s": {side: tokens / s for side, s in seconds.items()},
        "tokens_per_s_vs_trl": seconds["trl"] / seconds["ours"],
        "peak_mib": peak,
        "peak_memory_vs_trl": peak["ours"] / peak["trl"],
        "grown_mib": grown,
        "grown_memory_vs_trl": grown["ours"] / grown["trl"],
        "loss": loss,
        "loss_difference": abs(loss["ours"] - loss["trl"]),
        "runs": sides,
    }


def adapter_and_model(folder: Path, options: argparse.Namespace) -> None:
    """A LoRA adapter whose weights matter, and the folder that both sides load the model from."""
    import torch

    from agentcore.policies.engine import Engine
    from training.adapters import create_adapter, save_adapter
    from training.config import LoraSettings

    plain = Engine.load(options.model)
    plain.model.save_pretrained(folder / "model")
    plain.tokenizer.save_pretrained(folder / "model")
    options.model = str(folder / "model")
    engine = Engine.load(options.model)
    create_adapter(engine, "policy", LoraSettings(), 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, parameter in engine.model.named_parameters():
            if "lora_B" in key:
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    save_adapter(engine, "policy", folder / "adapter", {})
    options.adapter = str(folder / "adapter")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default="peer/bin/python", help="Python of an environment with TRL 1.16")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompts", type=int, nargs=2, default=(600, 60), help="the long and the short shared prompt")
    parser.add_argument("--repeats", type=int, default=3, help="timed updates per process")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side, alternating")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--trl-checkpointing", action="store_true", help="TRL with gradient checkpointing, its default")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        adapter_and_model(folder, options)
        long = compare("long prompt", options.prompts[0], options, folder)
        short = compare("short prompt", options.prompts[1], options, folder)
    output = {
        "figures": {
            "tokens_per_s_vs_trl": long["tokens_per_s_vs_trl"],
            "peak_memory_vs_trl": long["peak_memory_vs_trl"],
            "tokens_per_s_vs_trl_short_prompt": short["tokens_per_s_vs_trl"],
            "loss_difference": max(long["loss_difference"], short["loss_difference"]),
        },
        "long": long,
        "short": short,
        "options": {k: str(v) for k, v in vars(options).items()},
    }
    for name, value in output["figures"].items():
        print(f"{name} = {value:.4g}")
    if options.json is not None:
        options.json.write_text(json.dumps(output, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        Path(sys.argv[3]).write_text(json.dumps(ours(json.loads(Path(sys.argv[2]).read_text()))))
    else:
        main()
