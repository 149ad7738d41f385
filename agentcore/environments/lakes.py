"""Maps of frozen lakes: what is valid, how far the goal is, which move is best; and gymnasium's transition table."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentcore.environment import Split
from agentcore.errors import AgentCoreError, SpecError

DIRECTIONS = ("left", "down", "right", "up")
"""In gymnasium's order of actions 0 to 3."""
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
MAX_SIZE = 16
_DISCOUNT = 0.99  # of value iteration: below 1, so that the oracle does not dawdle

Map = tuple[str, ...]
Table = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""Cell, action -> (probability, next cell, reward, terminated)."""


class MissingExtraError(AgentCoreError, ImportError):
    """An optional package that was asked for is not installed."""


@dataclass(frozen=True, slots=True)
class Lake:
    """What is derived from one map and its slipperiness; cached, never in the state."""

    table: Table
    start: int
    distance: Mapping[int, int]
    """Moves to the goal over safe cells, for every safe cell that the goal can be reached from."""
    best: Mapping[int, str]
    """The direction with the best chance of reaching the goal, by cell."""

    def potential(self, cell: int) -> float:
        """How much nearer than the start, in [-1, 1]; 0 at the start. Callers use 0 for every final state."""
        farthest = max(self.distance.values()) or 1
        return (self.distance[self.start] - self.distance.get(cell, farthest)) / farthest


def split_of(lake: Map) -> Split:
    """The split that a random map belongs to: 60 % train, 20 % held out, 20 % adversarial."""
    share = hashlib.blake2b("/".join(lake).encode(), digest_size=2).digest()[0] / 256
    return "train" if share < 0.6 else "heldout" if share < 0.8 else "adversarial"


def checked_map(rows: object) -> Map:
    """The rows of a map that can be crossed; raises SpecError otherwise."""
    if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, str) for row in rows):
        raise SpecError("FrozenLake: a map is a sequence of rows such as ['SF', 'HG'].")
    lake = tuple(rows)
    if not 2 <= len(lake) <= MAX_SIZE or len({len(row) for row in lake}) != 1 or not 2 <= len(lake[0]) <= MAX_SIZE:
        raise SpecError(f"FrozenLake: a map needs 2 to {MAX_SIZE} rows and columns, all rows of one length: {lake}.")
    text = "".join(lake)
    if set(text) - set("SFHG") or text.count("S") != 1 or "G" not in text:
        raise SpecError(f"FrozenLake: a map holds one S, at least one G, and else F and H only: {lake}.")
    if text.index("S") not in _distances(lake):
        raise SpecError(f"FrozenLake: no way leads from S to G on this map: {lake}.")
    return lake


def _distances(lake: Map) -> dict[int, int]:
    """Moves to the nearest goal over safe cells, breadth first from the goals."""
    rows, columns = len(lake), len(lake[0])
    text = "".join(lake)
    found = {cell: 0 for cell, letter in enumerate(text) if letter == "G"}
    queue = deque(found)
    while queue:
        cell = queue.popleft()
        for r, c in MOVES.values():
            row, column = cell // columns + r, cell % columns + c
            near = row * columns + column
            if 0 <= row < rows and 0 <= column < columns and near not in found and text[near] != "H":
                found[near] = found[cell] + 1
                queue.append(near)
    return found


@lru_cache(maxsize=1024)
def lake_of(lake: Map, slippery: bool, success_rate: float) -> Lake:
    environment = toy_text().FrozenLakeEnv(desc=list(lake), is_slippery=slippery, success_rate=success_rate)
    table: Table = environment.unwrapped.P
    return Lake(table, "".join(lake).index("S"), _distances(lake), _best_moves(table))


def _best_moves(table: Table) -> dict[int, str]:
    """Value iteration: V(s) = max_a Σ p · (r + γ V(s')), V = 0 in final states (Sutton & Barto 2018, eq. 4.10)."""
    value = dict.fromkeys(table, 0.0)

    def worth(cell: int, action: int) -> float:
        return sum(p * (r + (0.0 if end else _DISCOUNT * value[to])) for p, to, r, end in table[cell][action])

    change = 1.0
    while change > 1e-9:
        change = 0.0
        for cell in table:
            new = max(worth(cell, action) for action in table[cell])
            change = max(change, abs(new - value[cell]))
            value[cell] = new
    return {cell: DIRECTIONS[max(table[cell], key=lambda action: worth(cell, action))] for cell in table}


def toy_text() -> Any:
    try:
        from gymnasium.envs.toy_text import frozen_lake
    except ImportError as error:
        raise MissingExtraError(
            "FrozenLake needs the package gymnasium, which is not installed: pip install 'agentcore-rl[envs]'."
        ) from error
    return frozen_lake
