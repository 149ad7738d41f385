"""Configuration of a training run: one dataclass each, a docstring per field."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentcore.environment import EnvironmentSpec
from agentcore.errors import SpecError


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The adapter that is trained."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    """0 keeps the log-probabilities of training equal to those of sampling."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get an adapter."""
    last_layers: int | None = None
    """Adapt only this many of the last transformer layers: the backward pass stops below them. None adapts all."""


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """One optimizer step and how it is computed."""

    learning_rate: float = 1e-4
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's; a short second moment suits the few steps of an RL run."""
    batch_tokens: int = 1536
    """Tokens computed in a micro-batch, padding included; bounds memory, changes no result."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    """The ratio to the sampling policy is clipped to [1 - clip_low, 1 + clip_high] (PPO; DAPO's wider top)."""
    aggregate: Literal["token", "step"] = "token"
    """Average over action tokens, or over steps and then their tokens."""
    kl_coef: float = 0.0
    """Weight of the k3 estimate of KL(policy, base model); needs a forward pass with the adapter off."""
    minibatches: int = 2
    """Optimizer steps per iteration; with more than one, the clip does its work."""


@dataclass(frozen=True, slots=True)
class SftSettings:
    """The supervised warm start from logged traces."""

    steps: int = 40
    """Optimizer steps at most."""
    batch_traces: int = 8
    learning_rate: float = 4e-4
    patience: int = 0
    """Stop after this many validations without improvement; 0 runs all steps."""
    validate_every: int = 5


@dataclass(frozen=True, slots=True)
class RlSettings:
    """Reinforcement from the policy's own traces."""

    iterations: int = 8
    tasks: int = 4
    """Tasks per iteration."""
    group_size: int = 8
    """Rollouts per task; a leave-one-out baseline needs at least 2."""
    temperature: float = 1.0
    gamma: float = 1.0
    estimator: str = "step-rloo"
    """A name in ``training.credit.ESTIMATORS``."""
    validate_every: int = 2
    """Iterations between validations; validation success picks the adapter that is kept."""
    normalise: bool = True
    """Divide the advantages by their root mean square over the batch, so that their scale sets no step size."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Everything about a run that decides its result."""

    seed: int = 0
    lora: LoraSettings = field(default_factory=LoraSettings)
    update: UpdateSettings = field(default_factory=UpdateSettings)
    sft: SftSettings = field(default_factory=SftSettings)
    rl: RlSettings = field(default_factory=RlSettings)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check_trainable(spec: EnvironmentSpec) -> None:
    """Raise unless the specification is enough to train on."""
    if not any(r.kind == "outcome" for r in spec.rewards):
        raise SpecError(
            f"Environment {spec.name!r} declares no reward of kind 'outcome'. Say which component judges the episode; "
            "progress and penalties alone reward trying, not succeeding."
        )
