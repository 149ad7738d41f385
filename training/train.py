"""The training loop: run, record, credit, update, validate, keep the best. Reads top to bottom.

Departures from textbook policy gradients, each for a reason measured in an agent's many-step setting:

* advantages are per step (return-to-go with leave-one-out baselines over rollouts), not per trajectory;
* truncation is an outcome with its own declared reward and is not bootstrapped;
* one or few clipped updates per batch, without a KL term by default: the adapter's base is never far;
* the adapter that is kept is the one with the best *validation success*, not the last, and not the best return.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langgraph.pregel import Pregel

from agentcore.environment import EnvironmentSpec, RewardSpec, Task
from agentcore.environment_node import agent_input
from agentcore.errors import PolicyError, SpecError
from agentcore.keys import rng
from agentcore.policies.local import LocalChatModel
from agentcore.runner import ToInput, TraceReward, episodes, rollout
from agentcore.trace import Trace
from memory import FaissStore
from training.adapters import create_adapter, save_adapter
from training.batch import build_sequences
from training.config import TrainSettings, check_trainable
from training.credit import estimate
from training.evaluate import Evaluation, evaluate
from training.manifest import build_manifest
from training.progress import Reporter
from training.rewards import RewardConfig, step_rewards
from training.runfolder import RunFolder
from training.update import Updater, normalised

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
    updater: Updater
    reporter: Reporter
    memory: FaissStore | None = None
    to_input: ToInput = agent_input
    reward: TraceReward | None = None
    component: str = "success"
    stop: Callable[[int], bool] | None = None
    """Asked after each iteration; True ends the loop early."""
    history: list[tuple[int, float, float]] = field(default_factory=list)
    """(iteration, training return, validation success)"""

    @property
    def specs(self) -> Sequence[RewardSpec]:
        return self.declared.rewards if isinstance(self.declared, EnvironmentSpec) else self.declared

    @property
    def weights(self) -> dict[str, float]:
        return {s.name: s.weight for s in self.specs}

    def rollout_options(self) -> dict[str, Any]:
        return {"to_input": self.to_input, "reward": self.reward, "manifest": self.folder.manifest}


def reinforce(job: Job) -> None:
    """Improve the policy by its own traces; continues after the folder's last checkpoint."""
    s = job.settings.rl
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

        rewards, advantages = credit(traces, job)
        rows, excluded = build_sequences(traces, advantages, job.policy.tokens_of)
        with job.reporter.bar(f"iteration {iteration}: update", 1) as advance:
            stats = job.updater.reinforce(normalised(rows) if s.normalise else rows)
            advance(1)

        mean_return = sum(r for r in rewards.values() if r is not None) / len(traces)
        _log(job, iteration, traces, mean_return, stats, trained=len(advantages) - len(excluded), total=len(advantages))
        if iteration % s.validate_every == 0 or iteration == s.iterations:
            best = _validate(job, iteration, mean_return, best)
        progress = {"stage": "rl", "iteration": iteration, "best": best, "history": job.history}
        job.folder.checkpoint(job.policy.engine, job.updater, progress)
        if job.stop is not None and job.stop(iteration):
            break
    save_adapter(job.policy.engine, ADAPTER, job.folder.path / "adapters" / "last", job.folder.manifest)


def _run(job: Job, planned: Sequence[Any], iteration: int) -> list[Trace]:
    """Sample the iteration's episodes with exploration, writing each trace as it ends."""
    s = job.settings.rl
    job.policy.temperature = s.temperature
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


def credit(traces: Sequence[Trace], job: Job) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Weighted reward and advantage of every live step, by step id."""
    s = job.settings.rl
    worst = sum(min(0.0, r.low * r.weight) for r in job.specs if r.kind == "outcome")
    # an episode that broke off before it was judged is worth what the worst declared outcome is worth
    config = RewardConfig(gamma=s.gamma, ungraded={"truncated": worst, "failed": worst})
    rewards: dict[str, float | None] = {}
    for trace in traces:
        rewards |= step_rewards(trace, job.declared, config)
    return rewards, dict(estimate(s.estimator, traces, rewards, s.gamma))


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
    job.policy.temperature = 0.0
    result = run_evaluation(job, job.validation, f"validation-{iteration}", seed=1)
    job.history.append((iteration, mean_return, result.success))
    job.folder.metric({"stage": "validation", "iteration": iteration, "success": result.success,
                       "low": result.low, "high": result.high, "episodes": result.episodes})
    if result.success > best:
        best = result.success
        save_adapter(job.policy.engine, ADAPTER, job.folder.path / "adapters" / "best", job.folder.manifest)
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
    """Loud words when the training return holds or rises while validation success has fallen from its best."""
    known = [h for h in history if not math.isnan(h[1])]
    if len(known) < 2:
        return None
    peak = max(known, key=lambda h: h[2])
    now = known[-1]
    if now[2] > peak[2] - drop or now[1] < peak[1] - 0.02:
        return None
    return (
        f"possible reward hacking: the training return went from {peak[1]:.2f} (iteration {peak[0]}) to {now[1]:.2f}, "
        f"while validation success fell from {peak[2]:.0%} to {now[2]:.0%}. Look at the traces: the policy may be "
        "collecting a component without solving the task."
    )


def run_evaluation(job: Job, tasks: Sequence[Task], stage: str, *, seed: int = 0) -> Evaluation:
    """Evaluate with the job's graph and memory; traces and figures go to the run folder."""
    with (
        job.folder.traces(f"{stage}-{tasks[0].split}") as writer,
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
            memory=job.memory,
            component=job.component,
            seed=seed,
            on_trace=done,
            **job.rollout_options(),
        )
    return result


