"""What a train message asks of a client, read once for all mods of the client.

SecureAggregationMod runs before PrivQuantMod. It hands over what it has read of the message, and a function
that masks the codes of the encoded update. So nothing is parsed twice, and codes that are to be masked are
never serialized without their mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray

from fl_privquant.accounting.release import Release
from fl_privquant.codec.update import EncodedUpdate, UpdateCodec
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.flower.arrays import read_arrays, records_of
from fl_privquant.flower.protocol import RECORD_SECAGG, Request, is_request
from fl_privquant.flower.records import values_of

_RECORD_HANDED: Final = "privquant-handed-over"

Seal = Callable[[EncodedUpdate], bytes]
"""Makes the payload of an encoded update: by packing its codes, or by masking them."""


@dataclass(frozen=True, eq=False)
class Asked:
    """The request in a train message, checked, and the model that came with it.

    ``received`` is the model as Flower's arrays, ``arrays`` the same as numpy's; ``seal`` makes the payload.
    """

    request: Request
    received: Mapping[str, Array]
    arrays: Mapping[str, NDArray[Any]]
    seal: Seal = EncodedUpdate.packed

    @classmethod
    def read(cls, message: Message) -> Asked:
        """What a message asks for; raises InvalidSpecError or InvalidUpdateError where it is malformed."""
        configs = [config for _, config in records_of(message.content, ConfigRecord) if is_request(config)]
        if len(configs) > 1:
            raise InvalidSpecError(f"{len(configs)} configs with a request, expected one")
        if not configs and RECORD_SECAGG in message.content:
            raise InvalidSpecError(
                "the server asks for secure aggregation, in which this client takes no part: put "
                "SecureAggregationMod() before PrivQuantMod in the client's ClientApp(mods=[...])"
            )
        request = Request.read(configs[0] if configs else ConfigRecord())
        # A copy of the mapping: apps may empty the record while they unpack it.
        received = dict(values_of(only_arrays(message, "the server")))
        return cls(request, received, read_arrays(received))

    @cached_property
    def codec_and_release(self) -> tuple[UpdateCodec, Release]:
        """The codec of the update, and what it releases."""
        return self.request.of_model(self.arrays)

    @property
    def codec(self) -> UpdateCodec:
        """The codec of the update."""
        return self.codec_and_release[0]


class _HandedOver(ConfigRecord):
    """Carries what was read to the next mod. A server cannot forge it: it can send plain records only."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self.__dict__["asked"] = asked


def hand_over(message: Message, asked: Asked) -> None:
    """Leave what was read of a message for the next mod."""
    message.content[_RECORD_HANDED] = _HandedOver(asked)


def taken(message: Message) -> Asked:
    """What an earlier mod has read of the message, taken out of it; otherwise it is read now."""
    handed = values_of(message.content).get(_RECORD_HANDED)
    if type(handed) is not _HandedOver:
        return Asked.read(message)
    del message.content[_RECORD_HANDED]
    asked: Asked = handed.__dict__["asked"]
    return asked


def only_arrays(message: Message, sender: str) -> ArrayRecord:
    """The one record of arrays in a message."""
    records = [record for _, record in records_of(message.content, ArrayRecord)]
    if len(records) != 1:
        raise InvalidUpdateError(f"{len(records)} ArrayRecords from {sender}, expected one")
    return records[0]
