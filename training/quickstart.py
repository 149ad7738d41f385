"""The main job: an agent graph that gets better from its own traces.

base model -> evaluate -> imitate a few logged expert traces of easy tasks -> evaluate -> reinforce on harder tasks
with per-step rewards and advantages -> evaluate -> report.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentcore.environment import Environment, Split
from agentcore.environments import make_environment
from agentcore.graph import build_agent
from agentcore.policies.local import LocalChatModel
from agentcore.policies.models import DEFAULT_MODEL
from agentcore.tracefile import read_traces
from memory import FaissStore
from training.adapters import create_adapter
from training.config import RlSettings, SftSettings, TrainSettings, check_trainable
from training.files import copy_in_place
from training.loop import ADAPTER, Job, reinforce, run_evaluation
from training.manifest import build_manifest
from training.progress import Reporter
from training.runfolder import RunFolder
from training.summary import next_steps, write_report
from training.update import Stats
from training.updaters import Updaters
from training.warmstart import demonstrations, warm_start, write_expert_traces


def _settings() -> TrainSettings:
    return TrainSettings(
        sft=SftSettings(steps=20, validate_every=4),
        rl=RlSettings(iterations=6, validate_every=2),
    )


@dataclass(frozen=True, slots=True)
class QuickstartConfig:
    """What the main job runs on."""

    model: str = DEFAULT_MODEL
    """The default, a Hugging Face name or a local folder."""
    dtype: str = "float32"
    environment: str = "assistant"
    traces: str | None = None
    """A trace file to warm-start from; None logs traces of the environment's oracle on the expert level."""
    expert_level: str = "easy"
    level: str = "medium"
    """Levels of the assistant environment: the expert traces', and that of training and evaluation."""
    planner: bool = False
    """The policy also writes the plan, in a node of its own (policy id ``planning``)."""
    adapters: Literal["shared", "per-node"] = "shared"
    """One adapter for all nodes, or one for each."""
    step_limit: int = 8
    expert_traces: int = 56
    train_tasks: int = 400
    validation_tasks: int = 32
    heldout_tasks: int = 48
    base_tasks: int = 6
    """Held-out tasks for the untrained model, which is slow: it writes as much as it may, in every step."""
    adversarial_tasks: int = 12
    max_tokens: int = 24
    settings: TrainSettings = field(default_factory=_settings)


def environment_of(config: QuickstartConfig, level: str) -> Environment:
    """The configured environment; levels are the assistant environment's."""
    if config.environment == "assistant":
        return make_environment("assistant", level=level, step_limit=config.step_limit)
    return make_environment(config.environment)