def _log(
    job: Job, iteration: int, traces: Sequence[Trace], mean_return: float, stats: Mapping[str, float], **counts: int
) -> None:
    outcomes: dict[str, int] = {}
    components: dict[str, float] = {}
    for trace in traces:
        outcomes[trace.outcome] = outcomes.get(trace.outcome, 0) + 1
        for name, value in trace.component_totals().items():
            components[name] = components.get(name, 0.0) + value / len(traces)
    job.folder.metric(
        {
            "stage": "rl",
            "iteration": iteration,
            "return": mean_return,
            "components": components,
            "outcomes": outcomes,
            "steps_trained": counts["trained"],
            "steps": counts["total"],
            **stats,
        }
    )
    job.reporter.say(
        f"  iteration {iteration}: training return {mean_return:.2f}, success {components.get(job.component, 0.0):.0%}, "
        f"{counts['trained']} of {counts['total']} steps trained"
    )


# -- a user's own graph -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What :func:`train` gives back."""

    before: Evaluation
    after: Evaluation
    adapter: Path
    """A plain peft adapter folder: the one with the best validation success."""
    folder: Path


def train(
    graph: Pregel[Any, Any, Any, Any],
    tasks: Sequence[Task],
    *,
    to_input: ToInput = agent_input,
    reward: TraceReward | None = None,
    declared: EnvironmentSpec | Sequence[RewardSpec] | None = None,
    validation: Sequence[Task] | None = None,
    settings: TrainSettings | None = None,
    folder: str | Path = "runs/train",
    memory: FaissStore | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Run, record, credit and update the policy in any compiled LangGraph graph.

    Args:
        graph: holds at least one ``LocalChatModel``; the one that acts is found by running the graph.
        tasks: of the split ``train``. A graph of your own only needs ``Task(id, "train", seed, instruction)``.
        to_input: (task, episode key) -> the graph's input.
        reward: (trace, final state) -> a number, or components by name. Not needed where an environment rewards.
        declared: the reward components with their ranges; by default one component ``reward`` between 0 and 1.
        validation: tasks that pick the adapter to keep; by default a quarter of ``tasks``, which then do not train.
        folder: where traces, metrics and adapters go.

    Raises:
        PolicyError: if no policy that can be trained acted in the graph.
        SpecError: if a held-out task was given for training, or no outcome is declared.
    """
    settings = settings or TrainSettings()
    refuse_heldout(tasks)
    if declared is None:
        declared = (RewardSpec("reward", 0.0, 1.0, "the value of the reward function"),)
    if isinstance(declared, EnvironmentSpec):
        check_trainable(declared)
    if validation is None:
        cut = max(1, len(tasks) // 4)
        validation, tasks = tasks[:cut], tasks[cut:]
        refuse_heldout(tasks)
    policy = find_policy(graph, validation[0], to_input)
    specs = declared.rewards if isinstance(declared, EnvironmentSpec) else declared
    component = next((s.name for s in specs if s.kind == "outcome"), specs[0].name)
    config = settings.to_json()
    spec = declared if isinstance(declared, EnvironmentSpec) else None
    manifest = build_manifest(engine=policy.engine, spec=spec, settings=config, seed=settings.seed)
    run = RunFolder.create(folder, config, manifest)
    create_adapter(policy.engine, ADAPTER, settings.lora, settings.seed)
    policy.adapter = ADAPTER
    job = Job(
        graph=graph,
        policy=policy,
        tasks=tasks,
        validation=validation,
        declared=declared,
        settings=settings,
        folder=run,
        updater=Updater(policy.engine, ADAPTER, settings.update),
        reporter=Reporter(quiet=quiet),
        memory=memory,
        to_input=to_input,
        reward=reward,
        component=component,
    )
    policy.temperature = 0.0
    before = run_evaluation(job, validation, "before")
    reinforce(job)
    load_weights(job, run.path / "adapters" / "best")
    policy.temperature = 0.0
    after = run_evaluation(job, validation, "after")
    for result in (before, after):
        run.evaluation(result.to_json())
    shutil.copytree(run.path / "adapters" / "best", run.path / "adapter", dirs_exist_ok=True)
    return TrainResult(before, after, run.path / "adapter", run.path)


def find_policy(graph: Pregel[Any, Any, Any, Any], task: Task, to_input: ToInput) -> LocalChatModel:
    """The policy that acts in ``graph``, found by running one episode."""
    result = rollout(graph, episodes([task], purpose="probe"), to_input=to_input)
    policies = [p for p in result.policies if isinstance(p, LocalChatModel)]
    if not policies:
        problems = "; ".join(result.traces[0].problems) or "it made no call of a LocalChatModel"
        raise PolicyError(
            f"No policy that can be trained acted in the graph ({problems}). Use agentcore.LocalChatModel in a node; "
            "other chat models can act, but hand over no tokens to train on."
        )
    return policies[0]


def load_weights(job: Job, folder: Path) -> None:
    """Put a saved adapter's weights into the adapter being trained."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    with job.policy.engine.using(ADAPTER) as model:
        set_peft_model_state_dict(model, load_file(str(folder / "adapter_model.safetensors")), adapter_name=ADAPTER)
        job.policy.engine.bump(ADAPTER)
