"""Comparisons of registered mechanisms at one epsilon and number of levels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fl_privquant.errors import PrivQuantError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import available_mechanisms, design, get_entry
from fl_privquant.mechanisms.spec import Variant


@dataclass(frozen=True)
class ComparisonRow:
    """One row of a comparison: a designed mechanism, or the reason why there is none."""

    label: str
    mechanism: Mechanism | None
    design_seconds: float
    reason: str = ""

    @property
    def encodes_whole_updates(self) -> bool:
        """Whether epsilon is spent once on a whole update, not on each of its coordinates."""
        return self.mechanism is not None and self.mechanism.encodes_whole_updates


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
