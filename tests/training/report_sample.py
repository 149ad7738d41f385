"""Made-up report data, for tests of the page only: nothing here was measured."""

from __future__ import annotations

import math

from agentcore.environment import Task, ToolCall, ToolResult
from agentcore.trace import NodeRun, Reward, Step, Tokens, Trace
from training.report import Curve, Figure, ReportData, TraceView

PROMPT = (
    {"role": "system", "content": "You are an assistant. Tools: lookup, compute, answer."},
    {"role": "user", "content": "Belief:\n- a lamp costs 12 (message 1)\n\nHow much are a lamp and a chair together?"},
)


def tokens(prompt: int, reply: int, *, cut: bool = False) -> Tokens:
    ids = tuple(range(reply))
    return Tokens(
        prompt_ids=tuple(range(prompt)),
        reply_ids=ids,
        logprobs=tuple(-0.5 for _ in ids),
        temperature=1.0,
        model="smollm2-135m-instruct",
        adapter="reasoning",
        adapter_version=3,
        finish="length" if cut else "stop",
    )


def step(
    number: int, reply: str, calls: tuple[ToolCall, ...], results: tuple[ToolResult, ...], **kwargs: object
) -> Step:
    fields: dict[str, object] = {
        "id": f"step-{number}",
        "key": ("thread", f"reasoning:{number}", 0),
        "node_run": f"run-{number}",
        "policy_id": "reasoning",
        "messages": PROMPT,
        "reply": reply,
        "calls": calls,
        "results": results,
        "belief": "a lamp costs 12 (message 1)\nprogress: 1 of 2 prices known",
        "tokens": tokens(93 + 20 * number, 16 + number),
    }
    return Step(**(fields | kwargs))  # type: ignore[arg-type]


def sample_trace() -> TraceView:
    look = ToolCall("c1", "lookup", {"name": "chair"})
    twice = ToolCall("c2", "lookup", {"name": "table"})
    bad = ToolCall("c3", "lokup", {"name": "chair"}, error="unknown tool 'lokup'; did you mean 'lookup'?")
    answer = ToolCall("c4", "answer", {"value": 42})
    steps = (
        step(
            1,
            'lookup("chair")\nlookup("table")',
            (look, twice),
            (ToolResult("c1", "chair: 30"), ToolResult("c2", "table: 80")),
        ),
        step(2, 'lokup("chair")', (bad,), (ToolResult("c3", bad.error or "", ok=False),), belief=None),
        step(3, "I think I have to", (), (), superseded=True, tokens=None, error="the connection was reset"),
        step(4, "answer(42)", (answer,), (ToolResult("c4", "right"),), tokens=tokens(170, 32, cut=True)),
    )
    rewards = (
        Reward("progress", 0.15, "call", "c1"),
        Reward("progress", 0.0, "call", "c2"),
        Reward("invalid_call", -0.1, "call", "c3"),
        Reward("success", 1.0, "call", "c4"),
        Reward("progress", -0.15, "step", "step-4"),
        Reward("brevity", 0.2, "trace", "trace-1", source="length grader 1"),
        Reward("recall", 0.5, "node_run", "run-1"),
    )
    trace = Trace(
        id="trace-1",
        task=Task("assistant-heldout-7", "heldout", 7, "How much are a lamp and a chair together?"),
        outcome="terminated",
        steps=steps,
        node_runs=(NodeRun("run-1", "reasoning", "reasoning:1", 1),),
        rewards=rewards,
        problems=("the data edges could not be found",),
    )
    returns = {"step-1": 1.08, "step-2": 0.75, "step-4": 0.85}
    return TraceView(trace, returns, {"step-1": 0.31, "step-2": -0.42, "step-4": None}, "A held-out episode after RL")


def sample_report() -> ReportData:
    figures = [
        Figure("success", split, stage, value, max(0.0, value - 0.09), min(1.0, value + 0.09), n)
        for split, values, n in (
            ("heldout", (0.0, 0.38, 0.61), 100),
            ("train", (0.01, 0.44, 0.7), 64),
            ("adversarial", (0.0, 0.2, 0.35), 40),
        )
        for stage, value in zip(("base", "warm start", "after RL"), values, strict=True)
    ]
    figures.append(Figure("steps per episode", "heldout", "base", 6.0, None, None, 100, unit="steps"))
    figures.append(Figure("steps per episode", "heldout", "after RL", 4.2, 3.9, 4.5, 100, unit="steps"))
    grow = [0.38 + 0.25 * (1 - math.exp(-i / 4)) + 0.02 * math.sin(3 * i) for i in range(13)]
    curves = [
        Curve("Success on held-out tasks", "share", [(i, y, y - 0.08, y + 0.08) for i, y in enumerate(grow)]),
        Curve("Return on training tasks", "return", [(i, 2 * y - 0.3, None, None) for i, y in enumerate(grow)]),
        Curve("Loss", "loss", [(i, -0.002 * i if i != 6 else math.nan, None, None) for i in range(13)]),
        Curve("KL to the base model", "nats per token", [(i, 0.00035 * i, None, None) for i in range(13)]),
    ]
    return ReportData(
        title="Run quickstart",
        figures=figures,
        curves=curves,
        traces=[sample_trace()],
        manifest={
            "model": {"name": "smollm2-135m-instruct", "revision": "local", "file_hash": "e81ea920" * 8},
            "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
            "seed": 0,
            "config": {"learning_rate": 2e-4, "splits": ["train", "heldout"]},
        },
        next_steps=["Run longer: agentcore quickstart --resume --iterations 40", "Look at the traces that failed."],
    )
