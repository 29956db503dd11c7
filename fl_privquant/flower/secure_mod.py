"""The client's side of secure aggregation over Flower messages: a mod that masks what PrivQuantMod encodes.

The protocol's own stages arrive as train messages with a record of their own; the masked update is the reply
to the train message that carries the model. Between two messages, what was agreed on in the round is kept in
the client's state.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from logging import WARNING
from typing import Final, TypeVar

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore import log

from fl_privquant import checks
from fl_privquant.codec.update import EncodedUpdate, UpdateCodec
from fl_privquant.errors import PrivQuantError, SecureAggregationError, one_line
from fl_privquant.flower.arrays import records_of
from fl_privquant.flower.asked import Asked, hand_over
from fl_privquant.flower.clear_replies import trains
from fl_privquant.flower.node_identities import identification, node_policy, own_id
from fl_privquant.flower.node_token import node_encodes
from fl_privquant.flower.protocol import KEY_DELIVERY, RECORD_SECAGG, Reply, message_digest
from fl_privquant.flower.refusals import refusal
from fl_privquant.flower.supernode import node_folder, on_supernode
from fl_privquant.mechanisms.sum_ring import SumRing
from fl_privquant.secagg import ClientPolicy, ClientRound
from fl_privquant.secagg.messages import Invitation

KEY_STAGE: Final = "secagg-stage"
KEY_DATA: Final = "secagg-data"

IDENTIFY: Final = "identify"
ADVERTISE: Final = "advertise"
SHARE: Final = "share"
CONFIRM: Final = "confirm"
UNMASK: Final = "unmask"

_STATE: Final = "privquant-secagg"

_Given = TypeVar("_Given")


@checks.naming_arguments
class SecureAggregationMod:
    """Masks the codes that PrivQuantMod is about to send, so that the server can open their sum only.

    Put it before PrivQuantMod: ``ClientApp(mods=[SecureAggregationMod(), PrivQuantMod(...)])``. A train
    message that is not part of a secure aggregation is refused, so that a server cannot turn it off.

    Guarantee and threat model: :mod:`fl_privquant.secagg`. What was agreed on in a round is kept in the
    client's state until the round ends, and is erased then; the keys that its identity shares with those of
    other clients stay there for the next round. Each stage is answered only once, from whichever copy of the
    state. On a SuperNode, where each message has its own process and a state may be lost, the stages are
    recorded before they are answered, in the folder ``privquant/answered`` of Flower's home unless the policy
    names another one. Elsewhere the process remembers them.
    Assumes: that this folder is kept; elsewhere than on a SuperNode, that one process answers for a client.

    Parameters
    ----------
    policy
        What this client insists on: the fewest clients, the fractions of them that may be corrupt or lost,
        and identity keys where they are used. A server with weaker fractions is refused. Give a policy, or a
        function of the context that returns one. A SuperNode's own configuration can name the files of
        identity keys (:mod:`fl_privquant.flower.node_identities`), and takes precedence.
    """

    def __init__(self, policy: ClientPolicy | Callable[[Context], ClientPolicy] | None = None) -> None:
        self.policy = policy if policy is not None else ClientPolicy()

    def __call__(self, msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        """Answer the protocol's own messages, and mask the reply to a train message."""
        if node_encodes(msg, ctxt):
            return call_next(msg, ctxt)
        if not trains(msg):
            # PrivQuantMod, which follows, lets only metrics pass that the client allows.
            return call_next(msg, ctxt)
        stage = protocol_record(msg)
        try:
            if stage is not None:
                return Message(protocol_content(self._step(stage, ctxt)), reply_to=msg)
            return self._train(msg, ctxt, call_next)
        except PrivQuantError as error:
            return refusal(msg, error, self)

    def _step(self, record: ConfigRecord, ctxt: Context) -> bytes:
        stage, data = record.get(KEY_STAGE), record.get(KEY_DATA)
        if not isinstance(data, bytes):
            raise SecureAggregationError(f"{KEY_DATA}: {type(data).__name__}, expected bytes")
        policy = self._policy(ctxt)
        if stage == IDENTIFY:
            return identification(policy, data, ctxt.node_id)
        if stage == ADVERTISE:
            own = own_id(policy, ctxt.node_id)
            state = ClientRound.join(data, own, policy, previous=_load(ctxt, policy))
            return _keeping(state, ctxt, state.advertise_keys)
        state = self._state(ctxt)
        steps = {SHARE: state.share_keys, CONFIRM: state.confirm, UNMASK: state.unmask}
        if not isinstance(stage, str) or stage not in steps:
            raise SecureAggregationError(
                f"{KEY_STAGE}: {one_line(repr(stage), 40)} is not a stage of the protocol"
            )
        return _keeping(state, ctxt, lambda: steps[stage](data))

    def _train(self, msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        deliveries = _deliveries(msg)
        try:
            if len(deliveries) != 1 or not isinstance(deliveries[0], bytes):
                raise SecureAggregationError(
                    "the server did not agree on masks with this client: give its PrivQuantStrategy "
                    "aggregation=SecureSum()"
                )
            delivery = deliveries[0]
            asked = Asked.read(msg)
            codec = asked.codec
        except PrivQuantError as error:
            return refusal(msg, error, self, by_message=True)
        state = self._state(ctxt)
        # Before the training, which would be in vain if the codes could not be masked.
        ring = _invited_ring(state.invitation, codec)
        # Masks depend on the message: those of clients that got different messages do not cancel.
        _keeping(state, ctxt, lambda: state.settle(delivery, message_digest(msg)))
        masked: list[bytes] = []

        def mask(update: EncodedUpdate) -> bytes:
            masked.append(_keeping(state, ctxt, lambda: state.mask(ring.residues(update.codes()))))
            return masked[-1]

        hand_over(msg, replace(asked, seal=mask))
        out = call_next(msg, ctxt)
        if out.has_error():
            # PrivQuantMod refuses for reasons that are not about data.
            return out
        try:
            reply = Reply.from_content(out.content)
        except Exception:
            # The app has seen the data by now, so the reason must not leave the client.
            log(WARNING, "SecureAggregationMod: %s", traceback.format_exc())
            reply = None
        if reply is None or [reply.payload] != masked:
            raise SecureAggregationError(
                "the reply was not masked; put SecureAggregationMod directly before PrivQuantMod"
            )
        return Message(reply.to_content(), reply_to=msg)

    def _policy(self, ctxt: Context) -> ClientPolicy:
        policy = self.policy if isinstance(self.policy, ClientPolicy) else self.policy(ctxt)
        if policy.answered_folder is None and on_supernode():
            policy = replace(policy, answered_folder=node_folder() / "answered")
        return node_policy(policy, ctxt.node_config)

    def _state(self, ctxt: Context) -> ClientRound:
        state = _load(ctxt, self._policy(ctxt))
        if state is None:
            raise SecureAggregationError("no round is under way at this client")
        return state


def _invited_ring(invitation: Invitation, codec: UpdateCodec) -> SumRing:
    """The ring of integers that the sum is taken in, if it is one for the codes of the request.

    Another ring is refused before codes are drawn. If it were refused afterwards, because the codes do not
    fit, the refusal would reveal something about them. The server may choose between the ring for all sums
    and the narrower one for honest sums, as a residue reveals no more than the sum.
    """
    mechanism = codec.mechanism
    if not mechanism.summable:
        raise SecureAggregationError(f"mechanism {mechanism.name!r}: its codes cannot be summed")
    exact = invitation.max_code is not None
    ring = codec.sum_ring(invitation.num_clients, exact)
    expected = {"dimension": codec.dimension, "width": ring.bits, "max_code": ring.max_code}
    for name, value in expected.items():
        invited = getattr(invitation, name)
        if invited != value:
            raise SecureAggregationError(
                f"{name}: the server invited to a sum with {invited}, but its request needs {value}"
            )
    return ring


def _deliveries(message: Message) -> list[object]:
    """What a train message delivers of the keys of a round: one item in a secure aggregation."""
    configs = records_of(message.content, ConfigRecord)
    return [record[KEY_DELIVERY] for _, record in configs if KEY_DELIVERY in record]


def is_secure(message: Message) -> bool:
    """Whether a train message is part of a secure aggregation."""
    return message.has_content() and (protocol_record(message) is not None or bool(_deliveries(message)))


def protocol_record(message: Message) -> ConfigRecord | None:
    """The record of the protocol in a message, if it has one."""
    record = message.content.get(RECORD_SECAGG) if message.has_content() else None
    return record if isinstance(record, ConfigRecord) else None


def protocol_content(data: bytes, stage: str | None = None) -> RecordDict:
    """The content of a message of the protocol: its data and, in requests, the stage that it asks for."""
    record = ConfigRecord({KEY_DATA: data})
    if stage is not None:
        record[KEY_STAGE] = stage
    return RecordDict({RECORD_SECAGG: record})


def _load(ctxt: Context, policy: ClientPolicy) -> ClientRound | None:
    record = ctxt.state.get(_STATE)
    if not isinstance(record, ConfigRecord):
        return None
    return ClientRound.from_bytes(record[KEY_DATA], policy)  # type: ignore[arg-type]


def _keeping(state: ClientRound, ctxt: Context, step: Callable[[], _Given]) -> _Given:
    """The result of the step. The state is saved even if the step fails, because a failure ends the round."""
    try:
        return step()
    finally:
        ctxt.state[_STATE] = ConfigRecord({KEY_DATA: state.to_bytes()})
