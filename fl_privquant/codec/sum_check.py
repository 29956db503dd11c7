"""Tests of opened sums, of one round and of all rounds so far: whether honest clients could have sent them.

See :mod:`fl_privquant.mechanisms.sum_limits` for what is tested, its proof, and what it cannot notice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fl_privquant._array_types import ArrayLike, Floats
from fl_privquant.codec.array_layout import Arrays, Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import SecureAggregationError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.sum_limits import FALSE_ALARM_ODDS, SumLimits

# Covers sums and rotations in single precision.
_FLOAT_ROOM = 1.0 + 1e-4


@dataclass(frozen=True)
class SumCheck:
    """Tests sums of the codes of ``num_clients`` clients against limits for honest ones."""

    mechanism: Mechanism
    num_clients: int
    limits: SumLimits
    scale: float
    """The unit of the limits in the mean update: the clip, or more if only some coordinates are kept."""

    def check(self, total: ArrayLike) -> None:
        """Raise SecureAggregationError unless honest clients could have sent what adds up to ``total``."""
        mean = self.mechanism.decode_sum(total, self.num_clients)
        measured = (
            ("its largest coordinate", float(np.abs(mean).max(initial=0.0)), self.limits.coordinate, "clips"),
            ("its energy", float(mean @ mean), self.limits.energy, "squared clips"),
            ("its L1 norm", float(np.abs(mean).sum()), self.limits.absolute_sum, "clips"),
        )
        for name, value, bound, unit in measured:
            if not value <= bound:
                raise SecureAggregationError(
                    f"the sum of {self.num_clients} clients is not one of honest codes: {name} is "
                    f"{value:.6g} {unit}, above {bound:.6g}, which honest clients exceed "
                    f"{self.frequency_text}; some client did not send honest codes, so the sum is not applied"
                )

    @property
    def frequency_text(self) -> str:
        """How often honest clients exceed a limit, in words."""
        return f"once in {1.0 / self.limits.odds:.2g} rounds at most" if self.limits.odds else "never"


class RunningSum:
    """Tests the sum of the mean updates of all rounds that were applied so far.

    A shift that hides in the noise of one round stands out after many, if it is repeated: it adds up with
    the number of rounds, and noise with its square root. A round of honest clients passes whatever passed
    before it.
    """

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._total: Floats = np.zeros(0)
        self._limit = 0.0

    def add(self, update: Arrays, layout: Layout, test: SumCheck) -> None:
        """Add the mean update of a round that was tested by ``test``.

        Raises SecureAggregationError, and leaves the update out, if honest clients could not have sent it
        after what was added before. A new layout begins a new sum.
        """
        if layout != self._layout:
            self._layout, self._total, self._limit = layout, np.zeros(layout.dimension), 0.0
        total = self._total + layout.flatten(update)
        norm, limit = float(np.linalg.norm(total)), test.limits.running_limit(self._limit, test.scale)
        if not norm <= limit * _FLOAT_ROOM:
            raise SecureAggregationError(
                f"the sum of {test.num_clients} clients is not one of honest codes: with it the mean updates "
                f"of all rounds add up to an L2 norm of {norm:.6g}, above {limit:.6g}, which honest clients "
                f"exceed {test.frequency_text}; some client did not send honest codes, so the sum is not "
                f"applied"
            )
        self._total, self._limit = total, limit


def make_sum_check(codec: UpdateCodec, num_clients: int) -> SumCheck:
    """The test for sums of the :meth:`~UpdateCodec.codes` of ``num_clients`` clients.

    >>> import fl_privquant as pq
    >>> from fl_privquant.codec.array_layout import Layout
    >>> from fl_privquant.codec.encoding import Encoding
    >>> layout = Layout.of({"weight": np.zeros(1000)})
    >>> codec = UpdateCodec(layout, Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1))
    >>> test = make_sum_check(codec, num_clients=100)
    >>> test.check(np.full(1000, 50))
    >>> test.check(np.full(1000, 90))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fl_privquant.errors.SecureAggregationError: the sum of 100 clients is not one of honest codes: ...
    """
    bound = None if codec.l2_bound is None else codec.l2_bound / codec.clip
    limits = codec.mechanism.sum_limits(num_clients, codec.dimension, bound, FALSE_ALARM_ODDS)
    return SumCheck(codec.mechanism, num_clients, limits, codec.clip * codec.layout.dimension / codec.kept)
