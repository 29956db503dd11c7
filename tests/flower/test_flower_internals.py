"""What is used of Flower's internals is named here, and imported by one file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fl_privquant

PACKAGE = Path(fl_privquant.__file__).parent
INTERNALS = PACKAGE / "flower" / "_flower_internals.py"
PUBLIC_MODULES = {
    "flwr.app",
    "flwr.clientapp",
    "flwr.clientapp.typing",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
}


def internals_used(source: str) -> Iterator[str]:
    """The modules and names of Flower, other than public ones, that a module imports or names in a text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "flwr":
            if node.module not in PUBLIC_MODULES:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (name for name in names if name.split(".")[0] == "flwr" and name not in PUBLIC_MODULES)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_module = node.value.startswith("flwr.") and node.value.replace(".", "_").isidentifier()
            if is_module and node.value not in PUBLIC_MODULES:
                yield node.value


PRIVATE_ATTRIBUTES = {
    *("_call", "_content", "_data", "_error", "_metadata", "_lifespan", "_registered_funcs"),
    *("_created_at", "_delivered_at", "_dst_node_id", "_dst_task_id", "_message_id", "_reply_to_message_id"),
    *("_init_connection", "_parse_supernode_lifespan_config", "_pull_and_store_message"),
    *("_src_node_id", "_src_task_id", "_ttl", "_task_id", "_run_id", "_node_id"),
}


def private_attributes_used(source: str) -> set[str]:
    """The private attributes of Flower's objects that a module names, also as texts and keywords."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                named.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg:
            named.add(node.arg)
    return named & PRIVATE_ATTRIBUTES


def test_private_attributes_of_flower_are_those_named_here() -> None:
    assert private_attributes_used(INTERNALS.read_text()) == PRIVATE_ATTRIBUTES
    files = [path for path in (PACKAGE / "flower").rglob("*.py") if path != INTERNALS]
    used = {path.name: private for path in files if (private := private_attributes_used(path.read_text()))}
    assert used == {}


def test_internals_of_flower_are_those_named_here() -> None:
    assert sorted(internals_used(INTERNALS.read_text())) == [
        "flwr.app.message.remove_content_from_message",
        "flwr.client.mod.utils.make_ffn",
        "flwr.clientapp.mod.LocalDpMod",
        "flwr.clientapp.mod.adaptiveclipping_mod",
        "flwr.clientapp.mod.fixedclipping_mod",
        "flwr.common.config.get_fused_config_from_dir",
        "flwr.common.config.get_project_config",
        "flwr.common.config.parse_config_args",
        "flwr.common.constant.ErrorCode",
        "flwr.common.constant.SUPERLINK_NODE_ID",
        "flwr.serverapp.exception.PrivacyBudgetExhausted",
        "flwr.supercore.inflatable.inflatable_object.get_all_nested_objects",
        "flwr.supercore.inflatable.inflatable_object.get_object_tree",
        "flwr.supercore.inflatable.inflatable_object.iterate_object_tree",
        "flwr.supercore.inflatable.inflatable_utils.inflate_object_from_contents",
        "flwr.supercore.inflatable.inflatable_utils.pull_objects",
        "flwr.supercore.inflatable.inflatable_utils.push_objects",
        "flwr.supercore.log",
        "flwr.supercore.object_ref.load_app",
        "flwr.supercore.run.Run",
        "flwr.supercore.run.RunNotRunningException",
        "flwr.supercore.task_identity.TaskIdentity",
        "flwr.supernode.cli.flower_supernode",
        "flwr.supernode.start_client_internal",
    ]


def test_other_files_use_only_the_public_interface_of_flower() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path != INTERNALS]
    assert len(files) > 100
    used = {str(path): found for path in files if (found := list(internals_used(path.read_text())))}
    assert used == {}


@pytest.mark.parametrize(
    "source",
    [
        "from flwr.supercore.run import Run",
        "import flwr.supercore.run",
        "importlib.import_module('flwr.supernode.start_client_internal')",
        "def late():\n    from flwr.common import log",
    ],
)
def test_a_use_of_internals_is_found(source: str) -> None:
    assert list(internals_used(source))
