"""Rendering a belief into a token budget: never above it, with a report of what was left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.errors import BudgetError
from memory.lexical import match_scores

if TYPE_CHECKING:
    from memory.belief import BeliefState

SECTIONS = (("progress", "Progress:"), ("question", "Open questions:"), ("fact", "Known:"), ("hypothesis", "Unsure:"))
"""Order of the sections in the text."""
PRIOR = {"progress": 3.0, "question": 2.0, "fact": 0.0, "hypothesis": 0.0}
"""Added to an item's relevance: where the agent stands and what it lacks come before any single fact."""

SURENESS = RECENCY = 0.02
"""Weights of confidence and recency: enough to decide between lines that match equally."""
SLACK = 2
"""Tokens by which joining lines may make them cheaper than they are alone."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A belief as the policy sees it."""

    text: str
    kept: tuple[str, ...]
    """Ids of the rendered items, in order of rendering (facts ``f…``, questions ``q…``, hypotheses ``h…``,
    progress ``progress:<key>``)."""
    dropped: tuple[str, ...]
    """Ids of the items that did not fit, most relevant first."""
    tokens: int
    """Tokens of ``text`` by the counter that was given; at most the budget."""


@dataclass(frozen=True, slots=True)
class _Line:
    id: str
    section: str
    text: str
    score: float


def project(
    belief: BeliefState,
    query: str,
    *,
    budget: int,
    count_tokens: Callable[[str], int],
    scores: Mapping[str, float] | None = None,
) -> Projection:
    """Choose lines by relevance, render them in a stable order, and count the whole text.

    A line's score is its section's prior + its relevance (``scores``, or a BM25 match with ``query`` scaled to [0, 1])
    + 0.02 confidence + 0.02 recency. The text is counted as a whole, because tokenizers do not add up over lines.

    Raises:
        BudgetError: the budget is negative or less than the count of an empty text.
    """
    empty = count_tokens("")
    if budget < empty or budget < 0:
        raise BudgetError(f"A budget of {budget} tokens cannot hold even an empty text, which counts {empty}.")
    lines = _lines(belief, query, scores)
    ranked = sorted(range(len(lines)), key=lambda i: (-lines[i].score, i))
    costs = [count_tokens(line.text + "\n") - empty for line in lines]
    # Counts of single lines only propose; the count of the whole text decides.
    chosen: list[int] = []
    left = budget - empty
    for i in ranked:
        if costs[i] <= left:
            chosen.append(i)
            left -= costs[i]
    while chosen and count_tokens(_render(lines, chosen)) > budget:
        chosen.pop()
    used = count_tokens(_render(lines, chosen))
    taken = set(chosen)
    for i in ranked:
        # What the estimate left over may still hold a line; one that cannot fit is not tried.
        if i in taken or used + costs[i] > budget + SLACK:
            continue
        if (trial := count_tokens(_render(lines, [*chosen, i]))) <= budget:
            chosen, used = [*chosen, i], trial
            taken.add(i)
    kept = tuple(lines[i].id for i in _order(lines, chosen))
    dropped = tuple(lines[i].id for i in ranked if i not in taken)
    return Projection(_render(lines, chosen), kept, dropped, used)


def _lines(belief: BeliefState, query: str, scores: Mapping[str, float] | None) -> list[_Line]:
    items: list[tuple[str, str, str, float]] = []
    span = max(belief.time, 1e-9)
    for key, entry in belief.current_progress.items():
        items.append((f"progress:{key}", "progress", f"- {key}: {entry.text}", 0.0))
    for question in belief.open_questions:
        items.append((question.id, "question", f"- {question.text}", RECENCY * question.since / span))
    for fact in belief.active:
        doubt = f" (confidence {fact.confidence:.2f})" if fact.confidence < 0.7 else ""
        bonus = SURENESS * fact.confidence + RECENCY * fact.since / span
        items.append((fact.id, "fact", f"- {fact.text}{doubt}", bonus))
    for guess in belief.open_hypotheses:
        text = f"- {guess.text} (confidence {guess.confidence:.2f})"
        items.append((guess.id, "hypothesis", text, RECENCY * guess.since / span))
    if scores is None:
        matched = match_scores(query, [text for _, _, text, _ in items])
        scores = {item[0]: score for item, score in zip(items, matched, strict=True)}
    return [
        _Line(name, section, text, PRIOR[section] + scores.get(name, 0.0) + bonus)
        for name, section, text, bonus in items
    ]


def _order(lines: list[_Line], chosen: list[int]) -> list[int]:
    rank = {section: place for place, (section, _) in enumerate(SECTIONS)}
    return sorted(chosen, key=lambda i: (rank[lines[i].section], i))


def _render(lines: list[_Line], chosen: list[int]) -> str:
    parts: list[str] = []
    for section, title in SECTIONS:
        body = [lines[i].text for i in sorted(chosen) if lines[i].section == section]
        if body:
            parts.extend([title, *body])
    return "\n".join(parts)
