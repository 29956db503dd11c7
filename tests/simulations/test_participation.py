"""Users as clients, samplings of them, and targets that count the rounds a client takes part in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import NaturalIdPartitioner
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import fl_privquant as pq
from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.errors import InvalidSpecError
from simulations.config import RunConfig
from simulations.overrides import CONF
from simulations.planned import target_of
from simulations.results import RunDirectory
from simulations.run import execute
from simulations.tasks import TorchTask, task_of
from simulations.users import with_users
from tests.simulations.conftest import RunHere

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

ROLES = 11


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    """Roles that speak a few sentences each, and one that says too little to learn from."""
    lines = [
        {"role": f"role {role}", "text": f"my lord, it is {role} of them. " * (8 + role)}
        for role in range(ROLES)
    ]
    with gzip.open(tmp_path / "roles.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in [*lines, {"role": "a ghost", "text": "Boo."}])
    return tmp_path


def values_of(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        composed = compose("config", overrides=list(overrides))
    values: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    return values


def config_of(*overrides: str) -> RunConfig:
    return RunConfig.from_mapping(with_users(values_of(*overrides)))


def natural(plays: Path, *overrides: str) -> RunConfig:
    small = ("task.hidden=4", "task.embedding=2", "federation.local_steps=1", "federation.rounds=2")
    data = ("task=shakespeare", "partition=natural", f"task.data_root={plays}", f"output={plays}")
    return config_of(*data, *small, *overrides)


def test_all_users_are_clients_as_flwr_datasets_deals_them(plays: Path) -> None:
    config = natural(plays, "federation.num_clients=null")
    assert config.federation.num_clients == ROLES
    task = task_of(config)
    assert isinstance(task, TorchTask)
    users = task.examples.users
    assert users is not None
    partitioner = NaturalIdPartitioner("user")
    partitioner.dataset = Dataset.from_dict({"user": users, "index": np.arange(len(users))})
    theirs = {
        tuple(sorted(partitioner.load_partition(part)["index"])) for part in range(partitioner.num_partitions)
    }
    assert {tuple(part.tolist()) for part in task.parts} == theirs


def test_a_run_with_users_and_cohorts_ends_at_what_was_planned(plays: Path) -> None:
    """Three cohorts of 11 users: 3 a round. Each takes part in one of two rounds, and is counted for one."""
    target = ("privacy.epsilon=8", "secagg=simulated", "mechanism=rounded_gaussian")
    trusting = ("secagg.corrupt_fraction=0", "secagg.dropout_fraction=0")
    sampling = ("sampling=cohorts", "sampling.rounds_apart=3")
    config = natural(plays, "federation.num_clients=null", *target, *trusting, *sampling)
    summary = execute(config)
    assert (summary["num_clients"], summary["num_replies"]) == (ROLES, 3)
    assert 0.5 * 8.0 < summary["epsilon_client_total_sum"] <= 8.0
    assert summary["epsilon_client_total_models"] <= summary["epsilon_client_total_sum"]
    stated = json.loads((RunDirectory.of(config).path / "provenance.json").read_text())["statements"]
    totals = {each["view"]: each for each in stated if each["unit"] == "client total"}
    assert list(totals) == ["local", "aggregate of 3", "models of 3"]
    assert all(each["scope"].endswith(" 1 round") for each in totals.values())
    assert target_of(config) == pq.Target(8.0, rounds=2, num_clients=3, participations=1)


def test_fewer_clients_than_users_and_more(plays: Path) -> None:
    task = task_of(natural(plays, "federation.num_clients=7"))
    assert isinstance(task, TorchTask)
    assert len(task.parts) == 7
    with pytest.raises(InvalidSpecError, match="12 clients, but the data have 11 users; use fewer"):
        task_of(natural(plays, "federation.num_clients=12"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["federation.num_clients=null"], "null stands for all users of the data, but partition is iid"),
        (
            ["federation.num_clients=null", "partition=natural"],
            "data 'digits' do not say which user an example belongs to",
        ),
        (["federation.num_clients=null", "partition=natural", "task=mean"], "has no num_users"),
        (["sampling=cohorts", "federation.fraction=0.5"], "cohorts are as large as they can be"),
        (["sampling=fixed", "+sampling.rounds_apart=3"], "sampling is fixed; use sampling=cohorts"),
        (["sampling=cohorts", "sampling.rounds_apart=null"], "sampling.rounds_apart: missing"),
        (["sampling.name=poison"], "poisson"),
    ],
)
def test_what_does_not_fit_together_is_refused(overrides: list[str], words: str) -> None:
    plain = [override.removeprefix("+") for override in overrides]
    with pytest.raises(InvalidSpecError, match=words):
        config_of(*plain)


@pytest.mark.parametrize(
    ("sampling", "clients", "rounds"),
    [
        (["sampling=cohorts"], 20, 6),
        (["sampling=fixed", "federation.fraction=0.25"], 25, 30),
        (["sampling=fixed", "federation.fraction=0.25", "sampling.participations=10"], 25, 10),
        (["sampling=poisson", "federation.fraction=0.5", "sampling.min_clients=30"], 31, 30),
        (["federation.fraction=0.25"], 25, 30),
        (["federation.fraction=0.25", "sampling.participations=10"], 25, 10),
    ],
)
def test_a_target_counts_what_the_sampling_promises(sampling: list[str], clients: int, rounds: int) -> None:
    """Whoever is drawn at random may be drawn each time: then all rounds count."""
    run = (
        "privacy.epsilon=8",
        "secagg=simulated",
        "mechanism=rounded_gaussian",
        "federation.num_clients=100",
    )
    target = target_of(config_of(*sampling, *run))
    assert target is not None
    assert (target.num_clients, target.counted_rounds) == (clients, rounds)


def test_runs_that_leave_sampling_to_flower_keep_their_names() -> None:
    plain = config_of("federation.fraction=0.5")
    without = values_of("federation.fraction=0.5")
    del without["sampling"]
    assert plain.run_name == RunConfig.from_mapping(without).run_name
    assert plain.run_name != config_of("federation.fraction=0.5", "sampling=fixed").run_name


def test_the_last_line_has_the_views_that_were_counted(tmp_path: Path, run_here: RunHere) -> None:
    """Poisson rounds have sums of many sizes; the line once had the last round's view for the whole run."""
    clients = ("federation.num_clients=12", "federation.fraction=0.5", "federation.rounds=5", "seed=4")
    sampling = ("sampling=poisson", "sampling.min_clients=3", "secagg=simulated", "secagg.corrupt_fraction=0")
    mechanism = ("mechanism=one_bit", "mechanism.epsilon=1", "task=mean", "task.dimension=3")
    code, _, said = run_here(*clients, *sampling, *mechanism, f"output={tmp_path}")
    assert code == 0, said
    (origin,) = tmp_path.glob("*/*/provenance.json")
    stated = map(PrivacyStatement.from_dict, json.loads(origin.read_text())["statements"])
    local, summed, models = (each for each in stated if each.unit == Unit.TOTAL)
    assert " to " in str(summed.view)
    line = f"final privacy cost: {summed.brief}; {local.brief}; {models.brief}"
    assert line in " ".join(said.split())
