"""Every target binds: whatever a run is configured to be, it ends at or below the epsilon asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from fl_privquant.errors import InvalidSpecError
from simulations.run import execute
from simulations.runner.config import CONF, compose_run
from simulations.runner.results import RunDirectory
from tests.finished_runs import provenance_of, rows_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


# Each of these ended above its target once: 35.35, 34.4, 9.19 and 9.02.
SPENT_TOO_MUCH = [
    ("mechanism=rounded_gaussian", "secagg=on", "federation.rounds=5"),
    ("mechanism=rounded_gaussian", "secagg=on", "federation.rounds=3"),
    ("mechanism=rounded_gaussian", "secagg=on", "federation.rounds=5", "encoding=rotated"),
    ("mechanism=optm", "secagg=on", "federation.rounds=5"),
]
CENTRAL = ["privacy.epsilon=8", "mechanism=central_gaussian"]
FOR_SUMS = ["privacy.epsilon=8", "secagg=on", "mechanism=rounded_gaussian"]
ODD = [
    ("mechanism=one_bit", "federation.rounds=2", "federation.num_clients=25", "secagg=on"),
    ("mechanism=pbm", "federation.rounds=2", "federation.num_clients=21", "secagg=on", "task=cancer"),
    ("mechanism=discrete_laplace", "federation.rounds=2", "federation.num_clients=7"),
    ("mechanism=optm", "federation.rounds=2", "federation.fraction=0.43", "federation.num_clients=29"),
    ("mechanism=rounded_gaussian", "federation.rounds=2", "secagg=on", "task=digits", "task.model=mlp"),
    (
        "mechanism=rounded_gaussian",
        "federation.rounds=2",
        "secagg=on",
        "encoding.clip=0.2",
        "encoding.l2_clip=0.7",
    ),
    ("mechanism=pbm", "federation.rounds=4", "secagg=on", "encoding=quantile"),
    ("mechanism=one_bit", "federation.rounds=2", "federation.num_clients=7", "encoding=quantile"),
]


@pytest.mark.parametrize("overrides", SPENT_TOO_MUCH + ODD, ids=" ".join)
def test_no_run_ends_above_its_target(overrides: tuple[str, ...], tmp_path: Path) -> None:
    config = compose_run(*overrides, "privacy.epsilon=8", f"output={tmp_path}")
    summary = execute(config)
    assert summary["round"] == config.federation.rounds
    view = "epsilon_client_total_sum" if config.secagg.enabled else "epsilon_client_total"
    assert 0.3 * 8.0 < summary[view] <= 8.0
    stated = provenance_of(config)["statements"]
    totals = [each for each in stated if each["unit"] == "client total"]
    in_view = [each for each in totals if each["view"] != "local"] if config.secagg.enabled else totals
    assert in_view
    assert all(each["epsilon"] <= 8.0 for each in in_view)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["mechanism=central_gaussian"], "privacy.epsilon=8"),
        (["privacy.epsilon=8", "mechanism.epsilon=1"], "set only one of them"),
        (["privacy.epsilon=8", "privacy.budget=8"], "privacy.budget"),
        (["privacy.epsilon=8", "encoding.rotate=false"], "encoding.rotate"),
        ([*CENTRAL, "encoding=quantile"], "encoding.clip_policy.name: 'quantile'"),
        (["encoding=pilot"], "'pilot' finds the L2 clip of a plan; set privacy.epsilon"),
        (
            ["privacy.epsilon=8", "encoding=pilot", "encoding.l2_clip=1"],
            "'pilot', but encoding.l2_clip is given",
        ),
        (["privacy.epsilon=8", "encoding=schedule"], "encoding.bits_policy.name: 'schedule'"),
        (["privacy.epsilon=8", "mechanism=none"], "protects nothing"),
        (["privacy.epsilon=8", "mechanism=stochastic"], "protects nothing"),
        (["privacy.epsilon=-8"], "privacy.epsilon"),
        ([*FOR_SUMS, "secagg=simulated", "privacy=secure"], "secagg.masked: False, which only simulates"),
    ],
)
def test_what_contradicts_a_target_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        compose_run(*overrides)


@pytest.mark.parametrize(("l2_clip", "words"), [(1e-3, "and is cut to it; set l2_clip="), (1e3, "far below")])
def test_a_clip_that_is_far_off_is_said(
    l2_clip: float, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = [*FOR_SUMS, "federation.rounds=2", f"output={tmp_path}"]
    execute(compose_run(*overrides, "encoding.l2_clip=1"))
    assert "the usual update" not in " ".join(capfd.readouterr().err.split())
    execute(compose_run(*overrides, f"encoding.l2_clip={l2_clip}"))
    shown = " ".join(capfd.readouterr().err.split())
    assert "the usual update has an L2 norm of" in shown
    assert words in shown


@pytest.mark.parametrize("overrides", [FOR_SUMS, CENTRAL])
def test_a_pilot_sets_the_clip_and_is_named_in_the_statement(overrides: list[str], tmp_path: Path) -> None:
    """The clip is the median norm of the first updates, which a run with that clip confirms."""
    config = compose_run(*overrides, "encoding=pilot", "federation.rounds=2", f"output={tmp_path}")
    summary = execute(config)
    directory = RunDirectory.of(config).path
    text = (directory / "provenance.json").read_text()
    found = re.search(
        r"not counted in any figure: the L2 clip of (\S+) is the median norm of the first updates of 20 "
        r"clients, measured by a pilot without protection",
        text,
    )
    assert found is not None
    rows = pd.read_parquet(directory / "rounds.parquet")
    assert rows["norm_to_clip"].iloc[1] == pytest.approx(1.0, abs=0.06)
    assert summary["round"] == 2
    # Negative control: the default clip is another one.
    plain = compose_run(*overrides, "federation.rounds=2", f"output={tmp_path}")
    execute(plain)
    assert rows_of(plain)["norm_to_clip"].iloc[1] > 1.1


NOT_PRIVATE = {"drive", "none", "qsgd", "stochastic", "terngrad", "top_k", "vqsgd"}


def test_one_key_is_a_target_for_every_private_mechanism() -> None:
    """A sweep over mechanisms needs no second key: with a target, their files set no epsilon."""
    for path in sorted((CONF / "mechanism").glob("*.yaml")):
        if path.stem not in NOT_PRIVATE:
            config = compose_run(f"mechanism={path.stem}", "privacy.epsilon=8", "secagg=on")
            assert "epsilon" not in config.mechanism


def test_a_target_leaves_runs_without_one_as_they_were() -> None:
    config = compose_run()
    assert (config.encoding.clip, config.mechanism["epsilon"]) == (0.05, 1.0)
    assert config.l2_clip is None
    assert not config.encoding.rotate
