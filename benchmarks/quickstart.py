"""Does reinforcement do it, or would more imitation have done as well?

For each seed: warm start on a fixed set of easy expert traces until the validation loss stops improving; then

* RL: iterations of rollouts and per-step policy gradient on harder training tasks;
* control: the same wall-clock spent on more supervised training on the same easy traces, from the same warm start.

Both pick their adapter by success on the same validation tasks, and are compared on the same held-out tasks, which
are harder than the traces. `rl_minus_control` is the paired difference in success with a 95 % bootstrap interval over
tasks.

    python benchmarks/quickstart.py --seeds 0 1 2 --json quickstart.json
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agentcore.environments import make_environment
from agentcore.graph import build_agent
from agentcore.policies.local import LocalChatModel
from agentcore.tracefile import read_traces
from memory import FaissStore
from training.adapters import create_adapter
from training.evaluate import Evaluation, paired_difference
from training.loop import ADAPTER, Job, reinforce, run_evaluation
from training.manifest import build_manifest
from training.progress import Reporter
from training.quickstart import QuickstartConfig
from training.runfolder import RunFolder
from training.updaters import Updaters
from training.warmstart import Demonstrations, demonstrations, warm_start, write_expert_traces


class Arm:
    """One seed's policy, tasks and folder; the arms share them."""

    def __init__(self, seed: int, options: argparse.Namespace, root: Path, reporter: Reporter) -> None:
        config = QuickstartConfig()
        self.options = options
        self.reporter = reporter
        rl = replace(config.settings.rl, iterations=options.iterations)
        sft = replace(config.settings.sft, steps=options.warm_steps, patience=2)
        self.settings = replace(config.settings, seed=seed, rl=rl, sft=sft)
        self.policy: LocalChatModel = LocalChatModel.load(options.model or config.model, max_tokens=config.max_tokens)
        self.easy = make_environment("assistant", level=config.expert_level, step_limit=config.step_limit)
        self.hard = make_environment("assistant", level=options.level, step_limit=config.step_limit)
        as_json = {"kind": "benchmark", "level": options.level, "settings": self.settings.to_json()}
        manifest = build_manifest(engine=self.policy.engine, spec=self.hard.spec, settings=as_json, seed=seed)
        self.folder = RunFolder.create(root / f"seed-{seed}", as_json, manifest)
        create_adapter(self.policy.engine, ADAPTER, self.settings.lora, seed)
        self.updater = Updaters(self.policy.engine, [ADAPTER], self.settings.update)
        self.job = Job(
            graph=build_agent(self.policy, self.hard),
            policy=self.policy,
            tasks=self.hard.tasks("train", config.train_tasks),
            validation=self.hard.tasks("heldout", options.validation_tasks, seed=1),
            declared=self.hard.spec,
            settings=self.settings,
            folder=self.folder,
            updater=self.updater,
            reporter=reporter,
            memory=FaissStore(None),
        )
        self.config = config

    def demonstrations(self) -> Demonstrations:
        """The fixed traces: the same for every seed."""
        path = self.folder.path / "traces" / "expert.jsonl"
        write_expert_traces(self.easy, self.config.expert_traces, path, seed=0, tool_format=self.policy.tool_format)
        return demonstrations(read_traces(path)[0], self.policy)

    def evaluate(self, stage: str) -> dict[str, Evaluation]:
        """Held-out and adversarial success on an empty memory."""
        self.policy.temperature = 0.0
        memory, self.job.memory = self.job.memory, FaissStore(None)
        results = {}
        for split, count in (("heldout", self.options.tasks), ("adversarial", self.options.adversarial_tasks)):
            tasks = self.hard.tasks(split, count)  # type: ignore[arg-type]
            results[split] = run_evaluation(self.job, tasks, stage)
            self.folder.evaluation(results[split].to_json())
            self.reporter.say(f"  {stage} {split}: {results[split].success:.1%} of {results[split].episodes}")
        self.job.memory = memory
        return results

    def validate(self) -> float:
        self.policy.temperature = 0.0
        return run_evaluation(self.job, self.job.validation, "control-validation", seed=1).success


