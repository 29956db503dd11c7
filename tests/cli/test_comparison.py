"""Comparisons along epsilon: the limit, what is left out, what is missing, and the picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import fl_privquant.cli.main as cli
from fl_privquant.cli import comparison
from fl_privquant.cli.comparison import (
    ComparisonRow,
    Curves,
    compare,
    design_with_split_epsilon,
    find_stuck_search,
    lower_error_limit,
)


@pytest.mark.parametrize(
    ("epsilon", "mse", "mae"), [(0.5, 16.01, 3.53), (1.0, 3.889, 1.565), (3.0, 0.262, 0.317)]
)
def test_the_limit_of_unbiased_mechanisms(epsilon: float, mse: float, mae: float) -> None:
    assert lower_error_limit(epsilon, 2) == pytest.approx(mse, rel=0.01)
    assert lower_error_limit(epsilon, 1) == pytest.approx(mae, rel=0.01)
    for row in compare(epsilon, 4, names=("mvu", "one_bit")):
        assert row.mechanism is not None
        assert row.mechanism.mse() >= mse
        assert row.mechanism.mae() >= mae


def test_curves_leave_out_what_does_not_compare() -> None:
    names = ("one_bit", "none", "stochastic", "pbm")
    curves = Curves()
    for epsilon in (1.0, 2.0):
        curves.add(epsilon, 4, list(compare(epsilon, 4, names=names)))
    curves.add(1.0, 8, [ComparisonRow("rqm", None, 0.0, "no margin")])
    assert set(curves.lines(4, 2)) == {"one_bit", "pbm"}
    epsilons, errors = curves.lines(4, 1)["pbm"]
    assert epsilons == [1.0, 2.0]
    assert errors[0] > errors[1]
    assert curves.missing() == {("rqm", "no margin"): [(8, 1.0)]}
    assert set(curves.limits) == {1.0, 2.0}


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


def test_the_picture_and_the_bias_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "CURVE_EPSILONS", (1.0, 3.0))
    monkeypatch.setattr(comparison, "CURVE_LEVELS", (4,))
    path = tmp_path / "curve.png"
    runner = CliRunner()
    names = ["--mechanism", "one_bit", "--mechanism", "biased"]
    shown = runner.invoke(cli.app, ["compare", *names, "--curve", str(path)])
    assert shown.exit_code == 0, shown.output
    assert path.stat().st_size > 10_000
    assert "max bias" in shown.output
    assert "max bias" not in runner.invoke(cli.app, ["compare", *names[:2]]).output
