"""Chats to token ids and back: what was sampled stays as it was sampled, and every token has one owner."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentcore.environment import Json, ToolCall
from agentcore.errors import PolicyError
from agentcore.policies.codec import ChatCodec

LOOKUP: Json = {
    "type": "function",
    "function": {"name": "lookup", "description": "d", "parameters": {"properties": {"name": {"type": "string"}}}},
}
SYSTEM: Json = {"role": "system", "content": "Answer."}
ASK: Json = {"role": "user", "content": "What does amber cost?"}
reused = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def codec(tiny_tokenizer: Any) -> ChatCodec:
    return ChatCodec(tiny_tokenizer, frozenset({tiny_tokenizer.eos_token_id}))


def sampled(codec: ChatCodec, name: str, messages: list[Json], ids: tuple[int, ...]) -> tuple[Json, tuple[int, ...]]:
    """The message that a reply of ``ids`` becomes, and the prompt's ids."""
    prompt = codec.prompt_ids(messages, [LOOKUP])
    text = codec.remember(name, messages, [LOOKUP], prompt, ids)
    return {"role": "assistant", "content": text}, prompt


def odd_ids(codec: ChatCodec, text: str) -> tuple[int, ...]:
    """Byte by byte: ids that give the text, but are not those its tokenisation gives."""
    ids = tuple(i for ch in text for byte in ch.encode() for i in codec.tokenizer.convert_tokens_to_ids([_byte(byte)]))
    assert codec.reply_text(ids) == text
    return ids


def _byte(value: int) -> str:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table: Any = bytes_to_unicode
    symbol: str = table()[value]
    return symbol


def test_a_prompt_that_goes_on_starts_with_exactly_the_sampled_ids(codec: ChatCodec) -> None:
    end = codec.tokenizer.eos_token_id
    ids = (*odd_ids(codec, 'lookup(name="amber")'), end)
    assert ids[:-1] != codec.encode('lookup(name="amber")')
    messages = [SYSTEM, ASK]
    reply, prompt = sampled(codec, "r1", messages, ids)
    assert reply["content"] == 'lookup(name="amber")'
    after = [*messages, reply, {"role": "tool", "tool_call_id": "x", "content": "amber costs 12."}]
    following = codec.prompt_ids(after, [LOOKUP], [None, None, "r1", None])
    assert following[: len(prompt) + len(ids)] == (*prompt, *ids)
    assert codec.tokenizer.decode(following) == codec.render(after, [LOOKUP])
    # and again, from what went on
    more = (*odd_ids(codec, "answer(value=12)"), end)
    text = codec.remember("r2", after, [LOOKUP], following, more)
    longer = [*after, {"role": "assistant", "content": text}, {"role": "user", "content": "Sure?"}]
    last = codec.prompt_ids(longer, [LOOKUP], [None, None, "r1", None, "r2", None])
    assert last[: len(following) + len(more)] == (*following, *more)


def test_a_reply_cut_by_length_is_ended_by_the_template(codec: ChatCodec) -> None:
    ids = odd_ids(codec, "lookup(na")
    reply, prompt = sampled(codec, "cut", [ASK], ids)
    following = codec.prompt_ids([ASK, reply, ASK], [LOOKUP], [None, "cut", None])
    assert following[: len(prompt) + len(ids) + 1] == (*prompt, *ids, codec.tokenizer.eos_token_id)


def test_a_reply_that_ends_inside_a_character_keeps_its_ids(codec: ChatCodec) -> None:
    ids = odd_ids(codec, "漢")[:2]
    reply, prompt = sampled(codec, "half", [ASK], ids)
    following = codec.prompt_ids([ASK, reply, ASK], [LOOKUP], [None, "half", None])
    assert following[: len(prompt) + 2] == (*prompt, *ids)


def test_a_rewritten_history_is_rendered_anew(codec: ChatCodec) -> None:
    ids = (*odd_ids(codec, "lookup()"), codec.tokenizer.eos_token_id)
    reply, _ = sampled(codec, "r", [SYSTEM, ASK], ids)
    names = [None, None, "r", None]
    for changed in (
        [SYSTEM, {**ASK, "content": "What does wax cost?"}, reply, ASK],
        [{**SYSTEM, "content": "Guess."}, ASK, reply, ASK],
        [SYSTEM, ASK, {**reply, "content": "lookup(1)"}, ASK],
    ):
        assert codec.prompt_ids(changed, [LOOKUP], names) == codec.encode(codec.render(changed, [LOOKUP]))
    same = [SYSTEM, ASK, reply, ASK]
    other_tools = [{**LOOKUP, "function": {**LOOKUP["function"], "name": "find"}}]
    assert codec.prompt_ids(same, other_tools, names) == codec.encode(codec.render(same, other_tools))
    assert codec.prompt_ids(same, [LOOKUP], [None] * 4) == codec.encode(codec.render(same, [LOOKUP]))


