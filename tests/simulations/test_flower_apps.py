"""Flower apps of others, run unchanged: with each mechanism, and as plain Flower without one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fl_privquant.errors import InvalidSpecError, PrivQuantError
from fl_privquant.flower.simulation import Federation, InlineEngine
from simulations.run import execute
from simulations.runner.apps import watched_grid
from simulations.runner.apps.user_app import call_in_own_process, user_app
from simulations.runner.config import RunConfig
from simulations.runner.results import RunDirectory
from tests.finished_runs import provenance_of, rows_of
from tests.simulations.flower_apps import CUSTOM, TORCH, write_app

SHAPES = {"torch": TORCH, "custom": CUSTOM}
CLIENTS = 4
NONE = {"mechanism": {"name": "none"}}
LOCAL = {"mechanism": {"name": "optm", "epsilon": 4.0, "bits": 2}, "encoding": {"clip": 0.1}}
SECURE = LOCAL | {"secagg": {"enabled": True}}


def config(folder: Path, **values: Any) -> RunConfig:
    federation = {"num_clients": CLIENTS, "rounds": 0} | values.pop("federation", {})
    output = str(folder.parent / "outputs")
    return RunConfig.from_mapping({"app": str(folder), "federation": federation, "output": output, **values})


def saved(folder: Path, **values: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The model that an app saves, and the summary of its run."""
    path = folder.parent / f"model-{len(list(folder.parent.glob('model-*')))}.npz"
    own = {"saved": str(path), **values.pop("app_config", {})}
    summary = execute(config(folder, app_config=own, **values))
    return dict(np.load(path)), summary


def plain_flower(folder: Path) -> dict[str, np.ndarray]:
    """The model that the same app saves when nothing of ours is around it."""
    path = folder.parent / "plain.npz"
    call_in_own_process(run_plainly, folder, path)
    return dict(np.load(path))


def run_plainly(folder: Path, path: Path) -> None:
    app = user_app(str(folder))
    federation = Federation(CLIENTS, dict(app.config) | {"saved": str(path)}, seed=0)
    InlineEngine().run(app.server(), app.client(), federation)


def rows(run: RunConfig) -> pd.DataFrame:
    return rows_of(run)


@pytest.mark.parametrize("name", SHAPES)
def test_an_app_runs_unchanged(name: str, tmp_path: Path) -> None:
    folder = write_app(tmp_path / name, SHAPES[name])
    expected = plain_flower(folder)
    model, summary = saved(folder, **NONE)
    assert list(model) == list(expected)
    for key, array in expected.items():
        assert model[key].dtype == array.dtype
        assert model[key].tobytes() == array.tobytes(), key
    assert summary["round"] == 2
    assert summary["epsilon_client_total"] == np.inf
    assert summary["num_replies"] == CLIENTS
    single, local = saved(folder, **LOCAL)
    masked, secure = saved(folder, **SECURE)
    assert local["num_replies"] == secure["num_replies"] == CLIENTS
    assert local["epsilon_client_total"] == secure["epsilon_client_total"] < np.inf
    assert local["mean_squared_error"] == pytest.approx(secure["mean_squared_error"], rel=1e-3)
    for key in expected:
        assert single[key].shape == expected[key].shape
        np.testing.assert_allclose(single[key], masked[key], atol=1e-5, err_msg=key)
    assert any(not np.array_equal(single[key], expected[key]) for key in expected)
    if name != "custom":
        assert 0.0 <= local["accuracy"] <= 1.0
        assert summary["accuracy"] == summary["evaluate_eval_acc"]


def test_private_rounds_weigh_clients_alike(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "own", TORCH)
    alike = TORCH["client_app"].replace('"num-examples": len(x)', '"num-examples": 1')
    equal = write_app(tmp_path / "equal", TORCH | {"client_app": alike})
    # An L2 clip is all that makes these rounds private ones: nothing is lost in them.
    model, _ = saved(folder, **NONE, encoding={"l2_clip": 1e6})
    expected, _ = saved(equal, **NONE)
    weighted, _ = saved(folder, **NONE)
    for name in ("0.weight", "3.weight"):
        np.testing.assert_allclose(model[name], expected[name], rtol=1e-4, atol=1e-6)
        assert not np.allclose(weighted[name], expected[name], rtol=1e-3)


