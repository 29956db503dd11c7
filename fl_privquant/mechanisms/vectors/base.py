"""Common code of the vector mechanisms, which encode a whole update at once to a few integers.

An update of d coordinates becomes a *message*: ``repeats`` independent draws, each an unbiased estimate of
the whole update, which are averaged. The privacy loss is that of the message, so ``epsilon`` is per client
and round here, while that of a scalar mechanism is per coordinate and round, and adds up over coordinates.

``clip`` is the radius of the ball that inputs lie in: it bounds the largest coordinate (``norm`` "linf") or
the Euclidean norm ("l2"). Updates outside are moved to its surface.

A :class:`ResponseMechanism` releases one of n answers by randomized response: the true one with ``common``
of 2^128 chances, each other one with ``rare``. The output depends on the input through the true answer alone,
so that the ratio of these two integers certifies the loss, whatever floating-point errors that answer has.
The file of each mechanism says what its answers are.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats, Ints, smallest_code_type
from fl_privquant._validation import integer_between
from fl_privquant.distributions.certified_table import log_ratio_upper
from fl_privquant.distributions.codebook import check_sums, count_sum_bits
from fl_privquant.distributions.input_density import Density, as_density
from fl_privquant.errors import (
    CertificationError,
    CodeOverflowError,
    InvalidSpecError,
    InvalidUpdateError,
    pluralize,
)
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.spec import Spec, check_epsilon
from fl_privquant.mechanisms.sum_limits import SumLimits
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.packing.wire_format import PackedIntegers
from fl_privquant.privacy_loss.composition.compose import UpdateNorm
from fl_privquant.sampling.chunks import check_inputs
from fl_privquant.sampling.stream import Continuation, Randomness, RandomStream
from fl_privquant.statement import Unit

CHANCES = 1 << 128
"""The sum of the integer chances of all answers of a randomized response."""

MAX_REPEATS = 1024
"""The most draws of a message."""

_DIMENSIONS = integer_between(1, 1 << 31)
_REPEATS = integer_between(1, MAX_REPEATS)
# The largest epsilon of all draws of a round together.
_MAX_EPSILON = 1e6
_SHARES = 1 << 53


@dataclass(frozen=True, kw_only=True)
class VectorSpec(Spec):
    """The specification of a vector mechanism."""

    dimension: Annotated[int, _DIMENSIONS] = 1
    """Number of coordinates of an update. A codec sets it to that of its layout."""
    repeats: Annotated[int | None, _REPEATS] = None
    """Independent draws in a message. Their average has 1 / repeats of the variance of one. None stands for
    the number with the least error where the mechanism knows it, else for 1."""


@dataclass(frozen=True, kw_only=True)
class PrivateVectorSpec(VectorSpec):
    """The specification of a private vector mechanism; see :class:`VectorSpec`."""

    max_epsilon = _MAX_EPSILON
    spends_on: ClassVar[Unit] = Unit.ROUND

    default_repeats: ClassVar[int | None] = None
    """Number of draws per message in plans; None leaves it to the design."""

    epsilon: float
    """Privacy loss of one client round, local view: of the whole message. Each draw gets an equal share."""

    @classmethod
    def candidate(cls, requirements: RunRequirements, epsilon: float) -> dict[str, Any]:
        return {"repeats": cls.default_repeats} | super().candidate(requirements, epsilon)


@dataclass(frozen=True, kw_only=True)
class PrivateAxisSpec(PrivateVectorSpec):
    """The specification of a private :class:`AxisMechanism`."""

    @classmethod
    def candidate(cls, requirements: RunRequirements, epsilon: float) -> dict[str, Any]:
        """A draw reports one axis at most, so that a large epsilon is better spent on several draws."""
        repeats = min(max(round(epsilon), 1), MAX_REPEATS)
        return super().candidate(requirements, epsilon) | {"repeats": repeats} | dict(requirements.parameters)


@dataclass(frozen=True, eq=False, repr=False)
class VectorMechanism(Mechanism):
    """A mechanism that encodes a whole update at once.

    Guarantee: ``epsilon``-differential privacy of one client round against an adversary who sees the message,
    for any two updates; infinite if not ``private``.
    Assumes: words that nobody else can predict, each used once; see :class:`RandomStream`.
    """

    dimension: Annotated[int, _DIMENSIONS]
    """Number of coordinates; :meth:`for_dimension` gives the mechanism for another one."""
    repeats: Annotated[int, _REPEATS]
    """Independent draws in a message."""
    claimed_epsilon: float

    unit: ClassVar[Unit] = Unit.ROUND
    norm: ClassVar[UpdateNorm] = UpdateNorm.L2
    summable: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validation.check_declared(self)
        if self.private:
            check_epsilon(self.claimed_epsilon, _MAX_EPSILON)
        if not self.epsilon <= self.claimed_epsilon:
            raise CertificationError(f"{self.name}: {self.statement.above(self.claimed_epsilon)}")

    @property
    def _form(self) -> str:
        bits = self.message_size * self.message_bits
        size = f"{pluralize(self.dimension, 'coordinate')} in the {self.norm} ball"
        return f"{size}, draws: {self.repeats}, {pluralize(bits, 'bit')}"

    @property
    def _errors(self) -> str:
        return f"mse {self.mse():.5g} per coordinate"

    @classmethod
    def of(cls, spec: VectorSpec) -> Self:
        """The certified mechanism that meets the spec; it has the name of its class's kind."""
        parameters = spec.parameters()
        epsilon = parameters.get("epsilon", math.inf)
        names = [field.name for field in dataclasses.fields(cls) if field.name in parameters]
        fields = cls._choose_fields(epsilon, spec.dimension, spec.repeats) | {
            name: parameters[name] for name in names
        }
        return cls(name=cls.kind, claimed_epsilon=epsilon, parameters=parameters, **fields)

    @classmethod
    def _choose_fields(cls, epsilon: float, dimension: int, repeats: int | None) -> dict[str, Any]:
        """The fields that the design chooses where the user does not; ``repeats`` is the user's, or None."""
        draws = repeats or cls.best_repeats(epsilon, dimension)
        return {"repeats": draws} | cls.best_fields(epsilon / draws, dimension)

    @classmethod
    def best_repeats(cls, epsilon: float, dimension: int) -> int:
        """The number of draws with the least error."""
        return 1

    @classmethod
    def best_fields(cls, epsilon: float, dimension: int) -> dict[str, Any]:
        """Further fields of the class with the least error, for an epsilon of one draw."""
        return {}

    def for_dimension(self, dimension: int) -> Self:
        if dimension == self.dimension:
            return self
        parameters = {**self.parameters, "dimension": dimension}
        repeats = None if parameters.get("repeats") is None else self.repeats
        chosen = self._choose_fields(self.claimed_epsilon, dimension, repeats)
        free = {name: value for name, value in chosen.items() if parameters.get(name) is None}
        return dataclasses.replace(self, dimension=dimension, parameters=parameters, **free)

    @property
    @abstractmethod
    def message_size(self) -> int:
        """Number of integers of a message."""

    @property
    def message_bits(self) -> int:
        """Width of each integer of a message in bits; 1 by default."""
        return 1

    @property
    def bits_per_coordinate(self) -> float:
        return self.message_size * self.message_bits / self.dimension

    def wire_format(self, dimension: int, clip: float, dtype: np.dtype[Any]) -> PackedIntegers:
        size, bits = self.message_size, self.message_bits
        return PackedIntegers(self, dimension, clip, dtype, size, bits, self._max_index)

    @abstractmethod
    def squared_error(self, x: ArrayLike) -> float:
        """Exact mean squared Euclidean error for an input in the unit ball."""

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        """Mean absolute error, for updates of one coordinate; for more coordinates use :meth:`mse`."""
        if self.dimension > 1:
            raise InvalidSpecError(
                "mechanism",
                self.name,
                f": the mean absolute error of one of {self.dimension} coordinates depends on all of "
                "them and has no closed form",
                "use mse, or squared_error of an input",
            )
        return self._mae_of_one(density)

    @abstractmethod
    def _mae_of_one(self, density: Density | ArrayLike | None) -> float:
        """Mean absolute error of an update of one coordinate."""

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        """The random message of one update, a vector of ``dimension`` floats."""
        inputs = self._project_to_ball(x, clip)
        stream = rng if rng is not None else RandomStream.secure()
        source = Continuation(stream, stream.reserve(1))
        return np.asarray(self._draw(inputs, source), dtype=smallest_code_type(self.message_bits))

    @abstractmethod
    def _draw(self, x: Floats, source: Continuation) -> ArrayLike:
        """The message of an input in the unit ball."""

    def _project_to_ball(self, x: ArrayLike, clip: float) -> Floats:
        """The update divided by the clip and moved into the unit ball; privacy does not depend on this."""
        inputs, clip = check_inputs(x), _validation.check_positive("clip", clip)
        if inputs.shape != (self.dimension,):
            raise InvalidUpdateError(
                f"update: shape {inputs.shape}, but {self.name} encodes whole updates, here of shape "
                f"({self.dimension},); flatten it, or use for_dimension"
            )
        with np.errstate(over="ignore"):
            if self.norm is UpdateNorm.LINF:
                return np.asarray(np.clip(inputs / clip, -1.0, 1.0))
            # Divided by the largest value first, as squares overflow long before values do.
            largest = float(np.abs(inputs).max())
            if largest == 0.0:
                return inputs
            direction = inputs / largest
            length = math.sqrt(float(direction @ direction))
            return np.asarray(direction * (min(largest / clip * length, 1.0) / length))

    def _check_message(self, indices: ArrayLike) -> Ints:
        message = np.asarray(indices)
        if message.dtype.kind not in "ui" or message.shape != (self.message_size,):
            raise InvalidUpdateError(
                f"message: {message.dtype} of shape {message.shape}, expected {self.message_size} integers"
            )
        largest = self._max_index
        if int(message.max()) > largest or (message.dtype.kind == "i" and int(message.min()) < 0):
            raise CodeOverflowError(
                f"message: {int(message.min())}..{int(message.max())} is outside 0..{largest}"
            )
        return message.astype(np.int64)

    @property
    def _max_index(self) -> int:
        """The largest integer of a message."""
        return (1 << self.message_bits) - 1


