"""The test of an opened sum: whether honest clients could have sent it.

See :mod:`fl_privquant.mechanisms.sum_limits` for what is tested, its proof, and what it cannot notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fl_privquant.array_types import ArrayLike
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import SecureAggregationError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.sum_limits import SumLimits

FALSE_ALARM_ODDS: Final = 1e-9
"""Odds that a round of honest clients is refused, whatever their data."""


@dataclass(frozen=True)
class SumCheck:
    """Tests sums of the codes of ``num_clients`` clients against limits for honest ones."""

    mechanism: Mechanism
    num_clients: int
    limits: SumLimits

    def check(self, total: ArrayLike) -> None:
        """Raise SecureAggregationError unless honest clients could have sent what adds up to ``total``."""
        mean = self.mechanism.decode_sum(total, self.num_clients)
        measured = (
            ("its largest coordinate", float(np.abs(mean).max(initial=0.0)), self.limits.coordinate, "clips"),
            ("its energy", float(mean @ mean), self.limits.energy, "squared clips"),
            ("its L1 norm", float(np.abs(mean).sum()), self.limits.absolute_sum, "clips"),
        )
        rounds = f"once in {1.0 / self.limits.odds:.2g} rounds at most" if self.limits.odds else "never"
        for name, value, bound, unit in measured:
            if not value <= bound:
                raise SecureAggregationError(
                    f"the sum of {self.num_clients} clients is not one of honest codes: {name} is "
                    f"{value:.6g} {unit}, above {bound:.6g}, which honest clients exceed {rounds}; some "
                    f"client did not send honest codes, so the sum is not applied"
                )


def honest_sum_test(codec: UpdateCodec, num_clients: int, odds: float = FALSE_ALARM_ODDS) -> SumCheck:
    """The test for sums of the :meth:`~UpdateCodec.codes` of ``num_clients`` clients.

    >>> import fl_privquant as pq
    >>> from fl_privquant.codec.array_layout import Layout
    >>> from fl_privquant.encoding import Encoding
    >>> layout = Layout.of({"weight": np.zeros(1000)})
    >>> codec = UpdateCodec(layout, Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1))
    >>> test = honest_sum_test(codec, num_clients=100)
    >>> test.check(np.full(1000, 50))
    >>> test.check(np.full(1000, 90))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fl_privquant.errors.SecureAggregationError: the sum of 100 clients is not one of honest codes: ...
    """
    bound = None if codec.l2_bound is None else codec.l2_bound / codec.clip
    limits = codec.mechanism.sum_limits(num_clients, codec.dimension, bound, odds)
    return SumCheck(codec.mechanism, num_clients, limits)
