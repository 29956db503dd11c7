"""Users as clients, samplings of them, and targets that count the rounds a client takes part in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import NaturalIdPartitioner

import fl_privquant as pq
from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.errors import InvalidSpecError
from simulations.run import execute
from simulations.runner.config import RunConfig, compose_run
from simulations.runner.planned import make_target
from simulations.tasks.task import TorchTask, get_task
from tests.finished_runs import provenance_of
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


def natural(plays: Path, *overrides: str) -> RunConfig:
    small = ("task.hidden=4", "task.embedding=2", "federation.local_steps=1", "federation.rounds=2")
    data = ("task=shakespeare", "partition=natural", f"task.data_root={plays}", f"output={plays}")
    return compose_run(*data, *small, *overrides)


def test_all_users_are_clients_as_flwr_datasets_deals_them(plays: Path) -> None:
    config = natural(plays, "federation.num_clients=0")
    assert config.federation.num_clients == ROLES
    task = get_task(config)
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
    config = natural(plays, "federation.num_clients=0", *target, *trusting, *sampling)
    summary = execute(config)
    assert (summary["num_clients"], summary["num_replies"]) == (ROLES, 3)
    assert 0.5 * 8.0 < summary["epsilon_client_total_sum"] <= 8.0
    assert summary["epsilon_client_total_models"] <= summary["epsilon_client_total_sum"]
    stated = provenance_of(config)["statements"]
    totals = {each["view"]: each for each in stated if each["unit"] == "client total"}
    assert list(totals) == ["local", "aggregate of 3", "models of 3"]
    assert all(each["scope"].endswith(" 1 round") for each in totals.values())
    assert make_target(config) == pq.Target(8.0, rounds=2, num_clients=3, participations=1)


def test_fewer_clients_than_users_and_more(plays: Path) -> None:
    task = get_task(natural(plays, "federation.num_clients=7"))
    assert isinstance(task, TorchTask)
    assert len(task.parts) == 7
    with pytest.raises(InvalidSpecError, match="12 clients, but the data have 11 users; use fewer"):
        get_task(natural(plays, "federation.num_clients=12"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["federation.num_clients=0"], "0 stands for all users of the data, but partition is iid"),
        (
            ["federation.num_clients=0", "partition=natural"],
            "data 'digits' do not say which user an example belongs to",
        ),
        (["federation.num_clients=0", "partition=natural", "task=mean"], "has no num_users"),
        (["sampling=cohorts", "federation.fraction=0.5"], "cohorts are as large as they can be"),
        (["sampling=fixed", "sampling.rounds_apart=3"], "sampling is fixed; use sampling=cohorts"),
        (["sampling=cohorts", "sampling.rounds_apart=null"], "sampling.rounds_apart: missing"),
        (["sampling.name=poison"], "poisson"),
    ],
)
def test_what_does_not_fit_together_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        compose_run(*overrides)


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
    target = make_target(compose_run(*sampling, *run))
    assert target is not None
    assert (target.num_clients, target.counted_rounds) == (clients, rounds)


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
