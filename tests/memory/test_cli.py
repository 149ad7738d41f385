"""``agentcore memory``: every subcommand, its JSON, its exit status."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from langgraph.store.base import PutOp

from memory import FaissStore, HashingEmbedder
from memory.cli import memory


def run(*arguments: object, input: str | None = None) -> Result:
    return CliRunner().invoke(memory, [str(argument) for argument in arguments], input=input)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with FaissStore(path, embedder=HashingEmbedder(16), fields=["text"]) as store:
        store.batch([PutOp(("a", "b"), str(i), {"text": f"wörd{i}", "n": i}) for i in range(20)])
        store.put(("a", "b"), "0", {"text": "changed"})
        store.put(("c",), "plain", {"text": "not indexed"}, index=False)
        store.put(("c",), "brief", {"title": "later"}, index=["title"], ttl=600)
    return path


def test_inspect(folder: Path) -> None:
    found = json.loads(run("inspect", folder, "--json").stdout)
    assert (found["items"], found["namespaces"], found["superseded"], found["vectors"]) == (22, 2, 1, 21)
    assert found["settings"] == {"dims": 16, "embedder": "hashing-16", "metric": "cosine", "fields": ["text"]}
    assert found["largest"][0] == ["a/b", 20] and found["file_bytes"] > 1000
    text = run("inspect", folder)
    assert text.exit_code == 0 and "22 in 2 namespaces" in text.stdout and "hashing-16" in text.stdout


def test_verify_and_rebuild(folder: Path) -> None:
    assert json.loads(run("verify", folder, "--json").stdout) == {"path": str(folder), "ok": True, "problems": []}
    index = folder / "index.cache"
    index.unlink()
    assert run("verify", folder).exit_code == 0
    assert json.loads(run("rebuild", folder, "--json").stdout) == {"vectors": 21} and index.exists()
    database = sqlite3.connect(folder / "store.db")
    database.execute("UPDATE items SET vectors = 2 WHERE key = '5'")
    database.execute("UPDATE items SET value = '[]' WHERE key = '6'")
    database.execute("INSERT INTO vectors VALUES (9999, x'00')")
    database.commit()
    database.close()
    broken = run("verify", folder, "--json")
    assert broken.exit_code == 1
    problems = " ".join(json.loads(broken.stdout)["problems"])
    assert "1 items have fewer or more vectors" in problems and "1 vectors belong to no item" in problems
    assert "1 values are not JSON objects" in problems
    assert "export and import" in run("verify", folder).stdout


def test_compact(folder: Path) -> None:
    assert json.loads(run("compact", folder, "--json").stdout) == {"removed": 1}
    assert run("compact", folder).stdout == "Removed 0 superseded versions.\n"
    assert run("verify", folder).exit_code == 0


def test_export_and_import_keep_everything(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    done = run("export", folder, "-o", file)
    assert done.exit_code == 0 and "22 items" in done.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {"namespace", "key", "value", "created_at", "updated_at"} <= lines[0].keys() and "wörd1" in file.read_text()
    copy = tmp_path / "copy"
    options = ("--embedder", "hashing-32", "--fields", "text", "--json")
    assert json.loads(run("import", copy, file, *options).stdout) == {"items": 22}
    with (
        FaissStore(folder, embedder=HashingEmbedder(16)) as old,
        FaissStore(copy, embedder=HashingEmbedder(32)) as new,
    ):
        for item in old.search((), limit=100):
            assert new.get(tuple(item.namespace), item.key) == old.get(tuple(item.namespace), item.key)
        scores = {item.key: item.score for item in new.search(("c",), query="later")}
        assert scores["plain"] is None and scores["brief"] == pytest.approx(1)
    assert run("verify", copy).exit_code == 0
    again = [json.loads(line) for line in run("export", copy).stdout.splitlines() if line.startswith("{")]
    assert sorted(again, key=str) == sorted(lines, key=str)


def test_export_to_standard_output_and_import_from_it(folder: Path, tmp_path: Path) -> None:
    text = run("export", folder).stdout
    done = run("import", tmp_path / "copy", "-", "--embedder", "hashing-16", input=text)
    assert done.exit_code == 0 and done.stdout == "Imported 22 items.\n"


@pytest.mark.parametrize("command", ["inspect", "verify", "rebuild", "compact", "export"])
def test_a_folder_without_a_store(command: str, tmp_path: Path) -> None:
    done = run(command, tmp_path / "nothing")
    assert done.exit_code == 1 and "holds no store" in done.stderr and not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "Line 1"),
        ("[]", "Record 1"),
        ('{"namespace": ["a"], "key": "k"}', "Record 1"),
        ('{"namespace": "a", "key": "k", "value": {}}', "list of strings"),
        ('{"namespace": ["a"], "key": "k", "value": {}, "created_at": "yesterday"}', "ISO 8601"),
        ('{"namespace": ["a"], "key": "k", "value": {}, "created_at": "2024-01-01T00:00:00"}', "zone"),
        ('{"namespace": ["a"], "key": "k", "value": [1]}', "dict"),
        ('{"namespace": ["a.b"], "key": "k", "value": {}}', "a.b"),
    ],
)
def test_bad_imports_are_refused(line: str, message: str, tmp_path: Path) -> None:
    done = run("import", tmp_path / "new", "-", "--embedder", "hashing-16", input=line + "\n")
    assert done.exit_code == 1 and message in done.stderr


def test_unknown_embedders(tmp_path: Path) -> None:
    for name in ("nothing", "no.such:thing", "json:missing"):
        done = run("import", tmp_path / "new", "-", "--embedder", name, input="")
        assert done.exit_code == 2 and "--embedder" in done.stderr


def test_help() -> None:
    assert run("--help").exit_code == 0
    for command in memory.commands:
        done = run(command, "--help")
        assert done.exit_code == 0 and "--json" in done.stdout
