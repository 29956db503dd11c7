"""Flower's internals that the engines cannot do without, in one place: flwr 1.41 and 1.42."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import recorddict_to_proto
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fl_privquant.flower.records import (
    bare_message,
    copied_metadata,
    made,
    made_array,
    made_metadata,
    values_of,
)

_UNCHANGEABLE = frozenset((bytes, str, int, float, bool))


def create_run(run_id: int) -> Run:
    """A run that no SuperLink knows of."""
    return Run.create_empty(run_id)


@contextlib.contextmanager
def server_identity(run_id: int) -> Iterator[None]:
    """What ``Message()`` needs to know of the process it is made in."""
    names = ("_task_id", "_run_id", "_node_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, SUPERLINK_NODE_ID
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as a SuperLink would."""
    message.metadata.__dict__["_message_id"] = message_id


def delivered(message: Message, message_id: str) -> Message:
    """The message as it arrives at its node: the same content in other objects, with an id."""
    metadata = copied_metadata(message)
    metadata.__dict__["_message_id"] = message_id
    return bare_message(metadata, copied_records(message.content))


def copied_records(content: RecordDict) -> RecordDict:
    """The records as new objects, as a wire would give.

    Bytes and numbers cannot be changed and are shared, so that a copy is cheap; what was checked when
    the records were made is not checked again.
    """
    copied: RecordDict = _twin(content, {key: _copied_record(record) for key, record in content.items()})
    return copied


def _copied_record(record: Any) -> Any:
    values = values_of(record).copy()
    for name, value in values.items():
        if type(value) in _UNCHANGEABLE:
            continue
        if isinstance(value, Array):
            values[name] = object.__new__(type(value))
            values[name].__dict__.update(value.__dict__)
        elif isinstance(value, list):
            values[name] = list(value)
    return _twin(record, values)


def flattened(message: Message) -> Any:
    """A copy of a message as tuples and dicts, which another process reads much faster than objects."""
    if not message.has_content():
        return message
    records = {name: _flat(record) for name, record in message.content.items()}
    return dict(vars(message.metadata)), records


def unflattened(flat: Any) -> Message:
    """The message that :func:`flattened` was given."""
    if isinstance(flat, Message):
        return flat
    metadata, records = flat
    content = {name: _whole(record) for name, record in records.items()}
    return bare_message(made_metadata(metadata), made(RecordDict, content))


def _flat(record: Any) -> Any:
    kind, values = type(record), values_of(record)
    if kind is ArrayRecord and all(type(array) is Array for array in values.values()):
        parts = ((array.dtype, array.shape, array.stype, array.data) for array in values.values())
        return kind, dict(zip(values, parts, strict=True))
    if kind in (ConfigRecord, MetricRecord):
        return kind, {
            name: list(value) if isinstance(value, list) else value for name, value in values.items()
        }
    return _copied_record(record)


def _whole(flat: Any) -> Any:
    if not isinstance(flat, tuple):
        return flat
    kind, values = flat
    if kind is ArrayRecord:
        values = {name: made_array(*parts) for name, parts in values.items()}
    return made(kind, values)


def _twin(record: Any, values: dict[str, Any]) -> Any:
    """A record of the same kind with other values, which are not checked."""
    twin = object.__new__(type(record))
    twin.__dict__.update(record.__dict__, _data=values)
    return twin


def dump_records(records: RecordDict) -> bytes:
    """The records in Flower's own wire format."""
    return cast(bytes, recorddict_to_proto(records).SerializeToString())


def without_mods(app: ClientApp, kinds: tuple[type, ...]) -> ClientApp:
    """A client app with the same functions, but without its mods of these kinds."""
    bare = ClientApp()
    bare._lifespan = app._lifespan
    for name, call in app._registered_funcs.items():
        mods = []
        # Each mod is wrapped around the next function, and both are in the closure.
        while set(call.__code__.co_freevars) == {"_ffn", "_mod"}:
            closure = inspect.getclosurevars(call).nonlocals
            mods.append(closure["_mod"])
            call = closure["_ffn"]
        bare._registered_funcs[name] = make_ffn(call, [mod for mod in mods if not isinstance(mod, kinds)])
    return bare
