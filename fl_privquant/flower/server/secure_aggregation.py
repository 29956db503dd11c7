"""The server's side of the protocol over Flower messages: its stages, sent through the grid, round by round.

:class:`SecureRounds` drives :class:`~fl_privquant.secagg.ServerRound`. Key stages run before the train
messages go out; the masked inputs are the replies to these; confirmation (where clients sign) and unmasking
follow. It knows nothing of models or strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging import INFO, WARNING
from typing import Final

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fl_privquant.accounting.aggregation import SecureSum
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import CulpritError, SecureAggregationError, one_line, pluralize
from fl_privquant.flower._flower_internals import ErrorCode, log
from fl_privquant.flower._messages import stages
from fl_privquant.flower._messages.protocol import common_digest
from fl_privquant.flower.server.log_lines import failure_lines
from fl_privquant.secagg import RoundConfig, ServerRound, UnmaskedSum, draw_session
from fl_privquant.secagg.signed.evidence import Evidence
from fl_privquant.secagg.signed.identities import KnownClients, verify_identification

# How many reasons of clients an error quotes: a hostile client may give any.
_MAX_REASONS: Final = 3


class SecureRounds:
    """Runs secure aggregation with the clients of a grid: one sum in each round."""

    def __init__(self) -> None:
        # Nodes that broke the protocol in former rounds, and are not asked again.
        self.excluded: set[int] = set()
        self.handshake_bytes = 0
        self._evidence = Evidence()
        self._session = draw_session()
        self._round = 0
        # The node of each client id; the two numbers are equal unless clients have names.
        self._nodes: dict[int, int] = {}
        # The client id of each node that has proved who it is.
        self._known_nodes: dict[int, int] = {}
        # Nodes that failed in the stages under way, by the reason.
        self._failures: dict[str, list[int]] = {}

    def begin_round(self, server_round: int, messages: Sequence[Message], grid: Grid) -> None:
        """Begin a round, in which the clients of a grid are sent these train messages."""
        self._round, self._messages, self._grid = server_round, messages, grid
        self._server: ServerRound | None = None
        self.handshake_bytes = 0

    def agree(self, sums: SecureSum, codec: UpdateCodec, nodes: Sequence[int]) -> dict[int, bytes]:
        """Agree on masks with these nodes; returns what each participant gets with its train message."""
        self._sums = sums
        digest = common_digest(self._messages)
        with self._explain_failures():
            clients = self._clients([node for node in nodes if node not in self.excluded])
        # Fewer clients may take part than were asked, as excluded and unknown nodes are left out.
        self.ring = sums.ring(codec, len(clients))
        config = RoundConfig(
            session=self._session,
            number=self._round,
            dimension=codec.dimension,
            width=self.ring.bits,
            max_code=self.ring.max_code,
            corrupt_fraction=sums.corrupt_fraction,
            dropout_fraction=sums.dropout_fraction,
            server_may_lie=sums.server_may_lie,
            identities=sums.identities,
        )
        server = ServerRound(config, clients)
        with self._explain_failures(server):
            self._exchange(stages.ADVERTISE, dict.fromkeys(clients, server.invitation()), server.receive)
            self._exchange(stages.SHARE, server.rosters(), server.receive)
            requests = {self._nodes[client]: data for client, data in server.mask_requests(digest).items()}
        self._server = server
        self.handshake_bytes += sum(map(len, requests.values()))
        return requests

    def open(self, payloads: Mapping[int, bytes], check: Callable[[int], None]) -> UnmaskedSum:
        """The sum of the masked inputs that arrived, by node.

        ``check`` is called with the number of clients whose input is in the sum, before any mask is opened:
        it raises SecureAggregationError if they are too few.
        """
        server, self._server = self._server, None
        if server is None:
            raise SecureAggregationError("no masks were agreed on in this round")
        with self._explain_failures(server):
            for client, node in self._nodes.items():
                if node in payloads and server.receive(client, payloads[node]):
                    self.handshake_bytes += len(payloads[node]) - server.payload_bytes
            survivors = server.survivor_lists()
            check(server.num_survivors)
            self._exchange(stages.CONFIRM, survivors, server.receive)
            self._exchange(stages.UNMASK, server.unmask_requests(), server.receive)
            opened = server.finish()
            self._exclude_culprits({})
            self._note_rejected(server)
        clients = pluralize(len(opened.survivors), "client")
        signed = "not signed" if self._sums.identities is None else "signed with identity keys"
        log(INFO, "Secure aggregation: round %d, sum of %s, %s", self._round, clients, signed)
        return replace(opened, survivors=tuple(sorted(self._nodes[member] for member in opened.survivors)))

    @contextmanager
    def _explain_failures(self, server: ServerRound | None = None) -> Iterator[None]:
        """Log which nodes fail in a block, and why; an error that ends the round names the usual reasons.

        In the protocol's own stages clients refuse for reasons that depend on no data: their policy, the
        roster, the stage of the round.
        """
        try:
            yield
        except SecureAggregationError as error:
            if server is not None:
                self._note_rejected(server)
            usual = sorted(self._failures.items(), key=lambda failure: -len(failure[1]))
            reasons = failure_lines(dict(usual[:_MAX_REASONS]))
            kind = CulpritError if server is not None and server.culprits else SecureAggregationError
            raise kind("; ".join([str(error), *reasons])) from error
        finally:
            if server is not None and server.culprits:
                self._exclude_culprits(server.culprits)
            for line in failure_lines(self._failures):
                log(WARNING, "Secure aggregation: round %d, %s", self._round, line)
            self._failures = {}

    def _exclude_culprits(self, culprits: Mapping[int, float]) -> None:
        """Leave out the nodes that are to blame for secrets that did not open, in this and earlier rounds."""
        failed = {self._nodes[client]: odds for client, odds in culprits.items()}
        guilty = self._evidence.judge(failed, self._nodes.values())
        self.excluded |= guilty
        for node in sorted(failed):
            blame = "broke the protocol and is left out from now on"
            doubt = "its secret does not open: it or its neighbors broke the protocol"
            self._fail(node, blame if node in guilty else doubt)

    def _fail(self, node: int, reason: str) -> None:
        self._failures.setdefault(one_line(reason), []).append(node)

    def _note_rejected(self, server: ServerRound) -> None:
        for client, reason in server.rejected.items():
            self._fail(self._nodes[client], reason)

    def _clients(self, nodes: list[int]) -> list[int]:
        """The ids of the clients on these nodes; with a list of known clients, only of those on the list."""
        known_clients = self._sums.identities
        if not isinstance(known_clients, KnownClients):
            self._nodes = {node: node for node in nodes}
            return nodes
        strangers = [node for node in nodes if node not in self._known_nodes]
        self._nodes = {node: node for node in strangers}

        def register_client(node: int, answer: bytes) -> None:
            client = verify_identification(known_clients, answer, self._session, node)
            if client is None:
                self._fail(node, "did not prove that it is a known client")
            else:
                self._known_nodes[node] = client

        self._exchange(stages.IDENTIFY, dict.fromkeys(strangers, self._session), register_client)
        # Of several nodes that have one client's key, the last takes part.
        self._nodes = {self._known_nodes[node]: node for node in nodes if node in self._known_nodes}
        if len(self._nodes) < 2:
            raise SecureAggregationError(
                f"{len(self._nodes)} of {len(nodes)} nodes proved to be known clients, expected 2 or more; "
                f"set {stages.KEY_IDENTITY} and {stages.KEY_KNOWN_CLIENTS} in their configuration"
            )
        return list(self._nodes)

    def _exchange(
        self, stage: str, outgoing: Mapping[int, bytes], receive: Callable[[int, bytes], object]
    ) -> None:
        """Send each client its message of a stage, and hand each answer to ``receive`` with its client."""
        if not outgoing:
            return
        messages = [
            Message(
                stages.protocol_content(data, stage),
                self._nodes[client],
                MessageType.TRAIN,
                group_id=str(self._round),
            )
            for client, data in outgoing.items()
        ]
        clients = {self._nodes[client]: client for client in outgoing}
        self.handshake_bytes += sum(map(len, outgoing.values()))
        for reply in self._grid.send_and_receive(messages, timeout=self._sums.timeout):
            node = reply.metadata.src_node_id
            record = None if reply.has_error() else stages.protocol_record(reply)
            data = None if record is None else record.get(stages.KEY_DATA)
            if node in clients and isinstance(data, bytes):
                self.handshake_bytes += len(data)
                receive(clients[node], data)
            else:
                self._fail(node, f"{stage}: {_explain_refusal(reply)}")


def _explain_refusal(reply: Message) -> str:
    """Why a reply is not one of the protocol; an app that answers itself has no mod that would."""
    error = reply.error if reply.has_error() else None
    if error is not None and error.code != ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
        return error.reason or f"error {error.code}"
    answered = "answered" if error is None else f"raised {error.reason} on"
    return (
        f"the client's app {answered} a message of secure aggregation, which a mod should have answered; use "
        f"ClientApp(mods=[PrivQuantMod(..., secure_aggregation=True)])"
    )
