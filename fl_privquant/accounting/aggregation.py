"""How a server may see the codes of a round: one by one, added up, or only their secure sum.

An aggregation is a frozen description that strategies, plans and ledgers share. It says how many honest
clients are counted in what the server sees (:meth:`Aggregation.view`) and in which form a mechanism is used
with it (:meth:`Aggregation.adapted`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from fl_privquant import _validation
from fl_privquant.cohort import check_fraction, count_clients, min_honest_clients
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import LOCAL, View


@dataclass(frozen=True)
class Aggregation(ABC):
    """How the codes of a round's clients reach the server."""

    simulated: ClassVar[str] = ""
    """Why the stated view is only simulated, so that nobody is protected; empty if the view is real."""

    @abstractmethod
    def view(self, num_clients: int) -> View:
        """The server's view, in the worst case, of a round that asks ``num_clients`` clients.

        The server never learns a sum with fewer honest clients than this view has.
        """

    @abstractmethod
    def adapt_mechanism(self, mechanism: Mechanism) -> Mechanism:
        """The mechanism as clients must use it; InvalidSpecError if it does not suit the aggregation."""

    def num_corrupt(self, num_clients: int) -> int:
        """Clients of a round that are counted as colluding with the server."""
        return 0

    def num_lost(self, num_clients: int) -> int:
        """Clients of a round that may drop out."""
        return 0

    @property
    def if_all_honest(self) -> Aggregation:
        """The same aggregation if no client were corrupt or lost."""
        return self

    @property
    def reveals_participants(self) -> bool:
        """Whether clients, who may tell others, learn who else takes part in a round."""
        return False

    @property
    def has_exact_sums(self) -> bool:
        """Whether sums are wide enough for any codes, and not only for those of honest clients."""
        return True

    @property
    def server_lies(self) -> bool:
        """Whether the guarantee must hold against a server that does not follow the protocol."""
        return False


@dataclass(frozen=True)
class PerClient(Aggregation):
    """The server decodes every client's update and hands all of them to the wrapped strategy."""

    def view(self, num_clients: int) -> View:
        return LOCAL

    def adapt_mechanism(self, mechanism: Mechanism) -> Mechanism:
        return mechanism


@dataclass(frozen=True)
class SumOfCodes(PerClient):
    """The server adds the integer codes up, exactly, and decodes their sum: the local view, but faster.

    The wrapped strategy sees one reply, the mean update, and the model is the same to the last bit as under
    secure aggregation. Mechanisms whose codes cannot be added up are decoded one by one.
    """


@dataclass(frozen=True)
class _HonestSum(Aggregation):
    """A sum whose privacy is counted by the honest clients in it: those neither corrupt nor lost."""

    corrupt_fraction: Annotated[float, check_fraction] = 0.1
    dropout_fraction: Annotated[float, check_fraction] = 0.1
    exact_sums: bool = False

    def __post_init__(self) -> None:
        _validation.check_declared(self)

    def view(self, num_clients: int) -> View:
        honest = min_honest_clients(num_clients, self.corrupt_fraction, self.dropout_fraction)
        if honest < 1:
            raise InvalidSpecError(
                "num_clients",
                num_clients,
                f"in a round, minus {self.num_corrupt(num_clients)} corrupt and "
                f"{self.num_lost(num_clients)} lost, leave no honest client in the sum",
                f"ask more clients, or lower corrupt_fraction ({self.corrupt_fraction:g}) or "
                f"dropout_fraction ({self.dropout_fraction:g})",
            )
        return View(honest)

    def num_corrupt(self, num_clients: int) -> int:
        return count_clients(self.corrupt_fraction, num_clients)

    def num_lost(self, num_clients: int) -> int:
        return count_clients(self.dropout_fraction, num_clients)

    @property
    def if_all_honest(self) -> Aggregation:
        return replace(self, corrupt_fraction=0.0, dropout_fraction=0.0)

    @property
    def reveals_participants(self) -> bool:
        # Each client learns the ids of its neighbors, with whom it masks, and corrupt clients tell others.
        return self.corrupt_fraction > 0.0

    @property
    def has_exact_sums(self) -> bool:
        return self.exact_sums

    def adapt_mechanism(self, mechanism: Mechanism) -> Mechanism:
        summed = mechanism.for_sums()
        if not summed.summable:
            raise InvalidSpecError(
                "mechanism",
                mechanism.name,
                "does not give integers that can be summed, which secure aggregation needs",
            )
        return summed


@_validation.check_argument_names
@dataclass(frozen=True)
class SimulatedSum(_HonestSum):
    """The server adds codes up in the open, and privacy is counted as if it saw only their sum.

    This is for simulations, in which one process has all codes anyway: the model and the stated figures are
    those of :class:`SecureSum` to the last bit, without the work of masking. It protects nobody, so a
    strategy accepts it only with ``simulated=True``, and every privacy statement says so.

    Parameters
    ----------
    corrupt_fraction, dropout_fraction, exact_sums
        As in :class:`SecureSum`.

    >>> print(SimulatedSum(corrupt_fraction=0.1, dropout_fraction=0.1).view(25))
    aggregate of 19
    """

    simulated: ClassVar[str] = "codes are added up in the open and counted as if only their sum were seen"


@_validation.check_argument_names
@dataclass(frozen=True)
class SecureSum(_HonestSum):
    """The server learns the sum of the codes of a round's clients and nothing else.

    Floats cannot be masked, so mechanism ``none`` sends fixed-point numbers here: coordinates are clipped,
    and rounded at random to a lattice of 20 bits.

    Parameters
    ----------
    corrupt_fraction, dropout_fraction
        Fractions of a round's clients that may collude with the server, and that may drop out. Both are
        rounded up to whole clients (:mod:`fl_privquant.cohort`). A round that loses more gives no sum.
    exact_sums
        Whether the sum has room for any codes. Otherwise it has room for the sums of honest clients, except
        with odds of 1e-9 in a round (:mod:`fl_privquant.mechanisms.modular_sum`), which takes fewer bits; the
        server then tests the energy of a sum instead of its range.
    server_may_lie, num_neighbors, threshold, identities
        As in :class:`~fl_privquant.secagg.RoundConfig`. ``identities`` are the public keys, by node id, of
        clients that sign, or the operator's list of known clients
        (:func:`~fl_privquant.secagg.signed.identities.read_known_clients`), against which nodes identify
        themselves.
    timeout
        Seconds that a stage of the protocol may take.

    >>> print(SecureSum(corrupt_fraction=0.1, dropout_fraction=0.1).view(25))
    aggregate of 19
    """

    server_may_lie: bool = False
    num_neighbors: int | None = None
    threshold: int | None = None
    identities: Mapping[int, bytes | tuple[bytes, ...]] | None = field(default=None, repr=False, hash=False)
    timeout: Annotated[float, _validation.number_between("(0, inf]")] = 600.0

    @property
    def server_lies(self) -> bool:
        return self.server_may_lie
