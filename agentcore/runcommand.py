"""``agentcore run``: episodes in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from agentcore.capabilities import CAPABILITIES
from agentcore.environments import make_environment
from agentcore.graph import build_agent
from agentcore.policies.local import LocalChatModel
from agentcore.policies.models import DEFAULT_MODEL
from agentcore.policies.scripted import ExpertPolicy
from agentcore.runner import episodes, rollout
from agentcore.trace import Trace
from agentcore.tracefile import TraceWriter
from memory import FaissStore


def adapter_base(adapter: str | None, model: str | None) -> str:
    """The model to load: as named, else the one the adapter was trained on, else the default."""
    if model is not None or adapter is None:
        return model or DEFAULT_MODEL
    import json

    config = Path(adapter) / "adapter_config.json"
    try:
        return str(json.loads(config.read_text())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError):
        return DEFAULT_MODEL  # loading the adapter says what is wrong with the folder


def load_policy(model: str | None, adapter: str | None, **options: Any) -> LocalChatModel:
    """A local policy with an adapter, if one is named."""
    policy: LocalChatModel = LocalChatModel.load(adapter_base(adapter, model), **options)
    if adapter is not None:
        policy.engine.load_adapter("policy", adapter)
        policy.adapter = "policy"
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
    without: tuple[str, ...],
    out: str | None,
    seed: int,
) -> list[Trace]:
    """Run ``tasks`` episodes and return their traces."""
    env = make_environment(environment, **({"level": level} if environment == "assistant" else {}))
    planned = episodes(env.tasks(split, tasks, seed=seed), seed=seed)
    actor: Any
    if policy == "oracle":
        actor = ExpertPolicy()
        for episode in planned:
            actor.prepare(episode.id, env, episode.task, episode.key)
    else:
        actor = load_policy(model, adapter, temperature=temperature, max_tokens=32)
    graph = build_agent(actor, env, capabilities=[c for c in CAPABILITIES if c not in without])
    traces = rollout(graph, planned, memory=FaissStore(None)).traces
    if out is not None:
        with TraceWriter(out) as writer:
            for trace in traces:
                writer.write(trace)
    return traces


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
