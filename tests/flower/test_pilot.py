"""A pilot measures the norms of an app's updates, however the app protects them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from typer.testing import CliRunner

import fl_privquant as pq
from fl_privquant.cli.main import app as command
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import PrivateGrid, PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower.simulation import Federation
from fl_privquant.flower.simulation.pilot import run_pilot
from tests.flower.apps import as_record, client_app, fedavg, initial_arrays, server_app, strategy_for, trained

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CLIENTS, COORDINATES = 6, 25
FEDERATION = Federation(CLIENTS)
TEMPLATE = Path(__file__).parents[2] / "simulations/examples/template"
# A limit that allows no mechanism: a pilot must not need one.
MODS = [PrivQuantMod(max_epsilon=1e-9, secure_aggregation=True)]


def make_strategy() -> PrivQuantStrategy:
    # The clip is a million times too small, and there is much noise.
    target = pq.Target(epsilon=8.0, rounds=3, num_clients=CLIENTS)
    return PrivQuantStrategy(fedavg(), target.plan(COORDINATES, l2_clip=1e-6))


def encoded() -> PrivQuantStrategy:
    return strategy_for(pq.design("one_bit", epsilon=1.0), clip=0.1)


def in_private_grid() -> ServerApp:
    def wrapped(grid: Any) -> PrivateGrid:
        return PrivateGrid(grid, pq.Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1))

    return server_app(fedavg, wrap_grid=wrapped)


APPS = {
    "plain": (lambda: server_app(fedavg), []),
    "encoded": (lambda: server_app(encoded), [PrivQuantMod(1e-9)]),
    "in a secure sum": (lambda: server_app(make_strategy), MODS),
    "in a private grid": (in_private_grid, [PrivQuantMod(1e-9)]),
}


def norms_of_round(number: int) -> list[float]:
    """The norms of round 1, by the definition of the clients; later rounds are from the mean model."""
    model = initial_arrays()
    for past in range(1, number):
        steps = [trained(model, client, past) for client in range(CLIENTS)]
        means = {name: np.mean([step[name] for step in steps], axis=0) for name in ("weight", "scale")}
        model |= {name: mean.astype(np.float32) for name, mean in means.items()}
    updates = [
        {name: new[name] - model[name] for name in ("weight", "scale")}
        for new in (trained(model, client, number) for client in range(CLIENTS))
    ]
    return [math.sqrt(sum(float(np.sum(np.square(part))) for part in each.values())) for each in updates]


@pytest.mark.parametrize("name", APPS)
def test_a_pilot_measures_updates_before_anything_protects_them(name: str) -> None:
    server, mods = APPS[name]
    pilot = run_pilot(server(), client_app(mods), FEDERATION, rounds=2)
    assert pilot.dimension == COORDINATES
    for number, norms in enumerate(pilot.norms, 1):
        assert sorted(norms) == pytest.approx(sorted(norms_of_round(number)), rel=1e-5)
    assert pilot.l2_clip == pytest.approx(np.median(np.concatenate(pilot.norms)), rel=0.05)


def test_other_mods_stay() -> None:
    """Negative control: a mod that is not ours acts on what is measured."""

    def doubles(message: Any, context: Any, call_next: Any) -> Any:
        reply = call_next(message, context)
        before = initial_arrays()
        after = {name: array.numpy() for name, array in reply.content["arrays"].items()}
        doubled = {name: after[name] + (after[name] - before[name]) for name in before}
        reply.content["arrays"] = as_record(doubled)
        return reply

    pilot = run_pilot(server_app(encoded), client_app([doubles, PrivQuantMod(1e-9)]), FEDERATION, rounds=1)
    assert sorted(pilot.norms[0]) == pytest.approx(sorted(2.0 * norm for norm in norms_of_round(1)), rel=1e-5)


def test_what_cannot_be_measured_is_refused() -> None:
    idle, failing = ServerApp(), ClientApp()
    idle.main()(lambda grid, context: None)
    failing.train()(lambda message, context: 1 / 0)
    with pytest.raises(InvalidSpecError, match="ended without a message that asks clients to train"):
        run_pilot(idle, client_app([]), FEDERATION)
    with pytest.raises(InvalidSpecError, match="no client of round 1 has a usable update: ZeroDivisionError"):
        run_pilot(server_app(fedavg), failing, FEDERATION)
    endless = client_app([], train_with=lambda arrays, *place: {**arrays, "scale": np.float32(math.inf)})
    with pytest.raises(InvalidSpecError, match="their updates are not finite"):
        run_pilot(server_app(fedavg), endless, FEDERATION)


def test_a_server_that_waits_for_more_clients_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    waiting = server_app(lambda: FedAvg(min_available_nodes=CLIENTS + 1))
    with pytest.raises(InvalidSpecError, match="waits for more than the 6 that are simulated"):
        run_pilot(waiting, client_app([]), FEDERATION)


def test_the_command_measures_the_template() -> None:
    done = CliRunner().invoke(command, ["clip", str(TEMPLATE), "--clients", "20"], catch_exceptions=False)
    assert done.exit_code == 0
    shown = " ".join(done.output.split())
    assert "20 simulated clients of the app for 2 rounds WITHOUT PROTECTION" in shown
    assert "L2 norms of updates (11 coordinates)" in shown
    # Ten steps of logistic regression from zero, by plain numpy: the norms are between 1.2 and 1.4.
    first = next(line.split() for line in done.output.splitlines() if line.split()[:1] == ["1"])
    assert all(1.1 < float(cell) < 1.5 for cell in first[1:])
    assert "Plan with it: target.plan(dimension=11, l2_clip=" in shown


def test_the_command_refuses_what_is_no_app(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpecError, match=r"has no pyproject\.toml; give the folder that 'flwr run'"):
        CliRunner().invoke(command, ["clip", str(tmp_path)], catch_exceptions=False)
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app]\n")
    with pytest.raises(InvalidSpecError, match="cannot be read"):
        CliRunner().invoke(command, ["clip", str(tmp_path)], catch_exceptions=False)
