"""How the replies of a round are opened: one by one, as a sum of codes, or as a secure sum.

An :class:`~fl_privquant.accounting.aggregation.Aggregation` describes what the server sees of a round. An
*exchange* carries that out: before clients train it agrees on masks, where there are any, and afterwards it
turns their replies into decoded updates or into the sum of their codes. It knows the codec and the grid, and
nothing of the strategy that is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_privquant.accounting.aggregation import Aggregation, PerClient, SecureSum, SimulatedSum, SumOfCodes
from fl_privquant.codec.array_layout import Arrays
from fl_privquant.codec.sum_check import RunningSum, make_sum_check
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import (
    MISSING,
    CodeOverflowError,
    InvalidSpecError,
    PrivQuantError,
    SecureAggregationError,
)
from fl_privquant.flower._messages.protocol import (
    KEY_DELIVERY,
    PER_CLIENT_KEYS,
    Reply,
    message_digest,
    with_entry,
)
from fl_privquant.flower.server.secure_aggregation import SecureRounds
from fl_privquant.flower.server.strategy_wrapper import strategy_stack
from fl_privquant.mechanisms.modular_sum import SumRing
from fl_privquant.packing.pack import packed_size
from fl_privquant.secagg import choose_parameters
from fl_privquant.secagg.message_sizes import handshake_bytes

# These strategies compare the updates of single clients, which a sum does not show.
_NEED_SINGLE_UPDATES = ("FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan", "QFedAvg")

_Read = TypeVar("_Read")

DecodeFunctions = Mapping[str, Callable[[], NDArray[Any]]]
"""Functions that compute the arrays of one client's decoded update, by their names."""


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


class Exchange:
    """Decodes the updates of clients one by one; malformed payloads are left out."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation

    def begin(
        self, server_round: int, messages: list[Message], codec: UpdateCodec, grid: Grid
    ) -> list[Message]:
        """The train messages to send, after masks were agreed on with clients, if there are masks.

        Raises SecureAggregationError if no agreement is reached; clients have not released anything then.
        """
        return messages

    def open(self, replies: Mapping[int, Reply], codec: UpdateCodec, model: Arrays) -> AggregateResult:
        """Open the replies, given by node; ``model`` is the one that clients were sent.

        Raises SecureAggregationError if no sum may be opened, or none can be.
        """
        decoded, failures = _read_payloads(replies, lambda payload: codec.apply_on_demand(payload, model))
        return AggregateResult(tuple(decoded), None, decoded, failures)

    def check(self, opened: AggregateResult, codec: UpdateCodec) -> AggregateResult:
        """What was opened; raises SecureAggregationError if it must not be applied to the model."""
        return opened

    def update_bytes(self, codec: UpdateCodec, num_clients: int) -> int:
        """Bytes of one client's update, in a round that asks ``num_clients`` clients."""
        return codec.num_bytes

    def handshake_bytes(self) -> int:
        """Bytes that all clients of the last round exchanged besides models, requests and updates."""
        return 0


class SummingExchange(Exchange):
    """Adds codes to a running total; the codes of mechanisms that cannot be summed are decoded one by one."""

    def open(self, replies: Mapping[int, Reply], codec: UpdateCodec, model: Arrays) -> AggregateResult:
        if not codec.mechanism.summable:
            return super().open(replies, codec, model)
        opened = self._add_up(replies, codec)
        if opened.nodes and opened.total is not None:
            opened.total[:] &= (1 << codec.mechanism.sum_bits(len(opened.nodes))) - 1
        return opened

    def _add_up(self, replies: Mapping[int, Reply], codec: UpdateCodec) -> AggregateResult:
        """The sum of all codes as whole numbers, which no ring has reduced."""
        total = np.zeros(codec.dimension, dtype=np.int64)
        added, failures = _read_payloads(replies, lambda payload: codec.add_codes(payload, total))
        return AggregateResult(tuple(added), total, failures=failures)


def _read_payloads(
    replies: Mapping[int, Reply], read: Callable[[bytes], _Read]
) -> tuple[dict[int, _Read], dict[int, str]]:
    """What ``read`` makes of the payload of each reply, and why it refused the others, both by node."""
    accepted: dict[int, _Read] = {}
    refused: dict[int, str] = {}
    for node, reply in replies.items():
        try:
            accepted[node] = read(reply.payload)
        except PrivQuantError as error:
            refused[node] = str(error)
    return accepted, refused


