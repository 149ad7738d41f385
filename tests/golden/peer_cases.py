"""What our functions say about the cases in which other projects' functions were asked (see make_peer_cases.py).

A case holds ``inputs`` and the peer's ``expected`` outputs, as plain lists. ``OURS`` maps the name of each peer
function to ours on the same inputs. Where the two differ on purpose, the case's comparison leaves those entries out
(None in both), and a test says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.credit import arrays
from training.losses import (
    aggregate_tokens,
    cispo_loss,
    kl_k3,
    policy_gradient_loss,
    truncated_importance_weights,
)

FOLDER = Path(__file__).parent
Inputs = dict[str, Any]
Outputs = dict[str, Any]


def load(peer: str) -> dict[str, Any]:
    """The frozen cases of one peer: ``peer``, ``version``, ``cases`` by function."""
    (path,) = FOLDER.glob(f"{peer}-*.json")
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def each(peer: str) -> Iterator[tuple[str, int, Inputs, Outputs]]:
    for name, cases in load(peer)["cases"].items():
        for number, case in enumerate(cases):
            yield name, number, case["inputs"], case["expected"]


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def difference(ours: Outputs, expected: Outputs) -> float:
    """The largest absolute difference; both must have the same names, shapes and gaps (None)."""
    assert ours.keys() == expected.keys()
    worst = 0.0
    for name, value in expected.items():
        mine, theirs = np.array(ours[name], dtype=np.float64), np.array(value, dtype=np.float64)
        assert mine.shape == theirs.shape, name
        assert np.array_equal(np.isnan(mine), np.isnan(theirs)), name
        worst = max(worst, float(np.nanmax(np.abs(mine - theirs), initial=0.0)))
    return worst


# Advantages: one value per reply, replies of several groups ---------------------------------------------------------


def grouped(judge: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Outputs]:
    def ours(inputs: Inputs) -> Outputs:
        totals, index = np.array(inputs["return_B"]), np.array(inputs["group_B"])
        result = np.full(totals.shape, np.nan)
        for group in np.unique(index):
            rows = index == group
            if rows.sum() > 1:  # a group of one differs between projects; see the tests
                result[rows] = judge(totals[rows])
        return {"advantages": [None if np.isnan(v) else float(v) for v in result]}

    return ours


def gae(inputs: Inputs) -> Outputs:
    rewards, values, mask = (np.array(inputs[k]) for k in ("reward_BT", "value_BT", "mask_BT"))
    rows = [
        arrays.gae_advantages(r[m], v[m], inputs["gamma"], inputs["lam"])
        for r, v, m in zip(rewards, values, mask.astype(bool), strict=True)
    ]
    flat = np.concatenate(rows)
    return {"advantages": flat.tolist(), "whitened": arrays.whiten(flat, np.ones(flat.size)).tolist()}


def reinforce_pp(inputs: Inputs) -> Outputs:
    rewards, mask = np.array(inputs["reward_BT"]), np.array(inputs["mask_BT"]).astype(bool)
    rows = [arrays.discounted_returns(r[m], inputs["gamma"]) for r, m in zip(rewards, mask, strict=True)]
    flat = np.concatenate(rows)
    return {"returns": flat.tolist(), "whitened": arrays.whiten(flat, np.ones(flat.size)).tolist()}


# Losses: [B, T] tokens and a mask ----------------------------------------------------------------------------------


def aggregated(inputs: Inputs) -> Outputs:
    values, mask = tensor(inputs["loss_BT"]), tensor(inputs["mask_BT"]).bool()
    return {
        "token": aggregate_tokens(values, mask, "token").item(),
        "step": aggregate_tokens(values, mask, "step").item(),
        "dr": aggregate_tokens(values, mask, "dr", denominator=mask.numel()).item(),
    }


def policy_loss(inputs: Inputs) -> Outputs:
    """PPO clip, GSPO (``ratio`` step) or CISPO (``ratio_max``), with weights and a KL term where the case has them."""
    logprobs = tensor(inputs["logprob_BT"]).requires_grad_()
    old, advantages = tensor(inputs["old_BT"]), tensor(inputs["advantage_BT"])
    mask = tensor(inputs["mask_BT"]).bool()
    aggregate = inputs["aggregate"]
    denominator = float(mask.numel()) if aggregate == "dr" else None
    weights = None
    if "sampler_BT" in inputs:
        weights = truncated_importance_weights(old, tensor(inputs["sampler_BT"]), inputs["cap"])
    if "ratio_max" in inputs:
        loss, stats = cispo_loss(
            logprobs, old, advantages, mask, inputs["ratio_max"], aggregate, weight_T=weights, denominator=denominator
        )
    else:
        loss, stats = policy_gradient_loss(
            logprobs,
            old,
            advantages,
            mask,
            inputs["clip_low"],
            inputs["clip_high"],
            aggregate,
            ratio=inputs.get("ratio", "token"),
            weight_T=weights,
            denominator=denominator,
        )
    if "beta" in inputs:
        divergence = kl_k3(logprobs, tensor(inputs["reference_BT"]))
        loss = loss + inputs["beta"] * aggregate_tokens(divergence, mask, aggregate, denominator=denominator)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    outputs = {"loss": loss.item(), "gradient": logprobs.grad.tolist()}
    if inputs.get("clip_fraction", "ratio_max" not in inputs):
        outputs["clip_fraction"] = stats["clip_fraction"]
    return outputs


def divergence(inputs: Inputs) -> Outputs:
    return {"kl": kl_k3(tensor(inputs["logprob_BT"]), tensor(inputs["reference_BT"])).tolist()}


OURS: dict[str, dict[str, Callable[[Inputs], Outputs]]] = {
    "verl": {
        "compute_grpo_outcome_advantage": grouped(lambda r: arrays.grpo_advantages(r, eps=1e-6)),
        "compute_grpo_outcome_advantage(norm_adv_by_std_in_grpo=False)": grouped(arrays.dr_grpo_advantages),
        "compute_rloo_outcome_advantage": grouped(arrays.rloo_advantages),
        "compute_gae_advantage_return": gae,
        "compute_reinforce_plus_plus_outcome_advantage": reinforce_pp,
        "agg_loss": aggregated,
        "compute_policy_loss_vanilla": policy_loss,
        "compute_policy_loss_gspo": policy_loss,
        "compute_policy_loss_cispo": policy_loss,
        "kl_penalty_forward(k3)": divergence,
    },
    "trl": {
        "GRPOTrainer advantages (scale_rewards=group)": grouped(arrays.grpo_advantages),
        "GRPOTrainer advantages (scale_rewards=none)": grouped(arrays.dr_grpo_advantages),
        "RLOOTrainer advantages": grouped(arrays.rloo_advantages),
        "GRPOTrainer._compute_loss(bnpo)": policy_loss,
        "GRPOTrainer._compute_loss(grpo, beta)": policy_loss,
        "GRPOTrainer._compute_loss(dr_grpo)": policy_loss,
        "GRPOTrainer._compute_loss(grpo, sequence)": policy_loss,
        "GRPOTrainer._compute_loss(cispo, importance_sampling_ratio)": policy_loss,
    },
}
