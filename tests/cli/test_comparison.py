"""Comparisons of mechanisms for coordinates and for whole updates."""

from __future__ import annotations

from typer.testing import CliRunner

import fl_privquant.cli.main as cli
from fl_privquant.cli.comparison import compare


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
    (rows,) = [list(compare(2.0, 4, names=("cldp_linf",), dimension=5))]
    assert rows[0].mechanism is not None
    assert f"{rows[0].mechanism.mse():.4f}" in whole
