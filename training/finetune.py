"""``train``: fine-tune the policies in any compiled LangGraph graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.pregel import Pregel

from agentcore.environment import EnvironmentSpec, RewardSpec, Task
from agentcore.environment_node import agent_input
from agentcore.errors import PolicyError, SpecError
from agentcore.policies.local import LocalChatModel
from agentcore.runner import ToInput, TraceReward, episodes, rollout
from memory import FaissStore
from training.adapters import create_adapter
from training.config import RlSettings, TrainSettings, check_trainable
from training.evaluate import Evaluation
from training.loop import ADAPTER, Job, credit, load_weights, refuse_heldout, reinforce, run_evaluation
from training.manifest import build_manifest
from training.progress import Reporter
from training.runfolder import RunFolder
from training.update import Updater


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
    """Run, record, credit and update the policies in any compiled LangGraph graph.

    Args:
        graph: holds at least one ``LocalChatModel``. Those that act are found by running the graph once; all that share
            the first one's engine share the adapter that is trained, and act with it afterwards.
        tasks: of the split ``train``. A graph of your own only needs ``Task(id, "train", seed, instruction)``.
        to_input: (task, episode key) -> the graph's input.
        reward: (trace, final state) -> a number, or components by name. Not needed where an environment rewards.
        declared: the reward components with their ranges; by default one component ``reward`` between 0 and 1.
        validation: tasks that pick the adapter to keep; by default a quarter of ``tasks``, which then do not train.
        folder: where traces, metrics and adapters go; an earlier run is not overwritten.
        memory: episodes read it and training episodes add to it.

    Raises:
        PolicyError: if no policy that can be trained acted in the graph.
        SpecError: if a held-out task was given for training, no outcome is declared, or a reward is not as declared.
        RunFolderError: if the folder holds a run already.
    """
    settings = settings or TrainSettings()
    declared = declared if declared is not None else (RewardSpec("reward", 0.0, 1.0, "what the reward function gives"),)
    _check_outcome(declared)
    tasks, validation = _split(tasks, validation)
    policies = find_policies(graph, validation[0], to_input, reward, declared, settings.rl, memory)
    policy, temperatures = policies[0], [p.temperature for p in policies]
    config = {"kind": "train", "settings": settings.to_json()}
    spec, rewards = (declared, ()) if isinstance(declared, EnvironmentSpec) else (None, declared)
    manifest = build_manifest(engine=policy.engine, spec=spec, rewards=rewards, settings=config, seed=settings.seed)
    run = RunFolder.create(folder, config, manifest)
    create_adapter(policy.engine, ADAPTER, settings.lora, settings.seed)
    for each in policies:
        each.adapter = ADAPTER
    job = Job(
        graph=graph,
        policy=policy,
        others=policies[1:],
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
    )
    try:
        before, after = _before_and_after(job)
    finally:
        for each, temperature in zip(policies, temperatures, strict=True):
            each.temperature = temperature
        adapter = run.publish()
    return TrainResult(before, after, adapter or run.path / "adapter", run.path)


def _before_and_after(job: Job) -> tuple[Evaluation, Evaluation]:
    """Evaluate, reinforce, and evaluate the adapter that was best."""
    job.act(temperature=0.0)
    before = run_evaluation(job, job.validation, "before")
    job.folder.evaluation(before.to_json())
    reinforce(job)
    load_weights(job, job.folder.path / "adapters" / "best")
    job.act(temperature=0.0)
    after = run_evaluation(job, job.validation, "after")
    job.folder.evaluation(after.to_json())
    return before, after


def _check_outcome(declared: EnvironmentSpec | Sequence[RewardSpec]) -> None:
    if isinstance(declared, EnvironmentSpec):
        check_trainable(declared)
    elif not any(r.kind == "outcome" for r in declared):
        raise SpecError(
            "No reward component of kind 'outcome' is declared. Say which component judges the episode; progress and "
            "penalties alone reward trying, not succeeding."
        )


def _split(tasks: Sequence[Task], validation: Sequence[Task] | None) -> tuple[Sequence[Task], Sequence[Task]]:
    """Tasks to train on and tasks to validate on, checked."""
    refuse_heldout(tasks)
    if validation is None:
        if len(tasks) < 2:
            raise SpecError("One task can't both train and validate; give at least two, or validation=[…].")
        cut = max(1, len(tasks) // 4)
        return tasks[cut:], tasks[:cut]
    if not validation:
        raise SpecError("validation is empty; give the tasks that pick the adapter to keep, or leave it out.")
    both = {t.id for t in tasks} & {t.id for t in validation}
    if both:
        raise SpecError(
            f"{len(both)} tasks are given for training and for validation ({min(both)!r}); keep them apart."
        )
    return tasks, validation


def find_policies(
    graph: Pregel[Any, Any, Any, Any],
    task: Task,
    to_input: ToInput,
    reward: TraceReward | None,
    declared: EnvironmentSpec | Sequence[RewardSpec],
    settings: RlSettings,
    memory: FaissStore | None = None,
) -> list[LocalChatModel]:
    """The policies that act in ``graph`` and share an engine, found by running one episode, whose rewards are checked.

    Raises:
        PolicyError: if none acted.
        SpecError: if the rewards are not as declared.
    """
    planned = episodes([task], purpose="probe")
    result = rollout(graph, planned, to_input=to_input, reward=reward, memory=memory)
    local = [p for p in result.policies if isinstance(p, LocalChatModel)]
    if not local:
        problems = " ".join("; ".join(result.traces[0].problems).split()) or "it made no call of a LocalChatModel"
        raise PolicyError(
            f"No policy that can be trained acted in the graph ({problems}). Use agentcore.LocalChatModel in a node; "
            "other chat models can act, but hand over no tokens to train on."
        )
    credit(result.traces, declared, settings)
    first = local[0]
    return [p for p in local if p.engine is first.engine and p.adapter == first.adapter]