class Quickstart:
    """One run; each stage is skipped if an earlier, interrupted run has already finished it."""

    def __init__(self, config: QuickstartConfig, path: Path, *, resume: bool, reporter: Reporter) -> None:
        self.config = config
        self.reporter = reporter
        self.started = time.time()
        self.easy = environment_of(config, config.expert_level)
        self.hard = environment_of(config, config.level)
        check_trainable(self.hard.spec)
        as_json: dict[str, Any] = {"kind": "quickstart", **asdict(config)}
        if resume:
            self.folder = RunFolder.resume(path, as_json)
        else:
            RunFolder.refuse_existing(path)  # before a model is loaded
        reporter.say(f"Loading {config.model} …")
        self.policy: LocalChatModel = LocalChatModel.load(
            config.model, dtype=config.dtype, max_tokens=config.max_tokens
        )
        if not resume:
            manifest = build_manifest(
                engine=self.policy.engine, spec=self.hard.spec, settings=as_json, seed=config.settings.seed
            )
            self.folder = RunFolder.create(path, as_json, manifest)
        nodes = ["planning", "reasoning"] if config.planner else ["reasoning"]
        self.assigned = {node: node for node in nodes} if config.adapters == "per-node" else {}
        names = list(self.assigned.values()) or [ADAPTER]
        for name in names:
            create_adapter(self.policy.engine, name, config.settings.lora, config.settings.seed)
        self.updater = Updaters(self.policy.engine, names, config.settings.update)
        self.job = self._job(self.hard)

    def _job(self, environment: Environment) -> Job:
        c = self.config
        return Job(
            graph=build_agent(self.policy, environment, planner=self.policy if c.planner else None),
            policy=self.policy,
            tasks=environment.tasks("train", c.train_tasks),
            validation=environment.tasks("heldout", c.validation_tasks, seed=1),
            declared=environment.spec,
            settings=c.settings,
            folder=self.folder,
            updater=self.updater,
            assigned=self.assigned,
            reporter=self.reporter,
            memory=self.folder.memory(),
            evaluation_memory=FaissStore(None),  # empty, as before training episodes wrote to it
        )

    def run(self) -> dict[str, Any]:
        """All stages; returns the figures. An interrupted run leaves its best adapter and a report of what there is."""
        try:
            place = self.folder.place()
            if place is not None:
                self.folder.restore(self.policy.engine, self.updater)
                self.reporter.say(f"Resuming after {_where(place)}.")
            self.policy.adapter = None
            self._evaluate("base", "heldout", self.config.base_tasks)
            self._act_with_adapters()
            self._warm_start(place)
            self._reinforce()
            return self._finish()
        except KeyboardInterrupt:
            self.folder.publish()
            write_report(self.folder)
            raise
        finally:
            if self.job.memory is not None:
                self.job.memory.close()
            self.folder.close()

    def _act_with_adapters(self) -> None:
        self.policy.adapters.update(self.assigned)
        self.policy.adapter = None if self.assigned else ADAPTER

    # -- stages ---------------------------------------------------------------------------------------------

    def _evaluate(self, stage: str, split: Split, count: int) -> None:
        if count == 0 or any((e["stage"], e["split"]) == (stage, split) for e in self.folder.evaluations()):
            return
        self.job.act(temperature=0.0)
        result = run_evaluation(self.job, self.hard.tasks(split, count), stage)
        self.folder.evaluation(result.to_json())
        self.reporter.say(
            f"{stage}: {split} success {result.success:.0%} [{result.low:.0%}, {result.high:.0%}] "
            f"on {result.episodes} tasks"
        )

    def _warm_start(self, place: Mapping[str, Any] | None) -> None:
        if place is None or place["stage"] == "sft":
            step = self._imitate(place["step"] if place is not None else 0)
            self.job.save("warm-start")
            self._checkpoint({"stage": "warm", "step": step})
        if place is None or place["stage"] in ("sft", "warm"):
            self._evaluate("warm start", "heldout", self.config.heldout_tasks)
            self._evaluate("warm start", "adversarial", self.config.adversarial_tasks)

    def _imitate(self, start: int) -> int:
        """Supervised steps after step ``start``; returns the last one's number."""
        s = self.config.settings
        path = Path(self.config.traces or self.folder.path / "traces" / "expert.jsonl")
        if self.config.traces is None and not path.exists():
            write_expert_traces(
                self.easy,
                self.config.expert_traces,
                path,
                seed=s.seed,
                tool_format=self.policy.tool_format,
                planner=self.config.planner,
            )
        traces, problems = read_traces(path)
        for problem in problems:
            self.reporter.warn(problem)
        data = demonstrations(traces, self.policy)
        losses = [m["validation_loss"] for m in self.folder.metrics() if m.get("validation_loss") is not None]
        self.reporter.say(f"Warm start on {len(data.train)} logged traces ({path}).")
        with self.reporter.bar("warm start", s.sft.steps - start) as advance:

            def on_step(step: int, stats: Stats, loss: float | None) -> None:
                self.folder.metric({"stage": "sft", "step": step, "validation_loss": loss, **stats})
                advance(1)
                if loss is not None:
                    self._checkpoint({"stage": "sft", "step": step})

            return warm_start(self.updater, data, s.sft, seed=s.seed, start=start, losses=losses, on_step=on_step)

    def _checkpoint(self, place: Mapping[str, Any]) -> None:
        self.folder.checkpoint(self.policy.engine, self.updater, place, assigned=self.assigned)

    def _reinforce(self) -> None:
        s = self.config.settings.rl
        if s.iterations == 0:
            adapters = self.folder.path / "adapters"
            copy_in_place(adapters / "warm-start", adapters / "best")
            return
        self.reporter.say(
            f"Reinforcement on {self.config.level} tasks: {s.iterations} iterations of {s.tasks} tasks x "
            f"{s.group_size} rollouts, credit by {s.estimator}."
        )
        reinforce(self.job)

    def _finish(self) -> dict[str, Any]:
        if self.config.settings.rl.iterations:
            self.job.load("best")
            self._evaluate("after RL", "heldout", self.config.heldout_tasks)
            self._evaluate("after RL", "adversarial", self.config.adversarial_tasks)
        adapter = self.folder.publish()
        report = write_report(self.folder)
        figures = self.folder.evaluations()
        return {
            "run": str(self.folder.path),
            "adapter": str(adapter),
            "report": str(report),
            "seconds": round(time.time() - self.started, 1),
            "evaluations": [{k: v for k, v in e.items() if k != "by_task"} for e in figures],
            "next": next_steps(self.folder),
        }


def _where(place: Mapping[str, Any]) -> str:
    if place["stage"] == "rl":
        return f"iteration {place['iteration']} of reinforcement"
    return f"step {place['step']} of the warm start"
