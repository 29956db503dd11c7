"""Top-k: the k coordinates of largest magnitude, unchanged; without privacy, and biased.

Each of them is sent as its place and its value in single precision.

Guarantee: none; ``epsilon`` is infinite. The estimate is 0 at all other coordinates, which makes it biased.
Assumes: nothing about the inputs.
Reference: Aji, Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Stich,
Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from scipy import special

from fl_privquant import _validation
from fl_privquant._array_types import ArrayLike, Bits, Floats, Ints
from fl_privquant._validation import number_between
from fl_privquant.errors import CodeOverflowError, InvalidUpdateError
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.bit_messages import (
    QuantizerMechanism,
    QuantizerSpec,
    bits_to_numbers,
    numbers_to_bits,
)
from fl_privquant.mechanisms.vectors.sphere import expected_largest_sum
from fl_privquant.sampling.stream import Continuation

_VALUE_BITS = 32
_SHARE = number_between("(0, 1]")


@dataclass(frozen=True, kw_only=True)
class TopKSpec(QuantizerSpec):
    """The specification of top-k; see :class:`QuantizerSpec`."""

    share: Annotated[float, _SHARE] = 0.01
    """Fraction of the coordinates that is sent, above 0 and up to 1; at least one is."""


@dataclass(frozen=True, eq=False, repr=False)
class TopKMechanism(QuantizerMechanism, kind="top_k"):
    """The largest coordinates, their places before their values; see :class:`QuantizerMechanism`."""

    outputs_floats: ClassVar[bool] = True

    share: Annotated[float, _SHARE] = 0.01

    def count_kept(self, dimension: int) -> int:
        """How many coordinates of an update of that dimension are sent."""
        return max(1, math.ceil(self.share * dimension - 1e-9))

    @property
    def _place_bits(self) -> int:
        return max((self.dimension - 1).bit_length(), 1)

    @property
    def message_size(self) -> int:
        return self.count_kept(self.dimension) * (self._place_bits + _VALUE_BITS)

    def bias(self, x: ArrayLike) -> Floats:
        inputs = np.asarray(x, dtype=np.float64)
        missing = -inputs.reshape(-1)
        missing[_largest_places(inputs.reshape(-1), self.count_kept(inputs.size))] = 0.0
        return missing.reshape(inputs.shape)

    @property
    def max_bias(self) -> float:
        return 0.0 if self.count_kept(self.dimension) == self.dimension else 1.0

    def squared_error(self, x: ArrayLike) -> float:
        return float(np.sum(self.bias(x) ** 2))

    @property
    def unit_error(self) -> float:
        # Squares of normal numbers, which sum to d on average, replace those of a direction.
        def upper(share: Floats) -> Floats:
            quantile = -special.ndtri(0.5 * np.clip(share, 1e-300, 1.0))
            density = np.exp(-0.5 * quantile**2) / math.sqrt(2.0 * math.pi)
            return np.asarray(2.0 * quantile * density + share)

        kept = expected_largest_sum(self.dimension, self.count_kept(self.dimension), upper) / self.dimension
        return max(1.0 - kept, 0.0)

    def _draw(self, x: Floats, source: Continuation) -> Bits:
        places = np.sort(_largest_places(x, self.count_kept(x.size)))
        values = x[places].astype("<f4").view("<u4").astype(np.int64)
        return np.concatenate(
            [numbers_to_bits(places, self._place_bits), numbers_to_bits(values, _VALUE_BITS)]
        )

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        bits = self._check_message(indices).astype(np.uint8)
        count = self.count_kept(self.dimension)
        places = bits_to_numbers(bits[: count * self._place_bits], self._place_bits)
        values = bits_to_numbers(bits[count * self._place_bits :], _VALUE_BITS).astype("<u4").view("<f4")
        if int(places.max()) >= self.dimension:
            raise CodeOverflowError(f"message: place {int(places.max())} is outside 0..{self.dimension - 1}")
        if not np.all(np.abs(values) <= 1.0 + 1e-6):
            raise InvalidUpdateError("message: a value is outside [-1, 1]; it was damaged or made up")
        estimate = np.zeros(self.dimension)
        estimate[places] = values
        return np.asarray(_validation.check_positive("clip", clip) * estimate)


register("top_k", TopKSpec, 223, "#ced4da")(TopKMechanism.of)


def _largest_places(x: Floats, count: int) -> Ints:
    """(count,) places of the coordinates of largest magnitude; ties are broken by the first place."""
    return np.argsort(-np.abs(x), kind="stable")[:count]
