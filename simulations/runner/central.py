"""The central Gaussian baseline: clients trust the server, which adds noise once, to the mean.

Clients send their updates in the clear, clipped to an L2 norm R. The server adds normal noise to their sum
and releases the model. It is the reference for distributed mechanisms, which try to reach the same error at
the same budget without that trust.

Where arrays have clips of their own (:mod:`fl_privquant.codec.array_selection`), all of this is about
updates on the scales of the arrays.

Guarantee: (epsilon, delta) of a client's total, all rounds, against an adversary who sees the models; *none*
against the server. One client's update replaced by any other of norm R moves the sum by 2 R at most, and T
adaptive rounds of normal noise cost exactly what one round costs with sqrt(T) times the distance (Dong, Roth,
Su 2022, Corollary 2). That cost is computed by the closed form of Balle and Wang.
Assumes: a trusted server, and exact arithmetic: noise in floating point is for comparison only.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_privquant.codec.array_selection import ALL_ARRAYS, ArrayChoice
from fl_privquant.errors import BudgetExhaustedError
from fl_privquant.flower._messages.arrays import read_arrays
from fl_privquant.flower.server.strategy_wrapper import StrategyWrapper, make_mean_reply
from fl_privquant.mechanisms.additive.gaussian import analytic_sigma
from fl_privquant.statement import Relation


def calibrate_sum_noise(
    l2_clip: float,
    rounds: int,
    epsilon: float,
    delta: float,
    participation_cost: float = 1.0,
    relation: Relation = Relation.REPLACE_ONE,
) -> float:
    """The standard deviation of the noise on a sum of updates, for a budget of the whole run.

    ``participation_cost`` is above 1 for noise that is correlated over rounds
    (:mod:`fl_privquant.privacy_loss.correlated_noise`).

    >>> round(calibrate_sum_noise(l2_clip=1.0, rounds=1, epsilon=1.0, delta=1e-5), 3)
    7.461
    """
    distance = relation.distance * l2_clip
    return analytic_sigma(distance * math.sqrt(rounds * participation_cost), epsilon, delta)


class CentralGaussianStrategy(StrategyWrapper):
    """Hands the wrapped strategy one reply: the mean of all, with noise.

    Parameters
    ----------
    strategy
        The strategy that aggregates.
    scale
        Standard deviation of the noise on the sum; see :func:`calibrate_sum_noise`.
    seed
        The seed of the noise; None draws from the operating system's randomness.
    rounds
        Rounds that the noise is for. One more raises BudgetExhaustedError before anything is sent: an app
        with a loop of its own may train more often than it says.
    arrays
        Which arrays are sent, and on what scale they are clipped: an array of factor s may move s times as
        far, and so has s times the noise.
    correlation
        The share of a round's noise that the next round takes off. The scale must be for it, and clients must
        take part as rarely as it assumes.
    """

    def __init__(
        self,
        strategy: Strategy,
        scale: float,
        seed: int | None,
        rounds: int,
        arrays: ArrayChoice = ALL_ARRAYS,
        correlation: float = 0.0,
    ) -> None:
        super().__init__(strategy)
        self._correlation = correlation
        self._arrays = arrays
        self._scale = scale
        self._seed = seed
        self._rounds = rounds

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate, within the rounds that the noise is for."""
        if server_round > self._rounds:
            raise BudgetExhaustedError(
                f"round {server_round}: the noise of the central Gaussian is for {self._rounds} rounds; "
                f"raise federation.rounds, or the app's own number of rounds, to as many as are trained"
            )
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average, add the noise, and delegate."""
        received = list(replies)
        if not received:
            return super().aggregate_train(server_round, received)
        rng, last_rng = self._generator(server_round), self._generator(server_round - 1)
        records = [message.content.array_records[self.arrayrecord_key] for message in received]
        layout = self._arrays.layout(read_arrays(records[0]))
        factors = dict(zip(layout.names, layout.scales or (1.0,) * len(layout.names), strict=True))
        mean = ArrayRecord()
        for name in records[0]:
            stacked = np.stack([record[name].numpy() for record in records])
            value = stacked.mean(axis=0, dtype=np.float64)
            if stacked.dtype.kind == "f":
                scale = factors.get(str(name), 1.0) * self._scale / len(received)
                noise = rng.standard_normal(value.shape)
                if self._correlation and server_round > 1:
                    # The noise of the last round, drawn again.
                    noise -= self._correlation * last_rng.standard_normal(value.shape)
                value = value + scale * noise
            mean[str(name)] = Array(np.asarray(value.astype(stacked.dtype)))
        # PrivQuantStrategy gives all clients the same weight, so the metrics of the first reply can be used.
        content = RecordDict({**received[0].content, self.arrayrecord_key: mean})
        return super().aggregate_train(server_round, [make_mean_reply(server_round, content)])

    def _generator(self, server_round: int) -> np.random.Generator:
        """The generator of a round's noise, which gives the same noise each time."""
        if self._seed is None:
            self._seed = secrets.randbits(128)
        return np.random.default_rng([self._seed, 5, server_round])

    def checkpoint_state(self) -> dict[str, Any]:
        """Nothing: noise is drawn for a round by its number."""
        return {}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Nothing was kept."""
