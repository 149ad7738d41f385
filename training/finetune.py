"""``train``: fine-tune the policies in any compiled LangGraph graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
from training.loop import ADAPTER, Job, credit, refuse_heldout, reinforce, run_evaluation
from training.manifest import build_manifest
from training.progress import Reporter
from training.runfolder import RunFolder
from training.updaters import Updaters

Assignment = Literal["shared", "per-node"]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What :func:`train` gives back."""

    before: Evaluation
    after: Evaluation
    adapter: Path
    """The adapter with the best validation success, as a plain peft folder; where several were trained, a folder of
    them with a ``policies.json`` that says whose is whose."""
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
    adapters: Assignment | Mapping[str, str] = "shared",
    folder: str | Path = "runs/train",
    memory: FaissStore | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Run, record, credit and update the policies in any compiled LangGraph graph.

    Args:
        graph: holds at least one ``LocalChatModel``. Those that act are found by running the graph once; all that share
            the first one's engine are trained, and act with what was trained afterwards.
        tasks: of the split ``train``. A graph of your own only needs ``Task(id, "train", seed, instruction)``.
        to_input: (task, episode key) -> the graph's input.
        reward: (trace, final state) -> a number, or components by name. Not needed where an environment rewards.
        declared: the reward components with their ranges; by default one component ``reward`` between 0 and 1.
        validation: tasks that pick the adapter to keep; by default a quarter of ``tasks``, which then do not train.
        adapters: ``shared``: one adapter for all nodes; ``per-node``: one for each policy id (node path); or the
            adapter of each policy id that trains, e.g. ``{"planner": "a", "actor": "a", "memory": "b"}``: the others
            act as before and do not train.
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
    reporter = Reporter(quiet=quiet)
    policies, acting = find_policies(graph, validation[0], to_input, reward, declared, settings.rl, memory)
    assigned = assign(adapters, acting, reporter)
    if not assigned:  # those that act with an adapter of their own go on doing so
        policies = [p for p in policies if p.adapter == policies[0].adapter]
    policy, temperatures = policies[0], [p.temperature for p in policies]
    config = {"kind": "train", "settings": settings.to_json(), "adapters": assigned}
    spec, rewards = (declared, ()) if isinstance(declared, EnvironmentSpec) else (None, declared)
    manifest = build_manifest(engine=policy.engine, spec=spec, rewards=rewards, settings=config, seed=settings.seed)
    run = RunFolder.create(folder, config, manifest)
    names = sorted(set(assigned.values())) or [ADAPTER]
    for name in names:
        create_adapter(policy.engine, name, settings.lora, settings.seed)
    for each in policies:
        each.adapters = assigned
        each.adapter = each.adapter if assigned else ADAPTER
    job = Job(
        graph=graph,
        policy=policy,
        others=policies[1:],
        tasks=tasks,
        validation=validation,
        declared=declared,
        settings=settings,
        folder=run,
        updater=Updaters(policy.engine, names, settings.update),
        assigned=assigned,
        reporter=reporter,
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
    job.load("best")
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
) -> tuple[list[LocalChatModel], list[str]]:
    """The policies that act in ``graph`` and share an engine, found by running one episode, whose rewards are checked;
    and the policy ids of the nodes where they acted.

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
    policies = [p for p in local if p.engine is first.engine]
    model = first.engine.identity.name
    steps = [s for s in result.traces[0].live_steps if s.tokens is not None and s.tokens.model == model]
    return policies, list(dict.fromkeys(s.policy_id for s in steps))


def assign(adapters: Assignment | Mapping[str, str], acting: Sequence[str], reporter: Reporter) -> dict[str, str]:
    """The adapter of each policy id that has one of its own; empty where all share one.

    Raises:
        SpecError: for an unknown way, or a name that can't be an adapter's.
    """
    if adapters == "shared":
        return {}
    if adapters == "per-node":
        return {policy_id: re.sub(r"[^A-Za-z0-9_-]+", "-", policy_id).strip("-") or "node" for policy_id in acting}
    if not isinstance(adapters, Mapping) or not adapters:
        raise SpecError(f"adapters is {adapters!r}; give 'shared', 'per-node', or an adapter for each policy id.")
    for policy_id, name in adapters.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise SpecError(
                f"The adapter name {name!r} (of policy {policy_id!r}) may hold letters, digits, '-' and '_' only."
            )
    silent = [p for p in adapters if p not in acting]
    if silent:
        reporter.warn(
            f"No policy {', '.join(map(repr, silent))} acted in the first episode (those that did: "
            f"{', '.join(map(repr, acting))}); what never acts is never trained."
        )
    return dict(adapters)
