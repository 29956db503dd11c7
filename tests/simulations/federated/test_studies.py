"""The studies: what they run, a small one from end to end, and the page, which is that of the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fl_privquant.errors import InvalidSpecError, PrivQuantError
from simulations.federated.__main__ import run_study
from simulations.federated.collect import collect, read_table, table_or_none
from simulations.federated.figures import DRAWN, draw
from simulations.federated.page import PAGE, chosen_clip, page
from simulations.federated.studies import STUDIES, Study, study
from simulations.overrides import CONF, check_overrides
from simulations.results import ResultsError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SMALL = ["federation.rounds=1", "federation.num_clients=5", "federation.local_epochs=1"]


def test_every_experiment_is_a_study() -> None:
    files = {path.stem for path in (CONF / "experiment").glob("federated-*.yaml")}
    assert files == {each.experiment for each in STUDIES}
    with pytest.raises(InvalidSpecError, match="did you mean 'bits-mnist'"):
        study("bit-mnist")


@pytest.mark.parametrize("chosen", STUDIES, ids=lambda each: each.name)
def test_a_study_is_the_sweep_that_hydra_runs(chosen: Study) -> None:
    runs = chosen.runs()
    swept = check_overrides([f"experiment={chosen.experiment}"])
    # What a mechanism ignores does not multiply its runs.
    assert len(runs) == swept or {"none"} < {each.label for each in runs}
    assert len({each.run_name for each in runs}) == len(runs) <= swept
    assert {each.federation.num_clients for each in runs} == {100}


def test_a_small_study_runs_from_end_to_end_and_is_not_run_again(tmp_path: Path) -> None:
    chosen = study("mechanisms-digits")
    overrides = ["mechanism=one_bit", *SMALL, f"output={tmp_path}"]
    with pytest.raises(ResultsError, match="no finished run"):
        collect(chosen.runs(overrides))
    table = pd.read_csv(run_study(chosen, overrides, tmp_path / "tables"))
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/rounds.parquet")}
    assert len(stamps) == 5
    (row,) = table.itertuples()
    assert (row.mechanism, row.seeds, row.dimension, row.unit) == ("one_bit", 5, 650, "coordinate release")
    assert row.accuracy_low < row.accuracy < row.accuracy_high
    # One bit a coordinate and a header of 16 bytes.
    assert row.bits_per_coordinate == pytest.approx(1.0 + 8 * 16 / 650, abs=0.02)
    assert row.epsilon == pytest.approx(1.0, rel=1e-4)
    assert 1.0 < row.epsilon_total_aggregate < row.epsilon_total_local < 650
    run_study(chosen, overrides, tmp_path / "again")
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/rounds.parquet")}
    assert (tmp_path / "again" / "mechanisms-digits.csv").read_bytes() == (
        tmp_path / "tables" / "mechanisms-digits.csv"
    ).read_bytes()


@pytest.mark.parametrize("mechanism", ["central_gaussian", "optm_aggregate", "one_bit"])
def test_an_equal_budget_is_met(mechanism: str, tmp_path: Path) -> None:
    overrides = [f"mechanism={mechanism}", "privacy.epsilon=10", "seed=0"]
    small = ["federation.rounds=1", "federation.num_clients=30", f"output={tmp_path}"]
    table = collect_small(study("equal-budget-digits"), [*overrides, *small])
    assert 5.0 < table.epsilon_total_aggregate.item() <= 10.0
    assert table["view"].item() == ("central" if mechanism == "central_gaussian" else "aggregate of 30")


def collect_small(chosen: Study, overrides: list[str]) -> pd.DataFrame:
    from simulations.run import execute

    configs = chosen.runs(overrides)
    for config in configs:
        execute(config)
    return collect(configs)


def test_the_page_is_that_of_the_committed_tables() -> None:
    assert PAGE.read_text() == page()


def test_the_page_follows_the_tables() -> None:
    def worse(name: str) -> pd.DataFrame:
        table = read_table(name)
        return table.assign(accuracy=table.accuracy - 0.1) if name == "epsilon-mnist" else table

    assert page(worse) != page()

    def another_model(name: str) -> pd.DataFrame:
        table = read_table(name)
        return table.assign(model_sha256=[f"{place}" for place in range(len(table))])

    with pytest.raises(PrivQuantError, match="secure aggregation changed the model"):
        page(another_model)


@pytest.mark.parametrize(
    ("tuned", "column", "used"),
    [
        ("clip-digits", "clip", ("mechanisms-digits", "partition-digits")),
        ("clip-mnist", "clip", ("epsilon-mnist", "bits-mnist", "partition-mnist", "secagg-mnist")),
        ("clip-digits-cnn", "clip", ("cnn-digits",)),
        ("clip-mnist-cnn", "clip", ("cnn-mnist",)),
        ("norm-digits", "l2_clip", ("equal-budget-digits",)),
        ("norm-mnist", "l2_clip", ("equal-budget-mnist",)),
    ],
)
def test_clips_are_those_of_the_rule(tuned: str, column: str, used: tuple[str, ...]) -> None:
    table = table_or_none(read_table, tuned)
    assert table is not None or f"{tuned}" in PAGE.read_text().partition("not run yet:")[2]
    for name in used if table is not None else ():
        chosen = chosen_clip(table, column)
        codec = study(name).runs()[0].codec
        assert getattr(codec, column) == chosen
        if column == "l2_clip":
            dimension = {"equal-budget-digits": 650, "equal-budget-mnist": 7850}[name]
            assert codec.clip == pytest.approx(2.0 * chosen / np.sqrt(dimension), rel=1e-3)


@pytest.mark.parametrize("each", STUDIES, ids=lambda each: each.name)
def test_a_table_holds_what_the_experiment_asks_for_or_the_page_says_that_it_was_not_run(each: Study) -> None:
    table, runs = table_or_none(read_table, each.name), each.runs()
    if table is None:
        assert each.name in PAGE.read_text().partition("not run yet:")[2]
    else:
        assert table.seeds.sum() == len(runs)
        assert set(table.mechanism) == {run.label for run in runs}
        assert set(table.rounds) == {15}


def test_no_budget_is_exceeded_in_the_committed_tables() -> None:
    for name in ("equal-budget-digits", "equal-budget-mnist"):
        table = read_table(name)
        assert (table.epsilon_total_aggregate <= table.run_epsilon).all()
        assert (table.epsilon_total_aggregate > 0.9 * table.run_epsilon).all()


@pytest.mark.parametrize("name", DRAWN)
def test_figures_are_drawn_from_the_tables(name: str, tmp_path: Path) -> None:
    assert draw(name, tmp_path).stat().st_size > 10_000
