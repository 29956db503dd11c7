"""The interface of engines, and their common code."""

from __future__ import annotations

import contextlib
import gc
import importlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fl_privquant import _validation
from fl_privquant.errors import MISSING, InvalidSpecError

Config = Mapping[str, bool | int | float | str]

_App = TypeVar("_App")


@_validation.check_argument_names
@dataclass(frozen=True)
class Federation:
    """The clients of a run, and the configuration that the app is given.

    Parameters
    ----------
    num_clients
        Number of clients; client i has ``partition-id`` i and ``num-partitions`` in its node config.
    run_config
        The run's config, which both sides read as ``context.run_config``.
    node_config
        Further entries of every client's ``context.node_config``, such as limits of its PrivQuantMod. In
        texts ``{partition-id}`` is replaced by the client's own, as in ``"keys/{partition-id}.pem"``.
    seed
        Seeds the sampling of nodes by Flower's strategies (Python's ``random``), so that every engine asks
        the same clients; None leaves it alone. The randomness that protects updates does not depend on it.
    """

    num_clients: int
    run_config: Config = field(default_factory=dict)
    node_config: Config = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        _validation.check_integer("num_clients", self.num_clients, 1)
        for name in ("run_config", "node_config"):
            for key, value in getattr(self, name).items():
                if not isinstance(value, bool | int | float | str):
                    raise InvalidSpecError(f"{name} {key}", value, ", expected a bool, number or text")

    def context(
        self, run_id: int, node_id: int, partition: int | None = None, state: RecordDict | None = None
    ) -> Context:
        """The context of the client that holds a partition; without a partition, that of the server."""
        config: dict[str, bool | int | float | str] = {}
        if partition is not None:
            config = {
                key: value.replace("{partition-id}", str(partition)) if isinstance(value, str) else value
                for key, value in self.node_config.items()
            }
            config |= {"partition-id": partition, "num-partitions": self.num_clients}
        own_state = RecordDict() if state is None else state
        return Context(run_id, node_id, config, own_state, run_config=dict(self.run_config))


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    engine: str
    """The engine's name."""
    state: RecordDict
    """The server app's ``context.state``: what its main function puts there comes back, from every engine."""
    wall_seconds: float
    """Time of the whole run, with the engine's start."""

    @property
    def arrays(self) -> ArrayRecord:
        """The only ArrayRecord of the state: by convention the final model."""
        records = list(self.state.array_records.values())
        if len(records) != 1:
            raise InvalidSpecError(
                "context.state",
                MISSING,
                f"it holds {len(records)} ArrayRecords",
                'put the final model there: context.state["arrays"] = result.arrays',
            )
        return records[0]


class Engine(Protocol):
    """Runs an app. Apps are given as objects, or as ``"package.module:attribute"``."""

    def run(
        self, server_app: ServerApp | str, client_app: ClientApp | str, federation: Federation
    ) -> RunResult:
        """Run the server app with the clients of the federation, to its end."""
        ...


def load_app(app: Any, kind: type[_App]) -> _App:
    """The app itself, imported if it is given by name."""
    if isinstance(app, str):
        module, _, attribute = app.partition(":")
        if not attribute:
            raise InvalidSpecError("app", app, ", expected 'package.module:attribute'")
        app = getattr(importlib.import_module(module), attribute)
    if not isinstance(app, kind):
        raise InvalidSpecError("app", app, f", expected a {kind.__name__}")
    return app


_frozen_by: str | None = None


@contextlib.contextmanager
def freeze_objects() -> Iterator[None]:
    """Exclude all objects that exist now from garbage collection, while a run lasts.

    Libraries such as torch have hundreds of thousands of them, and a run of many messages would have the
    collector look at all of them again and again.
    """
    global _frozen_by
    if _frozen_by is None and gc.get_freeze_count():
        # Somebody else has frozen objects, and may rely on that. Python counts frozen objects one by one,
        # which is slow, so it is asked only once.
        _frozen_by = "others"
    if _frozen_by is not None:
        yield
        return
    gc.freeze()
    _frozen_by = "a run"
    try:
        yield
    finally:
        gc.unfreeze()
        _frozen_by = None


@contextlib.contextmanager
def seed_sampling(seed: int | None) -> Iterator[None]:
    """Seed Python's ``random``, which Flower's strategies sample nodes with, and put it back after."""
    if seed is None:
        yield
        return
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
