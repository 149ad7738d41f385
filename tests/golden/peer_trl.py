"""Asks TRL's own code (see make_peer_cases.py).

TRL computes advantages inside a long method. The statements that do it are cut out of the installed source by their
meaning (from the reward sum to the last assignment of ``advantages``) and run as they stand.
"""

from __future__ import annotations

import ast
import inspect
import random
import textwrap
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from trl import GRPOTrainer, RLOOTrainer
from trl.trainer import grpo_trainer, rloo_trainer

from tests.golden.peer_cases import tensor
from tests.golden.peer_inputs import Case, Maker, matrix, number, replies, tokens, without_singles


def statements(trainer: type, first: str, last: str) -> Any:
    """Code of ``_generate_and_score_completions`` from the statement that starts with ``first`` to ``last``."""
    source = textwrap.dedent(inspect.getsource(trainer._generate_and_score_completions))  # type: ignore[attr-defined]
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    texts = [ast.unparse(s) for s in function.body]
    start = next(i for i, t in enumerate(texts) if t.startswith(first))
    end = next(i for i, t in enumerate(texts) if i > start and t.startswith(last))
    return compile(ast.Module(function.body[start : end + 1], []), inspect.getfile(trainer), "exec")


def advantages(trainer: type, module: Any, **settings: Any) -> Maker:
    code = statements(trainer, "unscorable_mask =", "advantages = torch.nan_to_num")

    def make(rng: random.Random) -> Case:
        size = rng.randint(1, 8)
        inputs = replies(rng, [size] * rng.randint(1, 3))
        order = sorted(range(len(inputs["group_B"])), key=lambda i: inputs["group_B"][i])
        inputs = {name: [values[i] for i in order] for name, values in inputs.items()}  # TRL: groups side by side
        scope = vars(module) | {
            "self": SimpleNamespace(reward_weights=torch.ones(1, dtype=torch.float64), **settings),
            "rewards_per_func": tensor(inputs["return_B"])[:, None],
            "num_generations": size,
            "device": "cpu",
        }
        exec(code, scope)
        return inputs, {"advantages": without_singles(scope["advantages"].tolist(), inputs["group_B"])}

    return make


def stub(inputs: dict[str, Any], logprobs: torch.Tensor, loss_type: str, level: str) -> SimpleNamespace:
    """What ``_compute_loss`` asks of the trainer: settings, and the log-probabilities as the model's answer."""
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None),
        aux_loss_enabled=False,
        beta=inputs.get("beta", 0.0),
        current_gradient_accumulation_steps=1,
        epsilon_high=inputs.get("ratio_max", inputs.get("clip_high")),
        epsilon_low=inputs.get("clip_low"),
        importance_sampling_level=level,
        loss_type=loss_type,
        max_completion_length=logprobs.shape[1],
        model=SimpleNamespace(training=False),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm="sampler_BT" in inputs,
        vllm_importance_sampling_correction=True,
    )


def loss(loss_type: str, aggregate: str, level: str = "token", *, beta: bool = False, sampler: bool = False) -> Maker:
    def make(rng: random.Random) -> Case:
        inputs = tokens(rng, aggregate=aggregate)
        # one advantage per reply, as TRL has it
        inputs["advantage_BT"] = [[row[0]] * len(row) for row in inputs["advantage_BT"]]
        old = tensor(inputs["old_BT"])
        rows, columns = old.shape
        if loss_type == "cispo":
            inputs["ratio_max"] = number(rng, 1.0, 2.0)
        else:
            inputs |= {"clip_low": number(rng, 0.05, 0.3), "clip_high": number(rng, 0.05, 0.4)}
        if level == "sequence":
            inputs |= {"ratio": "step", "clip_fraction": False}  # TRL counts sequences there, ours tokens
        if beta:
            inputs |= {"beta": number(rng, 0.01, 0.3), "reference_BT": matrix(rng, rows, columns, -4, -0.1)}
        if sampler:
            inputs |= {"sampler_BT": matrix(rng, rows, columns, -4, -0.1), "cap": number(rng, 1.0, 3.0)}
        logprobs = tensor(inputs["logprob_BT"]).requires_grad_()
        masks = tensor(inputs["mask_BT"])
        batch = {
            "prompt_ids": torch.zeros(rows, 1),
            "prompt_mask": torch.ones(rows, 1),
            "completion_ids": torch.zeros(rows, columns),
            "completion_mask": masks,
            "advantages": tensor(inputs["advantage_BT"])[:, 0],
            "old_per_token_logps": old,
            "num_items_in_batch": masks.sum(),
        }
        if beta:
            batch["ref_per_token_logps"] = tensor(inputs["reference_BT"])
        if sampler:
            ratio = torch.exp(old - tensor(inputs["sampler_BT"]))
            batch["importance_sampling_ratio"] = torch.clamp(ratio, max=inputs["cap"])
        trainer = stub(inputs, logprobs, loss_type, level)
        value = GRPOTrainer._compute_loss(trainer, trainer.model, batch)
        value.backward()
        assert logprobs.grad is not None
        expected = {"loss": value.item(), "gradient": logprobs.grad.tolist()}
        if loss_type != "cispo" and level == "token":
            expected["clip_fraction"] = trainer._metrics["eval"]["clip_ratio/region_mean"][0]
        return inputs, expected

    return make


def trl_makers() -> dict[str, Maker]:
    grpo = {"multi_objective_aggregation": "sum_then_normalize"}
    rloo = {"reward_clip_range": None, "beta": 0.0, "normalize_advantages": False}
    return {
        "GRPOTrainer advantages (scale_rewards=group)": advantages(
            GRPOTrainer, grpo_trainer, scale_rewards="group", **grpo
        ),
        "GRPOTrainer advantages (scale_rewards=none)": advantages(
            GRPOTrainer, grpo_trainer, scale_rewards="none", **grpo
        ),
        "RLOOTrainer advantages": advantages(RLOOTrainer, rloo_trainer, **rloo),
        "GRPOTrainer._compute_loss(bnpo)": loss("bnpo", "token"),
        "GRPOTrainer._compute_loss(grpo, beta)": loss("grpo", "step", beta=True),
        "GRPOTrainer._compute_loss(dr_grpo)": loss("dr_grpo", "dr"),
        "GRPOTrainer._compute_loss(grpo, sequence)": loss("grpo", "step", "sequence"),
        "GRPOTrainer._compute_loss(cispo, importance_sampling_ratio)": loss("cispo", "token", sampler=True),
    }
