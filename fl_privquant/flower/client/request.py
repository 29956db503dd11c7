"""What a train message asks of a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray

from fl_privquant.accounting.release import Release
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import MISSING, InvalidSpecError, InvalidUpdateError
from fl_privquant.flower._flower_internals import values_of
from fl_privquant.flower._messages.arrays import read_arrays, records_of
from fl_privquant.flower._messages.protocol import RECORD_SECAGG, RelayedSeed, Request, is_request


@dataclass(frozen=True, eq=False)
class ClientRequest:
    """The request in a train message, checked, and the model that came with it."""

    request: Request
    received: Mapping[str, Array]
    """The model, as Flower's arrays."""
    arrays: Mapping[str, NDArray[Any]]
    """The same as numpy's."""
    relayed: RelayedSeed
    codec: UpdateCodec
    """The codec of the update."""
    release: Release
    """What the update releases."""

    @classmethod
    def read(cls, message: Message) -> ClientRequest:
        """What a message asks for; raises InvalidSpecError or InvalidUpdateError where it is malformed."""
        config = _find_config(message)
        if config is None and RECORD_SECAGG in message.content:
            raise InvalidSpecError(
                "config",
                MISSING,
                "the server asks for secure aggregation, in which this client takes no part",
                "give its PrivQuantMod secure_aggregation=True",
            )
        config = config or ConfigRecord()
        request = Request.read(config)
        # A copy of the mapping: apps may empty the record while they unpack it.
        received = dict(values_of(require_array_record(message, "the server")))
        arrays, relayed = read_arrays(received), RelayedSeed.read(config)
        return cls(request, received, arrays, relayed, *request.make_codec_and_release(arrays))

    def with_seed_of(self, message: Message) -> ClientRequest:
        """The same request with the handed noise of a message that differs in nothing else."""
        return replace(self, relayed=RelayedSeed.read(_find_config(message) or ConfigRecord()))


def _find_config(message: Message) -> ConfigRecord | None:
    configs = [config for _, config in records_of(message.content, ConfigRecord) if is_request(config)]
    if len(configs) > 1:
        raise InvalidSpecError("config", MISSING, f"{len(configs)} configs with a request, expected one")
    return configs[0] if configs else None


def require_array_record(message: Message, sender: str) -> ArrayRecord:
    """The one record of arrays in a message."""
    records = [record for _, record in records_of(message.content, ArrayRecord)]
    if len(records) != 1:
        raise InvalidUpdateError(f"{len(records)} ArrayRecords from {sender}, expected one")
    return records[0]
