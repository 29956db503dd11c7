"""The client's side of secure aggregation over Flower messages, which PrivQuantMod calls.

The protocol's own stages arrive as train messages with a record of their own; the masked update is the reply
to the train message that carries the model. Between two messages, what was agreed on in the round is kept in
the client's state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fl_privquant.codec.update import EncodedUpdate, UpdateCodec
from fl_privquant.errors import SecureAggregationError, one_line
from fl_privquant.flower._messages.arrays import records_of
from fl_privquant.flower._messages.protocol import KEY_DELIVERY, message_digest
from fl_privquant.flower._messages.stages import (
    ADVERTISE,
    CONFIRM,
    IDENTIFY,
    KEY_DATA,
    KEY_STAGE,
    NOISE_KEY,
    NOISE_SEED,
    SHARE,
    UNMASK,
    protocol_content,
    protocol_record,
)
from fl_privquant.flower.client.identity import apply_node_config, find_client_id, sign_identification
from fl_privquant.flower.client.node import node_folder, on_supernode
from fl_privquant.flower.client.seed_relay import answer_key_request, answer_seed_request
from fl_privquant.mechanisms.modular_sum import SumRing
from fl_privquant.secagg import ClientPolicy, ClientRound
from fl_privquant.secagg.messages import Invitation

_STATE: Final = "privquant-secagg"

_Given = TypeVar("_Given")

Policy = ClientPolicy | Callable[[Context], ClientPolicy]
Seal = Callable[[EncodedUpdate], bytes]
"""Makes the payload of an encoded update: by packing its codes, or by masking them."""


class UpdateMasking:
    """Agrees on masks with the other clients of a round, and masks the codes of this client's update.

    What was agreed on in a round is kept in the client's state until the round ends, and is erased then; the
    keys that its identity shares with those of other clients stay there for the next round. Each stage is
    answered only once, from whichever copy of the state. On a SuperNode, where each message has its own
    process and a state may be lost, the stages are recorded before they are answered, in the folder
    ``privquant/answered`` of Flower's home unless the policy names another one. Elsewhere the process
    remembers them.
    Assumes: that this folder is kept; elsewhere than on a SuperNode, that one process answers for a client.

    Parameters
    ----------
    policy
        What this client insists on, or a function of the context that returns it. A SuperNode's own
        configuration takes precedence.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def answer_stage(self, record: ConfigRecord, ctxt: Context) -> RecordDict:
        """Answer a message of the protocol, other than the train message that carries the model."""
        return protocol_content(self._step(record, ctxt))

    def prepare(self, message: Message, delivery: bytes, codec: UpdateCodec, ctxt: Context) -> Seal:
        """Take the masks that the server delivers with a train message.

        Parameters
        ----------
        message, delivery
            The train message, and what it delivers of the keys of the round.
        codec
            The codec of the update that the message asks for.
        ctxt
            The client's context, which keeps the state of the round.

        Returns
        -------
        Seal
            The function that masks the encoded update, once.

        Raises
        ------
        SecureAggregationError
            The client takes no part in the round, or the sum is not one for the codes of the request.
        """
        state = self._state(ctxt)
        may_lie = state.invitation.signed or self._policy(ctxt).server_may_lie
        if may_lie and codec.mechanism.handed is not None:
            raise SecureAggregationError(
                "correlated noise is not for signed rounds, nor where the server may lie: it could have "
                "noise taken off twice, left in, or opened; ask for fresh noise, or trust the server to "
                "follow the protocol"
            )
        # Before the training, which would be in vain if the codes could not be masked.
        ring = _read_ring(state.invitation, codec)
        # Masks depend on the message: those of clients that got different messages do not cancel.
        _run_and_save(state, ctxt, lambda: state.settle(delivery, message_digest(message)))

        def mask(update: EncodedUpdate) -> bytes:
            return _run_and_save(state, ctxt, lambda: state.mask(ring.residues(update.codes())))

        return mask

    def _step(self, record: ConfigRecord, ctxt: Context) -> bytes:
        stage, data = record.get(KEY_STAGE), record.get(KEY_DATA)
        if not isinstance(data, bytes):
            raise SecureAggregationError(f"{KEY_DATA}: {type(data).__name__}, expected bytes")
        policy = self._policy(ctxt)
        if stage == NOISE_KEY:
            return answer_key_request(data, ctxt)
        if stage == NOISE_SEED:
            return answer_seed_request(data, ctxt)
        if stage == IDENTIFY:
            return sign_identification(policy, data, ctxt.node_id)
        if stage == ADVERTISE:
            own = find_client_id(policy, ctxt.node_id)
            state = ClientRound.join(data, own, policy, previous=_load_round(ctxt, policy))
            return _run_and_save(state, ctxt, state.advertise_keys)
        state = self._state(ctxt)
        steps = {SHARE: state.share_keys, CONFIRM: state.confirm, UNMASK: state.unmask}
        if not isinstance(stage, str) or stage not in steps:
            raise SecureAggregationError(
                f"{KEY_STAGE}: {one_line(repr(stage), 40)} is not a stage of the protocol"
            )
        return _run_and_save(state, ctxt, lambda: steps[stage](data))

    def _policy(self, ctxt: Context) -> ClientPolicy:
        policy = self.policy if isinstance(self.policy, ClientPolicy) else self.policy(ctxt)
        if policy.answered_folder is None and on_supernode():
            policy = replace(policy, answered_folder=node_folder() / "answered")
        return apply_node_config(policy, ctxt.node_config)

    def _state(self, ctxt: Context) -> ClientRound:
        state = _load_round(ctxt, self._policy(ctxt))
        if state is None:
            raise SecureAggregationError("no round is under way at this client")
        return state


def _read_ring(invitation: Invitation, codec: UpdateCodec) -> SumRing:
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


def read_delivery(message: Message) -> bytes:
    """What a train message delivers of the keys of a round; raises SecureAggregationError without it."""
    deliveries = _list_deliveries(message)
    if len(deliveries) != 1 or not isinstance(deliveries[0], bytes):
        raise SecureAggregationError(
            "the server did not agree on masks with this client: give its PrivQuantStrategy "
            "aggregation=SecureSum()"
        )
    return deliveries[0]


def _list_deliveries(message: Message) -> list[object]:
    """What a train message delivers of the keys of a round: one item in a secure aggregation."""
    configs = records_of(message.content, ConfigRecord)
    return [record[KEY_DELIVERY] for _, record in configs if KEY_DELIVERY in record]


def is_secure(message: Message) -> bool:
    """Whether a train message is part of a secure aggregation."""
    return message.has_content() and (protocol_record(message) is not None or bool(_list_deliveries(message)))


def _load_round(ctxt: Context, policy: ClientPolicy) -> ClientRound | None:
    record = ctxt.state.get(_STATE)
    if not isinstance(record, ConfigRecord):
        return None
    return ClientRound.from_bytes(record[KEY_DATA], policy)  # type: ignore[arg-type]


def _run_and_save(state: ClientRound, ctxt: Context, step: Callable[[], _Given]) -> _Given:
    """The result of the step. The state is saved even if the step fails, because a failure ends the round."""
    try:
        return step()
    finally:
        ctxt.state[_STATE] = ConfigRecord({KEY_DATA: state.to_bytes()})
