"""The update against the plainest computation there is: one step at a time, all logits, autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from agentcore.policies.engine import Engine
from agentcore.trace import Step, Trace
from tests.training.tiny import REWARD, SYSTEM, make_updater, play, recorded, rows_of, sample, step, tokens, trace
from training.adapters import load_weights, save_adapter
from training.batch import Trained, build_sequences, micro_batches, shared_prefix
from training.config import RlSettings
from training.loop import credit
from training.update import Updater, normalised

Make = Callable[..., Engine]
Gradient = dict[str, torch.Tensor]


def naive_logprobs(engine: Engine, s: Step, adapter: str | None = "policy") -> torch.Tensor:
    """[T] of one step's reply, from the whole model's logits."""
    drawn = recorded(s)
    ids = torch.tensor([[*drawn.prompt_ids, *drawn.reply_ids]])
    with engine.using(adapter) as model:
        logits = model(input_ids=ids).logits[0, len(drawn.prompt_ids) - 1 : -1] / drawn.temperature
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(drawn.reply_ids)[:, None]).squeeze(1)


def naive_loss(engine: Engine, steps: Sequence[tuple[Step, float]], aggregate: str, kl_coef: float) -> torch.Tensor:
    """PPO's clipped loss and k3, step by step."""
    total = torch.zeros((), dtype=torch.float64)
    count = sum(len(recorded(s).reply_ids) for s, _ in steps)
    for s, advantage in steps:
        logp, old = naive_logprobs(engine, s), torch.tensor(recorded(s).logprobs, dtype=torch.float64)
        ratio = torch.exp(logp - old)
        loss_T = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        if kl_coef:
            with torch.no_grad():
                base = naive_logprobs(engine, s, None)
            loss_T = loss_T + kl_coef * (torch.exp(base - logp) - (base - logp) - 1)
        total = total + (loss_T.sum() / count if aggregate == "token" else loss_T.mean() / len(steps))
    return total


def gradient_of(updater: Updater, work: Callable[[], Any]) -> Gradient:
    """What ``work`` adds to the gradients, summed over micro-batches, before anything is clipped."""
    total = {n: torch.zeros_like(p) for n, p in updater.parameters.items()}
    hooks = [p.register_hook(lambda g, n=n: total[n].add_(g)) for n, p in updater.parameters.items()]
    work()
    for hook in hooks:
        hook.remove()
    return total


def naive_gradient(updater: Updater, loss: torch.Tensor) -> Gradient:
    found = torch.autograd.grad(loss, list(updater.parameters.values()), allow_unused=True)
    pairs = zip(updater.parameters.items(), found, strict=True)
    return {n: g if g is not None else torch.zeros_like(p) for (n, p), g in pairs}


def assert_close(a: Gradient, b: Gradient, tolerance: float = 1e-5) -> None:
    assert any(float(g.abs().max()) > 1e-3 for g in b.values()), "a gradient of nothing shows nothing"
    for name in b:
        assert torch.allclose(a[name], b[name], atol=tolerance, rtol=tolerance), name


def weights_of(updater: Updater) -> Gradient:
    return {n: p.detach().clone() for n, p in updater.parameters.items()}


def judged(traces: Sequence[Trace]) -> dict[str, float]:
    """Advantages of both signs, by step id."""
    return {s.id: (-1.0) ** i * (0.5 + i % 3) for i, s in enumerate(s for t in traces for s in t.live_steps)}


