"""Returns over the graph of a trace: what each step could have caused, each target once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcore.trace import NodeRun, Reward, Trace
from tests.golden.credit_traces import DECLARED, graph, line, step, task
from training.credit import CreditError, MissingRewardError, UnknownEdgesError, returns, step_graph
from training.rewards import step_rewards

FORK_JOIN = {"p": (), "b1": ("p",), "b2": ("p",), "j": ("b1", "b2")}


def zeros(trace: Trace, **rewards: float) -> dict[str, float | None]:
    return {s.id: rewards.get(s.id.split(".")[1], 0.0) for s in trace.live_steps}


def test_on_a_line_it_is_the_discounted_sum() -> None:
    trace, rewards = line("a", [1.0, 2.0, 4.0])
    assert returns(trace, rewards, 0.5) == {"a.0": 3.0, "a.1": 4.0, "a.2": 4.0}
    assert returns(trace, rewards, 0.0) == rewards


def test_siblings_do_not_see_each_other_a_join_reaches_all_and_counts_once() -> None:
    trace = graph("g", FORK_JOIN)
    rewards = zeros(trace, b1=1.0, b2=10.0, j=100.0)
    assert returns(trace, rewards, 0.5) == {"g.p": 30.5, "g.b1": 51.0, "g.b2": 60.0, "g.j": 100.0}


def test_the_shortest_path_counts() -> None:
    trace = graph("g", {"p": (), "q": ("p",), "j": ("p", "q")})
    assert returns(trace, zeros(trace, j=8.0), 0.5) == {"g.p": 4.0, "g.q": 4.0, "g.j": 8.0}


def test_a_node_run_without_steps_adds_no_distance() -> None:
    trace = graph("g", {"p": (), "tools": ("p",), "env": ("tools",), "q": ("env",)}, silent=("tools", "env"))
    assert returns(trace, zeros(trace, q=8.0), 0.5) == {"g.p": 4.0, "g.q": 8.0}


def test_steps_of_one_node_run_are_chained_in_their_order() -> None:
    run = NodeRun("r", "n", "n:1", 0)
    steps = (step("y", "r", ordinal=1), step("x", "r", ordinal=0))
    trace = Trace("a", task(), "terminated", steps, (run,))
    assert returns(trace, {"x": 1.0, "y": 2.0}, 0.5) == {"y": 2.0, "x": 2.0}


def test_superseded_attempts_do_not_count() -> None:
    trace, rewards = line("a", [1.0, 2.0, 4.0])
    steps = (trace.steps[0], replace(trace.steps[1], superseded=True), trace.steps[2])
    assert returns(replace(trace, steps=steps), rewards, 0.5) == {"a.0": 3.0, "a.2": 4.0}


def test_data_edges_carry_credit_to_another_branch() -> None:
    runs = {"p": (), "b1": ("p",), "c1": ("p",), "b2": ("b1",), "c2": ("c1",)}
    trace = graph("g", runs, data={"c2": ("b1",)})
    rewards = zeros(trace, c2=4.0)
    assert returns(trace, rewards, 0.5)["g.b1"] == 2.0
    assert returns(trace, rewards, 0.5, edges="control")["g.b1"] == 0.0
    assert returns(trace, rewards, 0.5)["g.b2"] == 0.0


def test_what_lies_in_a_subgraph_is_between_the_ends_of_the_run_that_called_it() -> None:
    runs = (
        NodeRun("p", "p", "p:1", 0),
        NodeRun("team", "team", "team:2", 1, ("p",)),
        NodeRun("plan", "plan", "team:2|plan:3", 0),
        NodeRun("act", "act", "team:2|act:4", 1, ("plan",)),
        NodeRun("other", "other", "other:5", 1, ("p",)),
        NodeRun("end", "end", "end:6", 2, ("team",)),
    )
    steps = tuple(step(f"s.{n}", n) for n in ("p", "plan", "act", "other", "end"))
    trace = Trace("a", task(), "terminated", steps, runs)
    graph_ = step_graph(trace)
    distance = {(s, d): graph_.between[i, j] for i, s in enumerate(graph_.ids) for j, d in enumerate(graph_.ids)}
    assert [distance["s.p", d] for d in graph_.ids] == [0, 1, 2, 1, 3]
    assert distance["s.act", "s.end"] == 1
    assert (
        distance["s.plan", "s.other"] == distance["s.other", "s.plan"] == distance["s.other", "s.end"] == float("inf")
    )


def test_a_steps_own_calls_and_the_subgraphs_it_called_are_ordered_as_recorded() -> None:
    runs = (
        NodeRun("n", "n", "n:1", 0),
        NodeRun("ra", "a", "n:1|a:2", 0),
        NodeRun("rb", "b", "n:1|1|b:3", 0),
    )
    order = [("x", "n", 0), ("a", "ra", 0), ("y", "n", 1), ("b", "rb", 0), ("z", "n", 2)]
    steps = tuple(step(i, r, ordinal=k) for i, r, k in order)
    trace = Trace("t1", task(), "terminated", steps, runs)
    rewards = {"x": 1.0, "a": 2.0, "y": 4.0, "b": 8.0, "z": 16.0}
    assert returns(trace, rewards, 1.0) == {"x": 31.0, "a": 30.0, "y": 28.0, "b": 24.0, "z": 16.0}


def test_a_step_outside_every_node_run_is_a_barrier_in_trace_order() -> None:
    inner = graph("g", {"p": (), "q": ()})
    trace = replace(inner, steps=(step("before"), *inner.steps, step("after", ordinal=1)))
    rewards = {"before": 1.0, "g.p": 2.0, "g.q": 4.0, "after": 8.0}
    assert returns(trace, rewards, 1.0) == {"before": 15.0, "g.p": 10.0, "g.q": 12.0, "after": 8.0}


def test_a_reward_of_several_last_steps_counts_once_for_their_parent() -> None:
    trace = graph("g", {"p": (), "b1": ("p",), "b2": ("p",)}, rewards=[Reward("score", 8.0, "trace", "g")])
    rewards = step_rewards(trace, DECLARED)
    assert rewards == {"g.p": 0.0, "g.b1": 0.0, "g.b2": 0.0, "g": 8.0}
    assert returns(trace, rewards, 0.5) == {"g.p": 4.0, "g.b1": 8.0, "g.b2": 8.0}


def test_a_missing_reward_makes_the_returns_that_reach_it_none() -> None:
    trace, rewards = line("a", [1.0, None, 4.0])
    assert returns(trace, rewards) == {"a.0": None, "a.1": None, "a.2": 4.0}
    with pytest.raises(MissingRewardError, match=r"a\.1"):
        returns(trace, {"a.0": 1.0, "a.2": 4.0})


def test_unknown_edges_are_refused_unless_the_trace_is_declared_a_list() -> None:
    trace = replace(graph("g", FORK_JOIN), edges="unknown")
    rewards = zeros(trace, j=8.0)
    with pytest.raises(UnknownEdgesError, match="chain"):
        returns(trace, rewards)
    assert returns(trace, rewards, 0.5, edges="chain") == {"g.p": 1.0, "g.b1": 2.0, "g.b2": 4.0, "g.j": 8.0}


def test_broken_graphs_are_refused() -> None:
    cycle = graph("g", {"p": (), "q": ("p",)}, data={"p": ("q",)})
    with pytest.raises(CreditError, match="cycle"):
        step_graph(cycle)
    orphan = replace(cycle, node_runs=cycle.node_runs[1:])
    with pytest.raises(CreditError, match="not in it"):
        step_graph(orphan)
    twice = replace(cycle, id="g.p")
    with pytest.raises(CreditError, match="not all different"):
        step_graph(twice)
    with pytest.raises(CreditError, match="not finite"):
        returns(*line("a", [float("inf")]))


def test_an_empty_trace_has_no_returns() -> None:
    assert returns(Trace("a", task(), "failed", ()), {}) == {}


def test_a_subgraphs_first_run_may_name_the_run_that_called_it_as_its_parent() -> None:
    runs = (
        NodeRun("p", "p", "p:1", 0),
        NodeRun("team", "team", "team:2", 1, ("p",)),
        NodeRun("plan", "plan", "team:2|plan:3", 0, ("team",)),
        NodeRun("end", "end", "end:6", 2, ("team",)),
    )
    steps = tuple(step(f"s.{n}", n) for n in ("p", "plan", "end"))
    trace = Trace("a", task(), "terminated", steps, runs)
    assert returns(trace, {"s.p": 1.0, "s.plan": 2.0, "s.end": 4.0}, 0.5) == {"s.p": 3.0, "s.plan": 4.0, "s.end": 4.0}


def test_a_replaced_attempt_is_no_shortcut_past_the_last_one() -> None:
    runs = (
        NodeRun("p", "p", "p:1", 0),
        NodeRun("x0", "x", "x:2", 1, ("p",)),
        NodeRun("x1", "x", "x:2", 1, ("p",), attempt=1),
        NodeRun("end", "end", "end:3", 2, ("x0", "x1")),
    )
    steps = (step("s.p", "p"), step("s.x0", "x0", superseded=True), step("s.x1", "x1"), step("s.end", "end"))
    trace = Trace("a", task(), "terminated", steps, runs)
    assert returns(trace, {"s.p": 0.0, "s.x1": 0.0, "s.end": 4.0}, 0.5) == {"s.p": 1.0, "s.x1": 2.0, "s.end": 4.0}


def test_visits_that_share_a_namespace_are_not_attempts() -> None:
    runs = tuple(NodeRun(f"r{k}", "n", "n", k, (f"r{k - 1}",) if k else ()) for k in range(3))
    trace = Trace("a", task(), "terminated", tuple(step(f"s{k}", f"r{k}") for k in range(3)), runs)
    assert returns(trace, {"s0": 1.0, "s1": 2.0, "s2": 4.0}, 0.5) == {"s0": 3.0, "s1": 4.0, "s2": 4.0}
