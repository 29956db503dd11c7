"""TernGrad: each coordinate becomes -1, 0 or 1 times the largest magnitude, at random; without privacy.

With m the largest magnitude of a coordinate, x_i becomes sign(x_i) m with probability |x_i| / m, else 0.
Five coordinates take a byte, so 1.6 bits each, after 64 bits for m.

Guarantee: none; ``epsilon`` is infinite. Unbiased.
Assumes: nothing about the inputs.
Reference: Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in
Distributed Deep Learning", NeurIPS 2017.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from scipy import special

from fl_privquant._array_types import ArrayLike, Bits, Floats
from fl_privquant.errors import CodeOverflowError
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.bit_messages import (
    LengthQuantizer,
    QuantizerSpec,
    bits_to_numbers,
    draw_uniforms,
    numbers_to_bits,
)
from fl_privquant.sampling.stream import Continuation

# Digits to the base of 3 in a byte.
_DIGITS = 5


class TernGradMechanism(LengthQuantizer, kind="terngrad"):
    """Three values for each coordinate, the largest being the length; see :class:`LengthQuantizer`."""

    @property
    def _num_bytes(self) -> int:
        return -(-self.dimension // _DIGITS)

    @property
    def direction_bits(self) -> int:
        return 8 * self._num_bytes

    def squared_error(self, x: ArrayLike) -> float:
        inputs = np.abs(np.asarray(x, dtype=np.float64))
        return float(np.sum(inputs * (inputs.max() - inputs)))

    @property
    def unit_error(self) -> float:
        # Normal numbers g_i replace a direction: their squared length is independent of it, and d on average.
        # Then E[max |g| |g_1|] is the integral over t of E|g_1| - E[|g_1|; all |g_i| <= t].
        def rest(t: float) -> float:
            below = float(special.erf(t / math.sqrt(2.0))) ** (self.dimension - 1)
            return 1.0 + below * math.expm1(-0.5 * t * t)

        mean, _ = scipy.integrate.quad(rest, 0.0, 40.0, limit=500, epsabs=1e-13, points=[2.0, 5.0, 10.0])
        return math.sqrt(2.0 / math.pi) * mean - 1.0

    def _quantize(self, x: Floats, source: Continuation) -> tuple[float, Bits]:
        largest = float(np.abs(x).max())
        kept = draw_uniforms(source, x.size) * largest < np.abs(x)
        digits = np.zeros(_DIGITS * self._num_bytes, dtype=np.int64)
        digits[: x.size] = 1 + np.where(kept, np.sign(x), 0.0)
        numbers = digits.reshape(-1, _DIGITS) @ 3 ** np.arange(_DIGITS)
        return largest, numbers_to_bits(numbers, 8)

    def _estimate(self, length: float, bits: Bits) -> Floats:
        numbers = bits_to_numbers(bits, 8)
        if int(numbers.max()) >= 3**_DIGITS:
            raise CodeOverflowError(f"message: {int(numbers.max())} is outside 0..{3**_DIGITS - 1}")
        digits = numbers[:, None] // 3 ** np.arange(_DIGITS) % 3
        return np.asarray(length * (digits.reshape(-1)[: self.dimension] - 1.0))


register("terngrad", QuantizerSpec, 221, "#868e96")(TernGradMechanism.of)
