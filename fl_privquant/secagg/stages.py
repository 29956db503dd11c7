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
    SealedShares,
    ShareReceipt,
    UnmaskReply,
)
from fl_privquant.secagg.round_config import RoundConfig

_FromClient = TypeVar(
    "_FromClient", KeyAdvertisement, SealedShares, ShareReceipt, MaskedInput, Confirmation, UnmaskReply
)


class ServerStage(IntEnum):
    """The messages that the server is waiting for."""

    ADVERTISE = 0
    SHARE = 1
    ACCEPT = 2
    MASK = 3
    CONFIRM = 4
    UNMASK = 5
    ENDED = 6


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
        data: bytes | bytearray | memoryview,
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

    def _check_sender(
        self, sender: int, message: ClientMessage, data: bytes | bytearray | memoryview
    ) -> None:
        name = type(message).__name__
        if message.round_id != self._round_id:
            raise InvalidUpdateError(f"{name}: of another session, or of round {message.round_id.number}")
        if message.client_id != sender:
            raise InvalidUpdateError(f"{name}: of client {message.client_id}, sent by client {sender}")
        identities = self._config.identities
        if identities is not None:
            identity = identities.get(sender)
            told, body = self._graph_digest or self._digest, message.body_of(data)
            if identity is None or not keys.verifies(identity, message.signature, told, body):
                raise InvalidUpdateError(f"{name}: not signed by the identity of client {sender}")
        elif message.signature:
            raise InvalidUpdateError(f"{name}: signed, but the round is not")

    def _check_identity(self, message: KeyAdvertisement) -> None:
        """The key that a client goes by must be its own and usable: otherwise its neighbours would refuse."""
        identities = self._config.identities
        owned = b"" if identities is None else identities[message.client_id]
        if message.identity not in (owned if isinstance(owned, tuple) else (owned,)):
            raise InvalidUpdateError("KeyAdvertisement: goes by a key that is not its sender's identity")
        if message.identity and not keys.is_usable_identity(message.identity):
            raise InvalidUpdateError("KeyAdvertisement: goes by a key that is no usable Ed25519 key")

    def _close(self, stage: ServerStage) -> None:
        if self._stage is not stage:
            raise SecureAggregationError(
                f"round {self._round_id.number} is at stage {self._stage.name}, not at {stage.name}"
            )
