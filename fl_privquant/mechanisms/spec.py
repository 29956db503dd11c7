"""Specifications of mechanisms: the parameters of a design, their checks, and how plans use them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fl_privquant import _validation
from fl_privquant.distributions.codebook import MAX_LEVELS
from fl_privquant.distributions.input_density import Density, UniformDensity
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.optimize.sums.coordinate_clip import usual_norm_ratio
from fl_privquant.statement import Unit

# The exponent of the error that each objective minimizes.
_POWERS = {"mae": 1, "mse": 2}
# e^epsilon must be a float. Beyond an epsilon of 23, tables with weights of 32 bits are all the same.
MAX_EPSILON = 700.0
# Below this, errors are too large for floats.
_MIN_EPSILON = 1e-12
# A part of every cache key: raised when designs or their files change, so that old ones are not read.
_DESIGN_VERSION = 6


@dataclass(frozen=True)
class Variant:
    """A design of a mechanism that gets its own row in comparisons.

    Its ``parameters`` define it, its label is the mechanism's name and ``suffix``, and it is drawn in
    ``color``, or in the mechanism's color if that is empty.
    """

    suffix: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    color: str = ""


@dataclass(frozen=True)
class Spec:
    """The specification of a mechanism: its fields are the parameters of ``design`` and of YAML files.

    Fields of these names have one meaning, and are checked here, in every mechanism that has them:

    * ``epsilon``, ``delta``: the privacy loss of one coordinate and release in the local view, or of what the
      mechanism :attr:`spends_on`;
    * ``levels``: the number of output values, which ``bits=`` sets too;
    * ``objective``: the error that is minimized: ``mse``, which governs averages over clients, or ``mae``;
    * ``density``: how inputs are distributed, for the objective: uniform, a frozen scipy distribution, or
      samples;
    * ``bins``: the output values for inputs in [-1, 1], where they are not to be searched;
    * ``keep``: the probability with which an inner bin is kept.
    """

    max_epsilon: ClassVar[float] = MAX_EPSILON
    """The largest epsilon that can be designed for."""
    spends_on: ClassVar[Unit] = Unit.COORDINATE
    """What a design's epsilon is for: one coordinate, one round of a client, or its whole run."""
    variants: ClassVar[tuple[Variant, ...]] = (Variant(),)
    """The variants of this mechanism that comparisons show."""
    designed_for_sums: ClassVar[bool] = False
    """Whether it can :meth:`propose` a design for the sum of updates of bounded L2 norm."""
    chooses_width: ClassVar[bool] = False
    """Whether designs for a run choose how many bits a code has, whatever number is requested."""
    instead_of_epsilon: ClassVar[tuple[str, ...]] = ()
    """The parameters that define a design if ``epsilon`` is not given."""
    either_or: ClassVar[bool] = False
    """Whether these may not be given besides ``epsilon``."""

    def __post_init__(self) -> None:
        given = self._given_fields()
        if "epsilon" in given:
            check_epsilon(given["epsilon"], self.max_epsilon)
        for name, check in _FIELD_CHECKS.items():
            if name in given:
                check(given[name])
        _validation.check_declared(self)
        if "epsilon" not in given and not set(self.instead_of_epsilon) <= set(given):
            others = " and ".join(self.instead_of_epsilon)
            raise InvalidSpecError(
                "epsilon", MISSING, "missing", f"give the privacy loss of a coordinate, or {others}"
            )
        if self.either_or and "epsilon" in given and set(self.instead_of_epsilon) & set(given):
            both = ("epsilon", *self.instead_of_epsilon)
            values = tuple(given[name] for name in both)
            raise InvalidSpecError(", ".join(both), values, "", "give one of the two")
        if "bins" in given:
            object.__setattr__(self, "levels", len(given["bins"]))

    def _given_fields(self) -> dict[str, Any]:
        """The fields that are not None."""
        fields = {name: getattr(self, name) for name in self.parameter_names()}
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def parameter_names(cls) -> list[str]:
        """The names of the parameters that the mechanism has."""
        return [parameter.name for parameter in dataclasses.fields(cls)]

    @classmethod
    def select_parameters(cls, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the given parameters that this mechanism has."""
        return {key: value for key, value in wanted.items() if key in cls.parameter_names()}

    @classmethod
    def needs_rotation(cls, norm_ratio: float | None) -> bool:
        """Whether plans rotate whole updates whose L2 clip is that many coordinate clips."""
        return True

    @classmethod
    def can_propose(cls, requirements: RunRequirements) -> bool:
        """Whether it can :meth:`propose` a design for such a run."""
        return cls.designed_for_sums and requirements.counts_norms

    @classmethod
    def propose(cls, requirements: RunRequirements, epsilon: float) -> dict[str, Any]:
        """The parameters of its best design for a run that may cost that epsilon, in the required unit.

        Raises InvalidSpecError or InfeasibleDesignError, with the reason, where there is none.
        """
        raise InvalidSpecError("mechanism", MISSING, "it is not designed for the target of a run")

    @classmethod
    def choose_norm_ratio(cls, requirements: RunRequirements) -> float:
        """The ratio of L2 clip and coordinate clip, if mechanisms choose it; by default the usual one."""
        return usual_norm_ratio(requirements.dimension)

    @classmethod
    def candidate(cls, requirements: RunRequirements, epsilon: float) -> dict[str, Any]:
        """The parameters of a design for a run, with that epsilon for the unit that it :attr:`spends_on`."""
        wanted = {"epsilon": epsilon, "levels": 2**requirements.bits, "num_clients": requirements.num_clients}
        return cls.select_parameters(wanted) | dict(requirements.parameters)

    def text(self, name: str) -> str:
        """The whole spec of mechanism ``name`` in one line: the key of its design in the cache."""
        fields = dict.fromkeys(self.parameter_names())
        return json.dumps([_DESIGN_VERSION, name, fields | self.parameters()], sort_keys=True)

    def parameters(self) -> dict[str, Any]:
        """The fields that are given, as plain values, for reports."""
        return {
            name: value.describe() if isinstance(value, Density) else value
            for name, value in self._given_fields().items()
        }


SEARCHED_LEVELS = _validation.integer_between(
    2, 256, "with more the search takes many minutes and gigabytes, use fewer"
)
"""The check of numbers of levels for which distributions are searched."""


@dataclass(frozen=True, kw_only=True)
class MinErrorSpec(Spec):
    """The specification of a table mechanism that is designed for the least error; see :class:`Spec`."""

    levels: int = 4
    objective: str = "mse"
    density: Density = field(default_factory=UniformDensity)

    @property
    def power(self) -> int:
        """The exponent of the error that is minimized."""
        return _POWERS[self.objective]


def check_epsilon(epsilon: float, most: float = MAX_EPSILON, covers: str = "coordinate") -> float:
    """The privacy loss as a float, if it can be designed for; error texts say that ``covers`` has it."""
    typical = f"typical values for one {covers} are 0.5 to 8"
    value = _validation.check_positive("epsilon", epsilon, typical)
    if not _MIN_EPSILON <= value <= most:
        raise InvalidSpecError(
            "epsilon",
            value,
            f"is outside {_MIN_EPSILON:g}..{most:g}",
            f"{typical}, and for no privacy there is 'stochastic'",
        )
    return value


def check_delta(delta: float) -> float:
    """The delta as a float, if it is one that can be designed for."""
    remedy = "typical values are 1e-9 to 1e-5, for delta 0 use 'discrete_laplace'"
    return _validation.check_in_interval("delta", delta, "(0, 1)", remedy)


def check_levels(levels: int) -> int:
    """The number of output values, if it is a whole number from 2 to 65536."""
    return _validation.check_integer("levels", levels, 2, MAX_LEVELS)


def _check_bins(bins: tuple[float, ...]) -> None:
    values = np.array(bins)
    check_levels(values.size)
    if not np.all(np.isfinite(values)) or np.any(np.diff(values) <= 0.0):
        raise InvalidSpecError("bins", list(bins), "must be finite and increase strictly, without repeats")
    if values[0] > -1.0 or values[-1] < 1.0:
        raise InvalidSpecError(
            "bins",
            MISSING,
            f"from {values[0]:g} to {values[-1]:g} do not cover [-1, 1], where clipped inputs lie",
        )


_FIELD_CHECKS: dict[str, Callable[[Any], object]] = {
    "delta": check_delta,
    "levels": check_levels,
    "objective": lambda objective: _validation.check_choice("objective", objective, _POWERS),
    "bins": _check_bins,
    "keep": lambda keep: _validation.check_in_interval("keep", keep, "(0, 1)"),
}
