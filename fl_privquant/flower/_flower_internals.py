"""All that this package uses of Flower beside its public interface, in one file: flwr 1.41 and 1.42.

Flower's public modules are ``flwr.app``, ``flwr.clientapp`` and ``flwr.serverapp``. No other file of this
package imports anything else from Flower, or uses private attributes of its messages and records, so that a
new version of Flower is checked by reading this file.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import Array, Message, Metadata, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.common.config import get_fused_config_from_dir, get_project_config, parse_config_args
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.supercore import log
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.object_ref import load_app
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from fl_privquant.flower._messages.arrays import RECORD_KINDS

__all__ = [
    "SUPERLINK_NODE_ID",
    "ErrorCode",
    "LazyMessage",
    "LocalDpMod",
    "PrivacyBudgetExhausted",
    "Run",
    "RunNotRunningException",
    "adaptiveclipping_mod",
    "copy_metadata",
    "copy_records",
    "copy_state",
    "create_run",
    "find_mods",
    "fixedclipping_mod",
    "get_all_nested_objects",
    "get_fused_config_from_dir",
    "get_object_tree",
    "get_project_config",
    "has_client_function",
    "inflate_object_from_contents",
    "iterate_object_tree",
    "load_app",
    "log",
    "make_delivered_copy",
    "make_reply",
    "parse_config_args",
    "pull_objects",
    "push_objects",
    "read_supernode_arguments",
    "receiver_of",
    "remove_content_from_message",
    "remove_mods",
    "run_supernode",
    "set_message_id",
    "start_app",
    "unchecked_message",
    "unchecked_metadata",
    "unchecked_record",
    "use_server_identity",
    "values_of",
]


def create_run(run_id: int) -> Run:
    """A run that no SuperLink knows of."""
    return Run.create_empty(run_id)


@contextlib.contextmanager
def use_server_identity(run_id: int) -> Iterator[None]:
    """Tell ``Message()`` that this process is the server of a run."""
    names = ("_task_id", "_run_id", "_node_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, SUPERLINK_NODE_ID
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


def receiver_of(message: Message) -> int:
    """The node that a message is sent to; reading it calls no code of Flower."""
    node: int = message.__dict__["_metadata"].__dict__["_dst_node_id"]
    return node


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as a SuperLink would."""
    message.metadata.__dict__["_message_id"] = message_id


def remove_mods(app: ClientApp, kinds: tuple[type, ...]) -> ClientApp:
    """A client app with the same functions, but without its mods of these kinds."""
    bare = ClientApp()
    bare._lifespan = app._lifespan
    for name, registered in app._registered_funcs.items():
        call, mods = _unwrap_mods(registered)
        bare._registered_funcs[name] = make_ffn(call, [mod for mod in mods if not isinstance(mod, kinds)])
    return bare


def has_client_function(app: ClientApp) -> bool:
    """Whether a client app is made of a ``client_fn`` of Flower's legacy API."""
    return app._call is not None


def find_mods(app: ClientApp) -> dict[str, list[Any]]:
    """The mods of each function of a client app, such as "train", from the outside in."""
    return {
        name.removesuffix(".default"): _unwrap_mods(call)[1] for name, call in app._registered_funcs.items()
    }


def _unwrap_mods(call: Any) -> tuple[Any, list[Any]]:
    """A registered function without its mods, and these."""
    mods = []
    # Each mod is wrapped around the next function, and both are in the closure.
    while set(call.__code__.co_freevars) == {"_ffn", "_mod"}:
        closure = inspect.getclosurevars(call).nonlocals
        mods.append(closure["_mod"])
        call = closure["_ffn"]
    return call, mods


def read_supernode_arguments() -> Any:
    """The settings that ``flower-supernode`` reads from the command line."""
    return _import_supernode_program()._parse_supernode_lifespan_config()


def run_supernode(settings: Any, gate: Callable[[Mapping[str, Any], Sequence[Any]], Sequence[Any]]) -> None:
    """Run ``flower-supernode`` with these settings.

    ``gate`` gives the functions that the loop uses in place of those of a connection to the server; it is
    called with what the loop was started with, and with the functions of the connection.
    """
    program, loop = _import_supernode_program(), _import_supernode_loop()
    start, connect = loop.start_client_internal, loop._init_connection

    def start_gated(**given: Any) -> None:
        @contextlib.contextmanager
        def connect_gated(*args: Any, **kwargs: Any) -> Iterator[Sequence[Any]]:
            with connect(*args, **kwargs) as connection:
                yield gate(given, connection)

        loop._init_connection = connect_gated
        start(**given)

    program._parse_supernode_lifespan_config = lambda: settings
    program.start_client_internal = start_gated
    program.flower_supernode()


def start_app(**given: Any) -> Any:
    """Have a SuperNode start the app on the message that ``receive`` returns; None if it cannot."""
    return _import_supernode_loop()._pull_and_store_message(**given)


def _import_supernode_loop() -> Any:
    return importlib.import_module("flwr.supernode.start_client_internal")


def _import_supernode_program() -> Any:
    # An import statement would give a function: its package exports one of the same name.
    return importlib.import_module("flwr.supernode.cli.flower_supernode")


# Records, messages and their copies, made without Flower's checks from values that are known to be valid.
# Flower checks each key and each value that is put into a record, and each argument of a message. In a round
# of a thousand clients with small models these checks take most of the time. What is made here has the same
# content as what Flower's constructors would make; values that somebody else has chosen still go through
# these.

_Record = TypeVar("_Record")

_EMPTY_ATTRIBUTES: dict[type, dict[str, Any]] = {
    kind: dict(vars(kind())) for kind in (*RECORD_KINDS, RecordDict)
}


def unchecked_record(kind: type[_Record], values: dict[str, Any]) -> _Record:
    """A record of that kind with these values, which must be of types that Flower allows there.

    The dict becomes the record's own.

    >>> from flwr.app import ConfigRecord
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


class LazyMessage(Message, ABC):
    """A message whose metadata and content are made when they are read."""

    def __init__(self) -> None:
        # The parts that a Message is made of are not there yet.
        self.__dict__["_error"] = None

    @abstractmethod
    def make_metadata(self) -> Any:
        """The metadata of the message."""

    @abstractmethod
    def make_content(self) -> RecordDict:
        """The content of the message."""

    @property
    def metadata(self) -> Any:
        if "_metadata" not in self.__dict__:
            self.__dict__["_metadata"] = self.make_metadata()
        return self.__dict__["_metadata"]

    @property
    def content(self) -> RecordDict:
        if "_content" not in self.__dict__:
            self.__dict__["_content"] = self.make_content()
        content: RecordDict = self.__dict__["_content"]
        return content

    @content.setter
    def content(self, value: RecordDict) -> None:
        self.__dict__["_content"] = value

    @property
    def has_made_content(self) -> bool:
        """Whether somebody has read the content, and may have changed it."""
        return "_content" in self.__dict__

    def has_content(self) -> bool:
        return True


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


def copy_state(state: RecordDict) -> RecordDict:
    """A client's state as an object of its own, which has the very same records."""
    copied: RecordDict = _copy_with_values(state, values_of(state).copy())
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
