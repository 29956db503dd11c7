"""Runs for real: experiments, resuming, the command line's errors, inline against Ray."""

from __future__ import annotations

import gzip
import json
import math
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.serverapp.strategy import FedAvg
from omegaconf import OmegaConf

from fl_privquant.accounting import Accountant, PrivacyStatement, Relation, Release, View, statement_levels
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import CheckpointStrategy
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.secagg import choose_parameters
from fl_privquant.secagg.message_sizes import handshake_bytes
from simulations.report.build import build_report
from simulations.run import execute
from simulations.runner.config import CENTRAL, CONF, RunConfig, compose_run
from simulations.runner.results import ResultsError, RunDirectory
from simulations.studies._sweeps import experiment_params
from simulations.tasks.task import get_task
from tests.finished_runs import provenance_of, rows_of
from tests.simulations.conftest import RunHere
from tests.task_values import mean_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted(
    path.relative_to(CONF / "experiment").with_suffix("").as_posix()
    for path in (CONF / "experiment").rglob("*.yaml")
)
COLUMNS = [
    "round",
    "accuracy",
    "loss",
    "mean_squared_error",
    "share_clipped",
    "norm_to_clip",
    "clip",
    "bits_per_coordinate",
    "epsilon_client_total",
    "bytes_up",
]
SCHEDULE = {"name": "schedule", "rounds": [1, 3], "bits": [2, 3]}


def config_of(tmp_path: Path, **changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "mechanism": {"name": "optm", "epsilon": 1.0, "bits": 2},
        "federation": {"num_clients": 4, "rounds": 3},
        "output": str(tmp_path),
        **changes,
    }
    return RunConfig.from_mapping(values)


def model_of(config: RunConfig) -> str:
    return str(provenance_of(config)["model_sha256"])


def write_idx(folder: Path) -> None:
    """A small data set in MNIST's own format."""
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 800), ("t10k", 80)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = (rng.random((count, 28, 28)) * 60).astype(np.uint8)
        images[np.arange(count), labels * 2 + 3] += 150
        for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (folder / f"{name}.gz").write_bytes(gzip.compress(header + array.tobytes()))


def write_roles(folder: Path) -> None:
    """Speaking roles as the task of Shakespeare reads them, more than there are clients."""
    with gzip.open(folder / "roles.jsonl.gz", "wt") as file:
        for role in range(12):
            text = "To be, or not to be: that is the question. " * 20
            file.write(json.dumps({"play": "one", "role": str(role), "text": text}) + "\n")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_runs_two_rounds(experiment: str, tmp_path: Path) -> None:
    overrides = [f"experiment={experiment}", "federation.rounds=2", f"output={tmp_path}"]
    if "/" in experiment:
        # Those of the studies have 100 clients or more.
        overrides.append("federation.num_clients=10")
    params = experiment_params(experiment)
    overrides += [f"{key}={choices.split(',')[-1]}" for key, choices in params.items()]
    config = compose_run(*overrides)
    if config.task_name in ("mnist", "fashion_mnist", "shakespeare"):
        write_idx(tmp_path)
        write_roles(tmp_path)
        overrides.append(f"task.data_root={tmp_path}")
        if "validation_examples" in config.task:
            overrides.append("task.validation_examples=100")
    if config.sampling.rounds_apart:
        # A sixth of so few clients would be one.
        overrides.append("sampling.rounds_apart=1")
    config = compose_run(*overrides)
    summary = execute(config)
    rows = rows_of(config)
    assert rows["round"].tolist() == [0, 1, 2]
    assert summary["finished"]
    assert summary["num_replies"] == config.federation.num_clients


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "mechanism").glob("*.yaml")))
def test_every_mechanism_runs_end_to_end(name: str, tmp_path: Path) -> None:
    overrides = [f"mechanism={name}", "task=mean", "task.dimension=64", "federation.num_clients=5"]
    designed = name == CENTRAL
    overrides += ["privacy.epsilon=8", "secagg=on"] if designed else []
    config = compose_run(*overrides, "federation.rounds=2", f"output={tmp_path}")
    execute(config)
    rows = rows_of(config)
    assert rows["round"].tolist() == [0, 1, 2]
    if designed:
        return
    mechanism = config.design()
    if mechanism.unit == "coordinate release":
        exact = mechanism.mse() * config.encoding.clip**2 / 5
        # The error of the mean is what the distribution says, within its own spread over 64 coordinates.
        assert rows["mean_squared_error"].iloc[1] == pytest.approx(exact, rel=1.0, abs=1e-12)


