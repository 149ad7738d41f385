"""One updater per adapter, used as one: the rows of a batch go to the adapter whose actions they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accelerate import Accelerator

from agentcore.errors import PolicyError
from agentcore.policies.engine import Engine
from training.batch import TokenRow, Trained
from training.config import UpdateSettings
from training.update import Stats, Updater, weighted_mean


class Updaters:
    """Trains the named adapters of one engine, each with an optimizer of its own."""

    def __init__(
        self,
        engine: Engine,
        adapters: Sequence[str],
        settings: UpdateSettings,
        accelerator: Accelerator | None = None,
    ) -> None:
        if not adapters:
            raise PolicyError("No adapter to train was named.")
        accelerator = accelerator or Accelerator()
        self.engine = engine
        self._each = {name: Updater(engine, name, settings, accelerator) for name in dict.fromkeys(adapters)}

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that train, in the order they were given."""
        return tuple(self._each)

    @property
    def trained(self) -> Trained:
        """What is trained now; a rollout has to be sampled by exactly this."""
        return Trained(self.engine.identity.name, {name: self.engine.versions[name] for name in self._each})

    def __getitem__(self, adapter: str) -> Updater:
        return self._each[adapter]

    def reinforce(self, rows: Sequence[TokenRow], on_rows: Callable[[int], None] | None = None) -> Stats:
        """See :meth:`Updater.reinforce`; with several adapters, each one's figures also stand under ``<adapter>/``."""
        return self._of_each(rows, lambda updater, own: updater.reinforce(own, on_rows))

    def imitate(self, rows: Sequence[TokenRow]) -> Stats:
        """See :meth:`Updater.imitate`."""
        return self._of_each(rows, lambda updater, own: updater.imitate(own))

    def imitation_loss(self, rows: Sequence[TokenRow]) -> float:
        """Mean negative log-probability per action token over the rows of all adapters."""
        total, count = 0.0, 0
        for name, own in self._sorted(rows).items():
            tokens = sum(len(r.positions) for r in own)
            total += self._each[name].imitation_loss(own) * tokens
            count += tokens
        return total / max(count, 1)

    def start_phase(self, learning_rate: float) -> None:
        for updater in self._each.values():
            updater.start_phase(learning_rate)

    def state(self) -> dict[str, Any]:
        """The optimizers' states by adapter, for resuming."""
        return {name: updater.state() for name, updater in self._each.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, updater in self._each.items():
            updater.load_state(state[name])

    def _of_each(self, rows: Sequence[TokenRow], work: Callable[[Updater, list[TokenRow]], Stats]) -> Stats:
        stats = {name: work(self._each[name], own) for name, own in self._sorted(rows).items()}
        if len(self._each) == 1:
            return next(iter(stats.values()), {"tokens": 0.0})
        listed = {f"{name}/{key}": value for name, own in stats.items() for key, value in own.items()}
        return {**weighted_mean(list(stats.values())), **listed}

    def _sorted(self, rows: Sequence[TokenRow]) -> dict[str, list[TokenRow]]:
        """Rows by adapter."""
        found: dict[str, list[TokenRow]] = {}
        for row in rows:
            if row.adapter not in self._each:
                raise PolicyError(
                    f"A row of adapter {row.adapter!r} was given to train {', '.join(self._each)}. Leave out what "
                    "other policies did (build_sequences(trained=…))."
                )
            found.setdefault(row.adapter, []).append(row)
        return found