@dataclass(frozen=True, eq=False, repr=False)
class ResponseMechanism(VectorMechanism):
    """A vector mechanism that releases unbiased estimates, all of the same length, by randomized response.

    Guarantee: as :class:`VectorMechanism`, certified on the integer chances that are drawn with; unbiased
    for updates in the ball.
    """

    @cached_property
    def epsilon(self) -> float:
        """Certified privacy loss of one client round, local view: that of all draws together."""
        if not self.private:
            return math.inf
        common, rare = self._weights
        return log_ratio_upper(common, rare, self.repeats)

    @property
    def num_answers(self) -> int:
        """Number of answers that randomized response chooses among: two signs, unless there are more."""
        return 2

    @property
    @abstractmethod
    def output_norm(self) -> float:
        """Euclidean norm of every draw's estimate, for inputs in the unit ball."""

    def squared_error(self, x: ArrayLike) -> float:
        # Draws are unbiased and have one length: the variance is its square minus the input's squared length.
        inputs = np.asarray(x, dtype=np.float64)
        return (self.output_norm**2 - float(np.sum(inputs * inputs))) / self.repeats

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        """Exact mean squared error of a coordinate, for inputs uniform in the unit ball of the norm.

        With a density, for inputs whose coordinates have that density.
        """
        if density is None and self.norm is UpdateNorm.L2:
            length = self.dimension / (self.dimension + 2.0)
        else:
            nodes, weights = as_density(density).quadrature(np.array([-1.0, 1.0]))
            length = self.dimension * float(weights @ nodes**2)
        return (self.output_norm**2 - length) / (self.repeats * self.dimension)

    def _mae_of_one(self, density: Density | ArrayLike | None) -> float:
        # With one coordinate, every draw is one of two opposite values.
        counts = np.arange(self.repeats + 1)
        outputs = self.output_norm * (2.0 * counts / self.repeats - 1.0)
        inside = outputs[np.abs(outputs) < 1.0]
        nodes, weights = as_density(density).quadrature(np.union1d(np.linspace(-1.0, 1.0, 257), inside))
        chance = 0.5 * (1.0 + nodes / self.output_norm)
        ways = np.array([math.comb(self.repeats, count) for count in counts.tolist()], dtype=np.float64)
        distribution = ways * chance[:, None] ** counts * (1.0 - chance[:, None]) ** counts[::-1]
        return float(weights @ (distribution * np.abs(outputs - nodes[:, None])).sum(axis=1))

    @cached_property
    def _weights(self) -> tuple[int, int]:
        """Chances of the true answer and of each other one, at a draw's share of epsilon."""
        return response_weights(self.claimed_epsilon, self.num_answers, self.repeats)

    @cached_property
    def _gain(self) -> float:
        """The factor that makes answers unbiased: 1 / (chance of the true answer - that of another one)."""
        if not self.private:
            return 1.0
        common, rare = self._weights
        return CHANCES / (common - rare)

    def _scale(self, clip: float) -> float:
        """The factor that turns the sum of the draws' reports into the estimate of the update."""
        return _validation.check_positive("clip", clip) * self._draw_norm / self.repeats

    @cached_property
    def _draw_norm(self) -> float:
        """The output norm, computed once."""
        return self.output_norm


