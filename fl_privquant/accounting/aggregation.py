"""How a server sees the codes of a round: one by one, added up, or only their secure sum.

An :class:`Aggregation` is a frozen value that strategies, plans and ledgers share. It says how many honest
clients are counted in what the server sees (:meth:`Aggregation.view`), in which form a mechanism is used with
it (:meth:`Aggregation.adapt_mechanism`), and it opens the replies of a round (:meth:`Aggregation.open`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl_privquant import _validation
from fl_privquant.codec.array_layout import Arrays
from fl_privquant.codec.sum_check import RunningSum, make_sum_check
from fl_privquant.codec.update import EncodedUpdate, UpdateCodec
from fl_privquant.cohort import check_fraction, count_clients, min_honest_clients
from fl_privquant.errors import (
    CodeOverflowError,
    InvalidSpecError,
    PrivQuantError,
    SecureAggregationError,
)
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.modular_sum import SumRing
from fl_privquant.packing.pack import packed_size
from fl_privquant.secagg import UnmaskedSum, choose_parameters
from fl_privquant.secagg.message_sizes import handshake_bytes
from fl_privquant.statement import LOCAL, View

DecodeFunctions = Mapping[str, Callable[[], NDArray[Any]]]
"""Functions that compute the arrays of one client's decoded update, by their names."""

_Read = TypeVar("_Read")


class Masks(Protocol):
    """Agrees with the clients of a round on masks, and opens the sum of what they masked."""

    ring: SumRing
    """The ring of integers in which the codes of the round's clients are added up."""
    handshake_bytes: int
    """Bytes that the round has exchanged so far, besides models, requests and packed codes."""

    def agree(self, sums: SecureSum, codec: UpdateCodec, nodes: Sequence[int]) -> Mapping[int, bytes]:
        """What each node that takes part gets with its train message; SecureAggregationError if none may."""

    def open(self, payloads: Mapping[int, bytes], check: Callable[[int], None]) -> UnmaskedSum:
        """The sum of the payloads, by node; ``check`` is called with the number of clients in it first."""


@dataclass(frozen=True, eq=False)
class RoundReplies:
    """The replies of a round, before they are opened."""

    payloads: Mapping[int, bytes | EncodedUpdate]
    """The encoded updates, by node; those of a simulation may not be packed."""
    codec: UpdateCodec
    model: Arrays
    """The model that clients were sent."""
    num_asked: int
    masks: Masks

    def read_payloads(self, read: Callable[[bytes], _Read]) -> tuple[dict[int, _Read], dict[int, str]]:
        """What ``read`` makes of each payload, and why it refused the others, both by node."""
        return self._read(lambda update: read(update if isinstance(update, bytes) else update.pack()))

    def add_codes(self) -> AggregateResult:
        """The sum of all codes as whole numbers, which no ring has reduced."""
        total = np.zeros(self.codec.dimension, dtype=np.int64)

        def add(update: bytes | EncodedUpdate) -> None:
            if isinstance(update, bytes):
                self.codec.add_codes(update, total)
            else:
                update.add_codes(total)

        added, failures = self._read(add)
        return AggregateResult(tuple(added), total, failures=failures)

    def _read(
        self, read: Callable[[bytes | EncodedUpdate], _Read]
    ) -> tuple[dict[int, _Read], dict[int, str]]:
        accepted: dict[int, _Read] = {}
        refused: dict[int, str] = {}
        for node, update in self.payloads.items():
            try:
                accepted[node] = read(update)
            except PrivQuantError as error:
                refused[node] = str(error)
        return accepted, refused


