"""The study of ten silos: every way is tuned alike, and what its page claims is in its tables."""

from __future__ import annotations

from functools import partial

from simulations.studies.__main__ import study_folder
from simulations.studies._pages import read_table
from simulations.studies.records import study
from simulations.studies.records import training as runs

READ = partial(read_table, study_folder("records"))
TABLES = ("ten-silos", "opacus")


def test_the_runs_have_the_best_learning_rate_of_the_trials() -> None:
    compared = 0
    for name in TABLES:
        trials = READ(f"{name}-tuning")
        assert set(trials["seed"]) == {runs.TUNING_SEED}
        for (way, epsilon), rows in READ(name).groupby(["way", "epsilon"]):
            tuned = runs.CENTRAL if way == runs.OURS else way
            own = trials[(trials["way"] == tuned) & (trials["epsilon"] == epsilon)]
            best = own.loc[own["accuracy"].idxmax(), "learning_rate"]
            assert 3 <= len(own) <= runs.MAX_TRIALS
            assert set(rows["learning_rate"]) == {best}
            assert tuple(rows["seed"]) == runs.SEEDS
            compared += 1
    # Four ways at each epsilon, and one run without privacy.
    assert compared == 4 * len(runs.EPSILONS) + 1


def test_the_secure_sum_is_near_the_trusted_server_and_ahead_of_noise_in_each_silo() -> None:
    numbers = study.page_numbers(READ)
    assert all(abs(line["points"]) <= 0.3 for line in numbers["behind_central"])
    (lead,) = [line for line in numbers["ahead_of_opacus"] if line["epsilon"] == 1.0]
    assert lead["points"] - lead["half"] >= 3.0
    assert lead["half"] > 0.0


def test_the_convolutional_network_learns_mnist_at_epsilon_three() -> None:
    table = READ("records-cnn")
    assert (table["accuracy"] >= 0.96).all()
    assert table["add_remove"].between(2.9, 3.0).all()
    assert (table["overflowed_sums"] == 0).all()
