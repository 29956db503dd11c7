"""The stages of the server's round, and how a message is taken in one: once, in time, from its sender."""

from __future__ import annotations

from collections.abc import Callable, Container
from enum import IntEnum
from typing import TypeVar

from fl_privquant.errors import InvalidUpdateError, SecureAggregationError
from fl_privquant.secagg import keys
from fl_privquant.secagg.messages import (
    ClientMessage,
    Confirmation,
    KeyAdvertisement,
    MaskedInput,
    RoundId,
    SharedSeeds,
    UnmaskReply,
)
from fl_privquant.secagg.round_config import RoundConfig
from fl_privquant.secagg.wire import Octets

_FromClient = TypeVar("_FromClient", KeyAdvertisement, SharedSeeds, MaskedInput, Confirmation, UnmaskReply)


class ServerStage(IntEnum):
    """The messages that the server is waiting for."""

    ADVERTISE = 0
    SHARE = 1
    MASK = 2
    CONFIRM = 3
    UNMASK = 4
    ENDED = 5


class StagedRound:
    """A round that takes messages of one stage at a time."""

    def __init__(self, config: RoundConfig) -> None:
        self.rejected: dict[int, str] = {}
        self._config = config
        self._round_id = RoundId(config.session, config.number)
        self._digest = self._graph_digest = b""
        self._stage = ServerStage.ADVERTISE

    def _receive(
        self,
        stage: ServerStage,
        sender: int,
        data: Octets,
        kind: type[_FromClient],
        seen: Container[int],
        expected: Container[int],
        take: Callable[[_FromClient], None],
    ) -> bool:
        if self._stage is not stage or sender in seen or sender not in expected:
            return False
        try:
            message = kind.from_bytes(data)
            self._check_sender(sender, message, data)
            take(message)
        except InvalidUpdateError as error:
            self.rejected[sender] = str(error)
            return False
        return True

    def _check_sender(self, sender: int, message: ClientMessage, data: Octets) -> None:
        name = type(message).__name__
        if message.round_id != self._round_id:
            raise InvalidUpdateError(f"{name}: of another session, or of round {message.round_id.number}")
        if message.client_id != sender:
            raise InvalidUpdateError(f"{name}: of client {message.client_id}, sent by client {sender}")
        if self._config.identities is not None:
            if self._signer(message, data) is None:
                raise InvalidUpdateError(f"{name}: not signed by the identity of client {sender}")
        elif message.signature:
            raise InvalidUpdateError(f"{name}: signed, but the round is not")

    def _signer(self, message: ClientMessage, data: Octets) -> bytes | None:
        """The identity key by which a message is signed, if it is one of its sender's."""
        identity = (self._config.identities or {}).get(message.client_id, ())
        told = self._graph_digest or self._digest
        return keys.signer(identity, message.signature, told, message.body_of(data))

    def _close(self, stage: ServerStage) -> None:
        if self._stage is not stage:
            raise SecureAggregationError(
                f"round {self._round_id.number} is at stage {self._stage.name}, not at {stage.name}"
            )
