"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pandas as pd

from simulations.studies.payload.sizes import ERRORS, PAYLOADS
from simulations.studies.study import ReadTable


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    @cached_property
    def payloads(self) -> list[Any]:
        """The fewest kilobytes at an error of 1.1, for each setting."""
        return list(self._read(PAYLOADS).itertuples())

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Predicted and measured errors."""
        return self._read(ERRORS)

    @property
    def errors(self) -> list[Any]:
        """The same table, row by row."""
        return list(self.cells.itertuples())

    @property
    def largest_difference(self) -> float:
        """The largest share by which a measured error differs from the predicted one."""
        return float((self.cells["measured"] / self.cells["predicted"] - 1.0).abs().max())

    @property
    def num_wrapped(self) -> int:
        """Sums that wrapped."""
        return int(self.cells["wrapped_sums"].sum())
