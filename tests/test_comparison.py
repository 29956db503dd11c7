"""Comparisons along epsilon: the limit, what is left out, what is missing, and the picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import fl_privquant.cli as cli
from fl_privquant.comparison import Compared, Curves, compare, lower_limit


@pytest.mark.parametrize(
    ("epsilon", "mse", "mae"), [(0.5, 16.01, 3.53), (1.0, 3.889, 1.565), (3.0, 0.262, 0.317)]
)
def test_the_limit_of_unbiased_mechanisms(epsilon: float, mse: float, mae: float) -> None:
    assert lower_limit(epsilon, 2) == pytest.approx(mse, rel=0.01)
    assert lower_limit(epsilon, 1) == pytest.approx(mae, rel=0.01)
    for row in compare(epsilon, 4, names=("mvu", "one_bit")):
        assert row.mechanism is not None
        assert row.mechanism.mse() >= mse
        assert row.mechanism.mae() >= mae


def test_curves_leave_out_what_does_not_compare() -> None:
    names = ("one_bit", "none", "stochastic", "pbm")
    curves = Curves()
    for epsilon in (1.0, 2.0):
        curves.add(epsilon, 4, list(compare(epsilon, 4, names=names)))
    curves.add(1.0, 8, [Compared("rqm", None, 0.0, "no margin")])
    assert set(curves.lines(4, 2)) == {"one_bit", "pbm"}
    epsilons, errors = curves.lines(4, 1)["pbm"]
    assert epsilons == [1.0, 2.0]
    assert errors[0] > errors[1]
    assert curves.missing() == {("rqm", "no margin"): [(8, 1.0)]}
    assert set(curves.limits) == {1.0, 2.0}


def test_the_picture_and_the_bias_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "CURVE_EPSILONS", (1.0, 3.0))
    monkeypatch.setattr(cli, "CURVE_LEVELS", (4,))
    path = tmp_path / "curve.png"
    runner = CliRunner()
    names = ["--mechanism", "one_bit", "--mechanism", "biased"]
    shown = runner.invoke(cli.app, ["compare", *names, "--curve", str(path)])
    assert shown.exit_code == 0, shown.output
    assert path.stat().st_size > 10_000
    assert "max bias" in shown.output
    assert "max bias" not in runner.invoke(cli.app, ["compare", *names[:2]]).output
