"""Registered mechanisms side by side at one epsilon and number of levels."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism, TableMechanism
from fl_privquant.mechanisms.registry import design, entry, mechanisms

__all__ = ["Compared", "compare", "variants"]

_FAMILIES = ("free", "paired", "independent")


@dataclass(frozen=True)
class Compared:
    """One row: a mechanism with its exact figures, or the reason why there is none."""

    label: str
    mechanism: Mechanism | None
    design_seconds: float
    reason: str = ""

    @property
    def largest_code(self) -> int | None:
        """The largest integer that one client adds to a sum; None where codes are not a lattice."""
        return self.mechanism.codebook.max_code if isinstance(self.mechanism, TableMechanism) else None


def variants(names: tuple[str, ...] | None = None) -> list[tuple[str, str, dict[str, Any]]]:
    """Label, name and parameters of all that is worth comparing: OPTM counts once for each family."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for name in names if names else mechanisms():
        if name == "optm":
            found += [
                ("optm" if family == "free" else f"optm {family}", name, {"family": family})
                for family in _FAMILIES
            ]
        else:
            found.append((name, entry(name).name, {}))
    return found


def compare(
    epsilon: float,
    levels: int,
    objective: str = "mse",
    names: tuple[str, ...] | None = None,
    cache: bool = True,
) -> Iterator[Compared]:
    """A row for each mechanism, as soon as it is designed.

    Mechanisms with a fixed number of levels keep it; those without privacy ignore epsilon.
    """
    wanted: dict[str, Any] = {"epsilon": epsilon, "levels": levels, "objective": objective}
    for label, name, parameters in variants(names):
        known = {field.name for field in dataclasses.fields(entry(name).spec)}
        chosen = {key: value for key, value in wanted.items() if key in known} | parameters
        if name == "one_bit":
            del chosen["levels"]
        start = time.perf_counter()
        try:
            mechanism = design(name, cache=cache, **chosen)
        except (InfeasibleDesignError, InvalidSpecError) as error:
            yield Compared(label, None, time.perf_counter() - start, str(error))
            continue
        yield Compared(label, mechanism, time.perf_counter() - start)
