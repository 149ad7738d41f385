"""Perception: raw text to a structured observation with provenance."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from agentcore.environment import Json
from agentcore.state import AgentUpdate, AgentView

_SENTENCE = re.compile(
    r"^(?:(?P<kind>[A-Z][a-z]+):\s+)?(?P<subject>\w[\w-]*)\s+(?P<relation>[a-z]+s)\s+(?P<value>[^.:]+?)\.(?:\s|$)"
)
_OPEN = re.compile(r"^(?P<what>[A-Z][\w ]+):\s+(?P<count>\d+)\.?$")
_CORRECTIONS = ("correction", "update", "erratum")


FROM_TOOL = "tool:"
"""Evidence ids of what a tool said begin with this."""


class PerceptionNode:
    """Splits tool results and news into statements ``subject relation value`` with an evidence id each.

    A line that states nothing of that form becomes a note; ``Name: number`` lines become open matters (how many
    messages are still to come, say). Lines are cut to ``max_chars``.
    """

    def __init__(self, max_chars: int = 400) -> None:
        self.max_chars = max_chars

    def __call__(self, state: AgentView) -> AgentUpdate:
        turn = state.get("turn", 0)
        statements: list[Json] = []
        open_matters: dict[str, int] = {}
        errors = [r["content"] for r in state.get("results", []) if not r["ok"]]
        # what a tool says again is the same evidence, not more of it: its id is its content
        sources = [(_source(r), r["content"]) for r in state.get("results", []) if r["ok"]]
        sources.append((f"t{turn}.o", state.get("observation", "")))
        for source, text in sources:
            for number, line in enumerate(_lines(text)):
                matter = _OPEN.match(line) if source == f"t{turn}.o" else None
                if matter is not None:
                    open_matters[matter["what"]] = int(matter["count"])
                else:
                    statements += self._statements(line[: self.max_chars], f"{source}.{number}")
        return {"percept": {"statements": statements, "open": open_matters, "errors": errors}}

    @staticmethod
    def _statements(line: str, evidence_id: str) -> list[Json]:
        """The statement a line opens with, and the rest of the line as a note."""
        match = _SENTENCE.match(line)
        if match is None:
            return [{"text": line, "evidence_id": evidence_id, "kind": "note"}]
        kind = "correction" if (match["kind"] or "").lower() in _CORRECTIONS else "fact"
        statement = {
            "text": match.group().strip(),
            "evidence_id": evidence_id,
            "subject": match["subject"],
            "relation": match["relation"],
            "value": match["value"].strip(),
            "kind": kind,
        }
        rest = line[match.end() :].strip()
        return [statement, {"text": rest, "evidence_id": f"{evidence_id}+", "kind": "note"}] if rest else [statement]


def raw_percept(state: AgentView) -> Json:
    """What the other nodes get when perception is off: every line an unstructured note."""
    turn = state.get("turn", 0)
    texts = [r["content"] for r in state.get("results", [])] + [state.get("observation", "")]
    notes = [
        {"text": line, "evidence_id": f"t{turn}.{i}", "kind": "note"}
        for i, line in enumerate(line for text in texts for line in _lines(text))
    ]
    return {"statements": notes, "open": {}, "errors": []}


def _source(result: Json) -> str:
    digest = hashlib.blake2b(result["content"].encode("utf-8", "replace"), digest_size=6).hexdigest()
    return f"{FROM_TOOL}{result.get('name') or 'tool'}:{digest}"


def _lines(text: str) -> Sequence[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
