"""Messages to token ids and back, for templates with or without a tool role.

What a model wrote is never re-tokenised inside an episode: a prompt that continues an earlier one starts with exactly
the ids that were prompted and sampled, wherever the rendered text allows it (checked, not assumed).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agentcore.environment import Json, ToolCall
from agentcore.errors import PolicyError
from agentcore.policies.toolformat import FORMATS, ParsedCall, ToolFormat
from agentcore.trace import Segment

_MEMO = 4_000
"""Rollouts that are remembered; a conversation needs its last one."""


@dataclass(frozen=True, slots=True)
class _Rollout:
    prompt_text: str
    prompt_ids: tuple[int, ...]
    reply_text: str
    reply_ids: tuple[int, ...]


class ChatCodec:
    """Renders chats for one tokeniser in one tool format."""

    def __init__(self, tokenizer: Any, stop_ids: frozenset[int], tool_format: str = "compact") -> None:
        if tool_format not in FORMATS:
            raise PolicyError(f"Unknown tool format {tool_format!r}; choose from {', '.join(sorted(FORMATS))}.")
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.format: ToolFormat = FORMATS[tool_format]
        self._memo: OrderedDict[str, _Rollout] = OrderedDict()
        self._lock = threading.Lock()

    # -- prompts --------------------------------------------------------------------------------------------

    def chat(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[dict[str, str]]:
        """OpenAI messages as plain system/user/assistant turns: tools in the system text, results as user turns.

        Neighbouring turns of one role are joined, since many templates insist on alternating roles.
        """
        system = [self.format.describe(tools)] if tools else []
        turns: list[dict[str, str]] = []
        for message in messages:
            role, text = message["role"], _text(message.get("content"))
            if role in ("system", "developer"):
                system.insert(-1 if tools else len(system), text)
                continue
            if role == "assistant":
                text = self._assistant_text(message, text, tools)
            elif role in ("tool", "function"):
                role = "user"
            if turns and turns[-1]["role"] == role:
                turns[-1] = {"role": role, "content": f"{turns[-1]['content']}\n{text}".strip("\n")}
            else:
                turns.append({"role": role, "content": text})
        return [{"role": "system", "content": "\n".join(system)}, *turns] if system else turns

    def _assistant_text(self, message: Json, text: str, tools: Sequence[Json]) -> str:
        calls = message.get("tool_calls") or []
        if not calls or len(self.format.parse(text, tools, "x")) >= len(calls):
            return text  # the text already holds the calls as they were written
        written = []
        for call in calls:
            function = call.get("function", call)
            args = function.get("arguments", function.get("args", {}))
            written.append(self.format.write(function["name"], _arguments(args)))
        return "\n".join([text, *written] if text else written)

    def render(self, messages: Sequence[Json], tools: Sequence[Json], *, reply_follows: bool = True) -> str:
        """The prompt text by the model's chat template."""
        try:
            text: str = self.tokenizer.apply_chat_template(
                self.chat(messages, tools), tokenize=False, add_generation_prompt=reply_follows
            )
        except Exception as error:  # templates raise jinja2 errors of their own
            raise PolicyError(f"The model's chat template refused the messages: {error}") from error
        return text

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def count(self, text: str) -> int:
        """Tokens of a text, for budgets."""
        return len(self.encode(text))

    def prompt_ids(
        self, messages: Sequence[Json], tools: Sequence[Json], rollouts: Sequence[str | None] = ()
    ) -> tuple[int, ...]:
        """Token ids of the prompt. ``rollouts[i]`` is the rollout id of message ``i``, if it was sampled here."""
        text = self.render(messages, tools)
        for i in range(len(rollouts) - 1, -1, -1):
            name = rollouts[i]
            rollout = self._memo.get(name) if name else None
            if rollout is None:
                continue
            before = self.render(messages[:i], tools)
            start = rollout.prompt_text + rollout.reply_text
            if before != rollout.prompt_text or not text.startswith(start):
                break  # the history was rewritten: render it anew
            rest = text[len(start) :]
            if rollout.reply_ids and rollout.reply_ids[-1] in self.stop_ids:
                end = self.tokenizer.decode([rollout.reply_ids[-1]])
                if not rest.startswith(end):
                    break
                rest = rest[len(end) :]
            return (*rollout.prompt_ids, *rollout.reply_ids, *self.encode(rest))
        return self.encode(text)

    def remember(
        self,
        rollout_id: str,
        messages: Sequence[Json],
        tools: Sequence[Json],
        prompt_ids: tuple[int, ...],
        reply_ids: tuple[int, ...],
    ) -> str:
        """Keep what was sampled under ``rollout_id``; returns the reply's text without its end token."""
        text = self.reply_text(reply_ids)
        rollout = _Rollout(self.render(messages, tools), prompt_ids, text, reply_ids)
        with self._lock:
            self._memo[rollout_id] = rollout
            while len(self._memo) > _MEMO:
                self._memo.popitem(last=False)
        return text

    # -- replies --------------------------------------------------------------------------------------------

    def reply_text(self, ids: Sequence[int]) -> str:
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        text: str = self.tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """A logged reply as the model would have sampled it: its tokens and the end token."""
        end = self.tokenizer.eos_token_id
        return (*self.encode(text), end if end in self.stop_ids else min(self.stop_ids))

    def written_reply(self, text: str, calls: Sequence[ToolCall], tools: Sequence[Json]) -> str:
        """A logged reply in this codec's format, whatever format it was logged in."""
        listed = [{"function": {"name": c.name, "arguments": c.args}} for c in calls if c.error is None]
        return self._assistant_text({"tool_calls": listed}, text, tools)

    def parse(self, text: str, tools: Sequence[Json], call_prefix: str) -> list[ParsedCall]:
        return self.format.parse(text, tools, call_prefix) if tools else []

    def segments(self, ids: Sequence[int], parsed: Sequence[ParsedCall]) -> tuple[Segment, ...]:
        """Token stretches of text and of each call. A token belongs to a call if any of its characters does."""
        if not ids:
            return ()
        if not parsed:
            return (Segment("text", 0, len(ids)),)
        # a character that is not whole yet is shown as U+FFFD; its next token goes on with it
        edges = [len(self.reply_text(ids[:i]).rstrip("\ufffd")) for i in range(len(ids) + 1)]
        owners: list[str | None] = []
        for start, end in pairwise(edges):
            inside = (p.call.id for p in parsed if p.start < max(end, start + 1) and start < p.end)
            owners.append(next(inside, None))
        if ids[-1] in self.stop_ids and len(owners) > 1:
            owners[-1] = owners[-2]  # ending the turn belongs to what was written last
        segments: list[Segment] = []
        begin = 0
        for i in range(1, len(owners) + 1):
            if i == len(owners) or owners[i] != owners[begin]:
                kind = "call" if owners[begin] is not None else "text"
                segments.append(Segment("call" if kind == "call" else "text", begin, i, owners[begin]))
                begin = i
        return tuple(segments)


def _text(content: Any) -> str:
    """The text of a message's content; content blocks are joined, other kinds named."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for block in content:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block, Mapping) and isinstance(block.get("text"), str):
            parts.append(block["text"])
        elif isinstance(block, Mapping):
            parts.append(f"[{block.get('type', 'content')}]")
    return "\n".join(parts)


def _arguments(args: Any) -> Mapping[str, Any]:
    import json

    if isinstance(args, Mapping):
        return args
    try:
        data = json.loads(args)
    except (TypeError, ValueError):
        return {"arguments": str(args)}
    return data if isinstance(data, Mapping) else {"arguments": str(args)}
