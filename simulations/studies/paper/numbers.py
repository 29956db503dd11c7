"""What the page names besides its tables: constants of the experiments."""

from __future__ import annotations

from simulations.studies.paper import dpsgd, example_law
from simulations.studies.study import ReadTable


class Numbers:
    """The values that the page's template uses; none depends on the tables."""

    ours = "OPTM free (ours)"
    budget, delta = dpsgd.BUDGET, dpsgd.DELTA
    bins, gamma = example_law.BINS, example_law.GAMMA

    def __init__(self, read: ReadTable) -> None:
        pass