def test_roles_alternate_whatever_is_given(codec: ChatCodec) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": '{"name": "amber"}'}}
    messages: list[Json] = [
        {"role": "system", "content": "A"},
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "amber costs 12."},
        {"role": "developer", "content": "B"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": "y"},
    ]
    turns = codec.chat(messages, [LOOKUP])
    assert [t["role"] for t in turns] == ["system", "user", "assistant", "user", "assistant"]
    assert turns[0]["content"].startswith("A\nB\n") and "lookup(name)" in turns[0]["content"]
    assert turns[1]["content"] == "one\ntwo\n[image_url]"
    assert turns[2]["content"] == 'lookup(name="amber")'
    assert turns[3]["content"] == "amber costs 12.\nthree"
    assert codec.render(messages, [LOOKUP]).count("<|im_start|>") == 6


def test_calls_already_in_the_text_are_not_written_twice(codec: ChatCodec) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": {"name": "amber"}}}
    written = {"role": "assistant", "content": "lookup(name='amber')", "tool_calls": [call]}
    assert codec.chat([ASK, written], [LOOKUP])[-1]["content"] == "lookup(name='amber')"
    apart = {**written, "content": "Let me see."}
    assert codec.chat([ASK, apart], [LOOKUP])[-1]["content"] == 'Let me see.\nlookup(name="amber")'


def test_a_template_that_refuses_is_named(codec: ChatCodec, tiny_tokenizer: Any) -> None:
    with pytest.raises(PolicyError, match="chat template refused the messages: unknown role critic"):
        codec.render([{"role": "critic", "content": "x"}], [])
    with pytest.raises(PolicyError, match="Unknown tool format 'xml'; choose from compact, hermes"):
        ChatCodec(tiny_tokenizer, frozenset({1}), "xml")


@reused
@given(st.text(st.sampled_from("lokup(name=\"a') \n漢é💧"), max_size=40), st.booleans(), st.integers(0, 3))
def test_segments_cover_every_token_once(codec: ChatCodec, text: str, stop: bool, broken: int) -> None:
    text = f"{text}lookup(name='漢'){text}"
    ids = odd_ids(codec, text) if broken % 2 else codec.encode(text)
    ids = ids[: len(ids) - broken]  # may end inside a character
    if stop:
        ids = (*ids, codec.tokenizer.eos_token_id)
    parsed = codec.parse(codec.reply_text(ids), [LOOKUP], "c")
    segments = codec.segments(ids, parsed)
    assert [i for s in segments for i in range(s.start, s.end)] == list(range(len(ids)))
    assert [s.call_id for s in segments if s.kind == "call"] == [p.call.id for p in parsed]
    assert all((s.kind == "call") == (s.call_id is not None) for s in segments)


def test_segments_hold_the_tokens_of_their_call(codec: ChatCodec) -> None:
    text = 'Só: lookup(name="漢") or lookup(name="b")'
    for ids in (codec.encode(text), odd_ids(codec, text)):
        ids = (*ids, codec.tokenizer.eos_token_id)
        segments = codec.segments(ids, codec.parse(text, [LOOKUP], "c"))
        assert [s.kind for s in segments] == ["text", "call", "text", "call"]
        inside = {s.call_id: codec.reply_text(ids[s.start : s.end]) for s in segments if s.call_id}
        assert inside["c-0"].strip().startswith('lookup(name="漢")') and 'lookup(name="b")' in inside["c-1"]
        assert segments[-1].end == len(ids), "the end of the turn belongs to what was written last"
    assert codec.segments((), []) == ()
    assert [(s.kind, s.start, s.end) for s in codec.segments((5, 6), [])] == [("text", 0, 2)]


def test_a_logged_reply_becomes_what_the_model_would_have_sampled(codec: ChatCodec) -> None:
    ids = codec.reply_ids("answer(value=12)")
    assert ids[-1] == codec.tokenizer.eos_token_id
    assert codec.reply_text(ids) == "answer(value=12)"
    calls = [ToolCall("1", "lookup", {"name": "amber"}), ToolCall("2", "lookup", error="broken")]
    assert codec.written_reply("", calls, [LOOKUP]) == 'lookup(name="amber")'
    hermes = ChatCodec(codec.tokenizer, codec.stop_ids, "hermes")
    assert hermes.written_reply("Look.", calls[:1], [LOOKUP]).startswith("Look.\n<tool_call>")
