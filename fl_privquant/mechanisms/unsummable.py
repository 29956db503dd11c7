"""Mechanisms whose encoded updates cannot be added up; they are for the local view."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from numpy.typing import ArrayLike, NDArray

from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism


class UnsummableMechanism(Mechanism):
    """A mechanism that has no codes to be added up; it refuses where it is asked for them."""

    no_sum: ClassVar[str] = (
        "its messages are no integers to be added up; decode each client's, or use 'cldp_linf' or "
        "'vqsgd_private'"
    )
    """Why there is nothing to add up, and what to use instead."""

    summable = False

    def to_codes(self, indices: NDArray[Any]) -> NoReturn:
        self._refuse()

    def sum_bits(self, num_clients: int) -> NoReturn:
        self._refuse()

    def decode_sum(self, total: ArrayLike, num_clients: int, clip: float = 1.0) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidSpecError(f"{self.name}: {self.no_sum}")
