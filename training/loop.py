"""The training loop: run, record, credit, update, validate, keep the best. Reads top to bottom.

Departures from textbook policy gradients, each for a reason measured in an agent's many-step setting:

* advantages are per step (return-to-go with leave-one-out baselines over rollouts), not per trajectory;
* truncation is an outcome with its own declared reward and is not bootstrapped;
* one or few clipped updates per batch, without a KL term by default: the adapter's base is never far;
* the adapter that is kept is the one with the best *validation success*, not the last, and not the best return.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langgraph.pregel import Pregel

from agentcore.environment import EnvironmentSpec, RewardSpec, Task
from agentcore.environment_node import agent_input
from agentcore.errors import SpecError
from agentcore.keys import rng
from agentcore.policies.local import LocalChatModel
from agentcore.runner import Episode, ToInput, TraceReward, episodes, rollout
from agentcore.trace import Trace
from memory import FaissStore, Snapshot
from training.adapters import load_adapters, save_adapters
from training.batch import Excluded, build_sequences
from training.config import RlSettings, TrainSettings
from training.credit import estimate
from training.evaluate import Evaluation, evaluate, outcome_scale
from training.progress import Reporter
from training.rewards import RewardConfig, step_rewards
from training.runfolder import RunFolder
from training.update import Stats, normalised
from training.updaters import Updaters

ADAPTER = "policy"


@dataclass(slots=True)
class Job:
    """Everything a training loop needs."""

    graph: Pregel[Any, Any, Any, Any]
    policy: LocalChatModel
    """The trainable policy in ``graph``; its ``temperature`` is set by the loop."""
    tasks: Sequence[Task]
    validation: Sequence[Task]
    declared: EnvironmentSpec | Sequence[RewardSpec]
    settings: TrainSettings
    folder: RunFolder
    updater: Updaters
    reporter: Reporter
    memory: FaissStore | None = None
    """What training episodes read and add to."""
    evaluation_memory: FaissStore | Snapshot | None = None
    """What evaluated episodes read: one state for all, or adapters could not be compared. By default ``memory`` as
    it is now."""
    to_input: ToInput = agent_input
    reward: TraceReward | None = None
    others: Sequence[LocalChatModel] = ()
    """More policies in ``graph`` that act with adapters of the same engine."""
    assigned: Mapping[str, str] = field(default_factory=dict)
    """Adapter by policy id, where nodes have adapters of their own."""
    stop: Callable[[int], bool] | None = None
    """Asked after each iteration; True ends the loop early."""
    history: list[tuple[int, float, float]] = field(default_factory=list)
    """(iteration, training return, validation success)"""

    def __post_init__(self) -> None:
        if self.evaluation_memory is None and self.memory is not None:
            self.evaluation_memory = self.memory.snapshot()

    @property
    def specs(self) -> Sequence[RewardSpec]:
        return self.declared.rewards if isinstance(self.declared, EnvironmentSpec) else self.declared

    @property
    def weights(self) -> dict[str, float]:
        return {s.name: s.weight for s in self.specs}

    def act(self, *, temperature: float) -> None:
        """Set the temperature that the policies act with; 0 is greedy."""
        for policy in (self.policy, *self.others):
            policy.temperature = temperature

    def save(self, name: str) -> Path:
        """Write the adapters, as they are now, to the folder's ``adapters/<name>``."""
        path = self.folder.path / "adapters" / name
        save_adapters(self.policy.engine, self.updater.adapters, path, self.folder.manifest, self.assigned)
        return path

    def load(self, name: str) -> None:
        """Take the weights that were saved under ``name``."""
        load_adapters(self.policy.engine, self.updater.adapters, self.folder.path / "adapters" / name)

    def rollout_options(self) -> dict[str, Any]:
        return {"to_input": self.to_input, "reward": self.reward, "manifest": self.folder.manifest}


