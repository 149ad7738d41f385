"""``agentcore run``: episodes in the terminal."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from agentcore.capabilities import CAPABILITIES
from agentcore.environments import make_environment
from agentcore.errors import SpecError
from agentcore.graph import build_agent
from agentcore.policies.local import LocalChatModel
from agentcore.policies.lora import read_adapter_config, read_policies
from agentcore.policies.models import DEFAULT_MODEL
from agentcore.policies.scripted import ExpertPolicy
from agentcore.runner import episodes, rollout
from agentcore.trace import Trace
from agentcore.tracefile import TraceWriter
from memory import FaissStore


def load_policy(model: str | None, adapter: str | None, **options: Any) -> LocalChatModel:
    """A local policy, with an adapter (or a folder of several) if one is named, on ``model``, else the adapter's
    model, else the default."""
    if adapter is None:
        return LocalChatModel.load(model or DEFAULT_MODEL, **options)
    assigned = read_policies(Path(adapter))
    folders = {name: Path(adapter) / name for name in assigned.values()} or {"policy": Path(adapter)}
    configs = [read_adapter_config(f) for f in folders.values()]  # a wrong folder is said before a model is loaded
    base = model or configs[0].base_model_name_or_path or DEFAULT_MODEL
    policy: LocalChatModel = LocalChatModel.load(base, **options)
    for name, folder in folders.items():
        policy.engine.load_adapter(name, folder)
    policy.adapters = assigned
    policy.adapter = None if assigned else "policy"
    return policy


def run_episodes(
    *,
    environment: str,
    level: str,
    split: Any,
    tasks: int,
    model: str | None,
    adapter: str | None,
    policy: str,
    temperature: float,
    planner: bool,
    without: tuple[str, ...],
    out: str | None,
    seed: int,
) -> list[Trace]:
    """Run ``tasks`` episodes and return their traces.

    Raises:
        SpecError: for an unknown environment, level or capability.
    """
    unknown = set(without) - set(CAPABILITIES)
    if unknown:
        raise SpecError(f"Unknown capability {min(unknown)!r}; choose from {', '.join(CAPABILITIES)}.")
    env = make_environment(environment, **({"level": level} if environment == "assistant" else {}))
    planned = episodes(env.tasks(split, tasks, seed=seed), seed=seed)
    # a file that can't be written to is said before the work is done
    writing = TraceWriter(out) if out is not None else nullcontext()
    actor: Any
    if policy == "oracle":
        actor = ExpertPolicy()
        for episode in planned:
            actor.prepare(episode.id, env, episode.task, episode.key)
    else:
        actor = load_policy(model, adapter, temperature=temperature, max_tokens=32)
    planner = planner or "planning" in getattr(actor, "adapters", {})
    on = [c for c in CAPABILITIES if c not in without]
    graph = build_agent(actor, env, planner=actor if planner else None, capabilities=on)
    with writing as writer:
        return rollout(graph, planned, memory=FaissStore(None), on_trace=writer.write if writer else None).traces


def show(trace: Trace) -> None:
    """One episode: what was shown, what was done, what it earned. Everything is printed as text, never as markup."""
    console = Console(highlight=False)
    console.print(Text(f"Task {trace.task.id}: {_clean(trace.task.instruction)}", style="bold"))
    for number, step in enumerate(trace.live_steps, start=1):
        console.print(Text(f"step {number}", style="cyan"))
        console.print(Text(_indent(str(step.messages[-1].get("content", "")))))
        console.print(Text(f"  > {_clean(step.reply)}", style="green"))
        earned = ", ".join(f"{r.component} {r.value:+.2f}" for r in trace.rewards_of_step(step) if r.value)
        if earned:
            console.print(Text(f"  earned: {earned}", style="magenta"))
    totals = ", ".join(f"{k} {v:+.2f}" for k, v in trace.component_totals().items())
    console.print(Text(f"{trace.outcome}; {totals or 'no reward'}\n", style="bold"))
    for problem in trace.problems:
        console.print(Text(f"problem: {_clean(problem)}", style="red"))


def _indent(text: str) -> str:
    return "\n".join(f"    {_clean(line)}" for line in text.splitlines())


def _clean(text: str) -> str:
    """Control characters (terminal escapes among them) made visible."""
    return "".join(ch if ch.isprintable() or ch == "\n" else f"\\x{ord(ch):02x}" for ch in text)