class AxisMechanism(ResponseMechanism):
    """A vector mechanism whose draws are signed axes: index 2 i stands for axis i, and 2 i + 1 its opposite.

    The sum of draws is a vector of small integers, so these messages can be added up by secure aggregation
    (which then transmits every coordinate, no longer just a few bits).
    """

    summable: ClassVar[bool] = True

    @property
    def message_size(self) -> int:
        return self.repeats

    @property
    def message_bits(self) -> int:
        return self._max_index.bit_length()

    @property
    def _max_index(self) -> int:
        return 2 * self.dimension - 1

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        return np.asarray(self._scale(clip) * (self.to_codes(np.asarray(indices)) - self.repeats))

    def to_codes(self, indices: Array) -> Ints:
        """(dimension,) how often each axis was drawn less how often its opposite was, plus ``repeats``."""
        message = self._check_message(indices)
        codes = np.full(self.dimension, self.repeats, dtype=np.int64)
        np.add.at(codes, message >> 1, 1 - 2 * (message & 1))
        return codes

    def sum_bits(self, num_clients: int) -> int:
        return count_sum_bits(num_clients, 2 * self.repeats)

    def decode_sum(self, total: ArrayLike, num_clients: int, clip: float = 1.0) -> Floats:
        sums = check_sums(total, num_clients, 2 * self.repeats)
        return np.asarray(self._scale(clip) * (sums.astype(np.float64) / num_clients - self.repeats))

    def sum_limits(self, num_clients: int, dimension: int, l2_bound: float | None, odds: float) -> SumLimits:
        """A client draws ``repeats`` axes, so that the L1 norm of its codes never exceeds that number."""
        most = self.output_norm * (1.0 + 1e-9)
        return SumLimits(
            coordinate=most,
            energy=most**2,
            odds=0.0,
            absolute_sum=most,
            largest_shift=2.0 * most,
            signal=most,
        )


