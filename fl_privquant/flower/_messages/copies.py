"""Messages copied as a wire would copy them."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, Message, RecordDict

from fl_privquant.flower._flower_internals import set_message_id
from fl_privquant.flower._messages.records import copy_metadata, unchecked_message, values_of

_IMMUTABLE_TYPES = frozenset((bytes, str, int, float, bool))


def make_delivered_copy(message: Message, message_id: str) -> Message:
    """The message as it arrives at its node: the same content in other objects, with an id."""
    copy = unchecked_message(copy_metadata(message), copy_records(message.content))
    set_message_id(copy, message_id)
    return copy


def copy_records(content: RecordDict) -> RecordDict:
    """The records as new objects, as a wire would give.

    Bytes and numbers cannot be changed and are shared, so that a copy is cheap; what was checked when
    the records were made is not checked again.
    """
    copied: RecordDict = _copy_with_values(
        content, {key: _copy_record(record) for key, record in content.items()}
    )
    return copied


def _copy_record(record: Any) -> Any:
    values = values_of(record).copy()
    for name, value in values.items():
        if type(value) in _IMMUTABLE_TYPES:
            continue
        if isinstance(value, Array):
            values[name] = object.__new__(type(value))
            values[name].__dict__.update(value.__dict__)
        elif isinstance(value, list):
            values[name] = list(value)
    return _copy_with_values(record, values)


def _copy_with_values(record: Any, values: dict[str, Any]) -> Any:
    """A record of the same kind with other values, which are not checked."""
    twin = object.__new__(type(record))
    twin.__dict__.update(record.__dict__, _data=values)
    return twin
