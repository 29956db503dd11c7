"""The registry of mechanisms: their names, and ``design``, which makes them."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from fl_privquant import _validation
from fl_privquant.distributions.codebook import MAX_LEVELS
from fl_privquant.distributions.input_density import as_density
from fl_privquant.errors import MISSING, CertificationError, InvalidSpecError, one_line
from fl_privquant.mechanisms._design_cache import DesignCache
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.spec import Spec, Variant
from fl_privquant.optimize.requirements import RunRequirements

_LOG = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "fl_privquant.mechanisms"
"""The group of entry points by which installed packages add mechanisms."""

SpecT = TypeVar("SpecT", bound=Spec)


@dataclass(frozen=True)
class Entry(Generic[SpecT]):
    """A registered mechanism: its name, its spec, its builder, and how it is listed."""

    name: str
    spec: type[SpecT]
    build: Callable[[SpecT], Mechanism]
    rank: int
    """Its place in lists and legends."""
    color: str
    """Its color in pictures; chosen by the name if empty."""
    cached: bool = False
    """Whether designs are kept on disk, which is useful if they take longer to find than to load."""
    plans_for_sums: bool = False
    """Whether plans for secure sums consider it by default."""
    plans_for_local: bool = False
    """Whether plans for the local view consider it by default."""
    is_pilot: bool = False
    """Whether planners try it first to learn where to search: its design is quick, its cost typical."""


_ENTRIES: dict[str, Entry[Any]] = {}


def register(
    name: str, spec: type[SpecT], rank: int = 1000, color: str = "", **listing: Any
) -> Callable[[Callable[[SpecT], Mechanism]], Callable[[SpecT], Mechanism]]:
    """Register the decorated function as the builder of mechanism ``name``; see :class:`Entry`.

    Parameters
    ----------
    name
        What ``design`` and simulations call the mechanism.
    spec
        Its specification, whose fields are its parameters.
    rank
        Its place in lists; small numbers come first.
    color
        Its color in figures, such as ``#0b5fa5``.
    listing
        Further fields of an entry.

    Returns
    -------
    Callable[[Callable[[SpecT], Mechanism]], Callable[[SpecT], Mechanism]]
        A decorator, which returns the function as it is.

    Raises
    ------
    InvalidSpecError
        Another module has registered the name.
    """

    def decorate(build: Callable[[SpecT], Mechanism]) -> Callable[[SpecT], Mechanism]:
        earlier = _ENTRIES.get(name)
        if earlier is not None and earlier.build.__module__ != build.__module__:
            owner = earlier.build.__module__
            raise InvalidSpecError(
                "mechanism", name, f"is already registered by {owner}", "choose another name"
            )
        _ENTRIES[name] = Entry(name, spec, build, rank, color, **listing)
        return build

    return decorate


def load_entry_points() -> None:
    """Import the mechanisms of other installed packages: the entry points of :data:`ENTRY_POINT_GROUP`.

    An entry point names a module that registers mechanisms when it is imported. One that fails is reported in
    a warning and left out; all other mechanisms stay available.
    """
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            entry_point.load()
        except Exception as error:
            package = entry_point.dist.name if entry_point.dist is not None else "an unknown package"
            _LOG.warning(
                "mechanisms: the entry point %s = %s of %s cannot be loaded and is left out (%s: %s); update "
                "or uninstall that package",
                *(entry_point.name, entry_point.value, package, type(error).__name__, one_line(error)),
            )


def available_mechanisms() -> tuple[str, ...]:
    """Names of all registered mechanisms.

    Returns
    -------
    tuple[str, ...]
        The names, in the order of the alphabet.

    >>> "optm" in available_mechanisms()
    True
    """
    return tuple(sorted(_ENTRIES))


def default_mechanisms(in_sum: bool, by_norm: bool = False) -> tuple[str, ...]:
    """The mechanisms that plans consider by default; those designed for the target itself come first.

    For sums of updates with a norm bound (``by_norm``), these are the only ones.

    Parameters
    ----------
    in_sum
        Whether only sums over clients are seen.
    by_norm
        Whether the updates of these sums have a norm bound.

    Returns
    -------
    tuple[str, ...]
        Their names, in the order in which plans prefer them.
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


def default_mechanisms_for(requirements: RunRequirements) -> tuple[str, ...]:
    """The mechanisms that a plan for such a run considers by default."""
    return default_mechanisms(requirements.in_sum, requirements.own_clips or requirements.counts_norms)


def pilot_mechanism() -> str:
    """The mechanism that planners try first, to know where to search."""
    return next(name for name, listed in _ENTRIES.items() if listed.is_pilot)


