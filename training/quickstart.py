"""The main job: an agent graph that gets better from its own traces.

base model -> evaluate -> imitate a few logged expert traces of easy tasks -> evaluate -> reinforce on harder tasks
with per-step rewards and advantages -> evaluate -> report.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentcore.environment import Environment, Split
from agentcore.environments import make_environment
from agentcore.graph import build_agent
from agentcore.policies.local import LocalChatModel
from agentcore.policies.models import DEFAULT_MODEL
from agentcore.tracefile import read_traces
from memory import FaissStore
from training.adapters import create_adapter, save_adapter
from training.config import RlSettings, SftSettings, TrainSettings, check_trainable
from training.manifest import build_manifest
from training.progress import Reporter
from training.runfolder import RunFolder
from training.summary import next_steps, write_report
from training.train import ADAPTER, Job, load_weights, reinforce, run_evaluation
from training.update import Stats, Updater
from training.warmstart import demonstrations, warm_start, write_expert_traces


def _settings() -> TrainSettings:
    return TrainSettings(
        sft=SftSettings(steps=16, validate_every=4),
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
    step_limit: int = 8
    expert_traces: int = 56
    train_tasks: int = 400
    validation_tasks: int = 24
    heldout_tasks: int = 64
    base_tasks: int = 12
    """Held-out tasks for the untrained model, which is slow: it writes as much as it may, in every step."""
    adversarial_tasks: int = 24
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
        as_json: dict[str, Any] = {"kind": "quickstart", **asdict(config)}
        resumed = resume and (path / "config.json").exists()
        if resumed:
            self.folder = RunFolder.resume(path, as_json)
        elif (path / "config.json").exists():
            RunFolder.create(path, as_json, {})  # raises: says how to go on
        reporter.say(f"Loading {config.model} …")
        self.policy: LocalChatModel = LocalChatModel.load(
            config.model, dtype=config.dtype, max_tokens=config.max_tokens
        )
        self.easy = environment_of(config, config.expert_level)
        self.hard = environment_of(config, config.level)
        check_trainable(self.hard.spec)
        if not resumed:
            manifest = build_manifest(
                engine=self.policy.engine, spec=self.hard.spec, settings=as_json, seed=config.settings.seed
            )
            self.folder = RunFolder.create(path, as_json, manifest)
        create_adapter(self.policy.engine, ADAPTER, config.settings.lora, config.settings.seed)
        self.updater = Updater(self.policy.engine, ADAPTER, config.settings.update)
        self.job = self._job(self.hard)

    def _job(self, environment: Environment) -> Job:
        c = self.config
        self.memory = FaissStore(self.folder.path / "memory")
        return Job(
            graph=build_agent(self.policy, environment),
            policy=self.policy,
            tasks=environment.tasks("train", c.train_tasks),
            validation=environment.tasks("heldout", c.validation_tasks, seed=1),
            declared=environment.spec,
            settings=c.settings,
            folder=self.folder,
            updater=self.updater,
            reporter=self.reporter,
            memory=self.memory,
        )

    def run(self) -> dict[str, Any]:
        """All stages; returns the figures."""
        place = self.folder.place()
        if place is not None:
            self.folder.restore(self.policy.engine, self.updater)
            self.reporter.say(f"Resuming after {_where(place)}.")
        # adapters are compared on one memory: the empty one, before training episodes wrote to it
        self.clean = FaissStore(None)
        self.policy.adapter = None
        self._evaluate("base", "heldout", self.config.base_tasks)
        self.policy.adapter = ADAPTER
        self._warm_start(place)
        self._reinforce()
        result = self._finish()
        self.memory.close()
        return result

    # -- stages ---------------------------------------------------------------------------------------------

    def _evaluate(self, stage: str, split: Split, count: int) -> None:
        if count == 0 or any((e["stage"], e["split"]) == (stage, split) for e in self.folder.evaluations()):
            return
        self.policy.temperature = 0.0
        memory, self.job.memory = self.job.memory, self.clean
        try:
            result = run_evaluation(self.job, self.hard.tasks(split, count), stage)
        finally:
            self.job.memory = memory
        self.folder.evaluation(result.to_json())
        self.reporter.say(
            f"{stage}: {split} success {result.success:.0%} [{result.low:.0%}, {result.high:.0%}] "
            f"on {result.episodes} tasks"
        )

    def _warm_start(self, place: Mapping[str, Any] | None) -> None:
        s = self.config.settings
        if place is None or place["stage"] == "sft":
            path = Path(self.config.traces or self.folder.path / "traces" / "expert.jsonl")
            if self.config.traces is None and not path.exists():
                write_expert_traces(
                    self.easy, self.config.expert_traces, path, seed=s.seed, tool_format=self.policy.tool_format
                )
            traces, problems = read_traces(path)
            for problem in problems:
                self.reporter.warn(problem)
            data = demonstrations(traces, self.policy)
            start = place["step"] if place is not None else 0
            self.reporter.say(f"Warm start on {len(data.train)} logged traces ({path}).")
            with self.reporter.bar("warm start", s.sft.steps - start) as advance:

                def on_step(step: int, stats: Stats, loss: float | None) -> None:
                    self.folder.metric({"stage": "sft", "step": step, "validation_loss": loss, **stats})
                    advance(1)
                    if loss is not None:
                        self.folder.checkpoint(self.policy.engine, self.updater, {"stage": "sft", "step": step})

                warm_start(self.updater, data, s.sft, seed=s.seed, start=start, on_step=on_step)
            engine, folder = self.policy.engine, self.folder
            save_adapter(engine, ADAPTER, folder.path / "adapters" / "warm-start", folder.manifest)
            folder.checkpoint(engine, self.updater, {"stage": "warm", "step": s.sft.steps})
        if place is None or place["stage"] in ("sft", "warm"):
            self._evaluate("warm start", "heldout", self.config.heldout_tasks)
            self._evaluate("warm start", "adversarial", self.config.adversarial_tasks)

    def _reinforce(self) -> None:
        s = self.config.settings.rl
        if s.iterations == 0:
            shutil.copytree(self.folder.path / "adapters" / "warm-start", self.folder.path / "adapters" / "best")
            return
        self.reporter.say(
            f"Reinforcement on {self.config.level} tasks: {s.iterations} iterations of {s.tasks} tasks x "
            f"{s.group_size} rollouts, credit by {s.estimator}."
        )
        reinforce(self.job)

    def _finish(self) -> dict[str, Any]:
        if self.config.settings.rl.iterations:
            load_weights(self.job, self.folder.path / "adapters" / "best")
            self._evaluate("after RL", "heldout", self.config.heldout_tasks)
            self._evaluate("after RL", "adversarial", self.config.adversarial_tasks)
        shutil.copytree(self.folder.path / "adapters" / "best", self.folder.path / "adapter", dirs_exist_ok=True)
        report = write_report(self.folder, self.hard.spec, self.config.settings)
        figures = self.folder.evaluations()
        return {
            "run": str(self.folder.path),
            "adapter": str(self.folder.path / "adapter"),
            "report": str(report),
            "seconds": round(time.time() - self.started, 1),
            "evaluations": [{k: v for k, v in e.items() if k != "by_task"} for e in figures],
            "next": next_steps(self.folder),
        }


def _where(place: Mapping[str, Any]) -> str:
    if place["stage"] == "rl":
        return f"iteration {place['iteration']} of reinforcement"
    return f"step {place['step']} of the warm start"


