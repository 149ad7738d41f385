"""Random ragged batches for comparisons with other projects (see make_peer_cases.py)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from tests.golden.peer_cases import Inputs, Outputs, tensor

Case = tuple[Inputs, Outputs]
Maker = Callable[[random.Random], Case]
AGGREGATES = ("token", "step", "dr")


def number(rng: random.Random, low: float, high: float) -> float:
    return round(rng.uniform(low, high), 3)


def matrix(rng: random.Random, rows: int, columns: int, low: float, high: float) -> list[list[float]]:
    return [[number(rng, low, high) for _ in range(columns)] for _ in range(rows)]


def replies(rng: random.Random, sizes: list[int]) -> dict[str, Any]:
    """Returns of groups of these sizes, some constant, in random order."""
    group = [g for g, size in enumerate(sizes) for _ in range(size)]
    constant = {g: number(rng, -2, 2) for g in range(len(sizes)) if rng.random() < 0.25}
    returns = [constant.get(g, number(rng, -2, 2)) for g in group]
    order = rng.sample(range(len(group)), len(group))
    return {"return_B": [returns[i] for i in order], "group_B": [group[i] for i in order]}


def mask(rng: random.Random, rows: int, columns: int, holes: bool) -> list[list[int]]:
    """Ragged rows with at least one token each and two in all; with holes, observations lie between."""
    made = []
    for _ in range(rows):
        length = rng.randint(1, columns)
        row = [int(t < length and (not holes or rng.random() < 0.7)) for t in range(columns)]
        row[rng.randrange(length)] = 1
        made.append(row)
    if sum(map(sum, made)) < 2:
        made[0][:2] = [1, 1]
    return made


def tokens(rng: random.Random, **more: Any) -> dict[str, Any]:
    rows, columns = rng.randint(1, 5), rng.randint(2, 5)
    old = matrix(rng, rows, columns, -4, -0.1)
    return {
        "logprob_BT": [[round(v + rng.gauss(0, 0.3), 3) for v in row] for row in old],
        "old_BT": old,
        "advantage_BT": matrix(rng, rows, columns, -2, 2),
        "mask_BT": mask(rng, rows, columns, holes=True),
        **more,
    }


def kept(values: torch.Tensor, mask_BT: list[list[int]]) -> list[float]:
    chosen: list[float] = values[tensor(mask_BT).bool()].tolist()
    return chosen


def without_singles(values: list[float], group: list[int]) -> list[float | None]:
    return [v if group.count(g) > 1 else None for v, g in zip(values, group, strict=True)]