def reinforce(job: Job) -> None:
    """Improve the policy by its own traces; continues after the folder's last checkpoint."""
    s, engine = job.settings.rl, job.policy.engine
    refuse_heldout(job.tasks)
    place = job.folder.place() or {}
    start = place.get("iteration", 0) if place.get("stage") == "rl" else 0
    best = place.get("best", -1.0) if start else -1.0
    job.history = [tuple(h) for h in place.get("history", [])] if start else []
    if not start:
        job.updater.start_phase(job.settings.update.learning_rate)
        best = _validate(job, 0, math.nan, best)
    for iteration in range(start + 1, s.iterations + 1):
        tasks = rng(job.settings.seed, "tasks", iteration).sample(list(job.tasks), min(s.tasks, len(job.tasks)))
        planned = episodes(tasks, s.group_size, seed=job.settings.seed, iteration=iteration, purpose="train")
        traces = _run(job, planned, iteration)

        earned = credit(traces, job.declared, s)
        trained = job.updater.trained
        rows, excluded = build_sequences(traces, earned.advantages, job.policy.tokens_of, trained=trained)
        with job.reporter.bar(f"iteration {iteration}: update", len(rows)) as advance:
            stats = job.updater.reinforce(normalised(rows) if s.normalise else rows, advance)

        _log(job, iteration, traces, earned, excluded, stats)
        if iteration % s.validate_every == 0 or iteration == s.iterations:
            best = _validate(job, iteration, earned.mean_return, best)
        progress = {"stage": "rl", "iteration": iteration, "best": best, "history": job.history}
        job.folder.checkpoint(engine, job.updater, progress, job.memory, job.assigned)
        if job.stop is not None and job.stop(iteration):
            break
    job.save("last")


def _run(job: Job, planned: Sequence[Episode], iteration: int) -> list[Trace]:
    """Sample the iteration's episodes with exploration, writing each trace as it ends."""
    job.act(temperature=job.settings.rl.temperature)
    with (
        job.folder.traces("train") as writer,
        job.reporter.bar(f"iteration {iteration}: episodes", len(planned)) as advance,
    ):

        def done(trace: Trace) -> None:
            writer.write(trace)
            advance(1)

        result = rollout(
            job.graph,
            planned,
            memory=job.memory,
            learn=True,
            on_trace=done,
            meta={"iteration": iteration, "purpose": "train"},
            **job.rollout_options(),
        )
    return result.traces


@dataclass(frozen=True, slots=True)
class Credit:
    """What a batch of traces earned, by step id."""

    rewards: Mapping[str, float | None]
    advantages: Mapping[str, float | None]
    mean_return: float
    """Over the traces that were judged; NaN if none was."""


def credit(traces: Sequence[Trace], declared: EnvironmentSpec | Sequence[RewardSpec], s: RlSettings) -> Credit:
    """Weighted reward and advantage of every live step.

    An episode that broke off before it was judged is worth what the worst declared outcome is worth; one that was
    abandoned (it asked for input that nobody gave) is not judged, not trained on and compared with nothing.
    """
    specs = declared.rewards if isinstance(declared, EnvironmentSpec) else declared
    worst = sum(min(0.0, r.low * r.weight) for r in specs if r.kind == "outcome")
    rewards: dict[str, float | None] = {}
    returns: list[float] = []
    for trace in traces:
        config = RewardConfig(
            gamma=s.gamma,
            ungraded={"truncated": worst, "failed": worst},
            missing="none" if trace.outcome == "abandoned" else "raise",
        )
        own = step_rewards(trace, declared, config)
        known = [r for r in own.values() if r is not None]
        if len(known) == len(own):
            returns.append(sum(known))
        rewards |= own
    mean = sum(returns) / len(returns) if returns else math.nan
    return Credit(rewards, estimate(s.estimator, traces, rewards, s.gamma), mean)


def refuse_heldout(tasks: Sequence[Task]) -> None:
    """Raise if a task that must not train is among ``tasks``."""
    wrong = [t for t in tasks if t.split != "train"]
    if wrong:
        raise SpecError(
            f"{len(wrong)} of the {len(tasks)} tasks given for training are not of the split 'train' (the first is "
            f"{wrong[0].id!r}, split {wrong[0].split!r}). Held-out and adversarial tasks never train."
        )
    if not tasks:
        raise SpecError("No tasks to train on were given.")


