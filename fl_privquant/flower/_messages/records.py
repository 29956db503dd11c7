"""Flower's records and replies, made without Flower's checks from values that are known to be valid.

Flower checks each key and each value that is put into a record, and each argument of a message. In a round
of a thousand clients with small models these checks take most of the time. What is made here has the same
content as what Flower's constructors would make; values that somebody else has chosen still go through
these constructors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict

from fl_privquant.flower._messages.arrays import RECORD_KINDS, records_of

_Record = TypeVar("_Record")

_EMPTY_ATTRIBUTES: dict[type, dict[str, Any]] = {
    kind: dict(vars(kind())) for kind in (*RECORD_KINDS, RecordDict)
}


def unchecked_record(kind: type[_Record], values: dict[str, Any]) -> _Record:
    """A record of that kind with these values, which must be of types that Flower allows there.

    The dict becomes the record's own.

    >>> unchecked_record(ConfigRecord, {"rate": 0.5}) == ConfigRecord({"rate": 0.5})
    True
    """
    record = object.__new__(kind)
    record.__dict__.update(_EMPTY_ATTRIBUTES[kind])
    record.__dict__["_data"] = values
    return record


def values_of(record: Any) -> dict[str, Any]:
    """The dict inside a record: reading it calls no code of Flower, and writing to it skips all checks."""
    values: dict[str, Any] = record.__dict__["_data"]
    return values


def put_arrays(record: ArrayRecord, arrays: Mapping[str, Any]) -> None:
    """Put Arrays into a record."""
    record.is_dirty = True
    values_of(record).update(arrays)


def unchecked_array(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> Array:
    """An Array with these four fields."""
    array = object.__new__(Array)
    array.__dict__.update(dtype=dtype, shape=shape, stype=stype, data=data)
    return array


def copy_metadata(message: Message) -> Any:
    """The metadata of a message, as an object of its own."""
    return unchecked_metadata(vars(message.metadata))


def unchecked_metadata(attributes: Mapping[str, Any]) -> Any:
    """Metadata of a message with these attributes."""
    metadata = object.__new__(Metadata)
    metadata.__dict__.update(attributes)
    return metadata


def unchecked_message(metadata: Any, content: RecordDict) -> Message:
    """A message with this metadata and content."""
    message = object.__new__(Message)
    message.__dict__.update(_metadata=metadata, _content=content, _error=None)
    return message


def make_reply(message: Message, content: RecordDict) -> Message:
    """The reply to a message, as ``Message(content, reply_to=message)`` makes it."""
    request = vars(message.metadata)
    now = time.time()
    metadata = unchecked_metadata(request)
    metadata.__dict__.update(
        _message_id="",
        _src_node_id=request["_dst_node_id"],
        _dst_node_id=request["_src_node_id"],
        _src_task_id=request["_dst_task_id"],
        _dst_task_id=request["_src_task_id"],
        _reply_to_message_id=request["_message_id"],
        _created_at=now,
        _ttl=request["_created_at"] + request["_ttl"] - now,
        _delivered_at="",
    )
    return unchecked_message(metadata, content)


class UncheckedRecords(RecordDict):
    """A RecordDict whose views by kind are made without checks: its records were checked before.

    Strategies ask for these views of each reply several times.
    """

    @property
    def array_records(self) -> Any:
        return self._view(ArrayRecord)

    @property
    def metric_records(self) -> Any:
        return self._view(MetricRecord)

    @property
    def config_records(self) -> Any:
        return self._view(ConfigRecord)

    def _view(self, kind: type) -> Any:
        """The records of one kind; as in Flower's views, what is put into the view is put here too."""
        view = object.__new__(_VIEW_TYPE)
        view.__dict__.update(
            _EMPTY_VIEW_ATTRIBUTES[kind], _data=dict(records_of(self, kind)), recorddict=self
        )
        return view


def _make_empty_view_attributes(kind: type) -> dict[str, Any]:
    """The attributes of an empty view of records of one kind."""

    def check(value: object) -> None:
        # In Flower's views this is a method of the view: a cycle of references, which would leave thousands
        # of views to the garbage collector.
        if not isinstance(value, kind):
            raise TypeError(
                f"Expected `{kind.__name__}`, but received `{type(value).__name__}` for the value."
            )

    return {**vars(RecordDict().array_records), "_check_value_fn": check, "allowed_type": kind}


_EMPTY_ATTRIBUTES[UncheckedRecords] = dict(vars(UncheckedRecords()))
_EMPTY_VIEW_ATTRIBUTES = {kind: _make_empty_view_attributes(kind) for kind in RECORD_KINDS}
_VIEW_TYPE: Any = type(RecordDict().array_records)