def mechanism_colors() -> dict[str, str]:
    """The fixed color of each mechanism and variant that has one, in the order of their ranks."""
    shades: dict[str, str] = {}
    for listed in sorted(_ENTRIES.values(), key=lambda listed: (listed.rank, listed.name)):
        for variant in listed.spec.variants:
            shades[f"{listed.name} {variant.suffix}".strip()] = variant.color or listed.color
    return {label: color for label, color in shades.items() if color}


def label_of(name: str, parameters: Mapping[str, Any]) -> str:
    """The label of a design: its mechanism's name, and the variant that its parameters select.

    Parameters that are not given have their default value. If several variants fit, the one with the most
    parameters is named.
    """
    spec = get_entry(name).spec
    defaults = {field.name: field.default for field in dataclasses.fields(spec)}

    def fits(variant: Variant) -> bool:
        return all(
            _to_comparable(parameters.get(key, defaults.get(key))) == _to_comparable(value)
            for key, value in variant.parameters.items()
        )

    fitting = [variant for variant in spec.variants if fits(variant)]
    named = max(fitting, key=lambda variant: len(variant.parameters), default=Variant())
    return f"{name} {named.suffix}".strip()


def _to_comparable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def get_entry(name: str) -> Entry[Any]:
    """The registered mechanism of that name."""
    return _ENTRIES[_validation.check_choice("mechanism", name, available_mechanisms())]


def name_of_spec(spec: Any) -> str:
    """The name of the mechanism that is built from a class of specifications.

    Parameters
    ----------
    spec
        The class; the module that defines it registers the mechanism too.

    Raises
    ------
    InvalidSpecError
        It is not the specification of one registered mechanism.

    >>> from fl_privquant.mechanisms.tables.optm import OptmSpec
    >>> name_of_spec(OptmSpec)
    'optm'
    """
    names = [entry.name for entry in _ENTRIES.values() if entry.spec is spec]
    if len(names) != 1:
        name = getattr(spec, "__qualname__", repr(spec))
        problem = f"{name} is the specification of {len(names)} registered mechanisms, expected one"
        remedy = f"name one of {', '.join(names)}" if names else "register one with @register(NAME, SPEC)"
        raise InvalidSpecError("mechanism", MISSING, problem, remedy=remedy)
    return names[0]


def design(
    name: str, *, bits: int | None = None, levels: int | None = None, cache: bool = True, **parameters: Any
) -> Mechanism:
    """The mechanism ``name`` that meets the given parameters, certified.

    Parameters
    ----------
    name
        One of :func:`available_mechanisms`.
    bits, levels
        Size of the output: 2^bits values, or any number of levels from 2 on.
    cache
        Whether to keep and reuse the design on disk (see :mod:`fl_privquant.mechanisms._design_cache`).
    **parameters
        The fields of the mechanism's spec, such as ``epsilon``.

    Returns
    -------
    Mechanism
        Certified: its :attr:`~fl_privquant.mechanisms.base.Mechanism.statement` is what holds.

    Raises
    ------
    InvalidSpecError
        A parameter is unknown, missing or out of range.
    InfeasibleDesignError
        No mechanism meets the parameters.

    >>> mechanism = design("one_bit", epsilon=1.0)
    >>> mechanism.epsilon <= 1.0, mechanism.values.round(4)
    (True, array([-2.164,  2.164]))
    """
    chosen = get_entry(name)
    names = chosen.spec.parameter_names()
    if bits is not None:
        if levels is not None:
            raise InvalidSpecError("bits, levels", (bits, levels), "are both given", "give one of the two")
        levels = 2 ** _validation.check_integer("bits", bits, 1, MAX_LEVELS.bit_length() - 1)
    if levels is not None:
        parameters["levels"] = levels
    for key in parameters:
        if key not in names:
            accepted = sorted({*names, "bits"} if "levels" in names else names)
            raise InvalidSpecError(
                key,
                MISSING,
                f"not a parameter of {name!r}, which takes "
                f"{', '.join(accepted)}{_validation.suggest_nearest(key, accepted)}",
            )
    if "density" in parameters:
        parameters["density"] = as_density(parameters["density"])
    types = _validation.field_types(chosen.spec)
    parameters = {key: _validation.check_type(key, value, types[key]) for key, value in parameters.items()}
    required = {
        parameter.name
        for parameter in dataclasses.fields(chosen.spec)
        if parameter.default is dataclasses.MISSING and parameter.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - set(parameters)):
        raise InvalidSpecError(", ".join(missing), MISSING, f"required by {name!r} and not given")
    spec = chosen.spec(**parameters)
    if not (cache and chosen.cached):
        return chosen.build(spec)
    return DesignCache.default().fetch(
        spec.text(name), lambda: chosen.build(spec), lambda blob: _load_stored(blob, name, spec)
    )


def _load_stored(blob: bytes, name: str, spec: Spec) -> Mechanism:
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
