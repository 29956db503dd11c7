"""Mechanisms that output floats: baselines for comparison, whose outputs cannot be summed securely."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats, Words
from fl_privquant.errors import CertificationError, InvalidSpecError, InvalidUpdateError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.packing.wire_format import PackedFloats
from fl_privquant.sampling.chunks import Chunk, encode_in_chunks
from fl_privquant.sampling.stream import Randomness


class FloatMechanism(Mechanism):
    """A mechanism that encodes to floats, which secure aggregation cannot sum."""

    outputs_floats: ClassVar[bool] = True
    summable: ClassVar[bool] = False
    no_sum_reason: ClassVar[str] = (
        "its outputs are floats and have no codes to add up; decode each client's, or use a mechanism that "
        "is summable, such as discrete_laplace, discrete_gaussian or stochastic"
    )

    @property
    def bits_per_coordinate(self) -> float:
        """The width of single precision, as models have; double precision takes twice as many bits."""
        return 32.0

    def wire_format(self, dimension: int, clip: float, dtype: np.dtype[Any]) -> PackedFloats:
        return PackedFloats(self, dimension, clip, dtype)

    def _check_floats(self, values: ArrayLike) -> Array:
        floats = np.asarray(values)
        if floats.dtype.kind != "f":
            raise InvalidUpdateError(f"{self.name}: {floats.dtype} values, expected floating point")
        return floats


@dataclass(frozen=True, eq=False, repr=False)
class ContinuousMechanism(FloatMechanism):
    """The clipped input plus real noise, in floating point.

    Guarantee: (``epsilon``, ``delta``) of each coordinate and release, local view, *for real numbers only*.
    The digits of a float that holds input plus noise can reveal the input (Mironov, CCS 2012), so that these
    mechanisms are for comparison, never for deployment.
    Assumes: exact arithmetic, which no computer has.

    ``scale`` is the scale of the noise for inputs in [-1, 1]. Claims are checked against it.
    """

    scale: float
    claimed_epsilon: float
    claimed_delta: float

    _form = "floats"

    def __post_init__(self) -> None:
        if not 0.0 < self.scale < np.inf:
            raise InvalidSpecError("scale", self.scale, "is not a finite number above 0")
        if not self._is_private():
            raise CertificationError(
                f"{self.name}: noise of scale {self.scale:.9g} lacks the claimed {self.statement.brief}"
            )

    @property
    def epsilon(self) -> float:
        return self.claimed_epsilon

    @property
    def delta(self) -> float:
        return self.claimed_delta

    @abstractmethod
    def _is_private(self) -> bool:
        """Whether noise of this scale has the claimed privacy for inputs 2 apart."""

    @abstractmethod
    def _lower_quantile(self, shares: Floats) -> Floats:
        """The noise of scale 1 below 0 for shares of its lower half, in (0, 1)."""

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        """Inputs clipped and scaled to [-1, 1] plus noise, in the precision of the inputs."""
        return encode_in_chunks(x, self._encode_chunk, dtype=None, clip=clip, stream=rng)

    def _encode_chunk(self, chunk: Chunk) -> int:
        # Inputs that are not finite are counted here and refused later; inputs far above the clip are valid.
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.clip(chunk.x.astype(np.float64) / chunk.clip, -1.0, 1.0)
        # The sign is the lowest bit of a word, which is not used for the uniform number.
        signs = 1.0 - 2.0 * (chunk.words & np.uint64(1)).astype(np.float64)
        chunk.out[...] = scaled + self.scale * (signs * self._lower_quantile(words_to_uniforms(chunk.words)))
        return int(np.count_nonzero(~np.isfinite(chunk.x)))

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        return np.asarray(
            _validation.check_positive("clip", clip) * self._check_floats(indices).astype(np.float64)
        )


def words_to_uniforms(words: Words) -> Floats:
    """Numbers in (0, 1) from the highest 52 bits of the words: odd multiples of 2^-53."""
    return np.asarray(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
