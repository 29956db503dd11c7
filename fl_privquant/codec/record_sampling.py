"""Updates that are sums over randomly drawn records: what each client does, and the mark of such an update.

A client (a *silo*, such as a hospital) draws each of its records with probability ``rate``, clips the
gradient of each drawn record to the L2 norm ``clip``, adds them up, and divides by ``divisor``. The divisor
is a public constant, the same for all silos: neither the number of records of a silo nor the number that it
drew may show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, Floats, Ints
from fl_privquant.sampling.stream import RandomStream

# Where floats of double precision are as precise as they should be: what a clip of 5e-324 gives is not, and a
# server chooses it.
_PRECISE = _validation.number_between("[1e-30, 1e30]")
# Gradients are clipped to this share of the clip, for what sums of millions of records in floats may be off.
_CLIP_SHARE = 1.0 - 1e-6


@_validation.check_argument_names
@dataclass(frozen=True)
class RecordSampling:
    """How a client makes its update from single records.

    Parameters
    ----------
    clip
        Largest L2 norm of the gradient of one record; longer gradients are scaled down.
    rate
        The probability with which each record is drawn in a round.
    divisor
        What the sum of a client is divided by, before the server takes the mean over clients: the number of
        records that a client draws on average, over all clients.

    >>> RecordSampling(clip=1.0, rate=0.05, divisor=50.0).norm
    0.02
    """

    clip: Annotated[float, _PRECISE]
    rate: Annotated[float, _validation.number_between("(0, 1]")]
    divisor: Annotated[float, _PRECISE]

    def __post_init__(self) -> None:
        _validation.check_declared(self)

    @property
    def norm(self) -> float:
        """The largest L2 norm of the part of one record in an update."""
        return self.clip / self.divisor

    def draw(self, number: int, rng: RandomStream | None = None) -> Ints:
        """The indices of the drawn ones of ``number`` records; without a stream, by secure randomness."""
        stream = RandomStream.secure() if rng is None else rng
        words = stream.words(number) >> np.uint64(11)
        return np.flatnonzero(words < np.uint64(int(self.rate * 2.0**53)))

    def clip_factors(self, norms: Floats) -> Floats:
        """What the gradients of these norms are multiplied by; 0 for one that is not finite."""
        bound = self.clip * _CLIP_SHARE
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = np.minimum(1.0, bound / norms)
        return np.where(np.isfinite(norms), factors, 0.0)


@dataclass(frozen=True, eq=False)
class RecordSum:
    """An update that was made from single records, in double precision, and how it was made.

    Only the functions that keep the promise of a :class:`RecordSampling` make one; a client's mod takes no
    other update where a plan protects records.
    """

    arrays: Mapping[str, Array]
    """The sum over drawn records, divided by the divisor, for each array of the model."""
    sampling: RecordSampling
    simulated: bool = False
    """Whether the records were drawn from a seed."""
