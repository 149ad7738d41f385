"""Small traces, written down by hand, for the tests of rewards and credit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentcore.environment import Outcome, RewardSpec, Task, ToolCall
from agentcore.trace import NodeRun, Reward, Step, Trace

DECLARED = (
    RewardSpec("score", -100.0, 100.0, "how well the task was done"),
    RewardSpec("progress", -10.0, 10.0, "a step's own worth", kind="progress", weight=0.5),
    RewardSpec("call_ok", -10.0, 10.0, "a tool call's own worth", kind="penalty", weight=2.0),
)


def task(name: str = "t") -> Task:
    return Task(name, "train", 0, "do it")


def step(
    id: str,
    run: str | None = None,
    *,
    policy: str = "p",
    ordinal: int = 0,
    anchor: str | None = None,
    reply: str = "",
    calls: Sequence[str] = (),
    superseded: bool = False,
    started: float = 0.0,
) -> Step:
    return Step(
        id,
        ("thread", run or "", ordinal),
        run,
        policy,
        (),
        reply,
        calls=tuple(ToolCall(c, "tool") for c in calls),
        anchor=anchor,
        superseded=superseded,
        started=started,
    )


def line(
    id: str,
    rewards: Sequence[float | None],
    *,
    of: str = "t",
    policy: str | Sequence[str] = "p",
    anchors: Sequence[str] | None = None,
    replies: Sequence[str] | None = None,
    outcome: Outcome = "terminated",
) -> tuple[Trace, dict[str, float | None]]:
    """A trace without node runs (a line) with steps ``id.0``, ``id.1``, …, and its rewards per step."""
    size = len(rewards)
    policies = [policy] * size if isinstance(policy, str) else list(policy)
    steps = tuple(
        step(
            f"{id}.{k}",
            policy=policies[k],
            ordinal=k,
            anchor=anchors[k] if anchors else f"s{k}",
            reply=replies[k] if replies else f"a{k}",
        )
        for k in range(size)
    )
    return Trace(id, task(of), outcome, steps), {s.id: r for s, r in zip(steps, rewards, strict=True)}


def lines(*rewards: Sequence[float | None], **options: str) -> tuple[list[Trace], dict[str, float | None]]:
    """A group of lines called a, b, c, … with these rewards."""
    traces, merged = [], {}
    for name, values in zip("abcdefghijklmnop", rewards, strict=False):
        trace, given = line(options.get("prefix", "") + name, values, of=options.get("of", "t"))
        traces.append(trace)
        merged |= given
    return traces, merged


def graph(
    id: str,
    runs: Mapping[str, Sequence[str]],
    *,
    data: Mapping[str, Sequence[str]] | None = None,
    silent: Sequence[str] = (),
    policies: Mapping[str, str] | None = None,
    rewards: Sequence[Reward] = (),
) -> Trace:
    """A trace whose node runs have these control parents (and ``data`` parents), one step each, of the same name.

    Names are prefixed with ``id`` and a dot. Runs in ``silent`` make no model call.
    """
    level: dict[str, int] = {}
    for name, parents in runs.items():
        level[name] = max((level[p] + 1 for p in parents), default=0)
    node_runs = tuple(
        NodeRun(
            f"{id}.run.{name}",
            name,
            f"{name}:{id}",
            level[name],
            tuple(f"{id}.run.{p}" for p in parents),
            tuple(f"{id}.run.{p}" for p in (data or {}).get(name, ())),
        )
        for name, parents in runs.items()
    )
    steps = tuple(
        step(f"{id}.{name}", f"{id}.run.{name}", policy=(policies or {}).get(name, name), anchor=name)
        for name in runs
        if name not in silent
    )
    return Trace(id, task(), "terminated", steps, node_runs, tuple(rewards))
