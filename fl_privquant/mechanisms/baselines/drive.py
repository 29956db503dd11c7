"""DRIVE: the signs of a randomly rotated update, and one length; without privacy.

With R a random rotation that both ends derive from a seed, the estimate is R^T sign(R x) times
|x|^2 / |R x|_1. For a uniform rotation it is unbiased: its inner product with x is |x|^2, and the rest has no
preferred direction. Up to 64 coordinates the rotation is uniform. Above, it is two Hadamard transforms with
random signs, of a vector that zeros extend to a power of two of coordinates, and the estimate is only nearly
unbiased. This was measured with 100 and 1000 coordinates, on vectors with one to three coordinates that are
not 0, the worst for such a rotation: the bias was 0.7 % of the length, and the error up to 2.4 % above that
of a uniform rotation, which is the one that is stated.

Guarantee: none; ``epsilon`` is infinite. Unbiased up to 64 coordinates, above as measured.
Assumes: nothing about the inputs.
Reference: Vargaftik, Ben-Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher, "DRIVE: One-bit Distributed
Mean Estimation", NeurIPS 2021; the same, "EDEN: Communication-Efficient and Robust Distributed Mean
Estimation for Federated Learning", ICML 2022.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import scipy
from scipy import special

from fl_privquant._array_types import ArrayLike, Bits, Floats
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.bit_messages import (
    SEED_BITS,
    LengthQuantizer,
    QuantizerSpec,
    bits_to_int,
    int_to_bits,
)
from fl_privquant.mechanisms.vectors.sphere import derive_orthonormal_rows
from fl_privquant.sampling.stream import Continuation, RandomStream

_DOMAIN = b"fl_privquant drive v1"
_UNIFORM = 64
_TRANSFORMS = 2


class DriveMechanism(LengthQuantizer, kind="drive"):
    """The bits of a seed, then a bit for each rotated coordinate; see :class:`LengthQuantizer`."""

    @property
    def rotated_dimension(self) -> int:
        """Coordinates after the rotation."""
        return self.dimension if self.dimension <= _UNIFORM else 1 << (self.dimension - 1).bit_length()

    @property
    def direction_bits(self) -> int:
        return SEED_BITS + self.rotated_dimension

    def squared_error(self, x: ArrayLike) -> float:
        """Mean squared Euclidean error, for a uniform rotation."""
        inputs = np.asarray(x, dtype=np.float64)
        return float(np.sum(inputs * inputs)) * self.unit_error

    @property
    def unit_error(self) -> float:
        if self.dimension == 1:
            return 0.0
        size = self.rotated_dimension
        # The error is spread evenly over all directions orthogonal to the input, added zeros included.
        return (size * _mean_inverse_square(size) - 1.0) * (self.dimension - 1.0) / (size - 1.0)

    def _quantize(self, x: Floats, source: Continuation) -> tuple[float, Bits]:
        seed = source.below(1 << SEED_BITS)
        rotated = self._rotate(x, seed)
        total = float(np.abs(rotated).sum())
        length = float(x @ x) / total if total else 0.0
        signs = (rotated < 0.0).astype(np.uint8)
        return length, np.concatenate([int_to_bits(seed, SEED_BITS), signs])

    def _estimate(self, length: float, bits: Bits) -> Floats:
        seed = bits_to_int(bits[:SEED_BITS])
        signs = 1.0 - 2.0 * bits[SEED_BITS:].astype(np.float64)
        return np.asarray(length * self._unrotate(signs, seed))

    def _rotate(self, x: Floats, seed: int) -> Floats:
        if self.dimension <= _UNIFORM:
            return np.asarray(derive_orthonormal_rows(seed, 0, self.dimension, self.dimension) @ x)
        padded = np.zeros(self.rotated_dimension)
        padded[: x.size] = x
        for signs in _draw_signs(seed, padded.size):
            padded = _hadamard(padded * signs)
        return padded

    def _unrotate(self, rotated: Floats, seed: int) -> Floats:
        if self.dimension <= _UNIFORM:
            return np.asarray(rotated @ derive_orthonormal_rows(seed, 0, self.dimension, self.dimension))
        for signs in reversed(_draw_signs(seed, rotated.size)):
            rotated = _hadamard(rotated) * signs
        return rotated[: self.dimension]


register("drive", QuantizerSpec, 222, "#495057")(DriveMechanism.of)


def _draw_signs(seed: int, size: int) -> list[Floats]:
    """Random signs for each transform."""
    key = hashlib.sha256(_DOMAIN + seed.to_bytes(SEED_BITS // 8, "little")).digest()
    words = RandomStream(key, simulated=True).words(-(-_TRANSFORMS * size // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8))[: _TRANSFORMS * size]
    return list(1.0 - 2.0 * bits.reshape(_TRANSFORMS, size))


def _hadamard(vector: Floats) -> Floats:
    """The orthonormal Hadamard transform, which is its own inverse."""
    half = 1
    while half < vector.size:
        pairs = vector.reshape(-1, 2, half)
        vector = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return vector / math.sqrt(vector.size)


def _mean_inverse_square(dimension: int) -> float:
    """The mean of 1 / |u|_1^2 for a uniform direction u.

    >>> round(_mean_inverse_square(2) * math.pi, 9), round(_mean_inverse_square(10**6) * 1e6 * 2 / math.pi, 4)
    (2.0, 1.0)
    """
    if dimension == 2:
        # 1 / (1 + |sin 2a|) over all angles a.
        return 2.0 / math.pi
    # For normal numbers g, 1 / |g|_1^2 is the integral of t e^(-t |g|_1), and |g| is independent of g / |g|
    # with 1 / |g|^2 = 1 / (d - 2) on average. The scale is such that the integrand falls off like e^-t.
    scale = math.sqrt(math.pi / 2.0) / dimension

    def integrand(t: float) -> float:
        return t * math.exp(dimension * math.log(special.erfcx(scale * t / math.sqrt(2.0))))

    # For few coordinates the integrand has a heavy tail, t^(1 - d).
    near, _ = scipy.integrate.quad(integrand, 0.0, 60.0, limit=500, epsabs=1e-14)
    far, _ = scipy.integrate.quad(integrand, 60.0, math.inf, limit=500, epsabs=1e-14)
    return (dimension - 2.0) * scale**2 * (near + far)