def test_the_error_of_the_mean_is_what_the_distribution_says(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        task=mean_of(20_000),
        federation={"num_clients": 10, "rounds": 1},
    )
    execute(config)
    measured = rows_of(config)["mean_squared_error"].iloc[-1]
    vectors = get_task(config)._vectors / config.encoding.clip  # type: ignore[attr-defined]
    exact = config.design().mse(vectors.ravel()) * config.encoding.clip**2 / 10
    assert measured == pytest.approx(exact, rel=0.05)


def test_results_are_complete_and_finished_runs_are_skipped(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    first = execute(config)
    path = RunDirectory.of(config).path
    stamp = (path / "rounds.parquet").stat().st_mtime_ns
    assert execute(config) == first
    assert (path / "rounds.parquet").stat().st_mtime_ns == stamp
    provenance = json.loads((path / "provenance.json").read_text())
    assert provenance["certified_epsilon"] <= 1.0
    assert provenance["simulated"] is True
    assert any("local view" in line for line in provenance["statement"])
    assert Mechanism.from_bytes((path / "mechanism.pqm").read_bytes()).epsilon <= 1.0
    rows = rows_of(config)
    assert pd.read_csv(path / "rounds.csv")["round"].tolist() == rows["round"].tolist() == [0, 1, 2, 3]
    # Every round by quick bounds, the last one in full: what the accountant says by itself.
    release = Release(config.design(), 650)
    accountant = Accountant([release] * 3)
    levels = statement_levels(release, 3, 1e-5)
    assert rows["epsilon_client_total"].iloc[-1] == accountant.statement(1e-5).epsilon
    assert rows["epsilon_client_round"].iloc[-1] == levels[1].epsilon
    quick = Accountant([release] * 2).statement(1e-5, refine=False)
    assert rows["epsilon_client_total"].iloc[2] == quick.epsilon > rows["epsilon_client_total"].iloc[1]
    assert rows["composition_method"].tolist() == ["exact", "rdp", "rdp", "pld"]
    assert rows["epsilon_client_total_sum"].isna().all()
    assert [PrivacyStatement.from_dict(each) for each in provenance["statements"]] == levels
    beside = accountant.statement(1e-5, relation=Relation.ZERO_OUT)
    assert [PrivacyStatement.from_dict(each) for each in provenance["beside"]] == [beside]
    assert not list(path.glob("*.checkpoint"))


def test_secure_aggregation_has_the_aggregate_view(tmp_path: Path) -> None:
    config = config_of(tmp_path, federation={"num_clients": 20, "rounds": 2}, secagg={"enabled": True})
    execute(config)
    rows = rows_of(config)
    # A tenth of the clients is assumed to be corrupt.
    assert rows["num_honest"].tolist()[1:] == [18, 18]
    levels = statement_levels(Release(config.design(), 650, View(18)), 2, 1e-5)
    last = rows.iloc[-1]
    assert [last[f"epsilon_client_{each}"] for each in ("round", "round_sum", "total", "total_sum")] == [
        each.epsilon for each in levels[1:]
    ]
    assert last["epsilon_client_total_sum"] < 0.2 * last["epsilon_client_total"]
    provenance = provenance_of(config)
    assert [PrivacyStatement.from_dict(each) for each in provenance["statements"]] == levels
    (beside,) = (PrivacyStatement.from_dict(each) for each in provenance["beside"])
    assert beside.relation is Relation.ZERO_OUT
    assert beside.epsilon < levels[-1].epsilon
    assert "aggregate view of 18" in provenance["statement"][-2]


@pytest.mark.parametrize("secure", [False, True])
def test_a_budget_stops_the_run_with_what_was_spent(secure: bool, tmp_path: Path) -> None:
    release = Release(
        config_of(tmp_path).design(), 650, View(8) if secure else View()
    )  # 10 clients, one corrupt and one lost at most
    budget = Accountant([release] * 2).statement(1e-5).epsilon
    config = config_of(
        tmp_path,
        federation={"num_clients": 10, "rounds": 5},
        secagg={"enabled": secure},
        privacy={"budget": budget},
    )
    summary = execute(config)
    assert summary["finished"] is True
    stopped = r"^budget exhausted after 2 of 5 rounds: round 3: .*Spent: client total .*2 rounds.* raise the"
    assert re.search(stopped, summary["stopped"])
    rows = rows_of(config)
    assert rows["round"].tolist() == [0, 1, 2]
    column = "epsilon_client_total_sum" if secure else "epsilon_client_total"
    assert 0.0 < rows[column].iloc[1] < rows[column].iloc[2] == summary[column] <= budget
    # The model is that of a run that was asked for two rounds, and asking again gives the same result.
    shorter = config_of(
        tmp_path, federation={"num_clients": 10, "rounds": 2}, secagg={"enabled": secure}, study="shorter"
    )
    assert execute(shorter)["stopped"] is None
    assert model_of(config) == model_of(shorter)
    assert execute(config) == summary
    assert build_report(tmp_path / config.study).stat().st_size > 10_000


@pytest.mark.parametrize("partition", ["dirichlet", "shards", "size_skew"])
def test_partitions_deal_no_example_twice(partition: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, partition={"name": partition}, federation={"num_clients": 10})
    task: Any = get_task(config)
    dealt = np.concatenate(task.parts)
    assert np.unique(dealt).size == dealt.size
    # Shards have one size: what does not fill one is left over.
    assert dealt.size > 1400 if partition == "shards" else dealt.size == 1438
    assert sum(task.num_examples(client) for client in range(10)) == dealt.size
    again: Any = get_task(
        config_of(tmp_path / "again", partition={"name": partition}, federation={"num_clients": 10})
    )
    assert all(np.array_equal(a, b) for a, b in zip(task.parts, again.parts, strict=True))


def test_more_clients_than_examples(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpecError, match="5000 clients for 1438 examples"):
        execute(config_of(tmp_path, federation={"num_clients": 5000}))


def test_an_empty_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpecError, match="larger alpha"):
        get_task(
            config_of(
                tmp_path, partition={"name": "dirichlet", "alpha": 1e-4}, federation={"num_clients": 200}
            )
        )


