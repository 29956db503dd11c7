"""A pilot: a round or two of an app without protection, to learn the usual norm of its updates.

An L2 clip that is far too small cuts every update, and one that is far too large adds noise for nothing;
neither fails, and a secure sum shows the server no norms. So they are measured before: the app's server runs
until it sends its first model, and then its clients train from there, without our mods, for as many rounds as
wanted. Plain means of their updates make the next models.

**Nothing is private here.** Whoever runs a pilot sees what every client trained. It is for public data, for
simulated clients, or for one's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_privquant import _validation
from fl_privquant.codec.array_selection import ArrayChoice
from fl_privquant.errors import MISSING, InvalidSpecError, PrivQuantError, one_line
from fl_privquant.flower._flower_internals import (
    get_fused_config_from_dir,
    get_project_config,
    has_client_function,
    load_app,
    parse_config_args,
    remove_mods,
)
from fl_privquant.flower._messages.arrays import read_arrays, records_of
from fl_privquant.flower._messages.clear_replies import is_training
from fl_privquant.flower._messages.grids import GridWrapper
from fl_privquant.flower._messages.protocol import Request, is_request
from fl_privquant.flower.client.mod import PrivQuantMod
from fl_privquant.flower.client.request import require_array_record
from fl_privquant.flower.simulation import Federation, InlineEngine

_KEY_PREFIX = "privquant-"
_KEY_ROUND = "server-round"
# How often a server may ask in a row which nodes are there, before it is taken to wait for more of them.
_MAX_NODE_QUERIES = 5


@dataclass(frozen=True, eq=False)
class Pilot:
    """What a pilot measured."""

    dimension: int
    """Number of coordinates of an update."""
    norms: tuple[NDArray[np.float64], ...]
    """For each round, the L2 norms of the clients' updates."""

    @property
    def l2_clip(self) -> float:
        """The median of all norms, with two digits: a usual L2 clip."""
        return float(f"{np.median(np.concatenate(self.norms)):.2g}")


def run_pilot(server: ServerApp, client: ClientApp, federation: Federation, rounds: int = 2) -> Pilot:
    """Train the clients of an app without protection, and measure the norms of their updates.

    Raises InvalidSpecError if the server sends no model, or if no client replies with a finite update.
    """
    _validation.check_integer("rounds", rounds, 1)
    first = _capture_first_messages(server, client, federation)
    pilots: list[Pilot] = []

    def train(grid: Grid, context: Context) -> None:
        pilots.append(_train_rounds(grid, first, rounds))

    bare = remove_mods(client, (PrivQuantMod,))
    InlineEngine().run(make_server(train), bare, federation)
    return pilots[0]


def run_app_pilot(
    folder: Path, num_clients: int, rounds: int = 2, run_config: str = "", node_config: str = ""
) -> Pilot:
    """The pilot of the Flower app in a folder; configs are texts such as ``"key=1 other='text'"``.

    Raises InvalidSpecError if the folder holds no app, or if the app fails.
    """
    server, client, config = read_app(folder, run_config)
    federation = Federation(num_clients, run_config=config, node_config=_parse_config(node_config))
    # Flower would log the app's own privacy figures, which are not those of a pilot.
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return run_pilot(server, client, federation, rounds)
    except PrivQuantError:
        raise
    except Exception as error:  # an app may fail in any way
        raise InvalidSpecError("app", MISSING, f"{type(error).__name__}: {one_line(error)}") from error
    finally:
        logger.setLevel(level)


class FirstModelSent(BaseException):
    """Ends the server once it has sent its first model. No app catches it as an error."""

    def __init__(self, messages: list[Message]) -> None:
        super().__init__()
        self.messages = messages


