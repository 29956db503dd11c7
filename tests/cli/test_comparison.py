"""Comparisons: whole updates, and searches that end in a local minimum."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import fl_privquant.cli.main as cli
from fl_privquant.cli.comparison import (
    compare,
    design_with_split_epsilon,
    find_stuck_search,
)


def test_whole_updates_have_a_table_of_their_own() -> None:
    names = ["--mechanism", "one_bit", "--mechanism", "cldp_linf", "--mechanism", "cldp_l2"]
    shown = CliRunner().invoke(cli.app, ["compare", "--epsilon", "2", "--dimension", "5", *names])
    assert shown.exit_code == 0, shown.output
    coordinates, whole = " ".join(shown.output.split()).split(
        "(client round, local view, replace-one), a whole update of 5 coordinates"
    )
    assert "(coordinate release, local view, replace-one)" in coordinates
    assert "cldp" not in coordinates
    assert "cldp_linf" in whole
    assert "the l2 ball" in whole
    # One bit a coordinate with a fifth of epsilon each: the same promise for the whole update.
    (rows,) = [list(compare(2.0, 4, names=("cldp_linf",), dimension=5))]
    assert rows[0].mechanism is not None
    split = design_with_split_epsilon(2.0, 5).mechanism
    assert split is not None
    assert split.epsilon * 5 <= 2.0
    assert f"{rows[0].mechanism.mse():.4f}" in whole
    assert f"{split.mse():.4f}" in whole


def test_where_mvu_is_stuck_the_free_family_is_named() -> None:
    rows = list(compare(1.5, 4, names=("mvu", "optm", "one_bit")))
    found = find_stuck_search(rows)
    assert found is not None
    assert (found.label, found.container) == ("mvu", "optm")
    assert found.mean_squared_error == pytest.approx(1.94, abs=0.01)
    assert found.min_error <= 1.632
    assert find_stuck_search([row for row in rows if row.label != "optm"]) is None
    names = ["--mechanism", "mvu", "--mechanism", "optm"]
    shown = CliRunner().invoke(cli.app, ["compare", "--epsilon", "1.5", *names])
    assert "mvu is in a local minimum: MSE 1.94" in shown.output
