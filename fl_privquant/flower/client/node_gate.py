"""A SuperNode whose owner decides what may leave it, whatever app the server delivers.

With ``flwr run`` the server delivers the client app, and with it the mods and their limits. A node that
``fl-privquant supernode`` starts does not rely on the app. Flower runs apps in processes of their own, and
their replies pass through the node's process on the way to the server. Here that process holds the mods:

* the protocol of secure aggregation is answered here, and the app never sees it;
* a train message is checked against the node's limits and counted in the node's ledger before the app runs,
  and what the app trains is encoded, and masked, before it is sent;
* every other message is refused, and the app is not called.

The node's limits are those of its configuration (:class:`~fl_privquant.flower.client.mod.PrivQuantMod`,
:mod:`~fl_privquant.flower.client.identity`), and ``privquant-max-epsilon`` must be among them. With
``privquant-secure-aggregation=true`` the node sends nothing but masked updates. Mods inside the app step
aside, and their limits with them: the node hands the app a token, in its configuration and in each message,
which a server cannot know.

Guarantee: what passes through Flower is a release of a mechanism that was certified here, counted here, and
within the node's limits.

Not covered: an app can open connections of its own, and an app that runs as the same user can read and change
the node's files. Run the app as another user or in a container without a network, by Flower's
``--isolation process``. When an answer is sent, and how long the app took, is also up to the app, and the
server sees it. An app that never answers blocks the node, as it does in Flower.

Flower has no public interface for this: see :mod:`fl_privquant.flower._flower_internals`.
"""

from __future__ import annotations

import functools
import math
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from logging import ERROR, INFO
from typing import Any, Final

from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict

from fl_privquant.errors import MISSING, InvalidSpecError, InvalidUpdateError, one_line
from fl_privquant.flower._flower_internals import (
    ErrorCode,
    RunNotRunningException,
    get_all_nested_objects,
    get_object_tree,
    inflate_object_from_contents,
    iterate_object_tree,
    log,
    pull_objects,
    push_objects,
    read_supernode_arguments,
    remove_content_from_message,
    run_supernode,
    set_message_id,
    start_app,
)
from fl_privquant.flower._messages.arrays import records_of
from fl_privquant.flower._messages.protocol import RECORD_PAYLOAD, is_request
from fl_privquant.flower._messages.stages import KEY_IDENTITY, KEY_KNOWN_CLIENTS
from fl_privquant.flower.client.identity import KEY_MIN_CLIENTS, KEY_OPERATOR, apply_node_config
from fl_privquant.flower.client.ledger import NODE_LEDGER_FILE, default_ledger_path
from fl_privquant.flower.client.masking import is_secure
from fl_privquant.flower.client.mod import (
    NODE_BUDGET,
    NODE_LIMITS,
    NODE_MAX_DELTA,
    NODE_MAX_EPSILON,
    NODE_MAX_PARTICIPATIONS,
    PrivQuantMod,
    read_node_budget,
    read_node_limit,
)
from fl_privquant.flower.client.node import NODE_TOKEN, make_token_record
from fl_privquant.secagg import ClientPolicy
from fl_privquant.statement import PrivacyStatement, Unit

NODE_SECURE_AGGREGATION: Final = "privquant-secure-aggregation"

_PREFIX: Final = "privquant-"
# How often the node looks for the app's reply, as often as Flower does.
_POLL_SECONDS: Final = 0.5
_KEYS: Final = NODE_LIMITS | {
    NODE_LEDGER_FILE,
    NODE_SECURE_AGGREGATION,
    KEY_IDENTITY,
    KEY_KNOWN_CLIENTS,
    KEY_MIN_CLIENTS,
    KEY_OPERATOR,
}