class HonestSumExchange(Exchange):
    """Opens one sum, and only if it has at least as many honest clients as the view of the round promises."""

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        self._num_asked = 0
        # The ring of integers in which the codes of the present round are added up.
        self._sum_ring: SumRing | None = None
        self._running = RunningSum()

    def begin(
        self, server_round: int, messages: list[Message], codec: UpdateCodec, grid: Grid
    ) -> list[Message]:
        self._num_asked = len(messages)
        self._sum_ring = self._ring(codec, self._num_asked)
        return messages

    def check(self, opened: AggregateResult, codec: UpdateCodec) -> AggregateResult:
        """Refuse a sum that honest clients cannot have sent; its privacy loss is counted all the same."""
        if opened.total is None:
            return opened
        test = make_sum_check(codec, len(opened.nodes))
        test.check(opened.total)
        mean = codec.decode_sum(opened.total, len(opened.nodes))
        self._running.add(mean, codec.layout, test)
        return replace(opened, mean=mean)

    def update_bytes(self, codec: UpdateCodec, num_clients: int) -> int:
        """Bytes of an update whose codes are as wide as their sum, which masked codes are."""
        return packed_size(codec.dimension, width=self._ring(codec, num_clients).bits)

    def _ring(self, codec: UpdateCodec, num_clients: int) -> SumRing:
        """The ring in which the codes of ``num_clients`` clients are added up."""
        return codec.sum_ring(num_clients, self.aggregation.has_exact_sums)

    def _open_sum(self, total: NDArray[Any], num_clients: int) -> NDArray[Any]:
        """The sums of the codes of ``num_clients`` clients, from their residues."""
        if self._sum_ring is None:
            return total
        try:
            return self._sum_ring.unwrap(total, num_clients)
        except CodeOverflowError as error:
            raise SecureAggregationError(f"{error}; the sum is not applied") from error

    def _check_honest(self, survivors: int) -> None:
        """Refuse to open a sum with fewer honest clients than the view of the round promises."""
        honest = survivors - self.aggregation.num_corrupt(self._num_asked)
        planned = self.aggregation.view(self._num_asked).honest_count
        if honest < planned:
            raise SecureAggregationError(
                f"{survivors} of {self._num_asked} clients are left, {honest} of them honest, fewer than the "
                f"{planned} that the guarantee counts on; ask more clients, or raise dropout_fraction"
            )


class SimulatedExchange(HonestSumExchange, SummingExchange):
    """Adds codes up in the open, under the rules of a secure sum."""

    def __init__(self, aggregation: SimulatedSum) -> None:
        super().__init__(aggregation)
        self._sums = aggregation

    def open(self, replies: Mapping[int, Reply], codec: UpdateCodec, model: Arrays) -> AggregateResult:
        ring = self._sum_ring
        if ring is None or ring.center is None or not codec.mechanism.summable:
            opened = super().open(replies, codec, model)
            self._check_honest(len(opened.nodes))
            return opened if opened.total is None else replace(opened, overflowed=0)
        opened = self._add_up(replies, codec)
        self._check_honest(len(opened.nodes))
        if opened.total is None:
            return opened
        total = self._open_sum(ring.residues(opened.total), len(opened.nodes))
        return replace(opened, total=total, overflowed=int(np.count_nonzero(total != opened.total)))

    def handshake_bytes(self) -> int:
        """The bytes predicted for a secure sum that loses no client; 0 if the clients are too few for one."""
        try:
            graph = choose_parameters(
                self._num_asked,
                corrupt_fraction=self._sums.corrupt_fraction,
                dropout_fraction=self._sums.dropout_fraction,
            )
        except InvalidSpecError:
            return 0
        return round(self._num_asked * handshake_bytes(graph))


