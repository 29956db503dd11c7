"""The client's side of secure aggregation over Flower messages: a mod that masks what PrivQuantMod encodes.

The protocol's own stages arrive as train messages with a record of their own; the masked input is the reply
to the train message proper. What was agreed on in a round is kept in the client's state between two messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from logging import WARNING
from typing import Final, TypeVar

from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from fl_privquant.codec.layout import Layout
from fl_privquant.errors import PrivQuantError, SecureAggregationError
from fl_privquant.flower.arrays import read_arrays, records_of
from fl_privquant.flower.identities import identification, node_policy, own_id
from fl_privquant.flower.mod import read_request
from fl_privquant.flower.protocol import Reply
from fl_privquant.secagg import ClientPolicy, ClientRound

__all__ = [
    "ADVERTISE",
    "IDENTIFY",
    "KEY_DATA",
    "KEY_DELIVERY",
    "KEY_STAGE",
    "RECORD",
    "SHARE",
    "UNMASK",
    "SecureAggregationMod",
    "protocol_record",
]

KEY_STAGE: Final = "secagg-stage"
KEY_DATA: Final = "secagg-data"
KEY_DELIVERY: Final = "secagg-delivery"
RECORD: Final = "secagg"

IDENTIFY: Final = "identify"
ADVERTISE: Final = "advertise"
SHARE: Final = "share"
UNMASK: Final = "unmask"

_STATE: Final = "privquant-secagg"

_Given = TypeVar("_Given")


class SecureAggregationMod:
    """Masks the codes that PrivQuantMod is about to send, so that the server can open their sum only.

    Put it before PrivQuantMod: ``@app.train(mods=[SecureAggregationMod(), PrivQuantMod(...)])``. A train
    message that is not part of a secure aggregation is refused, so that a server cannot turn it off.

    Guarantee and threat model: :mod:`fl_privquant.secagg`. What was agreed on in a round is kept in the
    client's state until the round ends, and erased with it.

    Parameters
    ----------
    policy
        What this client insists on; identity keys, where they are used. A SuperNode's own configuration
        can name the files of these (:mod:`fl_privquant.flower.identities`), and goes before.
    """

    def __init__(self, policy: ClientPolicy | None = None) -> None:
        self.policy = policy if policy is not None else ClientPolicy()

    def __call__(self, msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        """Answer the protocol's own messages, and mask the reply to a train message."""
        if msg.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(msg, ctxt)
        stage = protocol_record(msg)
        try:
            if stage is not None:
                return _answer(msg, self._step(stage, ctxt))
            return self._train(msg, ctxt, call_next)
        except PrivQuantError as error:
            reason = f"{type(error).__name__}: {error}"
            log(WARNING, "SecureAggregationMod refused: %s", reason)
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=msg)

    def _step(self, record: ConfigRecord, ctxt: Context) -> bytes:
        stage, data = record.get(KEY_STAGE), record.get(KEY_DATA)
        if not isinstance(data, bytes):
            raise SecureAggregationError(f"{KEY_DATA}: {type(data).__name__}, expected bytes")
        policy = node_policy(self.policy, ctxt.node_config)
        if stage == IDENTIFY:
            return identification(policy, data, ctxt.node_id)
        if stage == ADVERTISE:
            own = own_id(policy, ctxt.node_id)
            state = ClientRound.join(data, own, policy, previous=_load(ctxt, policy))
            return _keeping(state, ctxt, state.advertise_keys)
        state = self._state(ctxt)
        if stage == SHARE:
            return _keeping(state, ctxt, lambda: state.share_keys(data))
        if stage == UNMASK:
            return _keeping(state, ctxt, lambda: state.unmask(data))
        raise SecureAggregationError(f"{KEY_STAGE}: {stage!r} is not a stage of the protocol")

    def _train(self, msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        deliveries = [
            each[KEY_DELIVERY] for _, each in records_of(msg.content, ConfigRecord) if KEY_DELIVERY in each
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
        state = _load(ctxt, node_policy(self.policy, ctxt.node_config))
        if state is None:
            raise SecureAggregationError("no round is under way at this client")
        return state


def protocol_record(message: Message) -> ConfigRecord | None:
    """The record of the protocol in a message, if it has one."""
    record = message.content.get(RECORD) if message.has_content() else None
    return record if isinstance(record, ConfigRecord) else None


def _answer(message: Message, data: bytes) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({KEY_DATA: data})}), reply_to=message)


def _load(ctxt: Context, policy: ClientPolicy) -> ClientRound | None:
    record = ctxt.state.get(_STATE)
    if not isinstance(record, ConfigRecord):
        return None
    return ClientRound.from_bytes(record[KEY_DATA], policy)  # type: ignore[arg-type]


def _keeping(state: ClientRound, ctxt: Context, step: Callable[[], _Given]) -> _Given:
    """What the step gives; the state is kept whether it succeeds or fails, as a failure ends the round."""
    try:
        return step()
    finally:
        ctxt.state[_STATE] = ConfigRecord({KEY_DATA: state.to_bytes()})
