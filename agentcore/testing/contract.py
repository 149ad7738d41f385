"""The environment contract as a test mixin, for the built-in environments and for anyone's own.

Subclass it in a test module; pytest runs every check::

    from agentcore.testing import EnvironmentContract

    class TestMyEnvironment(EnvironmentContract):
        def make_environment(self):
            return MyEnvironment()

What the checks pin:

1. The specification is complete; tool schemas are valid; names are unique.
2. Tasks are distinct, a function of (split, count, seed), and the splits never share an id.
3. ``reset`` and ``step`` are pure: nothing they were given is changed, equal arguments give equal transitions, and the
   state survives a JSON round trip. Another key may lead elsewhere; it never disturbs the first.
4. Every emitted reward is declared and in range; ``reset`` gives neither rewards nor an outcome.
5. No tool call raises, whatever it holds: one result per call, in order, and a bad call's result has ``ok=False``.
6. The step limit ends an episode with the outcome ``truncated``; stepping on after any end raises a clear error.
7. ``progress`` components sum to 0 over a finished episode (or to a constant of its start, if that is declared).
8. ``anchor`` is a string, equal for equal states.
9. The oracle, where there is one, ends its episodes by itself, within the step limit, with the best outcome reward.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from jsonschema import Draft202012Validator

from agentcore.environment import Action, Environment, HasOracle, Json, Split, Task, ToolCall
from agentcore.errors import AgentCoreError
from agentcore.keys import derive_key, rng
from agentcore.testing.cases import Episode, check_transition, hostile_calls
from agentcore.tools.checks import check_call

_VALUES: dict[object, list[Any]] = {"integer": [0, 1, 2], "number": [0.5, 2.0], "boolean": [True, False]}
SPLITS: tuple[Split, ...] = ("train", "heldout", "adversarial")


class EnvironmentContract:
    """Mixin: subclass it and define :meth:`make_environment`; override the rest where the defaults don't fit."""

    seed: ClassVar[int] = 0
    """Seed of the tasks and keys that the kit draws."""
    task_count: ClassVar[int] = 4
    """Tasks per split that are played."""
    success_component: ClassVar[str | None] = None
    """The outcome component that the oracle must bring to its declared maximum; None: do not check it."""
    potential_start: ClassVar[float] = 0.0
    """Largest potential (in size) that a start state may have: progress must sum to 0 up to this."""

    def make_environment(self) -> Environment:
        raise NotImplementedError("Return the environment under test from make_environment().")

    def random_action(self, environment: Environment, state: Json, number: int, *key: object) -> Action:
        """A valid-looking action; override it where a random pick by schema gets nowhere."""
        random = rng("contract-action", number, *key)
        tool = random.choice(environment.spec.actions) if environment.spec.actions else None
        if tool is None:
            return Action(text="hello")
        args = {}
        for name, schema in tool.parameters.get("properties", {}).items():
            values = _VALUES.get(schema.get("type"), ["a", "1", "x y"])
            args[name] = random.choice(schema.get("enum") or values)
        return Action(calls=(ToolCall(f"call-{number}", tool.name, args),))

    # Playing

    def contract_tasks(self, environment: Environment) -> Iterator[Task]:
        for split in SPLITS:
            yield from environment.tasks(split, self.task_count, seed=self.seed)

    def play(self, environment: Environment, task: Task, *, oracle: bool = False, idle: bool = False) -> Episode:
        """Play to the end (or two steps beyond the limit, where the environment fails to end it)."""
        key = derive_key("contract", self.seed, task.id)
        transitions = [environment.reset(task, key)]
        actions: list[Action] = []
        for number in range(environment.spec.step_limit + 2):
            state = transitions[-1].state
            if oracle:
                assert isinstance(environment, HasOracle)
                action = environment.oracle(copy.deepcopy(state))
            elif idle:
                action = Action(text="I would rather not.")
            else:
                action = self.random_action(environment, state, number, task.id)
            actions.append(action)
            transitions.append(environment.step(copy.deepcopy(state), action, derive_key(key, number)))
            if transitions[-1].outcome is not None:
                break
        return Episode(task, tuple(actions), tuple(transitions))

    # 1. Specification

    def test_specification_is_complete(self) -> None:
        spec = self.make_environment().spec
        for field in ("name", "version", "state", "observation", "termination"):
            assert getattr(spec, field).strip(), f"EnvironmentSpec.{field} is empty; say it in words."
        names = [tool.name for tool in spec.actions]
        assert len(set(names)) == len(names), f"Two tools share a name: {names}."
        for tool in spec.actions:
            Draft202012Validator.check_schema(tool.parameters)
            assert tool.parameters.get("type") == "object", f"The parameters of {tool.name!r} must be an object schema."
            assert tool.description.strip(), f"Tool {tool.name!r} has no description."
        for reward in spec.rewards:
            assert reward.low <= reward.high, f"Reward {reward.name!r}: low {reward.low} is above high {reward.high}."
        assert isinstance(self.make_environment(), Environment)

    # 2. Tasks

    def test_tasks_are_distinct_and_splits_are_disjoint(self) -> None:
        environment = self.make_environment()
        seen: dict[str, str] = {}
        for seed in (self.seed, self.seed + 1):
            for split in SPLITS:
                tasks = environment.tasks(split, 8, seed=seed)
                assert len(tasks) == 8, f"tasks({split!r}, 8) gave {len(tasks)} tasks."
                ids = [task.id for task in tasks]
                assert len(set(ids)) == 8, f"tasks({split!r}, 8) repeats an id: {ids}."
                for task in tasks:
                    assert task.split == split, f"Task {task.id} says {task.split!r} and came with {split!r}."
                    assert task.instruction.strip(), f"Task {task.id} has no instruction."
                    other = seen.setdefault(task.id, split)
                    assert other == split, f"Task id {task.id} is in both {other!r} and {split!r}."

    def test_tasks_are_a_function_of_their_arguments(self) -> None:
        one, two = self.make_environment(), self.make_environment()
        for split in SPLITS:
            first = list(one.tasks(split, 5, seed=self.seed))
            one.tasks(split, 3, seed=self.seed + 7)
            assert first == list(one.tasks(split, 5, seed=self.seed)) == list(two.tasks(split, 5, seed=self.seed))
            assert first[:2] == list(one.tasks(split, 2, seed=self.seed)), "Asking for more tasks changed the first."
            assert json.loads(json.dumps([task.data for task in first])) == [task.data for task in first]

    # 3. Purity

    def test_transitions_are_pure(self) -> None:
        one, two = self.make_environment(), self.make_environment()
        for task in self.contract_tasks(one):
            given = copy.deepcopy(task)
            first = one.reset(task, 1)
            assert first == one.reset(task, 1) == two.reset(given, 1), "Equal resets gave different transitions."
            assert task == given, "reset changed the task."
            episode = self.play(one, task)
            for number, action in enumerate(episode.actions):
                before = episode.transitions[number].state
                state = copy.deepcopy(before)
                expected = one.step(state, action, number)
                assert state == before, f"step {number} changed the state it was given."
                # Through JSON, as a checkpoint stores it, and on another instance, as another process has it.
                stored = json.loads(json.dumps(before, allow_nan=False))
                assert stored == before, "The state does not survive a JSON round trip (tuples, non-string keys?)."
                assert two.step(stored, action, number) == expected, "Equal steps gave different transitions."

    def test_a_fork_does_not_disturb(self) -> None:
        environment = self.make_environment()
        for task in self.contract_tasks(environment):
            episode = self.play(environment, task)
            state = episode.transitions[0].state
            expected = environment.step(state, episode.actions[0], 1)
            frozen = copy.deepcopy(expected)
            for key in range(2, 6):
                forked = environment.step(state, episode.actions[0], key)
                if forked.outcome is None:
                    environment.step(forked.state, self.random_action(environment, forked.state, 1, key), key)
            assert expected == frozen, "Stepping a fork changed an earlier transition."
            assert environment.step(state, episode.actions[0], 1) == frozen, "A fork changed what the first key gives."

    # 4. Rewards

    def test_rewards_are_declared_and_in_range(self) -> None:
        environment = self.make_environment()
        for task in self.contract_tasks(environment):
            start = environment.reset(task, 0)
            assert not start.rewards and not start.call_rewards, "reset gives rewards; only step may."
            assert start.outcome is None, "reset gives an outcome; an episode has at least one step."
            assert start.results == (), "reset gives tool results, but there was no call."
            for oracle in (False, True) if isinstance(environment, HasOracle) else (False,):
                episode = self.play(environment, task, oracle=oracle)
                for action, transition in zip(episode.actions, episode.transitions[1:], strict=True):
                    check_transition(environment.spec, action, transition)

    # 5. Bad calls

    def test_bad_calls_get_results_not_exceptions(self) -> None:
        environment = self.make_environment()
        task = next(self.contract_tasks(environment))
        state = environment.reset(task, 0).state
        calls = hostile_calls(environment.spec)
        for call in calls:
            transition = environment.step(copy.deepcopy(state), Action(calls=(call,)), 1)
            check_transition(environment.spec, Action(calls=(call,)), transition)
            if check_call(call, environment.spec.actions).error is not None:
                assert not transition.results[0].ok, f"A bad call was accepted: {call.name!r} {str(call.args)[:80]}."
        together = Action(text="\x00 garbage \ud800", calls=tuple(calls))
        check_transition(environment.spec, together, environment.step(state, together, 1))

    def test_no_calls_and_many_calls(self) -> None:
        environment = self.make_environment()
        for task in self.contract_tasks(environment):
            state = environment.reset(task, 0).state
            for text in ("", "I do not know."):
                check_transition(environment.spec, Action(text=text), environment.step(state, Action(text=text), 1))
            calls: list[ToolCall] = []
            for number in range(12):
                for call in self.random_action(environment, state, number, task.id).calls:
                    calls.append(replace(call, id=f"call-{len(calls)}"))
            many = Action(calls=tuple(calls))
            check_transition(environment.spec, many, environment.step(state, many, 1))

    # 6. Ends

    def test_every_episode_ends(self) -> None:
        environment = self.make_environment()
        limit = environment.spec.step_limit
        for task in self.contract_tasks(environment):
            for idle in (False, True):
                episode = self.play(environment, task, idle=idle)
                steps = len(episode.actions)
                assert episode.last.outcome is not None, f"Task {task.id} did not end within {limit} steps."
                assert steps <= limit, f"Task {task.id} ended after {steps} steps; the limit is {limit}."
                if steps < limit:
                    assert episode.last.outcome == "terminated", (
                        f"Task {task.id} ended as {episode.last.outcome!r} after {steps} of {limit} steps."
                    )

    def test_the_step_limit_truncates(self) -> None:
        environment = self.make_environment()
        outcomes = set()
        for task in self.contract_tasks(environment):
            episode = self.play(environment, task, idle=True)
            if len(episode.actions) == environment.spec.step_limit:
                outcomes.add(episode.last.outcome)
        assert not outcomes or "truncated" in outcomes, (
            f"Idle episodes that reached the step limit ended as {sorted(map(str, outcomes))}, never as 'truncated'."
        )

    def test_stepping_after_the_end_raises(self) -> None:
        environment = self.make_environment()
        for task in self.contract_tasks(environment):
            episode = self.play(environment, task)
            action = self.random_action(environment, episode.last.state, 0, task.id)
            try:
                environment.step(episode.last.state, action, 1)
            except (AgentCoreError, RuntimeError, ValueError) as error:
                assert str(error).strip(), f"{type(error).__name__} without a message; say that the episode has ended."
            else:
                raise AssertionError("step went on after the episode had ended; it must raise.")

    # 7. Progress

    def test_progress_telescopes(self) -> None:
        environment = self.make_environment()
        components = [r.name for r in environment.spec.rewards if r.kind == "progress"]
        for task in self.contract_tasks(environment):
            episodes = [self.play(environment, task), self.play(environment, task, idle=True)]
            if isinstance(environment, HasOracle):
                episodes.append(self.play(environment, task, oracle=True))
            for name in components:
                # Φ(end) - Φ(start) with Φ(end) = 0: whatever was done, the same sum; and 0 if Φ(start) is 0.
                sums = [episode.total(name) for episode in episodes]
                assert max(sums) - min(sums) < 1e-6, (
                    f"{name!r} sums to {sums} in episodes of task {task.id} from one start; a difference of a "
                    "potential that is 0 in every final state sums to the same whatever is done."
                )
                assert abs(sums[0]) <= self.potential_start + 1e-6, (
                    f"{name!r} sums to {sums[0]} in an episode of task {task.id}; it must sum to 0. Give the potential "
                    "the value 0 in start states, or state its bound in potential_start."
                )

    # 8. Anchors

    def test_anchors_name_states(self) -> None:
        environment = self.make_environment()
        for task in self.contract_tasks(environment):
            for transition in self.play(environment, task).transitions:
                anchor = environment.anchor(transition.state)
                assert isinstance(anchor, str) and anchor
                again = json.loads(json.dumps(transition.state))
                assert environment.anchor(again) == anchor, "Equal states have different anchors."
                assert again == transition.state, "anchor changed the state."

    # 9. Oracle

    def test_the_oracle_succeeds(self) -> None:
        environment = self.make_environment()
        if not isinstance(environment, HasOracle):
            return
        for task in self.contract_tasks(environment):
            episode = self.play(environment, task, oracle=True)
            assert episode.last.outcome is not None
            if self.success_component is None:
                continue
            declared = {r.name: r for r in environment.spec.rewards}[self.success_component]
            assert episode.last.outcome == "terminated", f"The oracle ended task {task.id} as {episode.last.outcome!r}."
            assert abs(episode.total(declared.name) - declared.high) < 1e-6, f"The oracle failed task {task.id}."
