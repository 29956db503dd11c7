"""The command ``clip``: a pilot of a Flower app, which measures the norms of its updates."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_dir, get_project_config, parse_config_args
from flwr.serverapp import ServerApp
from flwr.supercore.object_ref import load_app

from fl_privquant.cli.layout import Column, output_console, print_table
from fl_privquant.cli.printing import say
from fl_privquant.errors import InvalidSpecError, PrivQuantError, counted, one_line
from fl_privquant.flower.engines import Federation
from fl_privquant.flower.pilot import run_pilot

_QUANTILES = {"10 %": 0.1, "median": 0.5, "90 %": 0.9, "largest": 1.0}


def measure_and_print(folder: Path, clients: int, rounds: int, run_config: str, node_config: str) -> None:
    """Train an app's clients without protection, and print the norms of their updates and a usual clip."""
    console = output_console()
    trained = f"{counted(clients, 'simulated client')} of the app for {counted(rounds, 'round')}"
    say(
        console,
        f"This trains {trained} WITHOUT PROTECTION: nothing is encoded, and no ε counts it. Use it with "
        "public data, or with your own.",
    )
    server, client, config = _read_app(folder, run_config)
    federation = Federation(clients, run_config=config, node_config=_parsed(node_config))
    try:
        with _quiet():
            pilot = run_pilot(server, client, federation, rounds)
    except PrivQuantError:
        raise
    except Exception as error:  # an app may fail in any way
        raise InvalidSpecError(f"app: {type(error).__name__}: {one_line(error)}") from error
    columns = (Column("round"), *(Column(heading) for heading in _QUANTILES))
    rows = [
        [str(number), *(f"{np.quantile(norms, share):.3g}" for share in _QUANTILES.values())]
        for number, norms in enumerate(pilot.norms, 1)
    ]
    title = f"L2 norms of updates ({counted(pilot.dimension, 'coordinate')}), quantiles over clients"
    print_table(console, columns, rows, title)
    say(
        console,
        f"The median of all is {pilot.l2_clip:g}. Plan with it: target.plan(dimension={pilot.dimension}, "
        f"l2_clip={pilot.l2_clip:g}). A smaller clip cuts more updates, and a larger one adds noise in "
        "proportion.",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Flower from logging the app's own figures, which are not those of a pilot."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _parsed(text: str) -> dict[str, Any]:
    return dict(parse_config_args([text] if text else None))


def _read_app(folder: Path, run_config: str) -> tuple[ServerApp, ClientApp, dict[str, Any]]:
    """The server, the client and the config of the app in a folder."""
    if not (folder / "pyproject.toml").is_file():
        raise InvalidSpecError(f"app: {folder} has no pyproject.toml; give the folder that 'flwr run' takes")
    try:
        components = get_project_config(folder)["tool"]["flwr"]["app"]["components"]
        config = get_fused_config_from_dir(folder, _parsed(run_config))
        server, client = (
            load_app(components[part], InvalidSpecError, folder) for part in ("serverapp", "clientapp")
        )
    except Exception as error:  # a module of the user's may fail in any way
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise InvalidSpecError(f"app: {folder} cannot be read ({reason})") from error
    if not isinstance(server, ServerApp) or not isinstance(client, ClientApp):
        raise InvalidSpecError(f"app: {folder} names no ServerApp and ClientApp as its components")
    if client._call is not None:
        raise InvalidSpecError(
            "app: its ClientApp has a client_fn of Flower's legacy API, whose messages hold no arrays of a "
            "model; port it to @app.train()"
        )
    return server, client, dict(config)
