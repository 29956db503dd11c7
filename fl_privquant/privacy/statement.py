"""What the adversary sees; and, for whoever counts, the statement that says it."""

from __future__ import annotations

from dataclasses import dataclass

from fl_privquant.errors import InvalidSpecError
from fl_privquant.statement import REPLACE_ONE, PrivacyStatement, Unit

__all__ = ["LOCAL", "REPLACE_ONE", "PrivacyStatement", "Unit", "View"]

# More honest clients than this are nobody's deployment, and their sums take long to count.
_MOST_HONEST = 100_000_000


@dataclass(frozen=True)
class View:
    """What the adversary sees: each client's codes (local), or only sums of codes over clients.

    Parameters
    ----------
    num_honest
        Number of honest clients whose codes are in the sum, the protected client included: those that
        collude with the adversary add no noise that it does not know, and those that dropped out add
        none at all. None: the local view.

    >>> str(View.aggregate(20, corrupt=1, dropped=2)), str(LOCAL)
    ('aggregate of 17', 'local')
    """

    num_honest: int | None = None

    def __post_init__(self) -> None:
        if self.num_honest is not None and self.num_honest > _MOST_HONEST:
            raise InvalidSpecError(
                f"view: more than {_MOST_HONEST} honest clients in the sum; to count on fewer is on the safe "
                "side"
            )
        if self.num_honest is not None and self.num_honest < 1:
            raise InvalidSpecError(
                f"view: {self.num_honest} honest clients in the sum; the protected client itself is one, so "
                "lower corrupt or dropped"
            )

    @classmethod
    def aggregate(cls, num_clients: int, corrupt: int = 0, dropped: int = 0) -> View:
        """The view of whoever sees only the sum over ``num_clients``, some corrupt or dropped."""
        if corrupt < 0 or dropped < 0:
            raise InvalidSpecError(f"view: corrupt {corrupt} and dropped {dropped} must not be negative")
        return cls(num_clients - corrupt - dropped)

    @property
    def is_local(self) -> bool:
        """Whether each client's codes are seen; a sum of one is that too."""
        return self.num_honest is None or self.num_honest == 1

    def __str__(self) -> str:
        return "local" if self.num_honest is None else f"aggregate of {self.num_honest}"


LOCAL = View()
"""The view of whoever sees each client's codes: the server, without secure aggregation."""