class SecureExchange(HonestSumExchange):
    """Agrees on masks before clients train, and opens the sum of the masked codes that arrive."""

    def __init__(self, aggregation: SecureSum) -> None:
        super().__init__(aggregation)
        self._rounds = SecureRounds(
            aggregation.timeout,
            corrupt_fraction=aggregation.corrupt_fraction,
            dropout_fraction=aggregation.dropout_fraction,
            server_may_lie=aggregation.server_may_lie,
            num_neighbors=aggregation.num_neighbors,
            threshold=aggregation.threshold,
            identities=aggregation.identities,
        )

    def begin(
        self, server_round: int, messages: list[Message], codec: UpdateCodec, grid: Grid
    ) -> list[Message]:
        messages = super().begin(server_round, messages, codec, grid)
        nodes = [message.metadata.dst_node_id for message in messages]

        def ring(num_clients: int) -> SumRing:
            # Fewer clients may take part than were asked, as excluded and unknown nodes are left out.
            self._sum_ring = self._ring(codec, num_clients)
            return self._sum_ring

        deliveries = self._rounds.agree(
            server_round,
            nodes,
            grid,
            dimension=codec.dimension,
            ring=ring,
            context=_common_digest(messages),
        )
        agreed = [message for message in messages if message.metadata.dst_node_id in deliveries]
        for message in agreed:
            delivery = deliveries[message.metadata.dst_node_id]
            message.content = with_entry(message.content, KEY_DELIVERY, delivery)
        return agreed

    def open(self, replies: Mapping[int, Reply], codec: UpdateCodec, model: Arrays) -> AggregateResult:
        payloads = {node: reply.payload for node, reply in replies.items()}
        opened = self._rounds.open(payloads, self._check_honest)
        return AggregateResult(opened.survivors, self._open_sum(opened.total, len(opened.survivors)))

    def handshake_bytes(self) -> int:
        return self._rounds.handshake_bytes


def _common_digest(messages: list[Message]) -> bytes:
    """The digest of the train message that all clients of a round are sent.

    Raises InvalidSpecError if they are sent different ones, as their masks would not cancel.
    """
    first = messages[0]
    common = _common_records(first)
    for message in messages[1:]:
        # Most messages have the very same records, which are not compared again.
        if message.content is not first.content and _common_records(message) != common:
            raise InvalidSpecError(
                "messages",
                MISSING,
                f"node {message.metadata.dst_node_id} is sent another configuration or model than "
                f"node {first.metadata.dst_node_id}, but in a secure aggregation all clients of a "
                "round must be asked for the same",
                "let clients read what differs from their own node_config",
            )
    return message_digest(first)


def _common_records(message: Message) -> dict[str, dict[str, Any]]:
    """The records of a message, without what may differ from client to client."""
    return {
        name: {key: value for key, value in record.items() if key not in PER_CLIENT_KEYS}
        for name, record in message.content.items()
    }


_EXCHANGES: Final[Mapping[type, Callable[..., Exchange]]] = {
    PerClient: Exchange,
    SumOfCodes: SummingExchange,
    SimulatedSum: SimulatedExchange,
    SecureSum: SecureExchange,
}


def make_exchange(aggregation: Aggregation) -> Exchange:
    """The exchange that does what an aggregation describes."""
    for kind in type(aggregation).__mro__:
        if kind in _EXCHANGES:
            return _EXCHANGES[kind](aggregation)
    raise InvalidSpecError(
        "aggregation", aggregation, ", expected PerClient(), SumOfCodes(), SecureSum() or SimulatedSum()"
    )


def check_strategy(strategy: Strategy, aggregation: Aggregation, simulated: bool) -> None:
    """Refuse a strategy that compares single updates if the server sees only sums.

    A simulated aggregation is refused too, unless privacy is said to be ``simulated``.
    """
    if aggregation.simulated and not simulated:
        raise InvalidSpecError(
            "aggregation",
            aggregation,
            f"protects nobody, as {aggregation.simulated}",
            "use SecureSum(), or say simulated=True",
        )
    if type(aggregation) is PerClient:
        return
    for wrapped in strategy_stack(strategy):
        if (name := needs_single_updates(type(wrapped))) is not None:
            raise InvalidSpecError(
                "strategy",
                name,
                "compares single updates, which a sum does not show",
                "use one that needs only the mean, such as FedAvg, FedAvgM or FedAdam, or "
                "aggregation=PerClient()",
            )


def needs_single_updates(kind: type) -> str | None:
    """The name of the strategy among a class and its bases that compares single updates; None without one."""
    return next((base.__name__ for base in kind.__mro__ if base.__name__ in _NEED_SINGLE_UPDATES), None)