def run_seed(seed: int, options: argparse.Namespace, root: Path, reporter: Reporter) -> dict[str, Any]:
    """All arms of one seed."""
    reporter.say(f"seed {seed}")
    arm = Arm(seed, options, root, reporter)
    arm.policy.adapter = ADAPTER
    data = arm.demonstrations()
    steps = warm_start(
        arm.updater,
        data,
        arm.settings.sft,
        seed=seed,
        on_step=lambda step, stats, loss: arm.folder.metric(
            {"stage": "sft", "step": step, "validation_loss": loss, **stats}
        ),
    )
    arm.job.save("warm-start")
    results = {"warm_start": arm.evaluate("warm start")}

    started = time.time()
    reinforce(arm.job)
    rl_seconds = time.time() - started
    results["rl_last"] = arm.evaluate("RL last")
    arm.job.load("best")
    results["rl"] = arm.evaluate("RL peak")

    control_steps = control(arm, data, rl_seconds, seed)
    results["control"] = arm.evaluate("control")
    difference = paired_difference(results["rl"]["heldout"].by_task, results["control"]["heldout"].by_task)
    last = paired_difference(results["rl_last"]["heldout"].by_task, results["control"]["heldout"].by_task)
    reporter.say(
        f"seed {seed}: RL - control = {difference[0]:+.1%} [{difference[1]:+.1%}, {difference[2]:+.1%}] "
        f"after {rl_seconds:.0f} s each"
    )
    return {
        "seed": seed,
        "warm_start_steps": steps,
        "rl_seconds": round(rl_seconds, 1),
        "control_steps": control_steps,
        "rl_minus_control": difference,
        "rl_last_minus_control": last,
        "history": arm.job.history,
        "results": {name: {s: asdict(e) for s, e in r.items()} for name, r in results.items()},
        "manifest": arm.folder.manifest,
    }


def control(arm: Arm, data: Demonstrations, seconds: float, seed: int) -> int:
    """More imitation for the same wall-clock; of start, middle and end the best on the validation tasks is kept."""
    arm.job.load("warm-start")
    started = time.time()
    candidates = [(arm.validate(), "warm-start")]
    sft = replace(arm.settings.sft, steps=1_000_000, patience=0, validate_every=1_000_000)
    steps = 0
    for part, name in ((0.5, "control-middle"), (1.0, "control-last")):
        deadline = started + seconds * part
        steps = warm_start(
            arm.updater, data, sft, seed=seed + 1000, start=steps, stop=lambda _, d=deadline: time.time() >= d
        )
        candidates.append((arm.validate(), name))
        arm.job.save(name)
    best = max(candidates, key=lambda c: c[0])
    arm.reporter.say(f"  control: validation {', '.join(f'{n} {v:.0%}' for v, n in candidates)}")
    arm.job.load(best[1])
    return steps


def base_model(options: argparse.Namespace, root: Path, reporter: Reporter) -> dict[str, Any]:
    """The untrained model on some held-out tasks (it is slow, and the same for all seeds)."""
    arm = Arm(-1, options, root, reporter)
    arm.policy.temperature = 0.0
    result = run_evaluation(arm.job, arm.hard.tasks("heldout", options.base_tasks), "base")
    reporter.say(f"base heldout: {result.success:.1%} of {result.episodes}")
    return asdict(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--level", default=QuickstartConfig().level)
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks")
    parser.add_argument("--adversarial-tasks", type=int, default=32)
    parser.add_argument("--validation-tasks", type=int, default=32)
    parser.add_argument("--base-tasks", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=QuickstartConfig().settings.rl.iterations)
    parser.add_argument("--warm-steps", type=int, default=40, help="at most; it stops when validation does")
    parser.add_argument("--model", default=None)
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmark"))
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    reporter = Reporter()
    root = options.runs / time.strftime("%Y%m%d-%H%M%S")
    output: dict[str, Any] = {"level": options.level, "seeds": []}
    if options.base_tasks:
        output["base"] = base_model(options, root, reporter)
    for seed in options.seeds:
        output["seeds"].append(run_seed(seed, options, root, reporter))
        if options.json is not None:  # after every seed: an interrupted benchmark keeps what it measured
            options.json.write_text(json.dumps(output, indent=1, default=str))
    print(table(output))


def table(output: dict[str, Any]) -> str:
    """One row per seed."""
    lines = ["seed  warm   control  RL peak  RL last  RL - control (95 %)          adversarial warm/control/RL"]
    for s in output["seeds"]:
        h = {k: v["heldout"]["success"] for k, v in s["results"].items()}
        a = {k: v["adversarial"]["success"] for k, v in s["results"].items()}
        d, low, high = s["rl_minus_control"]
        lines.append(
            f"{s['seed']:<5} {h['warm_start']:<6.0%} {h['control']:<8.0%} {h['rl']:<8.0%} {h['rl_last']:<8.0%} "
            f"{d:+.1%} [{low:+.1%}, {high:+.1%}]   {a['warm_start']:.0%}/{a['control']:.0%}/{a['rl']:.0%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
