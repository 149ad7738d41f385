"""The command line: every command explains itself, speaks JSON to scripts, and fails with one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentcore.cli import cli, main
from agentcore.environments import make_environment
from agentcore.tracefile import read_traces
from training.warmstart import write_expert_traces

COMMANDS = ("doctor", "eval", "memory", "quickstart", "report", "run", "train")

Called = tuple[int, str, str]
"""Exit status, standard output, standard error."""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """The entry point, called as the shell calls it."""

    def called(*arguments: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["agentcore", *map(str, arguments)])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return int(code), out, err

    return called


def test_the_installed_command_lists_all_commands() -> None:
    done = subprocess.run([Path(sys.executable).with_name("agentcore"), "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    listed = {line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    assert listed >= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_explains_itself(command: str) -> None:
    runner = CliRunner()
    shown = runner.invoke(cli, [command, "--help"])
    assert shown.exit_code == 0 and len(shown.output.splitlines()[2].strip()) > 20
    subcommands = getattr(cli.get_command(None, command), "commands", {})  # type: ignore[arg-type]
    for arguments in [[command, name] for name in subcommands] or [[command]]:
        shown = runner.invoke(cli, [*arguments, "--help"])
        assert shown.exit_code == 0 and "--json" in shown.output, arguments


def test_an_unknown_command_or_option_is_named(call: Callable[..., Called]) -> None:
    for arguments, name in ((["fly"], "fly"), (["run", "--wings"], "--wings"), (["run", "--tasks", "0"], "--tasks")):
        code, out, err = call(*arguments)
        assert code == 2 and name in err and not out


def test_a_run_is_shown_and_recorded(call: Callable[..., Called], tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    options = ("run", "--policy", "oracle", "--level", "medium", "--tasks", 2, "--out", file)
    code, out, _ = call(*options)
    assert code == 0 and out.count("Task ") == 2 and "earned: success +1.00" in out
    code, out, _ = call(*options, "--json")
    shown = json.loads(out)["episodes"]
    written, problems = read_traces(file)
    assert code == 0 and not problems and len(written) == 4
    assert [t.task.id for t in written[2:]] == [t["task"]["id"] for t in shown]
    assert all(t.outcome == "terminated" and t.component_totals()["success"] == 1.0 for t in written)


def test_doctor_speaks_json(call: Callable[..., Called]) -> None:
    code, out, _ = call("doctor", "--json")
    found = json.loads(out)
    assert found["ok"] is (code == 0)
    assert {"python", "device", "model smollm2-135m-instruct", "disk"} <= {c["name"] for c in found["checks"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--policy", "oracle", "--env", "mars"], "Unknown environment 'mars'; choose from assistant"),
        (["run", "--policy", "oracle", "--level", "absurd"], "Unknown level 'absurd'"),
        (["run", "--policy", "oracle", "--without", "flying"], "Unknown capability 'flying'; choose from"),
        (["run", "--policy", "oracle", "--out", "."], "Is a directory"),
        (["run", "--model", "no such model"], "no such model"),
        (["run", "--adapter", "no-such-adapter"], "no-such-adapter"),
        (["eval", "--adapter", "no-such-adapter"], "no-such-adapter"),
        (["train", "--traces", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["train", "--estimator", "magic"], "choose from step-rloo"),
        (["train", "--env", "mars"], "Unknown environment 'mars'"),
        (["train", "--resume", "--name", "never"], "There is no run"),
        (["report", "no-such-run"], "no-such-run"),
        (["memory", "verify", "no-such-store"], "no-such-store"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    arguments: list[str],
    words: str,
    call: Callable[..., Called],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, err = call(*arguments)
    said = [line for line in err.splitlines() if "Error" in line]
    assert code != 0 and len(said) == 1 and words in said[0] and "Traceback" not in err
    code, out, _ = call(*arguments, "--json")
    assert code != 0 and words in json.loads(out)["error"]
    assert not list(tmp_path.iterdir()), "nothing was made"


def test_a_trace_file_cut_mid_line_is_used_as_far_as_it_goes_and_the_loss_is_said(
    call: Callable[..., Called], tiny_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "expert.jsonl"
    write_expert_traces(
        make_environment("assistant", level="easy", step_limit=3), 4, file, seed=0, tool_format="compact"
    )
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][:200])
    code, out, err = call(
        *("train", "--model", tiny_folder, "--traces", file, "--runs", tmp_path, "--name", "cut", "--level", "easy"),
        *("--iterations", 0, "--sft-steps", 1, "--heldout-tasks", 1, "--json"),
    )
    assert code == 0, err
    said = "".join(err.split())  # a narrow terminal breaks lines anywhere
    assert f"line{len(lines)}" in said and "endsinthemiddle" in said
    assert json.loads(out)["evaluations"]
    assert (tmp_path / "cut" / "report.html").is_file()
