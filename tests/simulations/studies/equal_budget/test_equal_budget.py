"""The study at an equal budget: what its committed tables must show, and its runs through Flower."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from fl_privquant.accounting import SimulatedSum
from fl_privquant.cli.plots import colour_of, pyplot, save
from fl_privquant.mechanisms.base import Mechanism
from simulations.keys.mechanism_keys import has_levels
from simulations.planned import plan_of
from simulations.results import RunDirectory
from simulations.run import execute
from simulations.studies.catalogue import study_of
from simulations.studies.equal_budget.numbers import GRADIENTS, Numbers
from simulations.studies.equal_budget.planned_errors import ALLOWED, PEERS, error_row
from simulations.studies.study import Figure, Scale, Store
from simulations.studies.sweep import Sweep, collect

STUDY = study_of("equal_budget")
STORE = Store(STUDY.home)
TRAINED = Numbers(STORE.read).trained


def sweep_of(name: str) -> Sweep:
    sweep = STUDY.part(name)
    assert isinstance(sweep, Sweep)
    return sweep


def test_the_committed_errors_meet_the_targets() -> None:
    errors = STORE.read("secure_sum")
    ours = errors[errors["mechanism"] == "optm_aggregate"]
    for clients, largest in ((100, 1.06), (1000, 1.13)):
        best = ours[ours["num_clients"] == clients].groupby("run_epsilon")["ratio_to_central"].max()
        assert list(best.index) == [1, 4, 10]
        assert best.max() <= largest
    assert (errors["ratio_to_central"] > 1.0).all()
    assert np.all(errors["epsilon_reached"] <= errors["run_epsilon"])
    assert set(errors["mechanism"]) == set(PEERS)


def test_the_committed_errors_are_reached_in_fewer_bits_than_by_additive_noise() -> None:
    """Among our designs that err no more than a peer's, one is at least as narrow in the secure sum."""
    errors = STORE.read("secure_sum")
    ours = errors[errors["mechanism"] == PEERS[0]]
    peers = errors[errors["mechanism"].isin(["skellam", "discrete_gaussian"])]
    assert len(peers) >= 6
    for row in peers.itertuples():
        rivals = ours[(ours["num_clients"] == row.num_clients) & (ours["run_epsilon"] == row.run_epsilon)]
        as_good = rivals[rivals["ratio_to_central"] <= row.ratio_to_central]
        assert not as_good.empty
        assert as_good["bits_in_sum"].min() <= row.bits_in_sum


@pytest.mark.parametrize("name", TRAINED)
def test_no_budget_is_exceeded_in_the_committed_tables(name: str) -> None:
    table = STORE.read(name)
    assert (table.epsilon_total_aggregate <= table.run_epsilon).all()
    assert (table.epsilon_total_aggregate > 0.9 * table.run_epsilon).all()


@pytest.mark.parametrize("name", TRAINED)
def test_a_table_holds_what_the_experiment_asks_for(name: str) -> None:
    table, runs = STORE.read(name), sweep_of(name).runs()
    assert table.seeds.sum() == len(runs)
    assert set(table.mechanism) == {config.label for config in runs}
    for column, wanted in (
        ("rounds", {config.federation.rounds for config in runs}),
        ("num_clients", {config.federation.num_clients for config in runs}),
        ("run_epsilon", {config.privacy.epsilon for config in runs}),
        ("l2_clip", {config.l2_clip for config in runs}),
    ):
        assert set(table[column]) == wanted, column


@pytest.mark.parametrize("name", TRAINED)
def test_the_committed_losses_are_those_of_the_accuracies(name: str) -> None:
    """Differences of the same seeds have the difference of the means as their mean."""
    table = STORE.read(name)
    for epsilon, rows in table.groupby("run_epsilon"):
        central = rows[rows["mechanism"] == "central_gaussian"]["accuracy"].item()
        assert (rows["accuracy_lost"] - (central - rows["accuracy"])).abs().max() < 1e-6, epsilon


def test_the_page_says_which_losses_are_outside_one_standard_error() -> None:
    numbers, page = Numbers(STORE.read), STORE.page.read_text(encoding="utf-8")
    ours = numbers.our_losses
    outside = ours[~ours["within"]]
    # Every task at every budget.
    assert set(TRAINED) == set(GRADIENTS)
    assert set(ours["task"]) == {"digits", "MNIST", "Fashion-MNIST"}
    assert set(ours["run_epsilon"]) == {1.0, 4.0, 10.0}
    assert f"Of the {len(ours)} cells of sums of bits, {len(ours) - len(outside)} are within" in page
    for cell in outside.itertuples():
        assert f"**{cell.lost:.2f} ± {cell.error:.2f}**" in page
    # No more cells than chance puts there (99.9 %): a mechanism that loses in earnest is not passed over.
    (chance,) = set(ours["chance_outside"])
    assert len(outside) <= binom.ppf(0.999, len(ours), chance)
    assert chance == pytest.approx(0.330, abs=1e-3)
    for cell in ours.itertuples():
        named = f"{cell.series}, {cell.lost:.2f} ± {cell.half_interval:.2f} points (p = {cell.joint:.3f})"
        assert (named in page) == (cell.joint <= 0.05)
    for _, mean in numbers.pooled:
        assert f"| {mean['cells']} | {mean['mean']:.2f} ± {mean['half_interval']:.2f} |" in page


