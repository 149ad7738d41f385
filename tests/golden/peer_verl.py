"""Asks verl's own functions (see make_peer_cases.py)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos
from verl.workers.config.actor import ActorConfig

from tests.golden.peer_cases import Inputs, tensor
from tests.golden.peer_inputs import (
    AGGREGATES,
    Case,
    Maker,
    kept,
    mask,
    matrix,
    number,
    replies,
    tokens,
    without_singles,
)

MODES = dict(zip(AGGREGATES, ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"), strict=True))


def outcome(function: Callable[..., Any], **options: Any) -> Maker:
    def make(rng: random.Random) -> Case:
        inputs = replies(rng, [rng.randint(1, 8) for _ in range(rng.randint(1, 3))])
        rewards = torch.zeros(len(inputs["return_B"]), 3, dtype=torch.float64)
        rewards[:, 1] = tensor(inputs["return_B"])
        got = function(rewards, torch.ones_like(rewards), np.array(inputs["group_B"]), **options)[0][:, 0]
        return inputs, {"advantages": without_singles(got.tolist(), inputs["group_B"])}

    return make


def time_series(rng: random.Random) -> Inputs:
    rows, columns = rng.randint(1, 5), rng.randint(2, 5)
    return {
        "reward_BT": matrix(rng, rows, columns, -1, 1),
        "value_BT": matrix(rng, rows, columns, -1, 1),
        "mask_BT": mask(rng, rows, columns, holes=True),
        "gamma": number(rng, 0.8, 1.0),
        "lam": number(rng, 0.5, 1.0),
    }


def gae(rng: random.Random) -> Case:
    inputs = time_series(rng)
    rewards, values, masks = (tensor(inputs[k]) for k in ("reward_BT", "value_BT", "mask_BT"))
    whitened, returns = core_algos.compute_gae_advantage_return(rewards, values, masks, inputs["gamma"], inputs["lam"])
    expected = {"advantages": kept(returns - values, inputs["mask_BT"]), "whitened": kept(whitened, inputs["mask_BT"])}
    return inputs, expected


def reinforce_pp(rng: random.Random) -> Case:
    inputs = time_series(rng)
    config = OmegaConf.create({"gamma": inputs["gamma"]})
    whitened, returns = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        tensor(inputs["reward_BT"]), tensor(inputs["mask_BT"]), config
    )
    return inputs, {"returns": kept(returns, inputs["mask_BT"]), "whitened": kept(whitened, inputs["mask_BT"])}


def aggregated(rng: random.Random) -> Case:
    made = tokens(rng)
    inputs = {"loss_BT": made["advantage_BT"], "mask_BT": made["mask_BT"]}
    values, masks = tensor(inputs["loss_BT"]), tensor(inputs["mask_BT"])
    return inputs, {name: core_algos.agg_loss(values, masks, mode).item() for name, mode in MODES.items()}


def ask_loss(function: Callable[..., Any], inputs: Inputs, low: float, high: float) -> Case:
    # clip_ratio_c: the dual clip, which ours has not, switched off
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=1e9,
    )
    logprobs = tensor(inputs["logprob_BT"]).requires_grad_()
    arguments = tensor(inputs["old_BT"]), logprobs, tensor(inputs["advantage_BT"]), tensor(inputs["mask_BT"])
    value, metrics = function(*arguments, MODES[inputs["aggregate"]], config)
    value.backward()
    assert logprobs.grad is not None
    return inputs, {
        "loss": value.item(),
        "gradient": logprobs.grad.tolist(),
        "clip_fraction": metrics["actor/pg_clipfrac"],
    }


def vanilla(rng: random.Random) -> Case:
    low, high = number(rng, 0.05, 0.3), number(rng, 0.05, 0.4)
    inputs = tokens(rng, aggregate=rng.choice(AGGREGATES), clip_low=low, clip_high=high)
    return ask_loss(core_algos.compute_policy_loss_vanilla, inputs, low, high)


def gspo(rng: random.Random) -> Case:
    low, high = number(rng, 0.05, 0.3), number(rng, 0.05, 0.4)
    inputs = tokens(rng, aggregate=rng.choice(AGGREGATES), ratio="step", clip_low=low, clip_high=high)
    # one advantage per reply: verl's gradient goes token by token and is GSPO's only then
    inputs["advantage_BT"] = [[row[0]] * len(row) for row in inputs["advantage_BT"]]
    return ask_loss(core_algos.compute_policy_loss_gspo, inputs, low, high)


def cispo(rng: random.Random) -> Case:
    high = number(rng, 0.0, 0.5)
    inputs = tokens(rng, aggregate=rng.choice(AGGREGATES), ratio_max=1.0 + high)
    made, expected = ask_loss(core_algos.compute_policy_loss_cispo, inputs, 1.0, high)
    del expected["clip_fraction"]
    return made, expected


def k3(rng: random.Random) -> Case:
    made = tokens(rng)
    inputs = {"logprob_BT": made["logprob_BT"], "reference_BT": made["old_BT"]}
    kl = core_algos.kl_penalty_forward(tensor(inputs["logprob_BT"]), tensor(inputs["reference_BT"]), "k3")
    return inputs, {"kl": kl.tolist()}


def verl_makers() -> dict[str, Maker]:
    grpo = core_algos.compute_grpo_outcome_advantage
    return {
        "compute_grpo_outcome_advantage": outcome(grpo),
        "compute_grpo_outcome_advantage(norm_adv_by_std_in_grpo=False)": outcome(grpo, norm_adv_by_std_in_grpo=False),
        "compute_rloo_outcome_advantage": outcome(core_algos.compute_rloo_outcome_advantage),
        "compute_gae_advantage_return": gae,
        "compute_reinforce_plus_plus_outcome_advantage": reinforce_pp,
        "agg_loss": aggregated,
        "compute_policy_loss_vanilla": vanilla,
        "compute_policy_loss_gspo": gspo,
        "compute_policy_loss_cispo": cispo,
        "kl_penalty_forward(k3)": k3,
    }
