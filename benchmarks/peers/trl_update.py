"""TRL's side of benchmarks/update.py; runs in TRL's own environment and knows nothing of this project.

python trl_update.py JOB.json RESULT.json
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def padded(rows: list[list[Any]], fill: Any) -> torch.Tensor:
    width = max(len(r) for r in rows)
    return torch.tensor([[*r, *[fill] * (width - len(r))] for r in rows])


def main(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    torch.set_num_threads(job["threads"])
    rows = job["rows"]
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32), job["adapter"], is_trainable=True
    )
    config = GRPOConfig(
        output_dir=job["folder"],
        per_device_train_batch_size=len(rows),
        num_generations=len(rows),
        max_completion_length=max(len(r["completion"]) for r in rows),
        gradient_checkpointing=job["gradient_checkpointing"],
        loss_type="bnpo",  # the mean over the batch's action tokens
        epsilon=job["clip_low"],
        epsilon_high=job["clip_high"],
        beta=0.0,
        learning_rate=job["learning_rate"],
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "x"}]),
        processing_class=tokenizer,
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    prompts = [r["prompt"] for r in rows]
    completions = [r["completion"] for r in rows]
    inputs = {
        "prompt_ids": padded(prompts, 0),
        "prompt_mask": padded([[1] * len(p) for p in prompts], 0),
        "completion_ids": padded(completions, 0),
        "completion_mask": padded([[1] * len(c) for c in completions], 0),
        "tool_mask": padded([r["action"] for r in rows], 0),
        "old_per_token_logps": padded([r["logprobs"] for r in rows], 0.0),
        "advantages": padded([r["advantages"] for r in rows], 0.0),
        "num_items_in_batch": torch.tensor(sum(sum(r["action"]) for r in rows)),
    }
    trainer.model.train()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    losses, seconds = [], []
    for _ in range(job["repeats"] + 1):
        started = time.perf_counter()
        loss = trainer.compute_loss(trainer.model, inputs)
        trainer.accelerator.backward(loss)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
        losses.append(float(loss.detach()))
    result = {
        "loss": losses[0],
        "seconds": seconds[1:],  # the first one warms up
        "loaded_mib": before,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "trl": trl.__version__,
        "torch": torch.__version__,
    }
    Path(result_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
