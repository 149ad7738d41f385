"""Trace files: what was written comes back, what is damaged is skipped and said, what was acknowledged survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentcore.environment import Json, Task, ToolCall, ToolResult
from agentcore.errors import DuplicateRewardError, SpecError, TraceFormatError
from agentcore.trace import NodeRun, Reward, Segment, Step, Tokens, Trace, trace_to_json
from agentcore.tracefile import TraceReader, TraceWriter, read_traces

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | finite | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=5,
)
objects = st.dictionaries(texts, jsons, max_size=3)


def tuples(strategy: st.SearchStrategy[object], size: int = 2) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(strategy, max_size=size).map(tuple)


@st.composite
def tokens(draw: st.DrawFn) -> Tokens:
    ids = draw(st.lists(st.integers(0, 10**6), max_size=4))
    logprobs = draw(st.none() | st.lists(finite, min_size=len(ids), max_size=len(ids)).map(tuple))
    return Tokens(
        prompt_ids=tuple(draw(st.lists(st.integers(0, 10**6), max_size=4))),
        reply_ids=tuple(ids),
        logprobs=logprobs,
        temperature=draw(finite),
        model=draw(texts),
        adapter=draw(st.none() | texts),
        adapter_version=draw(st.integers(0, 9)),
        segments=(Segment("call", 0, len(ids), draw(texts)),),
        finish=draw(st.sampled_from(["stop", "length"])),
        retokenised=logprobs is None,
    )


tasks = st.builds(Task, texts, st.sampled_from(["train", "heldout", "adversarial"]), st.integers(), texts, objects)
calls = st.builds(ToolCall, texts, texts, objects, st.none() | texts, st.none() | texts)
steps = st.builds(
    Step,
    id=texts,
    key=st.tuples(texts, texts, st.integers(0, 5)),
    node_run=st.none() | texts,
    policy_id=texts,
    messages=tuples(objects),
    reply=texts,
    calls=tuples(calls),
    results=tuples(st.builds(ToolResult, texts, texts, st.booleans())),
    tools=tuples(objects, 1),
    tokens=st.none() | tokens(),
    belief=st.none() | texts,
    memory_ids=tuples(texts),
    anchor=st.none() | texts,
    superseded=st.booleans(),
    started=finite,
    ended=st.none() | finite,
)
runs = st.builds(
    NodeRun, texts, texts, texts, st.integers(0, 9), tuples(texts), tuples(texts), st.integers(0, 2), finite
)
rewards = st.builds(Reward, texts, finite, st.sampled_from(["call", "step", "node_run", "trace"]), texts, texts)
traces = st.builds(
    Trace,
    id=texts,
    task=tasks,
    outcome=st.sampled_from(["terminated", "truncated", "failed", "abandoned"]),
    steps=tuples(steps),
    node_runs=tuples(runs),
    rewards=tuples(rewards),
    fork_of=st.none() | texts,
    problems=tuples(texts),
    manifest=objects,
    meta=objects,
)


def example(number: int = 0) -> Trace:
    ids = tuple(range(number, number + 5))
    step = Step(
        id=f"s{number}",
        key=("t", "n", 0),
        node_run="n",
        policy_id="p",
        messages=({"role": "user", "content": "fällt 漢 💧"},),
        reply="lookup()",
        tokens=Tokens(ids, ids, (-0.5,) * 5, 1.0, "m", None, 0),
    )
    return Trace(
        f"t{number}", Task("a", "train", 1, "do"), "terminated", (step,), rewards=(Reward("r", 1.0, "step", "s"),)
    )


def write(path: Path, *listed: Trace) -> Path:
    with TraceWriter(path, {"seed": 1}) as writer:
        for trace in listed:
            writer.write(trace)
    return path


LINE = trace_to_json(example(1))


def changed(**changes: object) -> Json:
    return {"type": "trace", "trace": {**LINE, **changes}}


# Round trips


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(traces, min_size=1, max_size=2))
def test_what_is_written_comes_back_equal(tmp_path: Path, written: list[Trace]) -> None:
    path = tmp_path / "t.jsonl"
    path.unlink(missing_ok=True)
    back, problems = read_traces(write(path, *written))
    assert (back, problems) == (written, [])
    assert json.loads(path.read_bytes().split(b"\n")[-2])["trace"] == trace_to_json(written[-1])


def test_the_manifest_is_read_and_a_file_can_be_read_twice(tmp_path: Path) -> None:
    reader = TraceReader(write(tmp_path / "deep" / "t.jsonl", example(1), example(2)))
    assert [t.id for t in reader] == ["t1", "t2"] == [t.id for t in reader]
    assert reader.manifest == {"seed": 1}


def test_text_that_utf8_cannot_hold_is_replaced(tmp_path: Path) -> None:
    trace = replace(example(), problems=("a\ud800b",))
    back, _ = read_traces(write(tmp_path / "t.jsonl", trace))
    assert back[0].problems == ("a?b",)
    hostile = json.dumps(changed(id="x\ud800", meta={"\udfff": "\U0001f4a7"})).encode()  # as escapes
    (tmp_path / "t.jsonl").write_bytes(hostile)
    (trace,) = TraceReader(tmp_path / "t.jsonl")
    assert (trace.id, trace.meta) == ("x?", {"?": "\U0001f4a7"})


# Damage


def test_a_file_cut_at_any_byte_gives_the_whole_lines_and_says_what_was_lost(tmp_path: Path) -> None:
    small = [Trace(f"t{n}", Task("a", "train", 1, "漢"), "terminated", ()) for n in (1, 2)]
    whole = write(tmp_path / "whole.jsonl", *small).read_bytes()
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    cut = tmp_path / "cut.jsonl"
    for size in range(len(whole) + 1):
        cut.write_bytes(whole[:size])
        reader = TraceReader(cut)
        back = [t.id for t in reader]
        assert back == ["t1", "t2"][: sum(1 for end in ends[1:] if size >= end)], size
        partial = size > 0 and size not in ends and size - 1 not in ends
        assert bool(reader.problems) == partial, size
        if partial:
            assert "the file ends in the middle of it" in reader.problems[0]
        if size % 37 and not any(abs(size - end) < 3 for end in ends) and size > 20:
            continue
        # and after going on, nothing more is lost
        with TraceWriter(cut) as writer:
            writer.write(example(3))
        again = TraceReader(cut)
        assert [t.id for t in again] == [*back, "t3"], size
        assert len(again.problems) == (1 if partial and size > ends[0] else 0), size


def test_damage_in_the_middle_costs_only_its_own_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", example(1), example(2), example(3))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + b"\x00" + lines[2][20:] + b"\n" + lines[3])
    back, problems = read_traces(path)
    assert [t.id for t in back] == ["t1", "t3"]
    assert len(problems) == 1 and "line 3 is not whole JSON; it was skipped" in problems[0]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b"null",
        b"[]",
        b'"trace"',
        b"{}",
        b'{"type": "trace"}',
        b'{"type": "trace", "trace": null}',
        b'{"type": "other"}',
        b'{"type": ["trace"]}',
        b"\xff\xfe\x00",
        b"\x00" * 100,
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 10_000,
        json.dumps(changed(outcome="won")).encode(),
        json.dumps(changed(steps="none")).encode(),
        json.dumps(changed(rewards=[{"component": "r", "value": 1, "target": "world", "target_id": "x"}])).encode(),
        json.dumps(
            changed(rewards=[{"component": "r", "value": float("nan"), "target": "trace", "target_id": "x"}])
        ).encode(),
        json.dumps(changed(meta={"x": float("inf")})).encode(),
        json.dumps(changed(meta={"x": 1})).encode().replace(b'"x": 1', b'"x": 1e999'),
        json.dumps(changed(task={**LINE["task"], "split": "everything"})).encode(),
        json.dumps(
            changed(steps=[{**LINE["steps"][0], "tokens": {**LINE["steps"][0]["tokens"], "logprobs": [0]}}])
        ).encode(),
    ],
)
def test_a_hostile_line_is_skipped(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path / "t.jsonl", example(1))
    path.write_bytes(path.read_bytes() + line + b"\n")
    write(path, example(2))
    back, problems = read_traces(path)
    assert [t.id for t in back] == ["t1", "t2"]
    assert len(problems) == (1 if line.strip() else 0)
    for problem in problems:
        assert "line 3" in problem and len(problem) < 400
        problem.encode()


def test_another_schema_is_refused_by_reader_and_writer(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"type": "header", "schema": 99, "manifest": {}}\n')
    with pytest.raises(TraceFormatError, match="has trace schema 99; this version reads 1"):
        read_traces(path)
    with pytest.raises(TraceFormatError, match="has trace schema 99"):
        TraceWriter(path)
    assert path.read_text().count("\n") == 1


@pytest.mark.parametrize("text", ["my notes", "my notes\n", '{"a": 1}', "name,value\n1,2\n", "\n"])
def test_a_file_of_another_kind_is_not_written_to(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(TraceFormatError, match="is not a trace file; nothing was written"):
        TraceWriter(path)
    assert path.read_text() == text


def test_a_file_without_any_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="No trace file at"):
        read_traces(tmp_path / "none.jsonl")
    with pytest.raises(TraceFormatError, match="No trace file at"):
        read_traces(tmp_path)
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\x80\x81 not a trace\n")
    with pytest.raises(TraceFormatError, match=r"holds no readable trace. First problem: .*line 1"):
        read_traces(path)
    assert read_traces(write(tmp_path / "empty.jsonl")) == ([], [])


def test_what_cannot_be_written_leaves_the_file_whole(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(example(1))
        with pytest.raises(ValueError, match="JSON"):
            writer.write(example(2).with_reward(Reward("r", float("nan"), "trace", "t2")))
        with pytest.raises(ValueError, match="serialize unknown type"):
            writer.write(replace(example(2), meta={"x": object()}))
        writer.write(example(3))
    assert [t.id for t in read_traces(tmp_path / "t.jsonl")[0]] == ["t1", "t3"]


# Durability


def test_a_killed_writer_loses_no_written_trace(tmp_path: Path) -> None:
    program = """
        import sys
        from agentcore.environment import Task
        from agentcore.trace import Trace
        from agentcore.tracefile import TraceWriter
        writer = TraceWriter(sys.argv[1])
        number, task = 0, Task("a", "train", 1, "do")
        while True:
            writer.write(Trace(f"t{number}", task, "terminated", (), meta={"text": "x" * 100_000}))
            print(number, flush=True)
            number += 1
    """
    path = tmp_path / "t.jsonl"
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    for _ in range(2):  # the second process goes on in the first one's file
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        acknowledged = -1
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged == 6:
                os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        back, _ = read_traces(path)
        ids = [t.id for t in back]
        assert ids.count(f"t{acknowledged}") == ids.count("t0")
        assert [i for i in ids if int(i[1:]) <= acknowledged][-acknowledged - 1 :] == [
            f"t{n}" for n in range(acknowledged + 1)
        ]


# Traces


def test_two_writers_of_one_component_are_an_error() -> None:
    trace = example()
    with pytest.raises(DuplicateRewardError, match="'r' on step s was already set by environment"):
        trace.with_reward(Reward("r", 2.0, "step", "s", source="grader-2"))
    assert len(trace.with_reward(Reward("r", 2.0, "step", "other")).rewards) == 2
    again = Reward("r", 2.0, "trace", "t0")
    with pytest.raises(DuplicateRewardError, match="'r' on trace t0"):
        trace.with_rewards([again, again])
    assert trace.with_reward(Reward("r", 2.0, "call", "s")).component_totals() == {"r": 3.0}


def test_log_probabilities_must_match_the_tokens() -> None:
    with pytest.raises(SpecError, match="1 log-probabilities for 2 sampled tokens"):
        Tokens((1,), (1, 2), (-0.5,), 1.0, "m", None, 0)