@dataclass(frozen=True, eq=False)
class AggregateResult:
    """The result of opening a round's replies."""

    nodes: tuple[int, ...] = ()
    """The nodes whose updates are in it."""
    total: NDArray[Any] | None = None
    """The sum of their codes; None if updates were decoded one by one."""
    decoded: Mapping[int, DecodeFunctions] = field(default_factory=dict)
    """The decoded update of each node; empty if there is a sum."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """Why replies could not be used, by node."""
    overflowed: int | None = None
    """How many coordinates of the sum were opened wrongly, because they left the window of the modulus
    (:mod:`fl_privquant.mechanisms.modular_sum`). Known only where codes are added up in the open."""
    mean: Arrays | None = None
    """The mean update in that sum, where it was decoded already."""


@dataclass(frozen=True)
class Aggregation(ABC):
    """How the codes of a round's clients reach the server."""

    simulated: ClassVar[str] = ""
    """Why the stated view is only simulated, so that nobody is protected; empty if the view is real."""
    masked: ClassVar[bool] = False
    """Whether what single clients send is hidden from the server."""
    shows_single_updates: ClassVar[bool] = False
    """Whether the wrapped strategy sees the update of each client, and not only their mean."""

    @abstractmethod
    def view(self, num_clients: int) -> View:
        """The server's view, in the worst case, of a round that asks ``num_clients`` clients.

        The server never learns a sum with fewer honest clients than this view has.
        """

    @abstractmethod
    def adapt_mechanism(self, mechanism: Mechanism) -> Mechanism:
        """The mechanism as clients must use it; InvalidSpecError if it does not suit the aggregation."""

    @abstractmethod
    def open(self, replies: RoundReplies) -> AggregateResult:
        """Open the replies of a round.

        Raises SecureAggregationError if no sum may be opened, or none can be.
        """

    def agree_on_masks(
        self, masks: Masks, codec: UpdateCodec, nodes: Sequence[int]
    ) -> Mapping[int, bytes] | None:
        """What each node that takes part in a round gets with its train message; None without masks.

        Raises SecureAggregationError if no agreement is reached; clients have not released anything then.
        """
        return None

    def check_sum(self, opened: AggregateResult, codec: UpdateCodec, applied: RunningSum) -> AggregateResult:
        """What was opened; raises SecureAggregationError if it must not be ``applied`` to the model."""
        return opened

    def update_bytes(self, codec: UpdateCodec, num_clients: int) -> int:
        """Bytes of one client's update, in a round that asks ``num_clients`` clients."""
        return codec.num_bytes

    def handshake_bytes(self, num_clients: int, masks: Masks) -> int:
        """Bytes that all clients of a round exchanged besides models, requests and updates."""
        return 0

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

    shows_single_updates: ClassVar[bool] = True

    def view(self, num_clients: int) -> View:
        return LOCAL

    def adapt_mechanism(self, mechanism: Mechanism) -> Mechanism:
        return mechanism

    def open(self, replies: RoundReplies) -> AggregateResult:
        apply = replies.codec.apply_on_demand
        decoded, failures = replies.read_payloads(lambda payload: apply(payload, replies.model))
        return AggregateResult(tuple(decoded), None, decoded, failures)


