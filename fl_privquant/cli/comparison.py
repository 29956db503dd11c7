"""Comparisons of registered mechanisms: at one epsilon and number of levels, or for several epsilons."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl_privquant.distributions.input_density import UniformDensity
from fl_privquant.errors import PrivQuantError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import available_mechanisms, design, get_entry, pilot_mechanism
from fl_privquant.mechanisms.spec import Variant
from fl_privquant.optimize.optm.free import design_free, min_outer_value, place_knots

CURVE_EPSILONS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The epsilons of the points of a curve."""

CURVE_LEVELS = (4, 8, 16)
"""Numbers of levels, with one column of plots for each."""

# A design is called worse than another if its error is larger by more than this factor.
_SAME_ERROR_FACTOR = 1.002
_MANY_LEVELS = 97
_LIMIT_KNOTS = 33


@dataclass(frozen=True)
class ComparisonRow:
    """One row of a comparison: a designed mechanism, or the reason why there is none."""

    label: str
    mechanism: Mechanism | None
    design_seconds: float
    reason: str = ""

    @property
    def max_code(self) -> int | None:
        """The largest integer that one client adds to a sum; None where codes are not a lattice."""
        return None if self.mechanism is None else self.mechanism.max_code

    @property
    def encodes_whole_updates(self) -> bool:
        """Whether epsilon is spent once on a whole update, not on each of its coordinates."""
        return self.mechanism is not None and self.mechanism.encodes_whole_updates


@dataclass(frozen=True)
class StuckSearch:
    """A design whose search ended in a local minimum: a mechanism that contains it has less error."""

    label: str
    mean_squared_error: float
    container: str
    min_error: float


def list_variants(names: tuple[str, ...] | None = None) -> list[tuple[str, str, Variant]]:
    """The label, name and variant of each mechanism that is compared."""
    return [
        (f"{name} {variant.suffix}".strip(), name, variant)
        for name in names or available_mechanisms()
        for variant in get_entry(name).spec.variants
    ]


def compare(
    epsilon: float,
    levels: int,
    objective: str = "mse",
    names: tuple[str, ...] | None = None,
    cache: bool = True,
    dimension: int = 1,
) -> Iterator[ComparisonRow]:
    """A row for each mechanism, as soon as it is designed.

    Mechanisms with a fixed number of levels keep it; those without privacy ignore epsilon. Those that encode
    whole updates are for ``dimension`` coordinates, and spend epsilon on all of them together.
    """
    wanted: dict[str, Any] = {
        "epsilon": epsilon,
        "levels": levels,
        "objective": objective,
        "dimension": dimension,
    }
    for label, name, variant in list_variants(names):
        spec = get_entry(name).spec
        chosen = spec.select_parameters(wanted) | dict(variant.parameters)
        start = time.perf_counter()
        try:
            mechanism = design(name, cache=cache, **chosen)
        except PrivQuantError as error:
            yield ComparisonRow(label, None, time.perf_counter() - start, str(error))
            continue
        yield ComparisonRow(label, mechanism, time.perf_counter() - start)


def design_with_split_epsilon(epsilon: float, dimension: int) -> ComparisonRow:
    """A mechanism that spends epsilon / dimension on each coordinate, to compare whole updates with."""
    start = time.perf_counter()
    name = pilot_mechanism()
    mechanism = design(name, epsilon=epsilon / dimension)
    return ComparisonRow(f"{name}, ε split", mechanism, time.perf_counter() - start)


def find_stuck_search(rows: list[ComparisonRow]) -> StuckSearch | None:
    """The first design with a larger mean squared error than a mechanism that contains it has, if any."""
    designs = {row.label: row.mechanism for row in rows if row.mechanism is not None}
    for label, mechanism in designs.items():
        container = get_entry(mechanism.name).spec.contained_in
        if container in designs and mechanism.mse() > designs[container].mse() * _SAME_ERROR_FACTOR:
            return StuckSearch(label, mechanism.mse(), container, designs[container].mse())
    return None


@dataclass
class Curves:
    """Errors of mechanisms against epsilon, for several numbers of levels.

    Only mechanisms that spend their epsilon on each coordinate are comparable here. Mechanisms without
    privacy, and those that spend one epsilon on a whole vector, are left out.
    """

    rows: dict[tuple[int, float], list[ComparisonRow]] = dataclasses.field(default_factory=dict)
    limits: dict[float, tuple[float, float]] = dataclasses.field(default_factory=dict)

    def add(self, epsilon: float, levels: int, rows: list[ComparisonRow]) -> None:
        """Record what was designed for one epsilon and number of levels, and the limit of that epsilon."""
        self.rows[levels, epsilon] = [row for row in rows if row.mechanism is None or _is_per_coordinate(row)]
        if epsilon not in self.limits:
            self.limits[epsilon] = lower_error_limit(epsilon, 2), lower_error_limit(epsilon, 1)

    def missing(self) -> dict[tuple[str, str], list[tuple[int, float]]]:
        """Where there is no mechanism: for each label and reason, the levels and epsilons."""
        places: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for place, rows in self.rows.items():
            for row in rows:
                if row.mechanism is None:
                    places.setdefault((row.label, row.reason), []).append(place)
        return places

    def lines(self, levels: int, power: int) -> dict[str, tuple[list[float], list[float]]]:
        """For each label, the epsilons and errors (power 1: mean absolute, 2: mean squared)."""
        curves: dict[str, tuple[list[float], list[float]]] = {}
        for (count, epsilon), rows in sorted(self.rows.items()):
            for row in rows:
                if count == levels and row.mechanism is not None:
                    epsilons, errors = curves.setdefault(row.label, ([], []))
                    epsilons.append(epsilon)
                    errors.append(row.mechanism.mae() if power == 1 else row.mechanism.mse())
        return curves


def lower_error_limit(epsilon: float, power: int) -> float:
    """Nearly the least error of any unbiased mechanism: the optimum of the free family with 97 levels.

    For the mean absolute error (power 1), output values are limited to 4 times the smallest outer value that
    epsilon allows, which is OPTM's default: without a limit the values, and squared errors, would go to
    infinity.

    >>> 3.88 < lower_error_limit(1.0, 2) < 3.89
    True
    """
    reach = (2.0 if power == 2 else 4.0) * min_outer_value(epsilon)
    half = _MANY_LEVELS // 2
    inner = np.linspace(0.0, 1.0, half // 2 + 1)[1:]
    upper = np.concatenate([inner, np.linspace(1.0, reach, half - half // 2 + 1)[1:]])
    values = (
        np.linspace(-reach, reach, _MANY_LEVELS)
        if power == 2
        else np.concatenate([-upper[::-1], [0.0], upper])
    )
    knots = place_knots(values, _LIMIT_KNOTS)
    return design_free(values, epsilon, UniformDensity(), power, knots, "ipm").objective


def _is_per_coordinate(row: ComparisonRow) -> bool:
    mechanism = row.mechanism
    return mechanism is not None and np.isfinite(mechanism.epsilon) and not row.encodes_whole_updates
