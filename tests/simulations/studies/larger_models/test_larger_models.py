"""Networks at an equal budget: what the experiments ask for, their data, and what the tables must hold."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_privquant.cli.plots import save
from simulations.config import CENTRAL
from simulations.data import shakespeare as last_characters
from simulations.studies.catalogue import study_of
from simulations.studies.larger_models.characters import gru, shakespeare
from simulations.studies.larger_models.images import dealt, wide_cnn
from simulations.studies.larger_models.numbers import BUDGETS, Setting
from simulations.studies.page import page_text, table_or_none
from simulations.studies.study import Figure, Store
from simulations.studies.sweep import Sweep, guessing

STUDY = study_of("larger_models")
STORE = Store(STUDY.home)
VARIANTS = {
    (CENTRAL, None, None),
    ("skellam", 4, None),
    *(("rounded_gaussian", None, keep) for keep in (None, 0.25)),
}


@pytest.mark.parametrize("sweep", STUDY.parts, ids=lambda sweep: sweep.name)
def test_every_variant_is_run_at_every_budget_and_seed(sweep: Sweep) -> None:
    runs = sweep.runs()
    private = {
        (run.label, run.mechanism.get("bits"), run.encoding.keep, run.privacy.epsilon, run.seed)
        for run in runs
        if run.privacy.epsilon is not None
    }
    assert private == {
        (*variant, budget, seed) for variant in VARIANTS for budget in BUDGETS for seed in range(3)
    }
    assert len(runs) == len(private) + 3
    assert all(run.secagg.enabled for run in runs if run.label not in (CENTRAL, "none"))


@pytest.mark.parametrize("sweep", STUDY.parts, ids=lambda sweep: sweep.name)
def test_a_table_holds_every_run_and_no_total_is_above_its_budget(sweep: Sweep) -> None:
    table = table_or_none(STORE.read, sweep.name)
    if table is None:
        assert sweep.name in STORE.page.read_text().partition("not run yet:")[2]
        return
    assert set(table["seeds"]) == {3}
    # Rows of a mechanism that was retired are kept until the runs are repeated with what took its place.
    own = table[table["mechanism"] != "sums of bits (retired)"]
    runs = [run for run in sweep.runs() if len(own) == len(table) or run.label in set(own["mechanism"])]
    assert own["seeds"].sum() == len(runs)
    private = Setting(table).private
    assert (private["epsilon_total_aggregate"] <= private["run_epsilon"]).all()
    assert table["accuracy"].between(0.0, 1.0).all()
    none = Setting(table).none
    assert none.accuracy_low > Setting(table).guessing


def test_the_page_follows_the_tables() -> None:
    assert page_text(STUDY, STORE.read, STORE.seconds()) == STORE.page.read_text()


@pytest.mark.parametrize("figure", STUDY.figures, ids=lambda figure: figure.name)
def test_figures_are_drawn_from_the_tables(figure: Figure, tmp_path: Path) -> None:
    if STORE.has(figure.needs):
        assert save(figure.draw(STORE.read), tmp_path / "figure.png").stat().st_size > 10_000


def test_users_have_as_many_examples_and_few_labels() -> None:
    labels = np.repeat(np.arange(10), 300)
    users = dealt(labels, 100, 0.1)
    assert (np.bincount(users) == 30).all()
    kinds = [len(np.unique(labels[users == user])) for user in range(100)]
    # With shares that are nearly equal, 30 examples have all ten labels but one or none.
    alike = dealt(labels, 100, 1e6)
    assert np.mean(kinds) < 5.0
    assert np.mean([len(np.unique(labels[alike == user])) for user in range(100)]) > 9.0


def test_characters_are_learnt_at_every_place_and_tested_at_the_last(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "roles.jsonl.gz", "wt") as file:
        for role in ("A", "B"):
            file.write(json.dumps({"role": role, "text": f"{role} to be or not to be, " * 9}) + "\n")
    every, last = (read(str(tmp_path), length=6, stride=3) for read in (shakespeare, last_characters))
    assert every.train_y.shape == every.train_x.shape
    assert (every.train_y[:, :-1] == every.train_x[:, 1:]).all()
    assert (every.train_y[:, -1] == last.train_y).all()
    cut = every.first(4, 3)
    assert cut.labelled
    assert cut.num_classes <= every.num_classes == last.num_classes
    assert (len(cut.train_y), len(cut.test_y)) == (4, 3)
    model = gru(every.num_classes, hidden=4, embedding=3)
    texts = torch.from_numpy(every.train_x[:5])
    places = model.train()(texts)
    assert places.shape == (5, every.num_classes, 6)
    assert torch.equal(model.eval()(texts), places[:, :, -1])


def test_the_network_for_images_and_the_accuracy_of_guessing() -> None:
    model = wide_cnn((1, 14, 14), 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 102_450
    assert model(torch.zeros(2, 1, 14, 14)).shape == (2, 10)
    assert guessing(np.array([[2, 2], [1, 2]]), np.array([1, 2, 0, 0])) == 0.25
