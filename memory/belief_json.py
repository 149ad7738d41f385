"""The JSON form of a belief."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memory.errors import BeliefError
from memory.records import (
    Hypothesis,
    Json,
    Progress,
    Question,
    evidence_from_json,
    fact_from_json,
    fact_to_json,
    number,
    optional_number,
)

if TYPE_CHECKING:
    from memory.belief import BeliefState

SCHEMA = 1


def belief_to_json(belief: BeliefState) -> Json:
    """A belief as a JSON object."""
    return {
        "schema": SCHEMA,
        "time": belief.time,
        "revision": belief.revision,
        "counter": belief.counter,
        "facts": [fact_to_json(fact) for fact in belief.facts],
        "hypotheses": [
            {
                "id": guess.id,
                "text": guess.text,
                "evidence": [[piece.id, piece.time, piece.weight] for piece in guess.evidence],
                "since": guess.since,
                "until": guess.until,
                "verdict": guess.verdict,
            }
            for guess in belief.hypotheses
        ],
        "questions": [
            {
                "id": question.id,
                "text": question.text,
                "since": question.since,
                "until": question.until,
                "answer": question.answer,
                "evidence_id": question.evidence_id,
            }
            for question in belief.questions
        ],
        "progress": [[entry.key, entry.text, entry.time] for entry in belief.progress],
    }


def fields_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the belief that :func:`belief_to_json` wrote; raises :class:`BeliefError` on anything else."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, Mapping) else type(data).__name__
        raise BeliefError(f"Not a belief of schema {SCHEMA} (found {found!r}); pass what to_json() returned.")
    try:
        return {
            "facts": tuple(fact_from_json(fact) for fact in data["facts"]),
            "hypotheses": tuple(
                Hypothesis(**{**guess, **_times(guess), "evidence": evidence_from_json(guess["evidence"])})
                for guess in data["hypotheses"]
            ),
            "questions": tuple(Question(**{**question, **_times(question)}) for question in data["questions"]),
            "progress": tuple(Progress(str(key), str(text), number(when)) for key, text, when in data["progress"]),
            "time": number(data["time"]),
            "revision": str(data["revision"]),
            "counter": int(data["counter"]),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise BeliefError(f"A belief record is incomplete or malformed: {error!r}.") from error


def _times(record: Mapping[str, Any]) -> dict[str, float | None]:
    return {"since": number(record["since"]), "until": optional_number(record["until"])}
