"""A LangChain chat model over transformers and peft, made to be trained.

``LocalChatModel`` can be used in any LangGraph node. The exact sampled token ids, their log-probabilities, the adapter
and its version go to the recorder by run id; the message carries only a ``rollout_id``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self
from uuid import UUID, uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field, PrivateAttr

from agentcore.assembly import CALL_ORDER, policy_id, to_openai
from agentcore.environment import Json, ToolCall
from agentcore.keys import derive_key
from agentcore.policies.batcher import Batcher
from agentcore.policies.codec import ChatCodec
from agentcore.policies.engine import Engine, GenerationRequest, GenerationResult
from agentcore.policies.models import DEFAULT_MODEL
from agentcore.policies.sink import RepeatCounter, TokenSink
from agentcore.trace import Step, Tokens

EPISODE_KEY = "agentcore_key"
"""Metadata field with the episode's random key; set by the runner."""
EPISODE_ID = "agentcore_episode"


class LocalChatModel(BaseChatModel):
    """A local policy: ``LocalChatModel.load("smollm2-135m-instruct")``."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Engine = Field(exclude=True, repr=False)
    adapter: str | None = None
    """LoRA adapter to act with; None is the base model."""
    adapters: dict[str, str] = Field(default_factory=dict)
    """Adapters by policy id, for nodes that have one of their own: ``{"planner": "a"}``; all others use ``adapter``."""
    temperature: float = 1.0
    max_tokens: int = 48
    tool_format: str = "compact"
    seed: int = 0
    """Key of calls made outside an episode."""
    _codec: ChatCodec = PrivateAttr()
    _batcher: Batcher = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._codec = ChatCodec(self.engine.tokenizer, self.engine.stop_ids, self.tool_format)
        self._batcher = Batcher(self.engine)

    @classmethod
    def load(cls, name: str = DEFAULT_MODEL, *, dtype: str = "float32", device: str = "auto", **options: Any) -> Self:
        """Load a model by name or folder and make a policy of it; ``options`` are the fields above."""
        return cls(engine=Engine.load(name, dtype=dtype, device=device), **options)

    def with_options(self, **options: Any) -> LocalChatModel:
        """The same engine, batches and rollout memory with other options, e.g. ``temperature=0.0``."""
        copy = self.model_copy(update=options)
        if copy.tool_format != self.tool_format:
            copy._codec = ChatCodec(self.engine.tokenizer, self.engine.stop_ids, copy.tool_format)
        return copy

    def adapter_of(self, policy_id: str) -> str | None:
        """The adapter that this policy acts with at a node."""
        return self.adapters.get(policy_id, self.adapter)

    @property
    def codec(self) -> ChatCodec:
        """Renders and reads this policy's chats."""
        return self._codec

    @property
    def _llm_type(self) -> str:
        return "agentcore-local"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {
            "model": self.engine.identity.name,
            "adapter": self.adapter,
            "adapters": dict(self.adapters),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer tools, in any form LangChain can describe."""
        return self.bind(tools=[convert_to_openai_tool(t) for t in tools], **kwargs)

    # -- one call -------------------------------------------------------------------------------------------

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request, listed, tools = self._request(messages, kwargs, run_manager)
        (result,) = self.engine.generate([request])
        return self._finish(request, result, listed, tools, run_manager)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request, listed, tools = self._request(messages, kwargs, run_manager)
        result = await self._batcher.generate(request)
        return self._finish(request, result, listed, tools, run_manager)

    def _request(
        self, messages: list[BaseMessage], kwargs: dict[str, Any], run_manager: Any
    ) -> tuple[GenerationRequest, list[Json], list[Json]]:
        tools = [t if "function" in t else convert_to_openai_tool(t) for t in kwargs.get("tools") or []]
        listed = to_openai(messages)
        rollouts = [m.response_metadata.get("rollout_id") for m in messages]
        prompt_ids = self._codec.prompt_ids(listed, tools, rollouts)
        metadata = (getattr(run_manager, "metadata", None) or {}) if run_manager else {}
        place = (metadata.get("langgraph_step"), metadata.get("langgraph_node"), metadata.get("langgraph_path"))
        key = derive_key(metadata.get(EPISODE_KEY, self.seed), repr(place), prompt_ids)
        repeat = _repeat(run_manager)
        node = policy_id(metadata.get("langgraph_checkpoint_ns", ""), metadata.get("lc_agent_name"))
        request = GenerationRequest(
            prompt_ids=prompt_ids,
            # asked the same again (several samples in one node, a retry), it draws anew
            key=derive_key(key, repeat) if repeat else key,
            max_new_tokens=int(kwargs.get("max_tokens", self.max_tokens)),
            temperature=float(kwargs.get("temperature", self.temperature)),
            adapter=self.adapter_of(node),
            episode=metadata.get(EPISODE_ID),
        )
        return request, listed, tools

    def _finish(
        self,
        request: GenerationRequest,
        result: GenerationResult,
        listed: list[Json],
        tools: list[Json],
        run_manager: Any,
    ) -> ChatResult:
        run_id: UUID = run_manager.run_id if run_manager is not None else uuid4()
        text = self._codec.remember(run_id.hex, listed, tools, request.prompt_ids, result.ids)
        parsed = self._codec.parse(text, tools, f"call-{run_id.hex}")
        calls = tuple(p.call for p in parsed)
        tokens = Tokens(
            prompt_ids=request.prompt_ids,
            reply_ids=result.ids,
            logprobs=result.logprobs,
            temperature=request.temperature,
            model=self.engine.identity.name,
            adapter=request.adapter,
            adapter_version=result.adapter_version,
            segments=self._codec.segments(result.ids, parsed),
            finish=result.finish,
        )
        for handler in getattr(run_manager, "handlers", []):
            if isinstance(handler, TokenSink):
                handler.on_tokens(run_id, tokens, calls, self)
        message = to_message(text, calls)
        message.response_metadata |= {"rollout_id": run_id.hex, "model_name": self.engine.identity.name}
        message.usage_metadata = {
            "input_tokens": len(request.prompt_ids),
            "output_tokens": len(result.ids),
            "total_tokens": len(request.prompt_ids) + len(result.ids),
        }
        return ChatResult(generations=[ChatGeneration(message=message)])

    def tokens_of(self, step: Step) -> Tokens:
        """The step's tokens: as sampled where they were recorded, else re-tokenised from its text and marked so."""
        if step.tokens is not None:
            return step.tokens
        tools = list(step.tools)
        reply = self._codec.written_reply(step.reply, step.calls, tools)
        ids = self._codec.reply_ids(reply)
        return Tokens(
            prompt_ids=self._codec.prompt_ids(step.messages, tools),
            reply_ids=ids,
            logprobs=None,
            temperature=1.0,
            model=self.engine.identity.name,
            adapter=self.adapter_of(step.policy_id),
            adapter_version=0,
            segments=self._codec.segments(ids, self._codec.parse(reply, tools, step.id)),
            retokenised=True,
        )


def _repeat(run_manager: Any) -> int:
    """How many calls like this one its node has already made, as far as a recorder knows."""
    counters = [h for h in getattr(run_manager, "handlers", []) if isinstance(h, RepeatCounter)]
    return max((h.repeat_of(run_manager.run_id) for h in counters), default=0)


def to_message(text: str, calls: Sequence[ToolCall]) -> AIMessage:
    """An assistant message; a call that can't be run is an ``invalid_tool_call``, never dropped."""
    good = [c.id for c in calls if c.error is None]
    # LangChain keeps the two kinds apart; their order is what an environment applies them in
    mixed = bool(good) and len(good) < len(calls)
    return AIMessage(
        content=text,
        response_metadata={CALL_ORDER: [c.id for c in calls]} if mixed else {},
        tool_calls=[tool_call(name=c.name, args=c.args, id=c.id) for c in calls if c.error is None],
        invalid_tool_calls=[
            invalid_tool_call(name=c.name, args=c.raw, id=c.id, error=c.error) for c in calls if c.error is not None
        ],
    )
