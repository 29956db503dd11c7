"""README's figure."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from simulations.studies.headline import (
    CLIENTS,
    EPSILON,
    OURS,
    RECORDS,
    client_runs,
    mean_accuracies,
    record_runs,
)

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")


def test_the_text_in_place_of_the_figure_has_the_figures_of_the_tables() -> None:
    told = re.search(r'headline\.png"[^>]* alt="[^"]*Clients: (.*?)\. Records: (.*?)\."', README)
    assert told is not None
    for said, runs, names in (
        (told[1], client_runs(), CLIENTS.values()),
        (told[2], record_runs(), RECORDS.values()),
    ):
        means = [f"{mean:.1f}" for mean, *_ in mean_accuracies(runs, names).values()]
        assert re.findall(r"\d+\.\d", said) == means


def seeds_by_arm(runs: pd.DataFrame) -> list[int]:
    return list(runs.groupby("name")["seed"].nunique())


def test_every_bar_has_the_five_seeds_that_the_caption_names() -> None:
    assert "five seeds" in README
    assert seeds_by_arm(client_runs()) == [5] * len(CLIENTS)
    assert seeds_by_arm(record_runs()) == [5] * len(RECORDS)


def test_bars_that_are_compared_have_the_same_epsilon() -> None:
    clients, records = client_runs(), record_runs()
    assert set(clients.loc[clients["name"] != "no privacy", "epsilon"]) == {EPSILON}
    assert set(records.loc[records["name"] != "no privacy", "epsilon"]) == {EPSILON}
    private = records[records["name"].ne("no privacy") & records["name"].notna()]
    # Of an add-remove epsilon that is spent in full, up to the rounding of a noise multiplier.
    assert private["add_remove"].between(0.99 * EPSILON, EPSILON).all()


def test_what_the_figure_is_drawn_for_is_significant() -> None:
    clients = mean_accuracies(client_runs(), CLIENTS.values())
    records = mean_accuracies(record_runs(), RECORDS.values())
    assert clients[OURS].low > clients["trusted server,\nfresh noise"].high
    assert clients[OURS].low > clients["Flower's wrapper,\ntrusted server"].high
    assert records[OURS].low > records["Opacus in\neach client"].high