_HELP: Final = "\n".join(
    [
        f"usage: fl-privquant supernode --node-config '{NODE_MAX_EPSILON}=1.0 ...' [options below]",
        "",
        "Only encoded updates leave the node, within the limits that --node-config sets.",
        f"Required: {NODE_MAX_EPSILON}. Others:",
        *(f"  {key}" for key in sorted(_KEYS - {NODE_MAX_EPSILON})),
        "",
        "",
    ]
)
_NOT_PRIVATE: Final = (
    "this node sends only updates that fl_privquant encodes, within the limits of its owner, and the server "
    "asked for a plain update: wrap the server's strategy in PrivQuantStrategy"
)
_NOT_TRAIN: Final = (
    "this node sends encoded updates only, and does not reply to {kind} messages; evaluate on the server, or "
    "ask for private metrics"
)


class NodeGate:
    """Answers the messages of a server within the limits of a node; apps only train.

    Parameters
    ----------
    node_config
        The configuration of the node, which its owner wrote.
    """

    def __init__(self, node_config: Mapping[str, Any]) -> None:
        _check_keys(node_config)
        self._always_secure = node_config.get(NODE_SECURE_AGGREGATION) is True
        file = node_config.get(NODE_LEDGER_FILE) or str(default_ledger_path(node_config))
        self._node_config = {**node_config, NODE_LEDGER_FILE: file}
        # The mod takes the smaller one of its own limit and the node's; no delta is allowed by default.
        max_delta = read_node_limit(node_config, NODE_MAX_DELTA, 0.0)
        self._encode = PrivQuantMod(math.inf, max_delta=max_delta)
        self._mask = PrivQuantMod(math.inf, max_delta=max_delta, secure_aggregation=True)
        # One for each run. It stays in this process, so that no answer is given twice from the same state.
        self._contexts: dict[int, Context] = {}

    def limits(self) -> list[str]:
        """What may leave the node, in sentences for its owner.

        Raises
        ------
        InvalidSpecError
            A limit, or a file that the configuration names, cannot be read.
        """
        config = self._node_config
        limit = PrivacyStatement(
            read_node_limit(config, NODE_MAX_EPSILON), self._encode.max_delta, Unit.COORDINATE
        )
        budget, rounds = read_node_budget(config), read_node_limit(config, NODE_MAX_PARTICIPATIONS)
        policy = apply_node_config(ClientPolicy(), config)
        lines = [
            f"only encoded updates leave this node, each with at most {limit.brief}, or as much for a whole "
            "update in a round, where the mechanism encodes it as one"
        ]
        if budget is None and math.isinf(rounds):
            lines.append(
                f"there is no bound on the number of rounds, so that the server can ask without end: set "
                f"{NODE_BUDGET} or {NODE_MAX_PARTICIPATIONS}"
            )
        if budget is not None:
            total = PrivacyStatement(budget.epsilon, budget.delta, Unit.TOTAL)
            lines.append(f"all updates of this node together cost at most {total.brief}")
        if not math.isinf(rounds):
            lines.append(f"this node takes part in at most {rounds:g} rounds of all runs")
        masked = "updates are always masked" if self._always_secure else "updates are masked only if asked to"
        lines.append(f"{masked}, with at least {policy.min_clients} clients in a sum")
        if policy.known_identities is None:
            lines[-1] += (
                f"; masks do not protect from a server that invents clients, unless {KEY_IDENTITY} and "
                f"{KEY_KNOWN_CLIENTS} are set"
            )
        return [*lines, f"all releases are counted in {config[NODE_LEDGER_FILE]}"]

    def answer(self, message: Message, node_id: int, train: Callable[[Message], Message]) -> Message:
        """The reply to a message of the server; ``train`` runs the app."""
        kind = message.metadata.message_type.split(".")[0]
        if kind != MessageType.TRAIN:
            return _refuse(message, _NOT_TRAIN.format(kind=kind))
        secure = is_secure(message)
        configs = records_of(message.content, ConfigRecord) if message.has_content() else []
        if not (secure or any(is_request(config) for _, config in configs)):
            return _refuse(message, _NOT_PRIVATE)
        context = self._context(message.metadata.run_id, node_id)

        def run_app(msg: Message, _: Context) -> Message:
            return train(msg)

        mod = self._mask if self._always_secure or secure else self._encode
        return mod(message, context, run_app)

    def _context(self, run_id: int, node_id: int) -> Context:
        if run_id not in self._contexts:
            self._contexts[run_id] = Context(
                run_id=run_id,
                node_id=node_id,
                node_config=self._node_config,
                state=RecordDict(),
                run_config={},
            )
        return self._contexts[run_id]


