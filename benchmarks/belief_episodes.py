"""Does the belief carry an episode whose text is many times the context budget?

The same tasks of the built-in environment, three ways of showing the past to one policy:

* `success_belief`: the belief, re-rendered within the budget in every turn;
* `success_full`: the whole history, with no limit;
* `success_truncated`: the last messages that fit the budget.

The policy is a reader: it sees its prompt and nothing else, takes every price, correction and link that stands in it
at face value, and then does what the environment's oracle would do with that knowledge. So what differs is what was
shown.

    python benchmarks/belief_episodes.py --json belief_episodes.json
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.tool import tool_call

from agentcore.capabilities import CAPABILITIES
from agentcore.environments.assistant import AssistantEnvironment
from agentcore.environments.assistant_tasks import Difficulty
from agentcore.graph import build_agent
from agentcore.policies.scripted import ScriptedChatModel
from agentcore.runner import episodes, rollout
from agentcore.trace import Trace
from memory import FaissStore
from training.evaluate import paired_difference, success_of, wilson

DIFFICULTY = Difficulty(facts=3, hops=2, late=1, corrections=2, distractors=8, verbosity=4)


def read_and_act(messages: Sequence[BaseMessage], metadata: Mapping[str, Any]) -> AIMessage:
    """The next call, from what stands in the prompt."""
    text = "\n".join(str(m.content) for m in messages if m.type != "ai")
    name, args = _next(text)
    return AIMessage(f"{name}(…)", tool_calls=[tool_call(name=name, args=args, id=f"{metadata['langgraph_step']}")])


def _next(text: str) -> tuple[str, dict[str, Any]]:
    question = re.search(r"What (?:does|do) (.+?) cost", text)
    names = re.split(r", | and ", question.group(1)) if question else []
    links = dict(re.findall(r"(\w+) sells (\w+)\.", text))
    prices: dict[str, int] = {}
    corrected: set[str] = set()
    for kind, item, price in re.findall(r"(Correction: )?(\w+) costs (\d+)\.", text):
        if kind or item not in corrected:
            prices[item] = int(price)
        if kind:
            corrected.add(item)
    targets = []
    for name in names:
        place = name.removeprefix("the item sold in ")
        if place != name and place not in links:
            return "lookup", {"name": place}
        targets.append(links.get(place, place))
    pending = [int(n) for n in re.findall(r"Messages to come: (\d+)", text)]
    for target in targets:
        if target not in prices and not (f"{target}: no entry" in text and pending[-1] > 0):
            return "lookup", {"name": target}
    if pending and pending[-1] > 0:
        return "lookup", {"name": targets[0]}  # time passes with any call
    total = sum(prices.get(t, 0) for t in targets)
    if f" = {total}" not in text:
        return "compute", {"expression": "+".join(str(prices.get(t, 0)) for t in targets)}
    return "answer", {"value": total}


def counter() -> Any:
    """SmolLM2's tokens, where the model is installed; a quarter of the characters elsewhere."""
    try:
        from transformers import AutoTokenizer

        from agentcore.policies.models import bundled_gguf

        gguf = bundled_gguf()
        if gguf is not None:
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
            return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
    except ImportError:
        pass
    return lambda text: len(text) // 4 + 1


class Reader(ScriptedChatModel):
    """The reading policy, with a tokeniser so that budgets are counted in its tokens."""

    count: Any = None

    @property
    def codec(self) -> Any:
        return _Codec(self.count)


class _Codec:
    def __init__(self, count: Any) -> None:
        from agentcore.policies.toolformat import FORMATS

        self.count = count
        self.format = FORMATS["compact"]


def run_arm(name: str, tasks: int, budget: int, count: Any) -> list[Trace]:
    """One way of showing the past, on the same tasks with the same keys."""
    environment = AssistantEnvironment("long", mixture=[DIFFICULTY], step_limit=40)
    policy = Reader(script=read_and_act, count=count)
    off = () if name == "belief" else ("memory", "perception", "planning")
    agent = build_agent(
        policy,
        environment,
        capabilities=[c for c in CAPABILITIES if c not in off],
        layout={"belief": "rewrite", "full": "append", "truncated": "window"}[name],  # type: ignore[arg-type]
        context_budget=10**9 if name == "full" else budget,
        belief_budget=budget // 2,
        memory_budget=budget // 4,
    )
    planned = episodes(environment.tasks("heldout", tasks))
    return rollout(agent, planned, memory=FaissStore(None), recursion_limit=400).traces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--budget", type=int, default=256, help="tokens of a whole prompt")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    count = counter()
    output: dict[str, Any] = {"budget": options.budget, "tasks": options.tasks, "difficulty": asdict(DIFFICULTY)}
    success: dict[str, dict[str, float]] = {}
    for name in ("belief", "full", "truncated"):
        traces = run_arm(name, options.tasks, options.budget, count)
        success[name] = {t.task.id: success_of(t) for t in traces}
        prompts = [sum(count(str(m["content"])) for m in s.messages) for t in traces for s in t.live_steps]
        wins = sum(success[name].values())
        output[f"success_{name}"] = wins / len(traces)
        output[f"success_{name}_interval"] = wilson(wins, len(traces))
        output[f"prompt_tokens_{name}_max"] = max(prompts)
        if name == "full":
            longest = [max(sum(count(str(m["content"])) for m in s.messages) for s in t.live_steps) for t in traces]
            output["text_over_budget"] = sum(longest) / len(longest) / options.budget
    output["belief_minus_truncated"] = paired_difference(success["belief"], success["truncated"])
    for key, value in output.items():
        print(f"{key:32} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(output, indent=1))


if __name__ == "__main__":
    main()
