"""Our advantages against verl's and TRL's, frozen as JSON (tests/golden/make_peer_cases.py says how they were made).

Groups of one are left out there, since projects differ: verl returns R itself, TRL 0. Ours are 0.0 for estimators that
subtract the group's own mean and None for leave-one-out, see test_credit_estimators.py.
"""

from __future__ import annotations

import pytest

from tests.golden.peer_cases import OURS, difference, load
from training.credit.arrays import grpo_advantages, rloo_advantages

ADVANTAGES = [(p, n) for p, names in OURS.items() for n in names if "advantage" in n]


@pytest.mark.parametrize(("peer", "version"), [("verl", "0.9.1"), ("trl", "1.16.0")])
def test_the_cases_name_the_peer_and_its_version(peer: str, version: str) -> None:
    data = load(peer)
    assert (data["peer"], data["version"]) == (peer, version)
    assert data["cases"].keys() == OURS[peer].keys()
    assert all(len(cases) == 20 for cases in data["cases"].values())


@pytest.mark.parametrize(("peer", "name"), ADVANTAGES)
def test_advantages_are_those_of_the_peer(peer: str, name: str) -> None:
    for case in load(peer)["cases"][name]:
        assert difference(OURS[peer][name](case["inputs"]), case["expected"]) < 1e-6


def test_groups_of_one_and_constant_groups_are_among_the_cases() -> None:
    cases = load("verl")["cases"]["compute_grpo_outcome_advantage"]
    sizes = {c["inputs"]["group_B"].count(g) for c in cases for g in c["inputs"]["group_B"]}
    assert {1, 8} <= sizes
    assert any(0.0 in c["expected"]["advantages"] for c in cases)
    assert grpo_advantages([0.7]).tolist() == [0.0]
    assert str(rloo_advantages([0.7])[0]) == "nan"
