"""Our losses, their gradients and clip fractions against verl's and TRL's, frozen as JSON in tests/golden."""

from __future__ import annotations

import pytest

from tests.golden.peer_cases import OURS, difference, load

LOSSES = [(p, n) for p, names in OURS.items() for n in names if "advantage" not in n]


@pytest.mark.parametrize(("peer", "name"), LOSSES)
def test_losses_and_gradients_are_those_of_the_peer(peer: str, name: str) -> None:
    for case in load(peer)["cases"][name]:
        assert difference(OURS[peer][name](case["inputs"]), case["expected"]) < 1e-6