def test_limits_of_clients_stop_the_run(tmp_path: Path) -> None:
    from fl_privquant.flower import NoUsableReplyError

    with pytest.raises(NoUsableReplyError):
        execute(config_of(tmp_path, privacy={"max_epsilon": 0.5}))


def test_a_damaged_summary_is_named_and_kept(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    path = RunDirectory.of(config).path / "summary.json"
    path.write_text("{")
    with pytest.raises(ResultsError, match="damaged"):
        execute(config)
    assert path.read_text() == "{"


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulations.run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_design_that_is_impossible_is_one_line(tmp_path: Path, run_here: RunHere) -> None:
    code, out, err = run_here("mechanism=optm_paper", "mechanism.epsilon=0.3", f"output={tmp_path}")
    assert code == 2
    assert "widen the bins or raise epsilon" in err
    assert "Traceback" not in err + out


def test_an_unwritable_output_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="cannot be written"):
        execute(config_of(tmp_path / "file"))


def test_a_budget_has_an_exit_code_of_its_own(tmp_path: Path, run_here: RunHere) -> None:
    arguments = ["task=mean", "task.dimension=21", "mechanism=one_bit", "federation.num_clients=5"]
    arguments += ["federation.rounds=4", f"output={tmp_path}"]
    done = run_cli(*arguments, "privacy.budget=40.5")
    assert done.returncode == 3, done.stderr
    assert "stopped: budget exhausted after 2 of 4 rounds: round 3: one more release makes" in done.stderr
    told = " ".join(done.stderr.split())  # two figures for one run, but each says what it is
    assert "Until a run ends, it is an upper bound that is quick to compute. one_bit, seed 0: " in told
    assert re.search(r"round 2/4, loss \S+, ε = 40\.29 \(local, replace-one\) ", told)
    assert "final privacy cost: ε = 39.68, δ = 1e-05 (client total, local view, replace-one)" in told
    assert run_here(*arguments, "privacy.budget=40.5")[0] == 3
    code, _, err = run_here(*arguments, "privacy.budget=1")
    assert code == 2
    assert "error: round 1: one more release makes ε = 21" in err


def test_help_and_cfg_read_well(run_here: RunHere) -> None:
    _, shown, _ = run_here("--help")
    for text in (
        "\nexperiment/default: coordinate, records, whole_run\n",
        "\nmechanism: biased, central_gaussian,",
        "a sweep, which ends with a report",
        "3 a privacy budget ended",
        "\n  local_epochs: 1\n",
    ):
        assert text in shown
    _, job, _ = run_here("--cfg", "job")
    assert OmegaConf.create(job).mechanism.name == "optm"


