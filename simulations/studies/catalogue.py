"""Every study that the command knows; each is a folder of this package."""

from __future__ import annotations

import importlib
from pathlib import Path

from simulations.studies.study import Study
from simulations.studies.sweep import sweeps_of


def study_of(name: str) -> Study:
    """The study in a folder.

    Its parts are the ``PARTS`` of its package, which functions compute, and the sweeps of ``sweeps.yaml``; a
    study has either or both. ``figures.py`` has its ``FIGURES``, ``numbers.py`` the ``Numbers`` of its page.
    """
    package = importlib.import_module(f"{__package__}.{name}")
    figures, numbers = (
        importlib.import_module(f"{__package__}.{name}.{part}") for part in ("figures", "numbers")
    )
    home = Path(__file__).parent / name
    parts = (*getattr(package, "PARTS", ()), *sweeps_of(home / "sweeps.yaml"))
    return Study(home, parts, figures.FIGURES, numbers.Numbers)


NAMES = (
    "paper",
    "side_by_side",
    "mean_estimation",
    "local_view",
    "sum_grid",
    "payload",
    "tuned_headline",
    "equal_budget",
    "larger_models",
)
STUDIES = tuple(map(study_of, NAMES))
