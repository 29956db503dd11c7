"""Secure aggregation over Flower messages: the protocol of :mod:`fl_privquant.secagg` around PrivQuant.

Key stages run inside ``configure_train``, which has the grid; the masked input *is* the reply to the
train message; unmasking runs inside ``aggregate_train``. Flower's own loop stays as it is, and the
wrapped strategy gets the mean update of the clients that stayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import ERROR, INFO, WARNING
from typing import Any, Final, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from fl_privquant.codec.layout import Layout
from fl_privquant.errors import InvalidSpecError, PrivQuantError, SecureAggregationError
from fl_privquant.flower.arrays import read_arrays, records_of
from fl_privquant.flower.mod import read_request
from fl_privquant.flower.protocol import Reply
from fl_privquant.flower.strategy import PrivQuantStrategy, mean_metrics
from fl_privquant.flower.target import RunTarget
from fl_privquant.privacy.statement import View
from fl_privquant.secagg import ClientPolicy, ClientRound, RoundConfig, ServerRound, new_session
from fl_privquant.secagg.parameters import checked_fraction

__all__ = ["SecureAggregationMod", "SecureAggregationStrategy"]

_KEY_STAGE: Final = "secagg-stage"
_KEY_DATA: Final = "secagg-data"
_KEY_DELIVERY: Final = "secagg-delivery"
_RECORD: Final = "secagg"
_STATE: Final = "privquant-secagg"

_Given = TypeVar("_Given")

_ADVERTISE: Final = "advertise"
_SHARE: Final = "share"
_UNMASK: Final = "unmask"

# These compare single updates with one another, which is what the server must not see.
_NEED_SINGLE_UPDATES: Final = ("FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan", "QFedAvg")


class SecureAggregationMod:
    """Masks the codes that PrivQuantMod is about to send, so that the server can open their sum only.

    Put it before PrivQuantMod: ``@app.train(mods=[SecureAggregationMod(), PrivQuantMod(...)])``. A train
    message that is not part of a secure aggregation is refused, so that a server cannot turn it off.

    Guarantee and threat model: :mod:`fl_privquant.secagg`. What was agreed on in a round is kept in the
    client's state until the round ends, and erased with it.

    Parameters
    ----------
    policy
        What this client insists on; identity keys, where they are used.
    """

    def __init__(self, policy: ClientPolicy | None = None) -> None:
        self.policy = policy if policy is not None else ClientPolicy()

    def __call__(self, msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        """Answer the protocol's own messages, and mask the reply to a train message."""
        if msg.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(msg, ctxt)
        stage = _protocol_record(msg)
        try:
            if stage is not None:
                return _answer(msg, self._step(stage, ctxt))
            return self._train(msg, ctxt, call_next)
        except PrivQuantError as error:
            reason = f"{type(error).__name__}: {error}"
            log(WARNING, "SecureAggregationMod refused: %s", reason)
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=msg)

    def _step(self, record: ConfigRecord, ctxt: Context) -> bytes:
        stage, data = record.get(_KEY_STAGE), record.get(_KEY_DATA)
        if not isinstance(data, bytes):
            raise SecureAggregationError(f"{_KEY_DATA}: {type(data).__name__}, expected bytes")
        if stage == _ADVERTISE:
            state = ClientRound.join(data, ctxt.node_id, self.policy, previous=_load(ctxt, self.policy))
            return _keeping(state, ctxt, state.advertise_keys)
        state = self._state(ctxt)
        if stage == _SHARE:
            return _keeping(state, ctxt, lambda: state.share_keys(data))
        if stage == _UNMASK:
            return _keeping(state, ctxt, lambda: state.unmask(data))
        raise SecureAggregationError(f"{_KEY_STAGE}: {stage!r} is not a stage of the protocol")

    def _train(self, msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        deliveries = [
            each[_KEY_DELIVERY] for _, each in records_of(msg.content, ConfigRecord) if _KEY_DELIVERY in each
        ]
        if len(deliveries) != 1 or not isinstance(deliveries[0], bytes):
            raise SecureAggregationError(
                "the server did not agree on masks with this client: wrap its strategy in "
                "SecureAggregationStrategy"
            )
        delivery = deliveries[0]
        state = self._state(ctxt)
        # Before the training: what cannot be masked need not be computed.
        _keeping(state, ctxt, lambda: state.accept_shares(delivery))
        request, received = read_request(msg)
        layout = Layout.of(read_arrays(received))
        out = call_next(msg, ctxt)
        if out.has_error():
            return out
        reply = Reply.from_content(out.content)
        codes = request.codec(layout).codes(reply.payload)
        masked = _keeping(state, ctxt, lambda: state.mask(codes))
        return Message(replace(reply, payload=masked).to_content(), reply_to=msg)

    def _state(self, ctxt: Context) -> ClientRound:
        state = _load(ctxt, self.policy)
        if state is None:
            raise SecureAggregationError("no round is under way at this client")
        return state


class SecureAggregationStrategy(Strategy):
    """Wraps a PrivQuantStrategy: the server learns the sum of the clients' codes and nothing else.

    Mechanism ``none`` then sends fixed point, as floats cannot be masked: clipped, and rounded at random to a
    lattice of 20 bits.

    Parameters
    ----------
    strategy
        The PrivQuantStrategy, around any strategy that needs the mean update only. One that compares
        single updates, such as FedMedian or Krum, is refused.
    corrupt_fraction, dropout_fraction, server_may_lie, num_neighbors, threshold, identities
        As in :class:`~fl_privquant.secagg.RoundConfig`: what is assumed of clients, from which the graph
        follows, and the clients' public keys by node id, where they sign.
    timeout
        Seconds that a stage of the protocol may take.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> from flwr.serverapp.strategy import FedAvg
    >>> private = PrivQuantStrategy(FedAvg(), mechanism=pq.design("one_bit", epsilon=1.0), clip=0.1)
    >>> strategy = SecureAggregationStrategy(private)
    """

    def __init__(
        self,
        strategy: PrivQuantStrategy,
        *,
        corrupt_fraction: float = 0.1,
        dropout_fraction: float = 0.1,
        server_may_lie: bool | None = None,
        num_neighbors: int | None = None,
        threshold: int | None = None,
        identities: Mapping[int, bytes] | None = None,
        timeout: float = 600.0,
    ) -> None:
        if not isinstance(strategy, PrivQuantStrategy):
            raise InvalidSpecError(
                f"strategy: {type(strategy).__name__}, expected a PrivQuantStrategy: it makes integers"
            )
        for name in _aggregating_classes(strategy.strategy):
            if name in _NEED_SINGLE_UPDATES:
                raise InvalidSpecError(
                    f"strategy: {name} compares single updates, which secure aggregation hides; use one that "
                    f"needs the mean only, such as FedAvg, FedAvgM or FedAdam"
                )
        strategy.only_sums = True
        self.strategy = strategy
        self.corrupt_fraction = checked_fraction("corrupt_fraction", corrupt_fraction)
        self.dropout_fraction = checked_fraction("dropout_fraction", dropout_fraction)
        # Who has clients sign their keys does not trust the server.
        self.server_may_lie = identities is not None if server_may_lie is None else server_may_lie
        self.num_neighbors = num_neighbors
        self.threshold = threshold
        self.identities = identities
        self.timeout = timeout
        strategy.planned_view = self._planned_view
        self._session = new_session()
        self._server: ServerRound | None = None
        self._grid: Grid | None = None
        self._asked = 0

    @classmethod
    def for_target(
        cls,
        strategy: Strategy,
        target: RunTarget,
        arrays: ArrayRecord,
        *,
        rotation_seed: int = 0,
        max_failed_rounds: int = 0,
        **settings: Any,
    ) -> SecureAggregationStrategy:
        """The strategy, around any that needs the mean only, whose whole run meets a privacy target.

        Mechanism, clips and budget follow from the target and the model's arrays; ``settings`` are those of
        this class that the target does not name.
        """
        return cls(
            PrivQuantStrategy.for_target(
                strategy, target, arrays, rotation_seed=rotation_seed, max_failed_rounds=max_failed_rounds
            ),
            corrupt_fraction=target.corrupt_fraction,
            dropout_fraction=target.dropout_fraction,
            **settings,
        )

    def checkpoint_state(self) -> dict[str, Any]:
        """Nothing: keys are drawn anew for each round, and a session for each start."""
        return {}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""

    def summary(self) -> None:
        """Log the assumptions, and the settings of the wrapped strategy."""
        log(INFO, "\t├──> Secure aggregation: the server sees sums of codes only")
        log(INFO, "\t│\t├── Assumed: %g of clients corrupt", self.corrupt_fraction)
        log(INFO, "\t│\t├── Tolerated: %g of clients lost", self.dropout_fraction)
        signed = (
            "signed by clients" if self.identities is not None else "the server is trusted not to impersonate"
        )
        log(INFO, "\t│\t└── Keys: %s", signed)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy choose clients, and agree with them on masks."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._server, self._grid, self._asked = None, grid, len(messages)
        if not messages:
            return messages
        try:
            deliveries = self._agree(server_round, [each.metadata.dst_node_id for each in messages], grid)
        except SecureAggregationError as error:
            log(ERROR, "Secure aggregation: round %d, %s", server_round, error)
            self.strategy.ledger.cancel()
            return []
        self.strategy.ledger.summed(self._least_honest(len(messages)))
        return [
            _with_delivery(message, deliveries[message.metadata.dst_node_id])
            for message in messages
            if message.metadata.dst_node_id in deliveries
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Open the sum of the inputs that arrived, and let the wrapped strategy aggregate its mean."""
        received = list(replies)
        server, self._server = self._server, None
        if server is None:
            return self.strategy.aggregate_sum(server_round, [], 0)
        try:
            metrics = {}
            for message in received:
                reply = self._take_input(server_round, message, server)
                if reply is not None:
                    metrics[message.metadata.src_node_id] = reply.metrics
            requests = server.unmask_requests()
            self._check_honest(len(requests))
            for node, data in self._exchange(_UNMASK, server_round, requests).items():
                server.receive_unmask_reply(node, data)
            result = server.finish()
        except SecureAggregationError as error:
            log(ERROR, "Secure aggregation: round %d, %s; nothing was released", server_round, error)
            return self.strategy.aggregate_sum(server_round, [], 0)
        finally:
            for node, reason in server.rejected.items():
                log(WARNING, "Secure aggregation: round %d, node %d: %s", server_round, node, reason)
        self.strategy.ledger.summed(len(result.survivors) - self._corrupt(self._asked))
        log(INFO, "Secure aggregation: round %d, sum of %d clients", server_round, len(result.survivors))
        means = mean_metrics([metrics[node] for node in result.survivors])
        return self.strategy.aggregate_sum(server_round, result.total, len(result.survivors), means)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the wrapped strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegate to the wrapped strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _corrupt(self, num_clients: int) -> int:
        # 0.29 * 100 is a little below 29.
        return math.floor(self.corrupt_fraction * num_clients + 1e-9)

    def _planned_view(self, num_clients: int) -> View:
        """What is to be seen of a round: a sum that has lost the clients that may be lost, and no more."""
        lost = math.floor(self.dropout_fraction * num_clients + 1e-9)
        return View(max(num_clients - lost - self._corrupt(num_clients), 1))

    def _least_honest(self, num_clients: int) -> int:
        """Honest clients in any sum that this round can open.

        Below the threshold of shares none is opened; with a budget, nor is one below the plan.
        """
        planned = self._planned_view(num_clients).num_honest or 1
        if self.strategy.budget is not None or self._server is None:
            return planned
        return max(self._server.graph_parameters.threshold - self._corrupt(num_clients), 1)

    def _check_honest(self, survivors: int) -> None:
        if self.strategy.budget is None:
            return
        honest, planned = survivors - self._corrupt(self._asked), self._planned_view(self._asked).num_honest
        if honest < (planned or 1):
            raise SecureAggregationError(
                f"{survivors} clients are left, {honest} of them honest, fewer than the {planned} that the "
                f"budget is planned for; raise dropout_fraction ({self.dropout_fraction})"
            )

    def start(self, *args: Any, **keywords: Any) -> Result:
        """Run the rounds, and say what they have cost."""
        result = super().start(*args, **keywords)
        self.strategy.log_spent()
        return result

    def _agree(self, server_round: int, nodes: list[int], grid: Grid) -> dict[int, bytes]:
        codec = self.strategy.codec
        mechanism = codec.mechanism
        if not mechanism.summable:
            raise InvalidSpecError(
                f"mechanism {mechanism.name!r} gives no integers to be summed, as secure aggregation needs"
            )
        server = ServerRound(
            RoundConfig(
                session=self._session,
                number=server_round,
                dimension=codec.dimension,
                width=mechanism.sum_bits(len(nodes)),
                max_code=mechanism.max_code,
                corrupt_fraction=self.corrupt_fraction,
                dropout_fraction=self.dropout_fraction,
                server_may_lie=self.server_may_lie,
                num_neighbors=self.num_neighbors,
                threshold=self.threshold,
                identities=self.identities,
            ),
            nodes,
        )
        self._grid = grid
        invitation = server.invitation()
        for node, data in self._exchange(_ADVERTISE, server_round, dict.fromkeys(nodes, invitation)).items():
            server.receive_advertisement(node, data)
        for node, data in self._exchange(_SHARE, server_round, server.rosters()).items():
            server.receive_shares(node, data)
        deliveries = server.deliveries()
        self._server = server
        return deliveries

    def _exchange(self, stage: str, server_round: int, outgoing: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers of the nodes that gave one."""
        if self._grid is None:
            return {}
        messages = [
            Message(
                RecordDict({_RECORD: ConfigRecord({_KEY_STAGE: stage, _KEY_DATA: data})}),
                node,
                MessageType.TRAIN,
                group_id=str(server_round),
            )
            for node, data in outgoing.items()
        ]
        answers: dict[int, bytes] = {}
        for reply in self._grid.send_and_receive(messages, timeout=self.timeout):
            node = reply.metadata.src_node_id
            record = None if reply.has_error() else _protocol_record(reply)
            data = None if record is None else record.get(_KEY_DATA)
            if node in outgoing and isinstance(data, bytes):
                answers[node] = data
            else:
                reason = reply.error.reason if reply.has_error() else "no answer of the protocol"
                log(
                    WARNING,
                    "Secure aggregation: round %d, %s, node %d: %s",
                    server_round,
                    stage,
                    node,
                    reason,
                )
        return answers

    def _take_input(self, server_round: int, message: Message, server: ServerRound) -> Reply | None:
        node = message.metadata.src_node_id
        try:
            reply = self.strategy.checked_reply(message)
        except PrivQuantError as error:
            log(WARNING, "Secure aggregation: round %d, node %d: %s", server_round, node, error)
            return None
        server.receive_masked_input(node, reply.payload)
        return reply


def _aggregating_classes(strategy: Any) -> Iterable[str]:
    """Names of the classes of all strategies below, with those they derive from."""
    while isinstance(strategy, Strategy):
        yield from (each.__name__ for each in type(strategy).__mro__)
        strategy = getattr(strategy, "strategy", None)


def _protocol_record(message: Message) -> ConfigRecord | None:
    record = message.content.get(_RECORD) if message.has_content() else None
    return record if isinstance(record, ConfigRecord) else None


def _answer(message: Message, data: bytes) -> Message:
    return Message(RecordDict({_RECORD: ConfigRecord({_KEY_DATA: data})}), reply_to=message)


def _with_delivery(message: Message, delivery: bytes) -> Message:
    """The message with its own config: the content object may go to many nodes."""
    content = RecordDict(dict(message.content))
    for name, record in records_of(message.content, ConfigRecord):
        content[name] = ConfigRecord({**record, _KEY_DELIVERY: delivery})
    return Message(
        content,
        message.metadata.dst_node_id,
        message.metadata.message_type,
        ttl=message.metadata.ttl,
        group_id=message.metadata.group_id,
    )


def _load(ctxt: Context, policy: ClientPolicy) -> ClientRound | None:
    record = ctxt.state.get(_STATE)
    if not isinstance(record, ConfigRecord):
        return None
    return ClientRound.from_bytes(record[_KEY_DATA], policy)  # type: ignore[arg-type]


def _keeping(state: ClientRound, ctxt: Context, step: Callable[[], _Given]) -> _Given:
    """What the step gives; the state is kept whether it succeeds or fails, as a failure ends the round."""
    try:
        return step()
    finally:
        ctxt.state[_STATE] = ConfigRecord({_KEY_DATA: state.to_bytes()})