class UntilTrainingGrid(GridWrapper):
    """Delivers all messages up to the first that ask clients to train a model."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._times_asked = 0

    def get_node_ids(self) -> Iterable[int]:
        nodes = list(super().get_node_ids())
        self._times_asked += 1
        if self._times_asked > _MAX_NODE_QUERIES:
            raise InvalidSpecError(
                "clients",
                MISSING,
                f"the server waits for more than the {len(nodes)} that are simulated",
                "raise num_clients, or lower min_available_nodes of its strategy",
            )
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return super().push_messages(self._stop_at_training(messages))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return super().send_and_receive(self._stop_at_training(messages), timeout=timeout)

    def _stop_at_training(self, messages: Iterable[Message]) -> list[Message]:
        self._times_asked = 0
        sent = list(messages)
        training = [message for message in sent if _trains_a_model(message)]
        if training:
            raise FirstModelSent(training)
        return sent


def _trains_a_model(message: Message) -> bool:
    return is_training(message) and bool(records_of(message.content, ArrayRecord))


def make_server(main: Callable[[Grid, Context], None]) -> ServerApp:
    """A server app with this main function."""
    app = ServerApp()
    app.main()(main)
    return app


def _capture_first_messages(server: ServerApp, client: ClientApp, federation: Federation) -> list[Message]:
    """The first messages by which a server asks clients to train a model."""

    def main(grid: Grid, context: Context) -> None:
        server(UntilTrainingGrid(grid), context)

    try:
        InlineEngine().run(make_server(main), client, federation)
    except FirstModelSent as sent:
        return sent.messages
    raise InvalidSpecError(
        "app", MISSING, "its server ended without a message that asks clients to train a model"
    )


def _train_rounds(grid: Grid, first: list[Message], rounds: int) -> Pilot:
    """Have clients train for some rounds, each from the mean of what they trained in the one before."""
    sent = read_arrays(require_array_record(first[0], "the server"))
    model = {name: np.array(array) for name, array in sent.items()}
    layout = _read_array_choice(first[0]).layout(model)
    norms = []
    for number in range(1, rounds + 1):
        replies = list(
            grid.send_and_receive([_make_plain_message(message, model, number) for message in first])
        )
        failed = [one_line(reply.error.reason, 200) for reply in replies if reply.has_error()]
        trained = [
            read_arrays(require_array_record(reply, "the app")) for reply in replies if not reply.has_error()
        ]
        updates = [np.asarray(layout.difference(new, model), np.float64) for new in trained]
        lengths = np.array([float(np.linalg.norm(update)) for update in updates])
        if not np.isfinite(lengths).any():
            reason = failed[0] if failed else "their updates are not finite"
            raise InvalidSpecError(
                "app", MISSING, f"no client of round {number} has a usable update: {reason}"
            )
        usable = np.isfinite(lengths)
        norms.append(lengths[usable])
        kept = [new for new, finite in zip(trained, usable, strict=True) if finite]
        for name in layout.names:
            mean = np.mean([new[name] for new in kept], axis=0, dtype=np.float64)
            model[name] = np.asarray(mean).astype(model[name].dtype)
    return Pilot(layout.dimension, tuple(norms))


def _read_array_choice(message: Message) -> ArrayChoice:
    """Which arrays the app sends, and on what scale: all of them, unless its strategy says so."""
    requests = [config for _, config in records_of(message.content, ConfigRecord) if is_request(config)]
    return Request.read(requests[0]).arrays if requests else ArrayChoice()


def _make_plain_message(message: Message, model: dict[str, NDArray[Any]], number: int) -> Message:
    """A message as the app's own strategy would send it, with another model."""
    content = RecordDict()
    for name, record in message.content.items():
        if isinstance(record, ArrayRecord):
            content[name] = ArrayRecord({key: Array(np.asarray(model[key])) for key in record})
        elif isinstance(record, ConfigRecord):
            entries = {key: value for key, value in record.items() if not key.startswith(_KEY_PREFIX)}
            entries |= {_KEY_ROUND: number} if _KEY_ROUND in entries else {}
            if entries or not record:
                content[name] = ConfigRecord(entries)
        else:
            content[name] = record
    return Message(content, message.metadata.dst_node_id, message.metadata.message_type)


def _parse_config(text: str) -> dict[str, Any]:
    return dict(parse_config_args([text] if text else None))


def read_app(folder: Path, run_config: str) -> tuple[ServerApp, ClientApp, dict[str, Any]]:
    """The server, the client and the config of the app in a folder."""
    if not (folder / "pyproject.toml").is_file():
        raise InvalidSpecError(
            "app", folder, "has no pyproject.toml", "give the folder that 'flwr run' takes"
        )
    try:
        components = get_project_config(folder)["tool"]["flwr"]["app"]["components"]
        config = get_fused_config_from_dir(folder, _parse_config(run_config))
        server, client = (
            load_app(components[part], LookupError, folder) for part in ("serverapp", "clientapp")
        )
    except (Exception, SystemExit) as error:  # a module of the user's may fail in any way
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise InvalidSpecError("app", folder, f"cannot be read ({reason})") from error
    if not isinstance(server, ServerApp) or not isinstance(client, ClientApp):
        raise InvalidSpecError("app", folder, "names no ServerApp and ClientApp as its components")
    if has_client_function(client):
        raise InvalidSpecError(
            "app",
            MISSING,
            "its ClientApp has a client_fn of Flower's legacy API, whose messages hold no arrays of a model",
            "port it to @app.train()",
        )
    return server, client, dict(config)