@dataclass(frozen=True)
class SumOfCodes(PerClient):
    """The server adds the integer codes up, exactly, and decodes their sum: the local view, but faster.

    The wrapped strategy sees one reply, the mean update, and the model is the same to the last bit as under
    secure aggregation. Mechanisms whose codes cannot be added up are decoded one by one.
    """

    shows_single_updates: ClassVar[bool] = False

    def open(self, replies: RoundReplies) -> AggregateResult:
        if not replies.codec.mechanism.summable:
            return super().open(replies)
        opened = replies.add_codes()
        return _reduce_total(opened, replies.codec) if opened.nodes else opened


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

    def ring(self, codec: UpdateCodec, num_clients: int) -> SumRing:
        """The ring of integers in which the codes of ``num_clients`` clients are added up."""
        return codec.sum_ring(num_clients, self.exact_sums)

    def check_sum(self, opened: AggregateResult, codec: UpdateCodec, applied: RunningSum) -> AggregateResult:
        """Refuse a sum that honest clients cannot have sent; its privacy loss is counted all the same."""
        if opened.total is None:
            return opened
        test = make_sum_check(codec, len(opened.nodes))
        test.check(opened.total)
        mean = codec.decode_sum(opened.total, len(opened.nodes))
        applied.add(mean, codec.layout, test)
        return replace(opened, mean=mean)

    def update_bytes(self, codec: UpdateCodec, num_clients: int) -> int:
        """Bytes of an update whose codes are as wide as their sum, which masked codes are."""
        return packed_size(codec.dimension, width=self.ring(codec, num_clients).bits)

    def check_honest(self, survivors: int, num_asked: int) -> None:
        """Refuse a sum with fewer honest clients than the view of the round promises."""
        honest = survivors - self.num_corrupt(num_asked)
        planned = self.view(num_asked).honest_count
        if honest < planned:
            raise SecureAggregationError(
                f"{survivors} of {num_asked} clients are left, {honest} of them honest, fewer than the "
                f"{planned} that the guarantee counts on; ask more clients, or raise dropout_fraction"
            )


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

    def open(self, replies: RoundReplies) -> AggregateResult:
        opened, ring = replies.add_codes(), self.ring(replies.codec, replies.num_asked)
        self.check_honest(len(opened.nodes), replies.num_asked)
        if opened.total is None or ring.center is None:
            return replace(_reduce_total(opened, replies.codec), overflowed=0)
        total = _unwrap_sum(ring, ring.residues(opened.total), len(opened.nodes))
        return replace(opened, total=total, overflowed=int(np.count_nonzero(total != opened.total)))

    def handshake_bytes(self, num_clients: int, masks: Masks) -> int:
        """The bytes predicted for a secure sum that loses no client; 0 if the clients are too few for one."""
        try:
            graph = choose_parameters(
                num_clients,
                corrupt_fraction=self.corrupt_fraction,
                dropout_fraction=self.dropout_fraction,
            )
        except InvalidSpecError:
            return 0
        return round(num_clients * handshake_bytes(graph))


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
    server_may_lie, identities
        As in :class:`~fl_privquant.secagg.RoundConfig`. ``identities`` are the public keys, by node id, of
        clients that sign, or the operator's list of known clients
        (:func:`~fl_privquant.secagg.signed.identities.read_known_clients`), against which nodes identify
        themselves.
    timeout
        Seconds that a stage of the protocol may take.

    >>> print(SecureSum(corrupt_fraction=0.1, dropout_fraction=0.1).view(25))
    aggregate of 19
    """

    masked: ClassVar[bool] = True

    server_may_lie: bool = False
    identities: Mapping[int, bytes | tuple[bytes, ...]] | None = field(default=None, repr=False, hash=False)
    timeout: Annotated[float, _validation.number_between("(0, inf]")] = 600.0

    @property
    def server_lies(self) -> bool:
        return self.server_may_lie

    def agree_on_masks(self, masks: Masks, codec: UpdateCodec, nodes: Sequence[int]) -> Mapping[int, bytes]:
        return masks.agree(self, codec, nodes)

    def open(self, replies: RoundReplies) -> AggregateResult:
        masks = replies.masks
        payloads, _ = replies.read_payloads(lambda payload: payload)
        opened = masks.open(payloads, lambda left: self.check_honest(left, replies.num_asked))
        total = _unwrap_sum(masks.ring, opened.total, len(opened.survivors))
        return AggregateResult(opened.survivors, total)

    def handshake_bytes(self, num_clients: int, masks: Masks) -> int:
        return masks.handshake_bytes


def _reduce_total(opened: AggregateResult, codec: UpdateCodec) -> AggregateResult:
    """The sum modulo the number that the mechanism's codes are added up to."""
    if opened.total is None:
        return opened
    return replace(opened, total=opened.total & (1 << codec.mechanism.sum_bits(len(opened.nodes))) - 1)


def _unwrap_sum(ring: SumRing, total: NDArray[Any], num_clients: int) -> NDArray[Any]:
    """The sums of the codes of ``num_clients`` clients, from their residues."""
    try:
        return ring.unwrap(total, num_clients)
    except CodeOverflowError as error:
        raise SecureAggregationError(f"{error}; the sum is not applied") from error