def response_weights(epsilon: float, num_answers: int, repeats: int = 1) -> tuple[int, int]:
    """Chances of 2^128 of the true answer and of each other one; the ratio is at most e^(epsilon / repeats).

    >>> common, rare = response_weights(1.0, 4)
    >>> common + 3 * rare == CHANCES, round(common / rare, 12)
    (True, 2.718281828459)
    """
    with localcontext() as context:
        context.prec = 60
        # Slightly below what is allowed, and with ``rare`` rounded up, so that the ratio stays within it.
        factor = (min(Decimal(epsilon) / repeats, Decimal(700))).exp() * (1 - Decimal(10) ** -50)
        rare = int(Decimal(CHANCES) / (factor + (num_answers - 1))) + 1
    common = CHANCES - (num_answers - 1) * rare
    if common <= rare:
        raise InvalidSpecError(
            "epsilon",
            epsilon,
            f"over {repeats} draws is too small for chances of 128 bits among {num_answers} answers",
            "raise epsilon or lower repeats",
        )
    return common, rare


def respond(truth: int, weights: tuple[int, int], source: Continuation) -> int:
    """The answer of randomized response: ``truth`` with ``common`` chances, each other one with ``rare``."""
    common, rare = weights
    drawn = source.below(CHANCES)
    if drawn < common:
        return truth
    other = (drawn - common) // rare
    return other if other < truth else other + 1


def draw_bernoulli(share: float, source: Continuation) -> bool:
    """True with probability ``share``, to the nearest multiple of 2^-53."""
    return source.below(_SHARES) < share * _SHARES
