"""Made-up streams of statements with known truth: facts, repetitions, corrections, contradictions, retractions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from memory.measures import Key, key_of
from memory.records import Statement

_SUBJECTS = ("Ana", "Bo", "Cy", "Dee", "Eli", "Fay", "Gus", "Hal", "Ida", "Jo", "Kim", "Lev", "Mia", "Ned", "Ola")
_RELATIONS = ("lives in", "works as", "owns a", "prefers", "drives a", "studies", "plays", "is allergic to")
_VALUES = ("Oslo", "Rome", "teal", "nurse", "baker", "cello", "chess", "van", "pears", "latin", "boat", "nuts")
_FILLER = ("The bus was late.", "It rained all morning.", "Someone left the window open.", "Lunch was at noon.")


@dataclass(frozen=True, slots=True)
class World:
    """How often what happens; the shares are of all steps, the rest repeats something true."""

    subjects: int = 6
    relations: int = 4
    new: float = 0.35
    """A first statement about something; once everything was spoken of, a repetition."""
    correction: float = 0.15
    """The world changes, and the statement says so."""
    silent: float = 0.05
    """The world changes, and a plain statement gives the new value."""
    contradiction: float = 0.08
    """A plain statement that is false."""
    retraction: float = 0.05
    """Something ceases to be true."""
    filler: float = 0.12
    """A note about nothing."""


@dataclass(frozen=True, slots=True)
class Step:
    """One observation, what was read from it, and what is true after it."""

    time: int
    statement: Statement
    truth: Mapping[Key, str | None]
    past: Mapping[Key, frozenset[str]]
    """Every value of each key that was true at some time."""


@dataclass(slots=True)
class _Stream:
    world: World
    rng: random.Random
    truth: dict[Key, str | None] = field(default_factory=dict)
    past: dict[Key, frozenset[str]] = field(default_factory=dict)
    names: dict[Key, tuple[str, str]] = field(default_factory=dict)

    def statement(self, time: int) -> Statement:
        world, draw, evidence = self.world, self.rng.random(), f"o{time}"
        true = [key for key, value in self.truth.items() if value is not None]
        free = [
            (subject, relation)
            for subject in _SUBJECTS[: world.subjects]
            for relation in _RELATIONS[: world.relations]
            if self.truth.get(key_of(subject, relation)) is None
        ]
        if not true or (draw < world.new and free):
            subject, relation = self.rng.choice(free)
            self.names[key_of(subject, relation)] = subject, relation
            return self._claim(key_of(subject, relation), self._set(key_of(subject, relation)), evidence, "fact")
        key = self.rng.choice(true)
        draw -= world.new
        for share, kind in ((world.correction, "correction"), (world.silent, "fact")):
            if 0 <= draw < share:
                return self._claim(key, self._set(key), evidence, kind)
            draw -= share
        if 0 <= draw < world.contradiction:
            return self._claim(key, self._other(key), evidence, "fact")
        draw -= world.contradiction
        if 0 <= draw < world.retraction:
            self.truth[key] = None
            subject, relation = self.names[key]
            text = f"{subject} no longer {relation} anything."
            return Statement(text, evidence, subject, relation, kind="retraction")
        draw -= world.retraction
        if 0 <= draw < world.filler:
            return Statement(f"{self.rng.choice(_FILLER)} ({time})", evidence, kind="note")
        return self._claim(key, str(self.truth[key]), evidence, "fact")

    def _other(self, key: Key) -> str:
        return self.rng.choice([value for value in _VALUES if value != self.truth.get(key)])

    def _set(self, key: Key) -> str:
        value = self._other(key)
        self.truth[key] = value
        self.past[key] = self.past.get(key, frozenset()) | {value}
        return value

    def _claim(self, key: Key, value: str, evidence: str, kind: str) -> Statement:
        subject, relation = self.names[key]
        text = f"{subject} {relation} {value}."
        if kind == "correction":
            return Statement(f"Correction: {text}", evidence, subject, relation, value, "correction")
        return Statement(text, evidence, subject, relation, value)


def stream(steps: int, *, seed: int, world: World | None = None) -> Iterator[Step]:
    """A stream of observations; equal seeds give equal streams."""
    made = _Stream(world or World(), random.Random(seed))
    for time in range(1, steps + 1):
        statement = made.statement(time)
        yield Step(time, statement, dict(made.truth), dict(made.past))
