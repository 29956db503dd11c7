"""All that this package uses of Flower beside its public interface, in one file: flwr 1.41 and 1.42.

Flower's public modules are ``flwr.app``, ``flwr.clientapp`` and ``flwr.serverapp``. No
other file of this package imports anything else from Flower, so that a new version of Flower is checked by
reading this file.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from typing import Any, cast

from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.common.config import get_fused_config_from_dir, get_project_config, parse_config_args
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import recorddict_to_proto
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

__all__ = [
    "SUPERLINK_NODE_ID",
    "ErrorCode",
    "LocalDpMod",
    "PrivacyBudgetExhausted",
    "Run",
    "RunNotRunningException",
    "adaptiveclipping_mod",
    "create_run",
    "dump_records",
    "find_mods",
    "fixedclipping_mod",
    "get_all_nested_objects",
    "get_fused_config_from_dir",
    "get_object_tree",
    "get_project_config",
    "import_supernode_loop",
    "import_supernode_program",
    "inflate_object_from_contents",
    "iterate_object_tree",
    "load_app",
    "log",
    "parse_config_args",
    "pull_objects",
    "push_objects",
    "remove_content_from_message",
    "remove_mods",
    "set_message_id",
    "use_server_identity",
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


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as a SuperLink would."""
    message.metadata.__dict__["_message_id"] = message_id


def dump_records(records: RecordDict) -> bytes:
    """The records in Flower's own wire format."""
    return cast(bytes, recorddict_to_proto(records).SerializeToString())


def remove_mods(app: ClientApp, kinds: tuple[type, ...]) -> ClientApp:
    """A client app with the same functions, but without its mods of these kinds."""
    bare = ClientApp()
    bare._lifespan = app._lifespan
    for name, registered in app._registered_funcs.items():
        call, mods = _unwrap_mods(registered)
        bare._registered_funcs[name] = make_ffn(call, [mod for mod in mods if not isinstance(mod, kinds)])
    return bare


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


def import_supernode_loop() -> Any:
    """Flower's module with the loop of a SuperNode."""
    return importlib.import_module("flwr.supernode.start_client_internal")


def import_supernode_program() -> Any:
    """Flower's module with the command ``flower-supernode``."""
    # An import statement would give a function: its package exports one of the same name.
    return importlib.import_module("flwr.supernode.cli.flower_supernode")