def test_what_it_evaluates_is_in_the_rows(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", TORCH)
    run = config(folder, **LOCAL, app_metrics={"train": ["train_loss"]})
    execute(run)
    frame = rows(run)
    assert list(frame["round"]) == [0, 1, 2]
    # Nothing is evaluated before the first round.
    assert frame["accuracy"].isna().tolist() == [True, False, False]
    assert (frame["loss"][1:] == frame["evaluate_eval_loss"][1:]).all()
    assert frame["train_train_loss"].notna().tolist() == [False, True, True]
    lines = (RunDirectory.of(run).path / "provenance.json").read_text()
    told = "'eval_acc', 'eval_loss', 'num-examples', 'train_loss'"
    assert f"clients send or may send {told} without protection" in lines
    assert f"that {told}, sent by clients in clear, tell nothing" in lines
    other = config(folder, **NONE, app_metrics={"accuracy": "eval_loss"})
    execute(other)
    assert (rows(other)["accuracy"][1:] == rows(other)["evaluate_eval_loss"][1:]).all()


def test_finished_runs_are_skipped_and_changed_apps_are_not(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", CUSTOM)
    first = config(folder, **LOCAL)
    summary = execute(first)
    stamp = (RunDirectory.of(first).path / "rounds.csv").stat().st_mtime_ns
    assert execute(config(folder, **LOCAL)) == summary
    assert (RunDirectory.of(first).path / "rounds.csv").stat().st_mtime_ns == stamp
    names = {config(folder, **LOCAL, app_config={"learning-rate": rate}).run_name for rate in (0.1, 0.5)}
    assert len(names) == 2
    assert first.run_name in names
    task = folder / "quickstart" / "task.py"
    # Of another length: Python takes a file for the one it compiled if second and size are the same.
    task.write_text(task.read_text().replace("0.05", "0.0625"))
    changed = config(folder, **LOCAL)
    assert changed.run_name != first.run_name
    assert execute(changed)["mean_squared_error"] != summary["mean_squared_error"]


def test_rounds_are_the_apps_own_or_set_by_the_federation(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", CUSTOM)
    assert config(folder, **NONE).federation.rounds == 2
    run = config(folder, **NONE, federation={"rounds": 3})
    assert run.app_config["num-server-rounds"] == 3
    assert RunConfig.from_mapping(run.to_mapping()) == run
    assert execute(run)["round"] == 3
    # What tasks alone know makes no difference.
    same = config(folder, **NONE, federation={"rounds": 3, "learning_rate": 0.3}, partition={"alpha": 2.0})
    assert same.run_name == run.run_name


@pytest.mark.parametrize("name", ["rounded_gaussian", "central_gaussian"])
def test_a_target_for_the_whole_run(name: str, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", CUSTOM)
    values = {"privacy": {"epsilon": 30.0}, "encoding": {"l2_clip": 0.3}}
    summary = execute(config(folder, mechanism={"name": name}, secagg={"enabled": True}, **values))
    assert summary["round"] == 2
    assert summary["stopped"] is None
    if name == "rounded_gaussian":
        assert summary["epsilon_client_total_sum"] <= 30.0


def test_a_budget_ends_the_app(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", CUSTOM)
    # A round costs 12 coordinates of 4 each.
    run = config(folder, **LOCAL, privacy={"budget": 60.0})
    summary = execute(run)
    assert summary["round"] == 1
    assert "budget exhausted after 1 of 2 rounds" in summary["stopped"]
    assert summary["epsilon_client_total"] <= 60.0
    with pytest.raises(PrivQuantError, match="round 1"):
        execute(config(folder, **LOCAL, privacy={"budget": 40.0}))


def test_an_interrupted_app_begins_anew_or_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write_app(tmp_path / "app", CUSTOM)
    run = config(folder, **LOCAL)
    summary = execute(run)
    path = RunDirectory.of(run).path
    (path / "summary.json").unlink()
    again = execute(run)
    assert "starts again: the loop of an app cannot be resumed" in capfd.readouterr().out
    assert again["mean_squared_error"] == summary["mean_squared_error"]
    secure = config(folder, **LOCAL, privacy={"randomness": "secure"})
    execute(secure)
    (RunDirectory.of(secure).path / "summary.json").unlink()
    with pytest.raises(InvalidSpecError, match="delete the folder to start again from the beginning"):
        execute(secure)


ASKED = "list(grid.send_and_receive(asked))"
QUERY = """

@app.query()
def query(msg: Message, context: Context):
    from quickstart.task import target

    data = ArrayRecord({"target": Array(target(context.node_config["partition-id"]))})
    kind = msg.metadata.message_type
    also = MetricRecord({f"size of {kind}": 3})
    return Message(RecordDict({f"data of {kind}": data, "also": also}), reply_to=msg)


app.query("own")(query)
app.evaluate("own")(query)
"""


def often(modules: dict[str, str]) -> dict[str, str]:
    """The app with a client that does not mind how often it is asked."""
    counted = '    assert context.state["seen"]["rounds"] == msg.content["told"]["round"]\n'
    return modules | {"client_app": modules["client_app"].replace(counted, "")}


def test_more_rounds_than_the_central_noise_is_for_are_refused(tmp_path: Path) -> None:
    """The noise is for the rounds that the app says it has: those beyond would cost more than is stated."""
    modules = often(changed("server_app", ASKED, f"{ASKED}; {ASKED}"))
    folder = write_app(tmp_path / "app", modules)
    run = config(folder, mechanism={"name": "central_gaussian"}, privacy={"epsilon": 30.0})
    summary = execute(run)
    assert summary["round"] == run.counted_rounds == 2
    assert "the noise of the central Gaussian is for 2 rounds" in summary["stopped"]


def test_a_client_that_is_asked_twice_in_a_round_is_refused(tmp_path: Path) -> None:
    modules = often(
        changed("server_app", "for node in nodes]\n        r", "for node in nodes * 2]\n        r")
    )
    folder = write_app(tmp_path / "app", modules)
    with pytest.raises(InvalidSpecError, match="messages: round 1 asks node 1 2 times"):
        execute(config(folder, **LOCAL))
    # Without a mechanism it is as in plain Flower.
    expected = plain_flower(folder)
    model, summary = saved(folder, **NONE)
    assert model["weights"].tobytes() == expected["weights"].tobytes()
    assert summary["num_replies"] == 2 * CLIENTS


def test_an_app_that_asks_one_by_one_goes_on_when_a_client_fails(tmp_path: Path) -> None:
    one_by_one = "[r for a in asked for r in grid.send_and_receive([a]) if r.has_content()]"
    modules = often(changed("server_app", ASKED, one_by_one))
    fails = "    if context.node_config['partition-id'] == 2:\n        raise ValueError\n    seen ="
    modules["client_app"] = modules["client_app"].replace("    seen =", fails)
    folder = write_app(tmp_path / "app", modules)
    expected = plain_flower(folder)
    model, summary = saved(folder, **NONE)
    assert model["weights"].tobytes() == expected["weights"].tobytes()
    assert summary["round"] == 2 * CLIENTS
    # Each client is asked twice, whatever the number of rounds; one that fails has released zeros.
    _, private = saved(folder, **LOCAL)
    assert private["epsilon_client_total"] == pytest.approx(2 * 12 * 4.0)


@pytest.mark.parametrize("way", [LOCAL, SECURE])
def test_whatever_leaves_a_client_in_clear_is_in_the_statement(way: dict[str, Any], tmp_path: Path) -> None:
    kinds = ("query", "query.own", "evaluate.own")
    asked = f"Message(RecordDict(), node, kind) for node in nodes for kind in {kinds}"
    end = '    context.state["model"]'
    modules = changed("server_app", end, f"    list(grid.send_and_receive([{asked}]))\n{end}")
    modules["client_app"] = modules["client_app"].replace("    error = msg", "    1 / 0\n    error = msg")
    run = config(write_app(tmp_path / "app", modules | {"client_app": modules["client_app"] + QUERY}), **way)
    execute(run)
    provenance = provenance_of(run)
    names = [f"{what}{kind}'" for kind in kinds for what in ("'size of ", "arrays 'data of ")]
    told = ", ".join(sorted([*names, "texts of errors"]))
    uncounted = f"not counted in any figure: clients send or may send {told} without protection"
    assert any(line.startswith(uncounted) for line in provenance["statement"])
    # Training tells nothing else; and every single figure has it among its assumptions.
    assert provenance["statements"]
    for statement in provenance["statements"]:
        assert statement["assumptions"][-1] == f"that {told}, sent by clients in clear, tell nothing"


@pytest.mark.parametrize(
    ("limit", "reason"),
    [({"max_epsilon": 1.0}, "the mechanism is above this client's limits"), ({"budget": 5.0}, "budget")],
)
def test_limits_hold_without_a_mechanism_too(limit: dict[str, float], reason: str, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", CUSTOM)
    with pytest.raises(PrivQuantError, match=reason):
        execute(config(folder, **NONE, privacy=limit))


def test_files_that_change_after_the_run_was_configured_are_refused(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", CUSTOM)
    run = config(folder, **LOCAL)
    task = folder / "quickstart" / "task.py"
    task.write_text(task.read_text().replace("0.05", "0.06"))
    with pytest.raises(InvalidSpecError, match="have changed since the run was configured"):
        execute(run)


def test_apps_with_the_same_modules_do_not_meet(tmp_path: Path) -> None:
    one, two = (write_app(tmp_path / name, CUSTOM) for name in ("one", "two"))
    task = two / "quickstart" / "task.py"
    task.write_text(task.read_text().replace("SIZE = 12", "SIZE = 5"))
    before = list(sys.path)
    for folder, size in ((one, 12), (two, 5), (one, 12)):
        model, _ = saved(folder, **NONE)
        assert model["weights"].shape == (size,)
    assert "quickstart" not in sys.modules
    assert sys.path == before


def test_a_process_of_its_own_returns_raises_or_was_killed() -> None:
    assert call_in_own_process(os.path.join, "a", "b") == "a/b"
    with pytest.raises(InvalidSpecError, match="there is no folder nowhere"):
        call_in_own_process(user_app, "nowhere")
    with pytest.raises(InvalidSpecError, match="the process that ran it was killed"):
        call_in_own_process(os._exit, 9)


def test_an_environment_in_the_folder_of_an_app_is_not_its_own(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", CUSTOM)
    digest = user_app(str(folder)).digest
    packages = [folder / name / "lib" / "site-packages" for name in (".venv", "env")]
    for number, place in enumerate(packages):
        place.mkdir(parents=True)
        (place / f"installed_{number}.py").touch()
    assert user_app(str(folder)).digest == digest


def changed(place: str, old: str, new: str) -> dict[str, str]:
    assert CUSTOM[place].count(old) == 1
    return CUSTOM | {place: CUSTOM[place].replace(old, new)}


LEGACY_CLIENT = """
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

app = ClientApp(client_fn=lambda context: NumPyClient().to_client())
"""
LEGACY_SERVER = """
from flwr.server import ServerAppComponents
from flwr.serverapp import ServerApp

app = ServerApp(server_fn=lambda context: ServerAppComponents())
"""
PUSHED = "list(grid.pull_messages(grid.push_messages(asked)))"


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        (CUSTOM | {"client_app": "import nothing_of_that_name"}, "cannot be imported (ModuleNotFoundError"),
        (CUSTOM | {"client_app": "other = 3"}, "clientapp quickstart.client_app:app cannot be imported"),
        (CUSTOM | {"client_app": "app = 3"}, "quickstart.client_app:app is a int, expected a ClientApp"),
        (CUSTOM | {"client_app": LEGACY_CLIENT}, "clientapp is of Flower's legacy API (client_fn"),
        (CUSTOM | {"server_app": LEGACY_SERVER}, "serverapp is of Flower's legacy API (server_fn"),
        (
            changed("client_app", "Array(moved)", "Array(moved[1:])"),
            "float32 of shape (11,), expected floats of shape (12,)",
        ),
        (changed("client_app", 'RecordDict({"model"', 'RecordDict({"m"'), "has arrays in records ['m'], but"),
        (changed("client_app", "    seen =", "    1 / 0\n    seen ="), "ZeroDivisionError: division by zero"),
        (changed("server_app", "axis=0)", "axis=0)[number:]"), "arrays have changed since the first round"),
        (changed("server_app", "**told}", "**told, 'model': other(node)}"), "clients are sent different"),
        (changed("server_app", "list(grid.send_and_receive(asked))", PUSHED), "train messages were pushed"),
        (changed("server_app", '["model"]["weights"].n', '["n"]["w"].n'), "server app failed (quickstart/"),
        (changed("server_app", "range(1, ", "range(9, "), "its server app trained nothing"),
        (changed("server_app", '"round": n', '"privquant-version": 5, "round": n'), "it is private already"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    modules: dict[str, str], reason: str, tmp_path: Path
) -> None:
    helper = """
def other(node):
    return ArrayRecord({"weights": Array(np.full(12, node, np.float32))})
"""
    folder = write_app(tmp_path / "app", modules | {"server_app": modules["server_app"] + helper})
    with pytest.raises(InvalidSpecError) as refused:
        execute(config(folder, **LOCAL))
    assert reason in str(refused.value)
    assert str(refused.value).startswith(("app: ", "messages: "))
    assert "\n" not in str(refused.value)


def test_an_app_that_waits_for_more_clients_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Flower's strategies wait a second between two looks; what matters here is that they wait for ever.
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", lambda seconds: time.sleep(0.02))
    monkeypatch.setattr(watched_grid, "PAUSE", 0.01)
    waiting = TORCH["server_app"].replace("FedAvg()", f"FedAvg(min_available_nodes={CLIENTS + 1})")
    folder = write_app(tmp_path / "app", TORCH | {"server_app": waiting})
    with pytest.raises(InvalidSpecError, match=f"^app: its server waits for more clients than the {CLIENTS}"):
        execute(config(folder, **LOCAL))
    enough = config(folder, **LOCAL | {"federation": {"num_clients": CLIENTS + 1}})
    assert execute(enough)["num_replies"] == CLIENTS + 1


@pytest.mark.parametrize(
    ("project", "reason"),
    [
        (None, "has no pyproject.toml"),
        ("[project]\nname = 'x'", "has no [tool.flwr.app], so this is no Flower app"),
        ("[tool.flwr.app]\npublisher = 'x'", "says serverapp = None in [tool.flwr.app.components]"),
        ("[tool.flwr.app", "cannot be read ("),
    ],
)
def test_folders_that_are_no_app(project: str | None, reason: str, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    with pytest.raises(InvalidSpecError, match="app: there is no folder"):
        config(folder, **NONE)
    folder.mkdir()
    if project is not None:
        (folder / "pyproject.toml").write_text(project)
    with pytest.raises(InvalidSpecError) as refused:
        config(folder, **NONE)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"app_config": {"learning-rat": 1.0}}, "app_config.learning-rat: not in the app's"),
        ({"app_config": {"learning-rate": "x"}}, "app_config.learning-rate: 'x' is not float"),
        (
            {"app_config": {"num-server-rounds": 3}, "federation": {"rounds": 4}},
            "federation.rounds: 4, but app_config.num-server-rounds is 3; set one of them",
        ),
        ({"encoding": {"include": ["tail"]}}, "include: 'tail' matches no array of the model's (weights)"),
        ({"encoding": {"exclude": ["tail"]}}, "exclude: 'tail' matches no array of the model's (weights)"),
        ({"encoding": {"clip_scales": {"tail": 1.0}}}, "clip_scales: 'weights' matches none of ['tail']"),
        ({"app_metrics": {"loss": "other"}}, "app_metrics.loss: 'other' is not among what the app evaluates"),
    ],
)
def test_settings_that_do_not_fit_the_app(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", CUSTOM)
    with pytest.raises(InvalidSpecError) as refused:
        execute(config(folder, **NONE, **values))
    assert reason in str(refused.value)
