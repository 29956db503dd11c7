"""The study of all mechanisms: its committed tables, and the page and figures that follow from them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fl_privquant.cli.plots import save
from fl_privquant.errors import PrivQuantError
from simulations.studies.catalogue import study_of
from simulations.studies.page import chosen_clip, page_text, table_or_none
from simulations.studies.study import Figure, Store
from simulations.studies.sweep import Sweep

STUDY = study_of("side_by_side")
STORE = Store(STUDY.home)


def test_the_page_follows_the_tables() -> None:
    def worse(name: str) -> pd.DataFrame:
        table = STORE.read(name)
        return table.assign(accuracy=table.accuracy - 0.1) if name == "epsilon-mnist" else table

    assert page_text(STUDY, worse, {}) != page_text(STUDY, STORE.read, {})

    def another_model(name: str) -> pd.DataFrame:
        table = STORE.read(name)
        return table.assign(model_sha256=[f"{place}" for place in range(len(table))])

    with pytest.raises(PrivQuantError, match="secure aggregation changed the model"):
        page_text(STUDY, another_model, {})


@pytest.mark.parametrize(
    ("tuned", "used"),
    [
        ("clip-digits", ("mechanisms-digits", "partition-digits")),
        ("clip-mnist", ("epsilon-mnist", "bits-mnist", "partition-mnist", "secagg-mnist")),
        ("clip-digits-cnn", ("cnn-digits",)),
        ("clip-mnist-cnn", ("cnn-mnist",)),
    ],
)
def test_clips_are_those_of_the_rule(tuned: str, used: tuple[str, ...]) -> None:
    for name in used:
        sweep = STUDY.part(name)
        assert isinstance(sweep, Sweep)
        assert sweep.runs()[0].encoding.clip == chosen_clip(STORE.read(tuned), "clip")


@pytest.mark.parametrize("sweep", STUDY.parts, ids=lambda sweep: sweep.name)
def test_a_table_holds_what_the_experiment_asks_for_or_the_page_says_that_it_was_not_run(
    sweep: Sweep,
) -> None:
    table, runs = table_or_none(STORE.read, sweep.name), sweep.runs()
    if table is None:
        assert sweep.name in STORE.page.read_text().partition("not run yet:")[2]
    else:
        assert table.seeds.sum() == len(runs)
        assert set(table.mechanism) == {config.label for config in runs}
        assert set(table.rounds) == {15}


@pytest.mark.parametrize("figure", STUDY.figures, ids=lambda figure: figure.name)
def test_figures_are_drawn_from_the_tables(figure: Figure, tmp_path: Path) -> None:

    path = tmp_path / f"{figure.name}.png"
    assert save(figure.draw(STORE.read), path).stat().st_size > 10_000