def _validate(job: Job, iteration: int, mean_return: float, best: float) -> float:
    """Greedy success on the validation tasks; saves the adapter if it is the best so far, and watches for hacking."""
    job.act(temperature=0.0)
    result = run_evaluation(job, job.validation, f"validation-{iteration}", seed=1)
    job.history.append((iteration, mean_return, result.success))
    figures = {"success": result.success, "low": result.low, "high": result.high, "episodes": result.episodes}
    job.folder.metric({"stage": "validation", "iteration": iteration, **figures})
    if result.success > best:
        best = result.success
        job.save("best")
    job.reporter.say(
        f"  iteration {iteration}: validation success {result.success:.0%} "
        f"[{result.low:.0%}, {result.high:.0%}], best {best:.0%}"
    )
    alarm = hacking_alarm(job.history)
    if alarm:
        job.reporter.warn(alarm)
        job.folder.metric({"stage": "alarm", "iteration": iteration, "text": alarm})
    return best


def hacking_alarm(history: Sequence[tuple[int, float, float]], drop: float = 0.15) -> str | None:
    """Loud words when the training return holds or rises while validation success has fallen from its best.

    ``history`` holds (iteration, training return, validation success); before the first iteration the return is NaN,
    and the first known one stands for it.
    """
    known = [h for h in history if not math.isnan(h[1])]
    if len(known) < 2:
        return None
    now, peak = known[-1], max(history, key=lambda h: h[2])
    then = peak[1] if not math.isnan(peak[1]) else known[0][1]
    if now[2] > peak[2] - drop or now[1] < then - 0.02:
        return None
    return (
        f"possible reward hacking: the training return went from {then:.2f} (iteration {peak[0]}) to {now[1]:.2f}, "
        f"while validation success fell from {peak[2]:.0%} to {now[2]:.0%}. Look at the traces: the policy may be "
        "collecting a component without solving the task."
    )


def run_evaluation(job: Job, tasks: Sequence[Task], stage: str, *, seed: int = 0) -> Evaluation:
    """Evaluate with the job's graph and evaluation memory; the traces replace those of an earlier try."""
    component, scale = outcome_scale(job.specs)
    with (
        job.folder.traces(f"{stage}-{tasks[0].split}", anew=True) as writer,
        job.reporter.bar(f"evaluating {stage} on {tasks[0].split} tasks", len(tasks)) as advance,
    ):

        def done(trace: Trace) -> None:
            writer.write(trace)
            advance(1)

        result, _ = evaluate(
            job.graph,
            tasks,
            stage=stage,
            weights=job.weights,
            memory=job.evaluation_memory,
            component=component,
            scale=scale,
            seed=seed,
            on_trace=done,
            **job.rollout_options(),
        )
    return result


def _log(
    job: Job, iteration: int, traces: Sequence[Trace], earned: Credit, excluded: Sequence[Excluded], stats: Stats
) -> None:
    """One line of metrics and one for the eye."""
    components: dict[str, float] = {}
    for trace in traces:
        for name, value in trace.component_totals().items():
            components[name] = components.get(name, 0.0) + value / len(traces)
    steps = sum(len(t.live_steps) for t in traces)
    trained = steps - len(excluded)
    reasons = Counter(e.reason for e in excluded)
    job.folder.metric(
        {
            "stage": "rl",
            "iteration": iteration,
            "return": earned.mean_return,
            "components": components,
            "outcomes": Counter(t.outcome for t in traces),
            "steps_trained": trained,
            "steps": steps,
            "excluded": reasons,
            **stats,
        }
    )
    success = components.get(outcome_scale(job.specs)[0], 0.0)
    job.reporter.say(
        f"  iteration {iteration}: training return {earned.mean_return:.2f}, success {success:.0%}, "
        f"{trained} of {steps} steps trained"
    )
    if not trained:
        why = "; ".join(f"{n} x {reason}" for reason, n in reasons.most_common(3)) or "no policy acted"
        job.reporter.warn(f"nothing could be learned from iteration {iteration} ({why})")
