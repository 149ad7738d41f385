"""A chat model that plays a script: the test double for a model, and the player of expert actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool

from agentcore.capabilities.planning import PLAN_SYSTEM, write_plan
from agentcore.environment import Action, Environment, HasOracle, Task
from agentcore.errors import PolicyError, SpecError
from agentcore.keys import derive_key
from agentcore.policies.local import EPISODE_ID, to_message
from agentcore.policies.toolformat import FORMATS

Script = Callable[[Sequence[BaseMessage], Mapping[str, Any]], AIMessage]
"""(messages, the call's metadata) -> reply. Metadata holds ``agentcore_episode`` and LangGraph's fields."""


class ScriptedChatModel(BaseChatModel):
    """Replies what ``script`` says."""

    script: Script

    @property
    def _llm_type(self) -> str:
        return "agentcore-scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(t) for t in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        metadata = (run_manager.metadata or {}) if run_manager is not None else {}
        return self._reply(messages, metadata)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        metadata = (run_manager.metadata or {}) if run_manager is not None else {}
        return self._reply(messages, metadata)

    def _reply(self, messages: Sequence[BaseMessage], metadata: Mapping[str, Any]) -> ChatResult:
        # a copy: LangChain gives the message an id of this call, and a script may reply the same object twice
        message = self.script(messages, metadata).model_copy()
        return ChatResult(generations=[ChatGeneration(message=message)])


def expert_actions(environment: Environment, task: Task, episode_key: int) -> list[Action]:
    """What the environment's oracle does in one episode, played through beforehand.

    The graph's episode with the same key then sees the same transitions, so the actions can be replayed by a policy
    that never sees the hidden state.
    """
    if not isinstance(environment, HasOracle):
        raise SpecError(f"Environment {environment.spec.name!r} has no oracle; bring expert traces of your own.")
    transition = environment.reset(task, derive_key(episode_key, 0))
    actions: list[Action] = []
    while transition.outcome is None:
        action = environment.oracle(transition.state)
        actions.append(action)
        transition = environment.step(transition.state, action, derive_key(episode_key, len(actions)))
    return actions


class ExpertPolicy(ScriptedChatModel):
    """Replays the oracle's actions, one per call, in a tool format, and plans as the rules do where it is the planner;
    register episodes with :meth:`prepare`."""

    script: Script = lambda messages, metadata: AIMessage("")
    tool_format: str = "compact"
    plans: dict[str, list[Action]] = {}  # noqa: RUF012 - pydantic copies field defaults

    def prepare(self, episode: str, environment: Environment, task: Task, key: int) -> None:
        """Work out what to do in the episode called ``episode``."""
        self.plans[episode] = expert_actions(environment, task, key)

    def _generate(self, messages: list[BaseMessage], *args: Any, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return self._next(messages, run_manager)

    async def _agenerate(
        self, messages: list[BaseMessage], *args: Any, run_manager: Any = None, **kw: Any
    ) -> ChatResult:
        return self._next(messages, run_manager)

    def _next(self, messages: list[BaseMessage], run_manager: Any) -> ChatResult:
        if messages[0].content == PLAN_SYSTEM:  # asked as a planner
            plan = write_plan(str(messages[-1].content).splitlines()[0])
            return ChatResult(generations=[ChatGeneration(message=AIMessage(plan))])
        episode = str((run_manager.metadata or {}).get(EPISODE_ID))
        if not self.plans.get(episode):
            raise PolicyError(
                f"The expert has nothing (more) to do in episode {episode!r}; call prepare() for it, with the key and "
                "the environment that it is run with."
            )
        action = self.plans[episode].pop(0)
        write = FORMATS[self.tool_format].write
        text = "\n".join([action.text, *(write(c.name, c.args) for c in action.calls)]).strip()
        calls = [replace(c, id=f"call-{run_manager.run_id.hex}-{i}") for i, c in enumerate(action.calls)]
        return ChatResult(generations=[ChatGeneration(message=to_message(text, calls))])