# The same number, computed otherwise -------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [40, 150, 10_000])
@pytest.mark.parametrize(("aggregate", "kl_coef"), [("token", 0.0), ("step", 0.0), ("token", 0.3), ("step", 0.3)])
def test_sharing_merging_and_micro_batches_change_no_gradient(
    tiny_engine: Make, budget: int, aggregate: str, kl_coef: float
) -> None:
    engine = tiny_engine()
    updater = make_updater(
        engine, double=True, move=0.3, minibatches=1, batch_tokens=budget, aggregate=aggregate, kl_coef=kl_coef
    )
    traces = [
        *(play(engine, f"grows{i}", 3, i) for i in range(3)),
        *(play(engine, f"anew{i}", 2, 10 + i, rewrite=True, temperature=0.6) for i in range(2)),
    ]
    advantages = judged(traces)
    rows = rows_of(traces, lambda s: advantages[s.id])
    assert len(rows) == 3 + 4, "what grows is merged, what is rewritten is not"
    batches = micro_batches(rows, budget)
    assert {40: len(batches) == 7, 150: 1 < len(batches) < 7, 10_000: len(batches) == 1}[budget]
    assert budget == 40 or any(shared_prefix(b) for b in batches)
    with torch.no_grad():  # the policy has moved since it sampled, so that ratios differ from 1 and some are clipped
        for parameter in updater.parameters.values():
            parameter.add_(0.05 * torch.sin(torch.arange(parameter.numel(), dtype=torch.float64)).view_as(parameter))
    engine.bump("policy")

    steps = [(s, advantages[s.id]) for t in traces for s in t.live_steps]
    loss = naive_loss(engine, steps, aggregate, kl_coef)
    wanted = naive_gradient(updater, loss)
    stats: dict[str, float] = {}
    found = gradient_of(updater, lambda: stats.update(updater.reinforce(rows)))
    assert 0 < stats["clip_fraction"] < 1
    assert stats["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert stats["tokens"] == sum(len(recorded(s).reply_ids) for s, _ in steps)
    assert_close(found, wanted)


def test_with_one_step_episodes_it_is_rloo(tiny_engine: Make) -> None:
    engine = tiny_engine()
    updater = make_updater(engine, double=True, move=0.3, minibatches=1)
    rewards = [1.0, 0.0, 0.25, 1.0]
    group = [
        trace(f"t{i}", [step(f"s{i}", sample(engine, (*SYSTEM, 5), i, temperature=0.8))], reward=r)
        for i, r in enumerate(rewards)
    ]
    earned = credit(group, [REWARD], RlSettings(estimator="step-rloo"))
    rows, _ = build_sequences(group, earned.advantages, recorded, trained=Trained("tiny", engine.versions))
    found = gradient_of(updater, lambda: updater.reinforce(rows))

    size = sum(len(recorded(s).reply_ids) for t in group for s in t.steps)
    # the update above has moved the weights: go back to where the gradient was taken
    fresh = make_updater(tiny_engine(), double=True, move=0.3, minibatches=1)
    loss = torch.zeros((), dtype=torch.float64)
    for i, t in enumerate(group):
        baseline = sum(r for j, r in enumerate(rewards) if j != i) / 3
        loss = loss - (rewards[i] - baseline) * naive_logprobs(fresh.engine, t.steps[0]).sum() / size
    assert_close(found, naive_gradient(fresh, loss))
    assert earned.mean_return == pytest.approx(2.25 / 4)


@pytest.mark.parametrize("fold", [True, False])
def test_the_first_update_finds_the_log_probabilities_that_were_recorded(tiny_engine: Make, fold: bool) -> None:
    engine = tiny_engine(fold=fold)
    updater = make_updater(engine, move=0.3, minibatches=1, batch_tokens=150)
    traces = [play(engine, f"t{i}", 3, i, temperature=0.7) for i in range(4)]
    stats = updater.reinforce(rows_of(traces, lambda s: 1.0))
    assert stats["ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert abs(stats["approx_kl"]) < 1e-6 and stats["clip_fraction"] == 0.0


# What it does to the policy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_good_tokens_become_likelier_and_bad_ones_less_likely(tiny_engine: Make, sign: float) -> None:
    engine = tiny_engine()
    updater = make_updater(engine, minibatches=1, learning_rate=1e-3)
    (row,) = rows_of([play(engine, "t", 3, 1)], lambda s: sign)
    before = updater.imitation_loss([row])
    updater.reinforce([row])
    assert sign * (before - updater.imitation_loss([row])) > 1e-3


def test_imitation_makes_what_is_imitated_likelier(tiny_engine: Make) -> None:
    engine = tiny_engine()
    updater = make_updater(engine, learning_rate=3e-3)
    steps = [step("a", tokens((*SYSTEM, 5), (1, 2, 3), logprobs=None)), step("b", tokens((*SYSTEM, 6), (4,)))]
    rows, _ = build_sequences([trace("t", steps)], {"a": 1.0, "b": 1.0}, recorded, on_policy=False)
    loss = -torch.cat([naive_logprobs(engine, s) for s in steps]).mean()
    wanted = naive_gradient(updater, loss)
    assert updater.imitation_loss(rows) == pytest.approx(float(loss.detach()), abs=1e-5)
    stats: dict[str, float] = {}
    assert_close(gradient_of(updater, lambda: stats.update(updater.imitate(rows))), wanted)
    assert stats["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    for _ in range(10):
        updater.imitate(rows)
    assert updater.imitation_loss(rows) < float(loss.detach()) - 0.3


def test_minibatches_are_steps_of_their_own_over_all_rows(tiny_engine: Make) -> None:
    engine = tiny_engine()
    updater = make_updater(engine, minibatches=3, learning_rate=0.02)
    rows = rows_of([play(engine, f"t{i}", 2, i) for i in range(5)], lambda s: 1.0)
    version, done = engine.versions["policy"], []
    stats = updater.reinforce(rows, done.append)
    assert engine.versions["policy"] == version + 3
    assert sum(done) == len(rows) and stats["tokens"] == sum(len(r.positions) for r in rows)
    assert stats["approx_kl"] > 1e-4, "later minibatches see a policy that has moved"
    assert engine.versions["policy"] == version + 3
    updater.reinforce(rows[:2])
    assert engine.versions["policy"] == version + 5, "no minibatch is empty"


def test_nothing_to_train_on_changes_nothing(tiny_engine: Make) -> None:
    updater = make_updater(tiny_engine())
    before = weights_of(updater)
    assert updater.reinforce([]) == {"tokens": 0.0} and updater.imitation_loss([]) == 0.0
    assert all(torch.equal(p, before[n]) for n, p in updater.parameters.items())


def test_divergence_from_the_base_is_nothing_at_first_and_grows(tiny_engine: Make) -> None:
    engine = tiny_engine()
    updater = make_updater(engine, minibatches=1, kl_coef=0.01, learning_rate=0.01)
    rows = rows_of([play(engine, f"t{i}", 2, i) for i in range(2)], lambda s: 1.0)
    found = [updater.reinforce(rows)["kl_to_base"] for _ in range(4)]
    assert found[0] == pytest.approx(0.0, abs=1e-7)
    assert found[1] > 1e-5 and found[3] > found[1]


def test_only_the_adapter_changes(tiny_engine: Make) -> None:
    engine = tiny_engine(fold=True)
    updater = make_updater(engine, learning_rate=0.05, kl_coef=0.1)
    with engine.using("policy") as model:
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for round_ in range(2):  # sampling folds the adapter into the base weights and gives them back
        rows = rows_of([play(engine, f"t{round_}{i}", 2, i) for i in range(3)], lambda s: 1.0)
        updater.reinforce(rows)
        updater.imitate(rows)
    with engine.using("policy") as model:
        changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == set(updater.parameters) and all("lora_" in n for n in changed)


def test_normalising_keeps_signs_and_ratios() -> None:
    steps = [step("a", tokens([1], [2, 3])), step("b", tokens([4], [5])), step("c", tokens([6], [7]))]
    given = {"a": 1.0, "b": -3.0, "c": 0.5}
    rows = normalised(rows_of([trace("t", steps)], lambda s: given[s.id]))
    values = [a for r in rows for a in r.advantages]
    assert sum(v * v for v in values) / len(values) == pytest.approx(1.0)
    assert [v / values[0] for v in values] == pytest.approx([1.0, 1.0, -3.0, 0.5])
    assert normalised([]) == []
    same = rows_of([trace("t", steps)], lambda s: 1e-12)
    assert normalised(same) == same


# Going on ----------------------------------------------------------------------------------------------------------


def test_a_restored_updater_goes_on_bit_by_bit(tiny_engine: Make, tmp_path: Any) -> None:
    engine = tiny_engine()
    updater = make_updater(engine, learning_rate=0.01)
    rows = rows_of([play(engine, f"t{i}", 2, i) for i in range(3)], lambda s: 1.0)
    updater.start_phase(0.02)
    updater.reinforce(rows)
    save_adapter(engine, "policy", tmp_path / "adapter", {})
    torch.save(updater.state(), tmp_path / "optimizer.pt")
    updater.reinforce(rows)

    other = make_updater(tiny_engine(), learning_rate=0.01, move=0.3)
    load_weights(other.engine, "policy", tmp_path / "adapter")
    other.load_state(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    other.reinforce(rows)
    assert all(torch.equal(p, other.parameters[n]) for n, p in updater.parameters.items())


def test_a_new_phase_forgets_the_moments_of_the_last(tiny_engine: Make) -> None:
    engine = tiny_engine()
    updater = make_updater(engine, learning_rate=0.01)
    rows = rows_of([play(engine, f"t{i}", 2, i) for i in range(3)], lambda s: 1.0)
    updater.imitate(rows)
    weights = weights_of(updater)
    updater.start_phase(0.003)
    updater.reinforce(rows[:1])

    fresh = make_updater(tiny_engine(), learning_rate=0.003)
    with torch.no_grad():
        for name, parameter in fresh.parameters.items():
            parameter.copy_(weights[name])
    fresh.reinforce(rows[:1])
    assert all(torch.equal(p, fresh.parameters[n]) for n, p in updater.parameters.items())


def test_a_broken_off_update_leaves_no_gradient_behind(tiny_engine: Make) -> None:
    engine = tiny_engine()
    updater = make_updater(engine, batch_tokens=40, minibatches=1)
    rows = rows_of([play(engine, f"t{i}", 2, i) for i in range(3)], lambda s: 1.0)

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        updater.reinforce(rows, stop)
    updater.reinforce(rows)
    fresh = make_updater(tiny_engine(), batch_tokens=40, minibatches=1)
    fresh.reinforce(rows)
    assert all(torch.equal(p, fresh.parameters[n]) for n, p in updater.parameters.items())
