"""Filters: the plain functions, and that the columns a store filters by agree with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.base import MatchCondition, PutOp

from memory import BadValueError, FaissStore
from memory.filters import OPERATORS, check_filter, json_equal, matches, namespace_matches

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**53, 2**53 + 1, -(2**60), 10**30, 1.0, 0.5, -0.0, 1e300]),
    st.sampled_from(["", "a", "b", "10", "9", "2024-01-02", "2024-01-10"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("xy"), inner, max_size=2)),
)
operations = st.dictionaries(st.sampled_from(OPERATORS), values, min_size=1, max_size=2)
conditions = st.dictionaries(st.sampled_from("pq"), st.one_of(values, operations), min_size=1, max_size=2)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("pq"), values), min_size=1, max_size=12), st.lists(conditions, max_size=4)
)
def test_a_store_filters_as_the_function_does(rows: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    store = FaissStore(embedder=False)
    # In two parts, so that columns are filled once from nothing and once further.
    half = len(rows) // 2
    ops = [PutOp(("f",), str(i), row) for i, row in enumerate(rows)]
    for start, stop in ((0, half), (half, len(rows))):
        store.batch(ops[start:stop])
        for condition in wanted:
            found = {int(item.key) for item in store.search(("f",), filter=condition, limit=100)}
            assert found == {i for i, row in enumerate(rows[:stop]) if matches(row, condition)}


def test_many_rows_take_the_masked_path() -> None:
    store = FaissStore(embedder=False)
    store.batch([PutOp(("f",), str(i), {"n": i, "m": i % 3, "s": f"{i:05d}"}) for i in range(5000)])
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"n": {"$gte": 100, "$lt": 4000}}, lambda i: 100 <= i < 4000),
        ({"n": {"$gte": 100, "$lt": 4000}, "m": 1}, lambda i: 100 <= i < 4000 and i % 3 == 1),
        ({"s": {"$gt": "04000"}}, lambda i: i > 4000),
        ({"m": {"$ne": 1}}, lambda i: i % 3 != 1),
        ({"n": 17.0}, lambda i: i == 17),
    ]
    for condition, wanted in cases:
        found = store.search(("f",), filter=condition, limit=5000)
        assert sorted(int(item.key) for item in found) == [i for i in range(5000) if wanted(i)]


def test_columns_follow_updates_deletes_and_compaction() -> None:
    store = FaissStore(embedder=False, garbage=1)
    for i in range(300):
        store.put(("f",), str(i % 10), {"n": i})
        assert len(store.search(("f",), filter={"n": i})) == 1
        assert store.search(("f",), filter={"n": i - 10}) == []
    assert {item.value["n"] for item in store.search(("f",), filter={"n": {"$gt": 294}})} == set(range(295, 300))


@pytest.mark.parametrize(
    "condition", [{"n": {"$in": [1]}}, {"d": {"x": {"$near": 1}}}, {"n": {"$gt": 1, "x": 2}}, {"$and": []}]
)
def test_unknown_operators(condition: dict[str, Any]) -> None:
    with pytest.raises(BadValueError, match=r"Unknown filter operator"):
        check_filter(condition)


def test_equality_is_that_of_json() -> None:
    assert json_equal(1, 1.0) and json_equal([1, {"a": None}], [1.0, {"a": None}])
    assert not json_equal(True, 1) and not json_equal([True], [1]) and not json_equal({"a": 0}, {"a": False})
    assert not json_equal("1", 1) and not json_equal(None, 0)


def test_namespace_conditions() -> None:
    assert namespace_matches(MatchCondition("prefix", ("a", "*")), ("a", "b", "c"))
    assert not namespace_matches(MatchCondition("prefix", ("a", "*")), ("a",))
    assert namespace_matches(MatchCondition("suffix", ("*", "c")), ("a", "b", "c"))
    with pytest.raises(BadValueError, match="prefix"):
        namespace_matches(MatchCondition("infix", ("a",)), ("a",))  # type: ignore[arg-type]


def test_filtered_search_returns_as_many_as_there_are() -> None:
    """A selective filter must not starve the search, whatever the index."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((4001, 8)).astype(np.float32)

    def embed(found: list[str]) -> Any:
        return vectors[[int(text) for text in found]] if found[0].isdigit() else np.ones((len(found), 8))

    for kind in ("flat", "sq8", "hnsw"):
        store = FaissStore(embedder=embed, fields=["text"], kind=kind)  # type: ignore[arg-type]
        store.batch([PutOp(("f",), str(i), {"text": str(i), "rare": i % 1000 == 7, "n": i}) for i in range(4000)])
        assert {item.key for item in store.search(("f",), query="4000", filter={"rare": True}, limit=5)} == {
            "7",
            "1007",
            "2007",
            "3007",
        }
        half = store.search(("f",), query="4000", filter={"n": {"$lt": 2500}}, limit=20)
        assert len(half) == 20 and all(item.value["n"] < 2500 for item in half)