def _check_keys(node_config: Mapping[str, Any]) -> None:
    """Refuse a configuration that does not say what may leave, or that says something else than it seems."""
    for key in node_config:
        # A limit that is not spelled right would not hold.
        if key.startswith(_PREFIX) and key not in _KEYS:
            raise InvalidSpecError(
                one_line(key, 60),
                MISSING,
                "not a setting of this node",
                f"there are {', '.join(sorted(_KEYS))}",
            )
    if NODE_MAX_EPSILON not in node_config:
        raise InvalidSpecError(
            NODE_MAX_EPSILON,
            MISSING,
            "missing in the node's configuration",
            "it is the largest epsilon of one coordinate (or of an update that is encoded as a "
            f"whole) that may leave this node: --node-config '{NODE_MAX_EPSILON}=1.0'",
        )
    if math.isinf(read_node_limit(node_config, NODE_MAX_EPSILON)):
        raise InvalidSpecError(
            NODE_MAX_EPSILON,
            math.inf,
            ", expected a finite number",
            "without a bound updates could leave this node as they are",
        )
    secure = node_config.get(NODE_SECURE_AGGREGATION, False)
    if not isinstance(secure, bool):
        raise InvalidSpecError(NODE_SECURE_AGGREGATION, secure, ", expected true or false")
    file = node_config.get(NODE_LEDGER_FILE, "")
    if not isinstance(file, str):
        raise InvalidSpecError(NODE_LEDGER_FILE, file, ", expected the name of a file")


def _refuse(message: Message, reason: str) -> Message:
    log(INFO, "fl-privquant supernode: refused a message: %s", reason)
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)


class _GatedConnection:
    """Stands between Flower's connection to the server and Flower's loop that runs apps."""

    def __init__(
        self, gate: NodeGate, token: str, settings: Mapping[str, Any], connection: Sequence[Any]
    ) -> None:
        self._gate, self._token, self._settings = gate, token, settings
        self._node_id, self._receive, self._send, self._get_run, self._get_fab = connection[:5]
        self._pull, self._push, self._confirm = connection[5:]

    def serve(self) -> None:
        """Answer all messages that are waiting. Flower's own loop, which calls this, is left with none."""
        while (received := self._receive()) is not None:
            stub, tree = received
            run_id = stub.metadata.run_id
            try:
                object_ids = [node.object_id for node in iterate_object_tree(tree)]
                contents = pull_objects(object_ids, functools.partial(self._pull, run_id))
                self._confirm(run_id, tree.object_id)
                self._answer(_inflate(tree.object_id, contents), contents, tree.object_id)
            except RunNotRunningException:
                log(INFO, "Run %s has ended; its message is not answered.", run_id)
            except Exception as error:
                # One message must not end the node. Whatever was released is in the ledger already.
                log(ERROR, "fl-privquant supernode: a message was not answered", exc_info=error)

    def _answer(self, message: Message, contents: Mapping[str, bytes], object_id: str) -> None:
        began = time.monotonic()
        # The app gets the message as it came: mods change what they are given.
        reply = self._gate.answer(
            message, self._node_id, lambda _: self._run_app(_inflate(object_id, dict(contents)))
        )
        _set_object_id(reply)
        wanted, session = self._send(reply, get_object_tree(reply), time.monotonic() - began)
        run_id = message.metadata.run_id
        push_objects(
            get_all_nested_objects(reply),
            functools.partial(self._push, run_id, session),
            object_ids_to_push=wanted,
        )
        log(INFO, "fl-privquant supernode: sent to the server: %s", _describe_reply(reply))

    def _run_app(self, message: Message) -> Message:
        """Have Flower run the app on a message, in a process of its own, and return the app's reply."""
        message.content.update(make_token_record(self._token))
        _set_object_id(message)
        tree = get_object_tree(message)
        contents = {object_id: part.deflate() for object_id, part in get_all_nested_objects(message).items()}
        factory = self._settings["state_factory"]
        state, store = factory.state(), factory.objectstore_factory.store()
        started = start_app(
            state=state,
            object_store=store,
            node_config={**self._settings["node_config"], NODE_TOKEN: self._token},
            receive=lambda: (remove_content_from_message(message), tree),
            get_run=self._get_run,
            get_fab=self._get_fab,
            pull_object=lambda _, object_id: contents[object_id],
            confirm_message_received=lambda *_: None,
            trusted_entities=self._settings["trusted_entities"],
        )
        if started is None:
            raise InvalidUpdateError("the app could not be started")
        return _pop_reply(state, store, message.metadata.message_id)


