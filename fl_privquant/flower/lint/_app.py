"""An app as far as it can be read without training: what its server starts, and its client's mods."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from fl_privquant.errors import MISSING, InvalidSpecError, one_line
from fl_privquant.flower._flower_internals import find_mods
from fl_privquant.flower.client.mod import PrivQuantMod
from fl_privquant.flower.server.strategy_wrapper import strategy_stack
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.flower.simulation.pilot import FirstModelSent, UntilTrainingGrid, make_server, read_app
from fl_privquant.statement import Relation

_KNOWN_PACKAGES = ("flwr", "fl_privquant")
"""Classes of these are read; others are the app's own."""
# Nodes that a server finds which waits for some; none of them is asked to train.
_NODES = 100


def is_known(defined: Any) -> bool:
    """Whether a class or a function is Flower's or this package's, and not the app's own."""
    return str(defined.__module__).partition(".")[0] in _KNOWN_PACKAGES


@dataclass(frozen=True, eq=False)
class AppParts:
    """What was read of an app."""

    sources: dict[str, ast.Module]
    """The Python files of its folder, by relative path."""
    strategy: Strategy | None = None
    """The strategy that the server starts first; None if it starts none."""
    rounds: int = 1
    """How many rounds the strategy is started for."""
    model: ArrayRecord = field(default_factory=ArrayRecord)
    """The model that the strategy is started with."""
    client: ClientApp | None = None
    relation: Relation = Relation.REPLACE_ONE
    """The neighboring relation that is stated first, and in which plans are suggested."""

    @property
    def relations(self) -> tuple[Relation, Relation]:
        """The relation that is stated first, and the one beside it."""
        return self.relation, self.relation.beside

    @cached_property
    def functions(self) -> dict[str, list[Any]]:
        """The functions that the client registers, such as "train" and "evaluate", and their mods."""
        return {} if self.client is None else find_mods(self.client)

    @property
    def mods(self) -> list[Any]:
        """The mods around the client's training."""
        return self.functions.get("train", [])

    def encodes(self, function: str) -> bool:
        """Whether a function of the client sends only what passes a mod of this package."""
        return any(isinstance(mod, PrivQuantMod) for mod in self.functions.get(function, []))

    @cached_property
    def strategies(self) -> list[Strategy]:
        """The strategy, and those that it wraps, from the outside in."""
        return list(strategy_stack(self.strategy))

    @property
    def min_clients(self) -> int:
        """The fewest clients that the strategies ask to train in a round; 0 if they do not say."""
        return max((getattr(part, "min_train_nodes", 0) for part in self.strategies), default=0)


def read_parts(folder: Path, run_config: str, sources: dict[str, ast.Module], relation: Relation) -> AppParts:
    """The app in a folder, whose server runs until it starts its strategy."""
    server, client, config = read_app(folder, run_config)
    strategy, rounds, model = _capture_strategy(server, client, Federation(_NODES, run_config=config))
    return AppParts(sources, strategy, rounds, model, client, relation)


class _StrategyStarted(BaseException):
    """Ends the server when it starts its strategy. No app catches it as an error."""


_Started = tuple[Strategy | None, int, ArrayRecord]


def _capture_strategy(server: ServerApp, client: ClientApp, federation: Federation) -> _Started:
    """The strategy that a server starts first, its rounds and model; no strategy if it has its own loop."""
    signature = inspect.signature(Strategy.start)
    started: list[_Started] = []

    def stop(self: Strategy, grid: Grid, *arguments: Any, **named: Any) -> NoReturn:
        given = signature.bind(self, grid, *arguments, **named)
        given.apply_defaults()
        started.append((self, int(given.arguments["num_rounds"]), given.arguments["initial_arrays"]))
        raise _StrategyStarted

    def main(grid: Grid, context: Context) -> None:
        server(UntilTrainingGrid(grid), context)

    try:
        with ExitStack() as patched:
            for kind in _subclasses(Strategy):
                # The app's own strategies may start those that they wrap, or those that they extend.
                if "start" in vars(kind) and is_known(kind):
                    patched.enter_context(mock.patch.object(kind, "start", stop))
            InlineEngine().run(make_server(main), client, federation)
    except (_StrategyStarted, FirstModelSent):
        pass
    except (Exception, SystemExit) as error:  # an app may fail in any way
        if not started:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise InvalidSpecError("app", MISSING, f"fails before it starts a strategy ({reason})") from error
    return started[0] if started else (None, 1, ArrayRecord())


def _subclasses(kind: type) -> Iterator[type]:
    yield kind
    below: type
    for below in kind.__subclasses__():
        yield from _subclasses(below)
