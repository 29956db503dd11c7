"""The messages of secure aggregation, besides the train message: a record with a stage and its data."""

from __future__ import annotations

from typing import Final

from flwr.app import ConfigRecord, Message, RecordDict

from fl_privquant.flower._messages.protocol import RECORD_SECAGG

KEY_STAGE: Final = "secagg-stage"
KEY_DATA: Final = "secagg-data"

IDENTIFY: Final = "identify"
ADVERTISE: Final = "advertise"
SHARE: Final = "share"
CONFIRM: Final = "confirm"
UNMASK: Final = "unmask"
NOISE_KEY: Final = "noise-key"
NOISE_SEED: Final = "noise-seed"

KEY_IDENTITY: Final = "privquant-identity"
KEY_KNOWN_CLIENTS: Final = "privquant-known-clients"
"""Keys of a node's own configuration, which name the files of its identity."""


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