def test_a_killed_sweep_ends_with_the_right_rows(tmp_path: Path, run_here: RunHere) -> None:
    """Killed in the second run and started again: the same rows as without interruption."""
    sweep = [
        *("-m", "mechanism=optm,one_bit", "task=cancer", "federation.num_clients=4"),
        *("federation.rounds=6", "encoding=quantile", "study=killed", "checkpoint_seconds=0"),
    ]
    killed = subprocess.Popen(
        [sys.executable, "-m", "simulations.run", *sweep, f"output={tmp_path}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    study = tmp_path / "killed"
    # It is stopped to be looked at, so that it is still in the middle when it is killed.
    while killed.poll() is None:
        killed.send_signal(signal.SIGSTOP)
        if _is_in_second_run(study):
            break
        killed.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    unfinished = [path for path in study.iterdir() if not (path / "summary.json").exists()]
    assert unfinished, "the sweep was over before it could be killed"
    finished = {
        path.name: CheckpointStrategy(FedAvg(), RunDirectory(path).checkpoint).finished_rounds
        for path in unfinished
    }
    done = run_cli(*sweep, f"output={tmp_path}")
    assert done.returncode == 0, done.stderr
    resumed = re.findall(r"(\S+), seed \d: was interrupted; resumes after round (\d) of 6\n", done.stderr)
    assert dict(resumed) == {name: str(after) for name, after in finished.items() if after}
    code, _, err = run_here(*sweep, f"output={tmp_path / 'whole'}")
    assert code == 0, err
    runs = [path.parent.name for path in (tmp_path / "whole/killed").glob("*/summary.json")]
    assert len(runs) == 2
    for run in runs:
        resumed_rows = pd.read_parquet(tmp_path / "killed" / run / "rounds.parquet")
        reference = pd.read_parquet(tmp_path / "whole/killed" / run / "rounds.parquet")
        assert resumed_rows["round"].tolist() == list(range(7))
        same = ["round", "accuracy", "loss", "clip", "bits_per_coordinate", "bytes_up"]
        pd.testing.assert_frame_equal(resumed_rows[same], reference[same])
        # The round that was interrupted is asked twice, and both releases are counted.
        spent = resumed_rows["epsilon_client_total"].iloc[-1] / reference["epsilon_client_total"].iloc[-1]
        # Seven releases instead of six: composed, they cost less than in proportion.
        assert spent == pytest.approx(1.0) or 1.05 < spent <= 7 / 6


def _is_in_second_run(study: Path) -> bool:
    """Whether one run is finished, and two rounds of another one are written."""
    rows = {path.parent: len(path.read_text().splitlines()) for path in study.glob("*/rounds.csv")}
    finished = {path.parent for path in study.glob("*/summary.json")}
    return bool(finished) and any(rows[run] > 2 for run in rows.keys() - finished)


@pytest.mark.parametrize(
    "policies", [{}, {"encoding": {"clip_policy": {"name": "quantile"}, "bits_policy": SCHEDULE}}]
)
def test_secure_aggregation_changes_no_number(policies: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for enabled in (False, True):
        config = config_of(tmp_path, secagg={"enabled": enabled}, **policies)
        execute(config)
        found.append(rows_of(config))
    numbers = [name for name in COLUMNS if name != "bytes_up"]
    pd.testing.assert_frame_equal(found[0][numbers], found[1][numbers])
    assert found[0]["clip"].iloc[1:].nunique() == (3 if policies else 1)
    # A masked code is as wide as the sum of all: 5 bits for 4 clients and codes up to 7, instead of 2.
    assert found[1]["bytes_up"].iloc[-1] > 2 * found[0]["bytes_up"].iloc[-1]
    assert not found[0]["bytes_handshake"].any()
    # Three rounds of four clients, of whom nobody is lost: as predicted from the messages.
    expected = 4 * handshake_bytes(choose_parameters(4))
    assert np.diff(found[1]["bytes_handshake"]).tolist() == [round(expected)] * 3


def test_a_clip_that_is_too_wide_is_found_out(tmp_path: Path) -> None:
    """Updates lie within 0.1; the clip begins at ten times that, and the error of the mean falls with it."""
    task = mean_of(200)
    federation = {"num_clients": 20, "rounds": 20}
    errors = []
    for name in ("constant", "quantile"):
        config = config_of(
            tmp_path,
            task=task,
            federation=federation,
            encoding={"clip": 1.0, "clip_policy": {"name": name, "rate": 0.5}},
        )
        execute(config)
        rows = rows_of(config)
        errors.append(rows["mean_squared_error"].iloc[-1])
        clips = rows["clip"].iloc[1:]
        assert math.isnan(rows["clip"].iloc[0])
        assert clips.iloc[0] == 1.0
        last = clips.iloc[-5:]
        assert last.eq(1.0).all() if name == "constant" else last.lt(0.3).all()
    assert errors[1] < errors[0] / 10


def test_bits_follow_the_schedule(tmp_path: Path) -> None:
    policy = {"name": "schedule", "rounds": [1, 3], "bits": [1, 3]}
    config = config_of(tmp_path, encoding={"bits_policy": policy}, federation={"num_clients": 4, "rounds": 4})
    execute(config)
    rows = rows_of(config)
    assert rows["bits_per_coordinate"].iloc[1:].tolist() == [1.0, 1.0, 3.0, 3.0]
    assert np.diff(rows["bytes_up"]).tolist() == [4 * (16 + codes) for codes in (82, 82, 244, 244)]