@pytest.mark.parametrize("mechanism", ["optm_aggregate", "pbm"])
def test_simulated_sums_are_those_of_secure_aggregation(mechanism: str, tmp_path: Path) -> None:
    """The same model to the last bit, the same bytes and the same statements, with masks and without."""
    small = ("federation.num_clients=12", "federation.rounds=2", f"mechanism={mechanism}", "seed=0")
    overrides = (*small, "privacy.epsilon=8")
    sweep = dataclasses.replace(sweep_of("training-digits"), variants=())
    (simulated,) = sweep.runs(Scale(overrides=overrides, output=tmp_path))
    (masked,) = sweep.runs(Scale(overrides=(*overrides, "secagg.masked=true"), output=tmp_path))
    assert (simulated.secagg.masked, masked.secagg.masked) == (False, True)
    for config in (simulated, masked):
        execute(config)
    first, second = (collect([config]) for config in (simulated, masked))
    assert first["model_sha256"].item()
    pd.testing.assert_frame_equal(first, second)
    lines = [
        json.loads((RunDirectory.of(config).path / "provenance.json").read_text())["statement"]
        for config in (simulated, masked)
    ]
    (only,) = set(lines[0]) - set(lines[1])
    assert only == f"privacy is simulated: {SimulatedSum.simulated}"
    assert not set(lines[1]) - set(lines[0])


def test_encoded_gradients_have_the_error_that_the_design_says(tmp_path: Path) -> None:
    """Through Flower, in a simulated secure sum; the L2 clip is so wide that the error is the noise."""
    small = ("federation.num_clients=20", "federation.rounds=3", "mechanism=optm_aggregate", "seed=0")
    scale = Scale(overrides=(*small, "privacy.epsilon=8", "encoding.l2_clip=2"), output=tmp_path)
    config, *_ = sweep_of("training-digits").runs(scale)
    execute(config)
    (row,) = collect([config]).itertuples()
    mechanism = Mechanism.from_bytes((RunDirectory.of(config).path / "mechanism.pqm").read_bytes())
    plan = plan_of(config, 650)
    assert plan is not None
    # Gradients are far shorter than the L2 clip: coordinates are close to 0.
    noise = mechanism.mse(np.zeros(1)) / 20 * plan.encoding.clip**2
    assert row.mean_squared_error == pytest.approx(noise, rel=0.15)
    assert row.share_clipped < 0.02
    assert row.secure_aggregation


@pytest.mark.parametrize("figure", STUDY.figures, ids=lambda figure: figure.name)
def test_figures_are_drawn_from_the_tables(figure: Figure, tmp_path: Path) -> None:
    assert save(figure.draw(STORE.read), tmp_path / "figure.png").stat().st_size > 10_000


# What a dichromat sees of linear RGB, after Viénot, Brettel and Mollon (1999).
_DICHROMATS = {
    "protanope": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranope": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}
_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
_WHITE = [0.9505, 1.0, 1.089]


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour as somebody sees it."""
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    xyz = np.cbrt(np.array(_XYZ) @ np.clip(seen @ linear, 0.0, 1.0) / _WHITE)
    return np.array([116 * xyz[1] - 16, 500 * (xyz[0] - xyz[1]), 200 * (xyz[1] - xyz[2])])


def nearest_pair(colours: list[str]) -> float:
    """The least distance of two colours for anybody; two that are side by side differ from about 10 on."""
    return min(
        float(np.linalg.norm(lab(one, seen) - lab(other, seen)))
        for seen in (np.eye(3), *map(np.array, _DICHROMATS.values()))
        for one, other in itertools.combinations(colours, 2)
    )


def test_the_colours_of_the_first_figure_can_be_told_apart_by_the_colour_blind() -> None:
    assert nearest_pair([colour_of(mechanism) for mechanism in PEERS]) > 15.0
    # Skellam had this colour once, which is next to that of the discrete Gaussian.
    assert nearest_pair(["#355070", "#6d597a"]) < 15.0


def test_bars_of_the_first_figure_begin_at_zero_and_show_the_bits_of_every_mechanism() -> None:
    figure = next(each for each in STUDY.figures if each.name == "secure-sum").draw(STORE.read)
    table = STORE.read("equal_error")
    for axis, num_clients in zip(figure.axes, (100, 1000), strict=True):
        assert axis.get_ylim()[0] == 0.0
        rows = table[table["num_clients"] == num_clients]
        heights = sorted(bar.get_height() for bar in axis.patches)
        assert heights == sorted(rows["bits_in_sum"])
        assert axis.get_ylim()[1] > max(heights)
        # Each bar says how many bits are sent.
        assert sorted(int(text.get_text()) for text in axis.texts) == heights
    pyplot().close(figure)


def test_all_mechanisms_of_the_first_figure_have_the_same_error_at_their_own_best() -> None:
    """Each has the fewest levels that are enough: rounded more coarsely, peers erred seven times as much."""
    table = STORE.read("equal_error")
    keys = ["num_clients", "run_epsilon", "mechanism"]
    assert set(table[keys].itertuples(index=False, name=None)) == set(
        itertools.product((100, 1000), (1.0, 4.0, 10.0), PEERS)
    )
    assert (table["ratio_to_central"] <= ALLOWED).all()
    assert np.all(table["epsilon_reached"] <= table["run_epsilon"])
    for mechanism in filter(has_levels, PEERS):
        (row,) = table.query(
            "mechanism == @mechanism and num_clients == 100 and run_epsilon == 4"
        ).itertuples()
        fewer = error_row(mechanism, 7850, 100, 4.0, int(row.levels) - 1)
        assert fewer is not None
        assert fewer["ratio_to_central"] > ALLOWED
