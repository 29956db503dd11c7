"""The registry of mechanisms: their names, their specifications, and ``design``, which makes them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from fl_privquant import checks
from fl_privquant.cache import DesignCache
from fl_privquant.design.spread import usual_norm_ratio
from fl_privquant.errors import CertificationError, InvalidSpecError
from fl_privquant.law.codebook import MAX_LEVELS
from fl_privquant.law.density import Density, UniformDensity, as_density
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.wish import Estimate, Wish
from fl_privquant.statement import Unit

# The exponent of the error that each objective minimises.
_POWERS = {"mae": 1, "mse": 2}
# e^epsilon must be a float. Beyond an epsilon of 23, tables with weights of 32 bits are all the same.
MOST_EPSILON = 700.0
# Below this, errors are too large for floats.
_LEAST_EPSILON = 1e-12
# A part of every cache key: raised when designs change, so that old ones are not read from disk.
_DESIGN_VERSION = 5


@dataclass(frozen=True)
class Variant:
    """A design of a mechanism that gets its own row in comparisons.

    Its ``parameters`` define it, its label is the mechanism's name and ``suffix``, and it is drawn in
    ``colour``, or in the mechanism's colour if that is empty.
    """

    suffix: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    colour: str = ""


@dataclass(frozen=True)
class Spec:
    """The specification of a mechanism: its fields are the parameters of ``design`` and of YAML files.

    Fields of these names have one meaning, and are checked here, in every mechanism that has them:

    * ``epsilon``, ``delta``: the privacy loss of one coordinate and release in the local view, or of what the
      mechanism :attr:`spends_on`;
    * ``levels``: the number of output values, which ``bits=`` sets too;
    * ``objective``: the error that is minimised: ``mse``, which governs averages over clients, or ``mae``;
    * ``density``: how inputs are distributed, for the objective: uniform, a frozen scipy distribution, or
      samples;
    * ``bins``: the output values for inputs in [-1, 1], where they are not to be searched;
    * ``keep``: the probability with which an inner bin is kept.
    """

    most_epsilon: ClassVar[float] = MOST_EPSILON
    """The largest epsilon that can be designed for."""
    spends_on: ClassVar[Unit] = Unit.COORDINATE
    """What a design's epsilon is for: one coordinate, one round of a client, or its whole run."""
    variants: ClassVar[tuple[Variant, ...]] = (Variant(),)
    """The variants of this mechanism that comparisons show."""
    designed_for_sums: ClassVar[bool] = False
    """Whether it has a :meth:`proposal` for the sum of updates of bounded L2 norm."""
    chooses_width: ClassVar[bool] = False
    """Whether designs for a run choose how many bits a code has, whatever the wished number is."""
    instead_of_epsilon: ClassVar[tuple[str, ...]] = ()
    """The parameters that define a design if ``epsilon`` is not given."""
    contained_in: ClassVar[str | None] = None
    """A mechanism that contains all these designs. If it has less error, this one's search got stuck."""

    def __post_init__(self) -> None:
        given = self._given()
        if "epsilon" in given:
            checked_epsilon(given["epsilon"], self.most_epsilon)
        for name, check in _FIELD_CHECKS.items():
            if name in given:
                check(given[name])
        checks.check_declared(self)
        if "epsilon" not in given and not set(self.instead_of_epsilon) <= set(given):
            others = " and ".join(self.instead_of_epsilon)
            raise InvalidSpecError(f"epsilon: give the privacy loss of a coordinate, or {others}")
        if "bins" in given:
            object.__setattr__(self, "levels", len(given["bins"]))

    def _given(self) -> dict[str, Any]:
        """The fields that are not None."""
        fields = {name: getattr(self, name) for name in self.parameter_names()}
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def parameter_names(cls) -> list[str]:
        """The names of the parameters that the mechanism has."""
        return [parameter.name for parameter in dataclasses.fields(cls)]

    @classmethod
    def accepted(cls, wishes: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the given parameters that this mechanism has."""
        return {key: value for key, value in wishes.items() if key in cls.parameter_names()}

    @classmethod
    def needs_rotation(cls, norm_ratio: float | None) -> bool:
        """Whether plans rotate whole updates whose L2 clip is that many coordinate clips."""
        return True

    @classmethod
    def proposes(cls, wish: Wish) -> bool:
        """Whether it has a :meth:`proposal` for such a run."""
        return cls.designed_for_sums and wish.counts_norms

    @classmethod
    def proposal(cls, wish: Wish, epsilon: float) -> dict[str, Any]:
        """The parameters of its best design for a run that may cost that epsilon, in the unit of the wish.

        Raises InvalidSpecError or InfeasibleDesignError, with the reason, where there is none.
        """
        raise InvalidSpecError("is not designed for the target of a run")

    @classmethod
    def planned_ratio(cls, wish: Wish) -> float:
        """The ratio of L2 clip and coordinate clip, if mechanisms choose it; by default the usual one."""
        return usual_norm_ratio(wish.dimension)

    @classmethod
    def estimate(cls, wish: Wish) -> Estimate | None:
        """A quick estimate of the :meth:`proposal`, if there is one. It guides choices, never a statement."""
        return None

    @classmethod
    def candidate(cls, wish: Wish, epsilon: float) -> dict[str, Any]:
        """The parameters of a design for a run, with that epsilon for the unit that it :attr:`spends_on`."""
        wanted = {"epsilon": epsilon, "levels": 2**wish.bits, "num_clients": wish.num_clients}
        return cls.accepted(wanted) | dict(wish.parameters)

    def text(self, name: str) -> str:
        """The whole spec of mechanism ``name`` in one line: the key of its design in the cache."""
        fields = dict.fromkeys(self.parameter_names())
        return json.dumps([_DESIGN_VERSION, name, fields | self.parameters()], sort_keys=True)

    def parameters(self) -> dict[str, Any]:
        """The fields that are given, as plain values, for reports."""
        return {
            name: value.describe() if isinstance(value, Density) else value
            for name, value in self._given().items()
        }


SEARCHED_LEVELS = checks.whole_in(
    2, 256, "; with more the search takes many minutes and gigabytes, use fewer"
)
"""The check of numbers of levels for which laws are searched."""


@dataclass(frozen=True, kw_only=True)
class LeastErrorSpec(Spec):
    """The specification of a table mechanism that is designed for the least error; see :class:`Spec`."""

    levels: int = 4
    objective: str = "mse"
    density: Density = field(default_factory=UniformDensity)

    @property
    def power(self) -> int:
        """The exponent of the error that is minimised."""
        return _POWERS[self.objective]


SpecT = TypeVar("SpecT", bound=Spec)


@dataclass(frozen=True)
class Entry(Generic[SpecT]):
    """A registered mechanism: its name, its spec, its builder, and how it is listed."""

    name: str
    spec: type[SpecT]
    build: Callable[[SpecT], Mechanism]
    rank: int
    """Its place in lists and legends."""
    colour: str
    """Its colour in pictures; chosen by the name if empty."""
    cached: bool = False
    """Whether designs are kept on disk, which is useful if they take longer to find than to load."""
    plans_for_sums: bool = False
    """Whether plans for secure sums consider it by default."""
    plans_for_local: bool = False
    """Whether plans for the local view consider it by default."""
    scouts: bool = False
    """Whether planners try it first to learn where to search: its design is quick, its cost typical."""


_ENTRIES: dict[str, Entry[Any]] = {}


def register(
    name: str, spec: type[SpecT], rank: int = 1000, colour: str = "", **listing: Any
) -> Callable[[Callable[[SpecT], Mechanism]], Callable[[SpecT], Mechanism]]:
    """Register the decorated function as the builder of mechanism ``name``; see :class:`Entry`.

    ``listing`` are the further fields of an entry.
    """

    def decorate(build: Callable[[SpecT], Mechanism]) -> Callable[[SpecT], Mechanism]:
        _ENTRIES[name] = Entry(name, spec, build, rank, colour, **listing)
        return build

    return decorate


def mechanisms() -> tuple[str, ...]:
    """Names of all registered mechanisms.

    >>> "optm" in mechanisms()
    True
    """
    return tuple(sorted(_ENTRIES))


def planned_mechanisms(in_sum: bool, by_norm: bool = False) -> tuple[str, ...]:
    """The mechanisms that plans consider by default; those designed for the target itself come first.

    For sums of updates with a norm bound (``by_norm``), these are the only ones.
    """
    chosen = [
        listed
        for listed in _ENTRIES.values()
        if (listed.plans_for_sums if in_sum else listed.plans_for_local)
        and not (in_sum and by_norm and not listed.spec.designed_for_sums)
    ]

    def order(listed: Entry[Any]) -> tuple[bool, int, str]:
        return (not listed.spec.chooses_width, listed.rank, listed.name)

    chosen.sort(key=order)
    return tuple(listed.name for listed in chosen)


def planned_for(wish: Wish) -> tuple[str, ...]:
    """The mechanisms that a plan for such a run considers by default."""
    return planned_mechanisms(wish.in_sum, wish.own_clips or wish.counts_norms)


def scout_mechanism() -> str:
    """The mechanism that planners try first, to know where to search."""
    return next(name for name, listed in _ENTRIES.items() if listed.scouts)


def colours() -> dict[str, str]:
    """The fixed colour of each mechanism and variant that has one, in the order of their ranks."""
    shades: dict[str, str] = {}
    for listed in sorted(_ENTRIES.values(), key=lambda listed: (listed.rank, listed.name)):
        for variant in listed.spec.variants:
            shades[f"{listed.name} {variant.suffix}".strip()] = variant.colour or listed.colour
    return {label: colour for label, colour in shades.items() if colour}


def label_of(name: str, parameters: Mapping[str, Any]) -> str:
    """The label of a design: its mechanism's name, and the variant that its parameters select.

    Parameters that are not given have their default value. If several variants fit, the one with the most
    parameters is named.
    """
    spec = entry(name).spec
    defaults = {field.name: field.default for field in dataclasses.fields(spec)}

    def fits(variant: Variant) -> bool:
        return all(
            _comparable(parameters.get(key, defaults.get(key))) == _comparable(value)
            for key, value in variant.parameters.items()
        )

    fitting = [variant for variant in spec.variants if fits(variant)]
    named = max(fitting, key=lambda variant: len(variant.parameters), default=Variant())
    return f"{name} {named.suffix}".strip()


def _comparable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def entry(name: str) -> Entry[Any]:
    """The registered mechanism of that name."""
    return _ENTRIES[checks.choice("mechanism", name, mechanisms())]


def design(
    name: str, *, bits: int | None = None, levels: int | None = None, cache: bool = True, **parameters: Any
) -> Any:
    """The mechanism ``name`` that meets the given parameters, certified.

    Parameters
    ----------
    name
        One of :func:`mechanisms`.
    bits, levels
        Size of the output: 2^bits values, or any number of levels from 2 on.
    cache
        Whether to keep and reuse the design on disk (see :mod:`fl_privquant.cache`).
    **parameters
        The fields of the mechanism's spec, such as ``epsilon``.

    >>> mechanism = design("one_bit", epsilon=1.0)
    >>> mechanism.epsilon <= 1.0, mechanism.values.round(4)
    (True, array([-2.164,  2.164]))
    """
    chosen = entry(name)
    names = chosen.spec.parameter_names()
    if bits is not None:
        if levels is not None:
            raise InvalidSpecError(f"bits={bits} and levels={levels}: give one of the two")
        levels = 2 ** checks.whole("bits", bits, 1, MAX_LEVELS.bit_length() - 1)
    if levels is not None:
        parameters["levels"] = levels
    for key in parameters:
        if key not in names:
            taken = sorted({*names, "bits"} if "levels" in names else names)
            raise InvalidSpecError(
                f"{key}: not a parameter of {name!r}, which takes {', '.join(taken)}"
                f"{checks.nearest(key, taken)}"
            )
    if "density" in parameters:
        parameters["density"] = as_density(parameters["density"])
    types = checks.types_of(chosen.spec)
    parameters = {key: checks.typed(key, value, types[key]) for key, value in parameters.items()}
    required = {
        parameter.name
        for parameter in dataclasses.fields(chosen.spec)
        if parameter.default is dataclasses.MISSING and parameter.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - set(parameters)):
        raise InvalidSpecError(f"{', '.join(missing)}: required by {name!r} and not given")
    spec = chosen.spec(**parameters)
    if not (cache and chosen.cached):
        return chosen.build(spec)
    return DesignCache.default().fetch(
        spec.text(name), lambda: chosen.build(spec), lambda blob: _stored(blob, name, spec)
    )


def _stored(blob: bytes, name: str, spec: Spec) -> Mechanism:
    """The mechanism in the bytes of the design cache, certified again, if it has that name and spec."""
    mechanism = Mechanism.from_bytes(blob)
    if mechanism.name != name:
        raise CertificationError(f"it holds mechanism {mechanism.name!r}, not {name!r}")
    # Parameters are compared as JSON stores them, with lists for tuples. A builder may have added others.
    for key, wanted in json.loads(json.dumps(spec.parameters())).items():
        stored = mechanism.parameters.get(key)
        if stored != wanted:
            raise CertificationError(f"its {key} is {stored!r}, not {wanted!r}")
    epsilon = getattr(spec, "epsilon", None)
    if epsilon is not None and mechanism.epsilon > epsilon:
        raise CertificationError(mechanism.statement.above(epsilon))
    return mechanism


def checked_epsilon(epsilon: float, most: float = MOST_EPSILON, covers: str = "coordinate") -> float:
    """The privacy loss as a float, if it can be designed for; error texts say that ``covers`` has it."""
    typical = f"typical values for one {covers} are 0.5 to 8"
    value = checks.positive("epsilon", epsilon, f"; {typical}")
    if not _LEAST_EPSILON <= value <= most:
        raise InvalidSpecError(
            f"epsilon: {value:g} is outside {_LEAST_EPSILON:g}..{most:g}; {typical}, and for no privacy "
            "there is 'stochastic'"
        )
    return value


def checked_delta(delta: float) -> float:
    """The delta as a float, if it is one that can be designed for."""
    advice = "; typical values are 1e-9 to 1e-5, for delta 0 use 'discrete_laplace'"
    return checks.inside("delta", delta, "(0, 1)", advice)


def checked_levels(levels: int) -> int:
    """The number of output values, if it is a whole number from 2 to 65536."""
    return checks.whole("levels", levels, 2, MAX_LEVELS)


def _check_bins(bins: tuple[float, ...]) -> None:
    values = np.array(bins)
    checked_levels(values.size)
    if not np.all(np.isfinite(values)) or np.any(np.diff(values) <= 0.0):
        raise InvalidSpecError(f"bins: {list(bins)} must be finite and increase strictly, without repeats")
    if values[0] > -1.0 or values[-1] < 1.0:
        raise InvalidSpecError(
            f"bins: from {values[0]:g} to {values[-1]:g} do not cover [-1, 1], where clipped inputs lie"
        )


_FIELD_CHECKS: dict[str, Callable[[Any], object]] = {
    "delta": checked_delta,
    "levels": checked_levels,
    "objective": lambda objective: checks.choice("objective", objective, _POWERS),
    "bins": _check_bins,
    "keep": lambda keep: checks.inside("keep", keep, "(0, 1)"),
}
