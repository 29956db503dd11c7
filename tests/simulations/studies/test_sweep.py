"""Parts that are sweeps of federated runs: what they run, and a small one from end to end."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from simulations.config import RunConfig
from simulations.overrides import CONF, check_overrides
from simulations.results import ResultsError
from simulations.run import execute
from simulations.studies.catalogue import study_of
from simulations.studies.study import Scale, Store
from simulations.studies.sweep import Sweep, collect

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SWEEPS = [
    part
    for study in map(study_of, ("side_by_side", "equal_budget"))
    for part in study.parts
    if isinstance(part, Sweep)
]
EVERY_SWEEP = pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)


def sweep_of(name: str) -> Sweep:
    return next(sweep for sweep in SWEEPS if sweep.name == name)


def silent(share: float, doing: str) -> None:
    pass


@EVERY_SWEEP
def test_a_sweep_is_what_hydra_runs(sweep: Sweep) -> None:
    assert (CONF / "experiment" / f"{sweep.experiment}.yaml").exists()
    runs = sweep.runs()
    every = [(*sweep.overrides, *more) for more in ((), *sweep.variants)]
    swept = sum(check_overrides([f"experiment={sweep.experiment}", *overrides]) for overrides in every)
    # What a mechanism ignores does not multiply its runs.
    assert len(runs) == swept or {"none"} < {config.label for config in runs}
    assert len({config.run_name for config in runs}) == len(runs) <= swept
    assert {config.task_name for config in runs} == {sweep.needs or "digits"}
    assert {config.federation.num_clients for config in runs} == {100}


def test_overrides_replace_what_the_experiment_sweeps() -> None:
    sweep = sweep_of("clip-digits")
    assert [config.encoding.clip for config in sweep.runs()][::2] == [0.04, 0.08, 0.16, 0.32, 0.64]
    other = dataclasses.replace(sweep, overrides=("encoding.clip=0.1,0.2", "seed=7"))
    assert [(config.encoding.clip, config.seed) for config in other.runs()] == [(0.1, 7), (0.2, 7)]


def test_variants_add_runs_to_the_same_table() -> None:
    sweep = dataclasses.replace(
        sweep_of("training-digits"),
        overrides=("mechanism=central_gaussian,pbm", "seed=0", "privacy.epsilon=4"),
    )
    kinds = [(config.label, config.mechanism.get("bits")) for config in sweep.runs()]
    assert kinds == [
        ("central_gaussian", None),
        ("pbm", 2),
        *(("pbm", bits) for bits in (1, 3)),
    ]
    # The later override counts, and a run that is there already is not there twice.
    same = dataclasses.replace(sweep, variants=(("mechanism=pbm",), ("mechanism=pbm", "mechanism.bits=2")))
    assert [config.label for config in same.runs()] == ["central_gaussian", "pbm"]


def test_seeds_are_run_one_after_another_with_all_mechanisms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that an interrupted sweep can compare all mechanisms on some seeds."""
    run: list[RunConfig] = []
    monkeypatch.setattr("simulations.studies.sweep.execute", run.append)
    sweep = dataclasses.replace(sweep_of("training-digits"), overrides=("seed=0,1", "privacy.epsilon=4"))
    with pytest.raises(ResultsError, match="no finished run"):
        sweep.compute(Scale(output=tmp_path), silent)
    assert [config.seed for config in run] == [0] * 4 + [1] * 4
    assert [config.label for config in run[:4]] == [config.label for config in run[4:]]


def test_what_is_lost_to_the_central_gaussian_is_paired_by_seed(tmp_path: Path) -> None:
    chosen = ("mechanism=central_gaussian,rounded_gaussian", "privacy.epsilon=100", "seed=3,4,5")
    small = ("federation.rounds=2", "federation.num_clients=10")
    sweep = dataclasses.replace(sweep_of("training-digits"), variants=())
    configs = sweep.runs(Scale(overrides=(*chosen, *small), output=tmp_path))
    accuracy = {(config.label, config.seed): execute(config)["accuracy"] for config in configs}
    lost = [accuracy["central_gaussian", seed] - accuracy["rounded_gaussian", seed] for seed in (3, 4, 5)]
    table = collect(configs).set_index("mechanism")
    assert table.accuracy_lost["rounded_gaussian"] == pytest.approx(sum(lost) / 3, abs=1e-12)
    assert table.accuracy_lost_error["rounded_gaussian"] == pytest.approx(pd.Series(lost).sem(), abs=1e-12)
    assert table.accuracy_lost["central_gaussian"] == 0.0
    # Without the central Gaussian's run of the same seeds there is nothing to pair with.
    alone = collect([config for config in configs if config.label == "rounded_gaussian"])
    assert alone.accuracy_lost.isna().all()


def test_a_small_sweep_runs_from_end_to_end_and_is_not_run_again(tmp_path: Path) -> None:
    small = ("mechanism=one_bit", "federation.rounds=1", "federation.num_clients=5")
    scale = Scale(overrides=(*small, "federation.local_epochs=1"), output=tmp_path)
    sweep = sweep_of("mechanisms-digits")
    with pytest.raises(ResultsError, match="no finished run"):
        collect(sweep.runs(scale))
    store = Store(tmp_path / "root", tmp_path / "kept")
    first = store.fetch(sweep, scale, silent)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/rounds.parquet")}
    assert len(stamps) == 5
    (row,) = first.tables["mechanisms-digits"].itertuples()
    assert (row.mechanism, row.seeds, row.dimension, row.unit) == ("one_bit", 5, 650, "coordinate release")
    assert row.accuracy_low < row.accuracy < row.accuracy_high
    # One bit a coordinate and a header of 16 bytes.
    assert row.bits_per_coordinate == pytest.approx(1.0 + 8 * 16 / 650, abs=0.02)
    assert row.epsilon == pytest.approx(1.0, rel=1e-4)
    assert 1.0 < row.epsilon_total_aggregate < row.epsilon_total_local < 650
    again = store.fetch(sweep, scale, silent, fresh=True)
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/rounds.parquet")}
    pd.testing.assert_frame_equal(first.tables["mechanisms-digits"], again.tables["mechanisms-digits"])
    # Another configuration is another key.
    assert not store.fetch(sweep, dataclasses.replace(scale, overrides=(*small, "seed=9")), silent).kept


@pytest.mark.parametrize(
    "changed",
    ["encoding.l2_clip=0.7", "federation.rounds=7", "privacy.delta=1e-6", "federation.learning_rate=0.07"],
)
def test_rows_of_other_settings_are_not_kept(changed: str) -> None:
    """They were once kept if only one of these settings had changed."""
    sweep = sweep_of("training-digits")
    assert sweep.configuration(Scale()) != sweep.configuration(Scale(overrides=(changed,)))


@pytest.mark.parametrize("mechanism", ["central_gaussian", "rounded_gaussian", "one_bit"])
def test_an_equal_budget_is_met(mechanism: str, tmp_path: Path) -> None:
    chosen = (f"mechanism={mechanism}", "privacy.epsilon=10", "seed=0")
    small = ("federation.rounds=1", "federation.num_clients=30")
    configs = sweep_of("training-digits").runs(Scale(overrides=(*chosen, *small), output=tmp_path))[:1]
    for config in configs:
        execute(config)
    table = collect(configs)
    assert 5.0 < table.epsilon_total_aggregate.item() <= 10.0
    assert table["view"].item() == ("central" if mechanism == "central_gaussian" else "aggregate of 30")
