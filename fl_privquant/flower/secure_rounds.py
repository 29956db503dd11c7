"""The server's side of the protocol over Flower messages: its stages, sent through the grid, round by round.

:class:`SecureRounds` drives :class:`~fl_privquant.secagg.ServerRound`. Key stages run before the train
messages go out; the masked inputs are the replies to these; confirmation (where clients sign) and unmasking
follow. It knows nothing of models or strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fl_privquant.errors import SecureAggregationError, one_line
from fl_privquant.flower.arrays import records_of
from fl_privquant.flower.node_identities import KEY_IDENTITY, KEY_KNOWN_CLIENTS, identified
from fl_privquant.flower.protocol import is_request
from fl_privquant.flower.secure_mod import (
    ADVERTISE,
    CONFIRM,
    IDENTIFY,
    KEY_DATA,
    KEY_DELIVERY,
    KEY_STAGE,
    RECORD,
    SHARE,
    UNMASK,
    protocol_record,
)
from fl_privquant.mechanisms.sum_ring import SumRing
from fl_privquant.secagg import OpenedSum, RoundConfig, ServerRound, new_session
from fl_privquant.secagg.identities import KnownClients


class SecureRounds:
    """Secure sums, one a round, of what the clients of a grid send.

    Parameters
    ----------
    timeout
        Seconds that a stage of the protocol may take.
    settings
        Fields of :class:`~fl_privquant.secagg.RoundConfig` that are the same in all rounds.

    Attributes
    ----------
    excluded
        Nodes that broke the protocol in a former round, and are not asked again.
    handshake_bytes
        Bytes of the protocol's messages in the last round, both directions together, without packed codes.
    """

    def __init__(self, timeout: float = 600.0, **settings: Any) -> None:
        self.timeout = timeout
        self.excluded: set[int] = set()
        self.handshake_bytes = 0
        self._settings = settings
        self._session = new_session()
        self._server: ServerRound | None = None
        self._grid: Grid | None = None
        self._round = 0
        # Nodes by the ids of the clients in them: the same, unless clients go by their names.
        self._nodes: dict[int, int] = {}
        # Clients by the nodes that have proved to be them.
        self._met: dict[int, int] = {}

    @property
    def under_way(self) -> bool:
        """Whether masks were agreed on for a sum that is not opened yet."""
        return self._server is not None

    @property
    def threshold(self) -> int:
        """Shares that open a secret in the round that is under way."""
        if self._server is None:
            raise SecureAggregationError("no masks were agreed on in this round")
        return self._server.graph_parameters.threshold

    def abandon(self) -> None:
        """Forget the round that is under way, if any: its sum is never opened."""
        self._server = None

    def agree(
        self,
        server_round: int,
        nodes: list[int],
        grid: Grid,
        *,
        dimension: int,
        ring: Callable[[int], SumRing],
        context: bytes,
    ) -> dict[int, bytes]:
        """Agree on masks with these nodes; what each that takes part needs with its train message.

        ``ring`` is what the codes of so many clients are added up in: some of the nodes may not take part.
        ``context`` is the digest of what they are asked for (:mod:`fl_privquant.flower.binding`).
        """
        self._server, self._grid, self._round = None, grid, server_round
        self.handshake_bytes = 0
        clients = self._clients([node for node in nodes if node not in self.excluded])
        summed = ring(len(clients))
        server = ServerRound(
            RoundConfig(
                session=self._session,
                number=server_round,
                dimension=dimension,
                width=summed.bits,
                max_code=summed.max_code,
                **self._settings,
            ),
            clients,
        )
        for client, data in self._exchange(ADVERTISE, dict.fromkeys(clients, server.invitation())).items():
            server.receive_advertisement(client, data)
        try:
            for client, data in self._exchange(SHARE, server.rosters()).items():
                server.receive_shares(client, data)
            requests = {self._nodes[client]: data for client, data in server.mask_requests(context).items()}
        finally:
            self._exclude(server.culprits)
        self._server = server
        self.handshake_bytes += sum(map(len, requests.values()))
        return requests

    def open(self, payloads: Mapping[int, bytes], check: Callable[[int], None]) -> OpenedSum:
        """The sum of the masked inputs that arrived, by node.

        ``check`` is called with the number of clients whose input is in the sum, before any mask is opened:
        it raises SecureAggregationError where they are too few.
        """
        server, self._server = self._server, None
        if server is None:
            raise SecureAggregationError("no masks were agreed on in this round")
        try:
            for client, node in self._nodes.items():
                if node in payloads and server.receive_masked_input(client, payloads[node]):
                    self.handshake_bytes += len(payloads[node]) - server.payload_bytes
            survivors = server.survivor_lists()
            check(server.num_survivors)
            for client, data in self._exchange(CONFIRM, survivors).items():
                server.receive_confirmation(client, data)
            for client, data in self._exchange(UNMASK, server.unmask_requests()).items():
                server.receive_unmask_reply(client, data)
            opened = server.finish()
        finally:
            self._exclude(server.culprits)
            for client, reason in server.rejected.items():
                node = self._nodes[client]
                log(WARNING, "Secure aggregation: round %d, node %d: %s", self._round, node, one_line(reason))
        log(INFO, "Secure aggregation: round %d, sum of %d clients", self._round, len(opened.survivors))
        return replace(opened, survivors=tuple(sorted(self._nodes[member] for member in opened.survivors)))

    def _clients(self, nodes: list[int]) -> list[int]:
        """The clients in these nodes; with a list of known clients, those that prove to be on it."""
        known = self._settings.get("identities")
        if not isinstance(known, KnownClients):
            self._nodes = {node: node for node in nodes}
            return nodes
        strangers = [node for node in nodes if node not in self._met]
        self._nodes = {node: node for node in strangers}
        for node, answer in self._exchange(IDENTIFY, dict.fromkeys(strangers, self._session)).items():
            client = identified(known, answer, self._session, node)
            if client is None:
                log(
                    WARNING,
                    "Secure aggregation: round %d, node %d does not prove to be a known client",
                    self._round,
                    node,
                )
            else:
                self._met[node] = client
        # Of several nodes that have one client's key, the last takes part.
        self._nodes = {self._met[node]: node for node in nodes if node in self._met}
        if len(self._nodes) < 2:
            raise SecureAggregationError(
                f"{len(self._nodes)} of {len(nodes)} nodes prove to be known clients, expected 2 or more; "
                f"set {KEY_IDENTITY} and {KEY_KNOWN_CLIENTS} in their configuration"
            )
        return list(self._nodes)

    def _exclude(self, culprits: set[int]) -> None:
        nodes = {self._nodes[client] for client in culprits}
        for node in sorted(nodes - self.excluded):
            log(
                WARNING,
                "Secure aggregation: round %d, node %d broke the protocol and is left out from now on",
                self._round,
                node,
            )
        self.excluded |= nodes

    def _exchange(self, stage: str, outgoing: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers of the clients that gave one."""
        if self._grid is None or not outgoing:
            return {}
        messages = [
            Message(
                RecordDict({RECORD: ConfigRecord({KEY_STAGE: stage, KEY_DATA: data})}),
                self._nodes[client],
                MessageType.TRAIN,
                group_id=str(self._round),
            )
            for client, data in outgoing.items()
        ]
        clients = {self._nodes[client]: client for client in outgoing}
        self.handshake_bytes += sum(map(len, outgoing.values()))
        answers: dict[int, bytes] = {}
        for reply in self._grid.send_and_receive(messages, timeout=self.timeout):
            node = reply.metadata.src_node_id
            record = None if reply.has_error() else protocol_record(reply)
            data = None if record is None else record.get(KEY_DATA)
            if node in clients and isinstance(data, bytes):
                answers[clients[node]] = data
                self.handshake_bytes += len(data)
            else:
                reason = one_line(reply.error.reason) if reply.has_error() else "no answer of the protocol"
                log(
                    WARNING, "Secure aggregation: round %d, %s, node %d: %s", self._round, stage, node, reason
                )
        return answers


def with_delivery(message: Message, delivery: bytes) -> Message:
    """The message with its own config: the content object may go to many nodes."""
    content = RecordDict(dict(message.content))
    for name, record in records_of(message.content, ConfigRecord):
        # An app may have configs of its own.
        if is_request(record):
            content[name] = ConfigRecord({**record, KEY_DELIVERY: delivery})
    return Message(
        content,
        message.metadata.dst_node_id,
        message.metadata.message_type,
        ttl=message.metadata.ttl,
        group_id=message.metadata.group_id,
    )
