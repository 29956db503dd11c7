"""Comparisons of mechanisms for coordinates and for whole updates."""

from __future__ import annotations

from typer.testing import CliRunner

import fl_privquant.cli.main as cli
from fl_privquant.cli.comparison import compare, design_with_split_epsilon


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