def _pop_reply(state: Any, store: Any, message_id: str) -> Message:
    """Wait for the app's reply to a message, and take it out of the node's state, with all other replies.

    Flower's own function for this logs that it sends the reply, which the owner of the node would believe.
    """
    answer: Message | None = None
    while answer is None:
        time.sleep(_POLL_SECONDS)
        for reply in state.get_messages_legacy(is_reply=True):
            reply_id = reply.metadata.message_id
            if reply.metadata.reply_to_message_id == message_id:
                answer = _inflate(reply_id, _wait_for_objects(store, reply_id))
            store.delete(reply_id)
            state.delete_messages(message_ids=[reply_id])
    state.delete_messages(message_ids=[message_id])
    return answer


def _wait_for_objects(store: Any, reply_id: str) -> dict[str, bytes]:
    """The objects of a reply, once the app has handed all of them over."""
    contents: dict[str, bytes] = {}
    for node in iterate_object_tree(store.get_object_tree(reply_id)):
        while (content := store.get(node.object_id)) == b"":
            time.sleep(_POLL_SECONDS)
        contents[node.object_id] = content
    return contents


def _describe_reply(reply: Message) -> str:
    """What a reply of this node is, for its log."""
    if reply.has_error():
        return "a refusal"
    return "an encoded update" if RECORD_PAYLOAD in reply.content else "a message of secure aggregation"


def _set_object_id(message: Message) -> None:
    """Give a message the id by which Flower stores it, which is a hash of its content."""
    set_message_id(message, message.object_id)


def _inflate(object_id: str, contents: dict[str, bytes]) -> Message:
    message = inflate_object_from_contents(object_id, contents, keep_object_contents=True)
    assert isinstance(message, Message)
    set_message_id(message, object_id)
    return message


def start_supernode(arguments: Sequence[str]) -> None:
    """Run ``flower-supernode`` with these arguments, and let only private replies leave it.

    Raises
    ------
    InvalidSpecError
        The node's configuration does not say what may leave the node.
    """
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write(_HELP)
    sys.argv = ["flower-supernode", *arguments]
    settings = read_supernode_arguments()
    # Before anything is started, which would go on if the configuration were refused later.
    gate = NodeGate(settings.node_config)
    limits, token = gate.limits(), secrets.token_hex(16)

    def gate_connection(given: Mapping[str, Any], connection: Sequence[Any]) -> Sequence[Any]:
        for line in limits:
            log(INFO, "fl-privquant supernode: %s", line)
        return connection[0], _GatedConnection(gate, token, given, connection).serve, *connection[2:]

    run_supernode(settings, gate_connection)
