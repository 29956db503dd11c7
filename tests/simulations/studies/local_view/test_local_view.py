"""Federated learning in the local view: what the experiment asks for, and what its tables must show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_privquant.cli.plots import save
from fl_privquant.errors import InvalidSpecError
from simulations.data import Examples, _pooled
from simulations.studies.catalogue import study_of
from simulations.studies.local_view.numbers import EPSILONS, MECHANISMS
from simulations.studies.page import page_text, table_or_none
from simulations.studies.study import Figure, Store
from simulations.studies.sweep import Sweep

STUDY = study_of("local_view")
STORE = Store(STUDY.home)


@pytest.mark.parametrize("sweep", STUDY.parts, ids=lambda sweep: sweep.name)
def test_a_table_holds_every_run_or_the_page_says_that_it_was_not_run(sweep: Sweep) -> None:
    table, runs = table_or_none(STORE.read, sweep.name), sweep.runs()
    assert {run.federation.num_clients for run in runs} == {1000}
    assert all(run.encoding.clip == run.encoding.l2_clip for run in runs)
    if table is None:
        assert sweep.name in STORE.page.read_text().partition("Not run yet:")[2]
        return
    assert table["seeds"].sum() == len(runs)
    private = table[np.isfinite(table["epsilon"])]
    assert set(private["mechanism"]) == set(MECHANISMS)
    assert len(private) == len(MECHANISMS) * len(EPSILONS)
    # Pure composition: all rounds cost at most their number times one.
    assert (private["epsilon_total_local"] <= private["rounds"] * private["epsilon"] * (1 + 1e-6)).all()
    ours = private[private["mechanism"] == "shared_codebook"].sort_values("epsilon")
    other = private[private["mechanism"] == "cldp_l2"].sort_values("epsilon")
    assert (ours["mean_squared_error"].to_numpy() < other["mean_squared_error"].to_numpy()).all()
    assert ours["mean_squared_error"].is_monotonic_decreasing


def test_the_page_follows_the_tables() -> None:
    assert page_text(STUDY, STORE.read, STORE.seconds()) == STORE.page.read_text()


@pytest.mark.parametrize("figure", STUDY.figures, ids=lambda figure: figure.name)
def test_figures_are_drawn_from_the_tables(figure: Figure, tmp_path: Path) -> None:
    assert save(figure.draw(STORE.read), tmp_path / "figure.png").stat().st_size > 10_000


def test_pooled_images_are_means_of_squares() -> None:
    x = np.arange(2 * 16, dtype=np.float32).reshape(2, 1, 4, 4)
    pooled = _pooled(Examples(x, np.zeros(2, int), x, np.zeros(2, int)), 2)
    assert pooled.train_x.shape == (2, 1, 2, 2)
    assert pooled.test_x[0, 0, 0].tolist() == [2.5, 4.5]
    with pytest.raises(InvalidSpecError, match=r"task\.pool"):
        _pooled(pooled, 3)
