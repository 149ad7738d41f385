"""Runs the main job on a tiny model in child processes and kills them, for test_quickstart.

    python killed_runs.py MODEL_FOLDER RUNS_FOLDER SEED

Libraries are loaded once; each attempt is a fork. Prints one JSON object: what was done to which run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import transformers.models.llama.modeling_llama  # noqa: F401 - what the children would each load again

from agentcore import cli
from training.config import LoraSettings, RlSettings, SftSettings, TrainSettings
from training.progress import Reporter
from training.quickstart import Quickstart, QuickstartConfig

SETTINGS = TrainSettings(
    lora=LoraSettings(rank=4, alpha=8),
    sft=SftSettings(steps=4, batch_traces=2, validate_every=2, patience=2),
    rl=RlSettings(iterations=3, tasks=2, group_size=2, validate_every=2),
)
CONFIG = QuickstartConfig(
    step_limit=3,
    expert_traces=4,
    train_tasks=8,
    validation_tasks=2,
    heldout_tasks=2,
    base_tasks=1,
    adversarial_tasks=1,
    max_tokens=4,
    settings=SETTINGS,
)


def child(work: Callable[[], object]) -> int:
    """Start ``work`` in a process of its own."""
    pid = os.fork()
    if pid:
        return pid
    torch.set_num_threads(1)
    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> int:
    """Wait; the exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    model, runs, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    config = replace(CONFIG, model=model)

    def job(path: Path, resume: bool) -> Callable[[], object]:
        return lambda: Quickstart(config, path, resume=resume, reporter=Reporter(quiet=True)).run()

    started = time.time()
    done = {"whole": ended(child(job(runs / "whole", False)))}
    seconds = time.time() - started

    generator, killed = random.Random(seed), []
    for _ in range(5):
        path = runs / "killed"
        pid = child(job(path, (path / "config.json").exists()))
        time.sleep(generator.uniform(0.1, 0.6) * seconds)
        os.kill(pid, signal.SIGKILL)
        killed.append(ended(pid))
    done["resumed"] = ended(child(job(runs / "killed", (runs / "killed" / "config.json").exists())))
    done["resumed again"] = ended(child(job(runs / "killed", True)))

    sys.argv = ["agentcore", "quickstart", "--model", model, "--runs", str(runs), "--name", "stopped", "--quiet"]
    sys.argv += ["--iterations", "500", "--sft-steps", "2", "--heldout-tasks", "1"]
    pid = child(cli.main)
    while not (runs / "stopped" / "adapters" / "best").is_dir() and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.05)
    os.kill(pid, signal.SIGINT)
    done["stopped"] = ended(pid)
    print(json.dumps({"codes": done, "killed": killed, "seconds": seconds}))


if __name__ == "__main__":
    main()
