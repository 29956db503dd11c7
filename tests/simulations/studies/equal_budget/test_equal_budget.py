"""The study at an equal budget: what its committed tables must show."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np

from fl_privquant.plotting import color_of, import_pyplot
from simulations.runner.mechanism_config import has_levels
from simulations.studies.__main__ import study_folder
from simulations.studies._pages import read_table
from simulations.studies.equal_budget.planned_errors import ALLOWED, OURS, PEERS, error_row
from simulations.studies.equal_budget.study import FIGURES

READ = partial(read_table, study_folder("equal_budget"))


def test_the_committed_errors_meet_the_targets() -> None:
    errors = READ("secure_sum")
    ours = errors[errors["mechanism"] == OURS]
    for clients, largest in ((100, 1.01), (1000, 1.01)):
        best = ours[ours["num_clients"] == clients].groupby("run_epsilon")["ratio_to_central"].max()
        assert list(best.index) == [1, 4, 10]
        assert best.max() <= largest
    assert (errors["ratio_to_central"] > 1.0).all()
    assert np.all(errors["epsilon_reached"] <= errors["run_epsilon"])
    assert set(errors["mechanism"]) == set(PEERS)


def test_the_committed_errors_are_reached_in_fewer_bits_than_by_additive_noise() -> None:
    """Among our designs that err no more than a peer's, one is at least as narrow in the secure sum."""
    errors = READ("secure_sum")
    ours = errors[errors["mechanism"] == OURS]
    peers = errors[errors["mechanism"].isin(["skellam", "discrete_gaussian"])]
    assert len(peers) >= 6
    for row in peers.itertuples():
        rivals = ours[(ours["num_clients"] == row.num_clients) & (ours["run_epsilon"] == row.run_epsilon)]
        as_good = rivals[rivals["ratio_to_central"] <= row.ratio_to_central]
        assert not as_good.empty
        assert as_good["bits_in_sum"].min() <= row.bits_in_sum


# What a dichromat sees of linear RGB, after Viénot, Brettel and Mollon (1999).
_DICHROMATS = {
    "protanope": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranope": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}
_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
_WHITE = [0.9505, 1.0, 1.089]


def lab(color: str, seen: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a color as somebody sees it."""
    channels = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    xyz = np.cbrt(np.array(_XYZ) @ np.clip(seen @ linear, 0.0, 1.0) / _WHITE)
    return np.array([116 * xyz[1] - 16, 500 * (xyz[0] - xyz[1]), 200 * (xyz[1] - xyz[2])])


def nearest_pair(colors: list[str]) -> float:
    """The least distance of two colors for anybody; two that are side by side differ from about 10 on."""
    return min(
        float(np.linalg.norm(lab(one, seen) - lab(other, seen)))
        for seen in (np.eye(3), *map(np.array, _DICHROMATS.values()))
        for one, other in itertools.combinations(colors, 2)
    )


def test_the_colors_of_the_first_figure_can_be_told_apart_by_the_color_blind() -> None:
    assert nearest_pair([color_of(mechanism) for mechanism in PEERS]) > 15.0
    # Skellam had this color once, which is next to that of the discrete Gaussian.
    assert nearest_pair(["#355070", "#6d597a"]) < 15.0


def test_bars_of_the_first_figure_begin_at_zero_and_show_the_bits_of_every_mechanism() -> None:
    figure = FIGURES["secure-sum"](READ)
    table = READ("equal_error")
    for axis, num_clients in zip(figure.axes, (100, 1000), strict=True):
        assert axis.get_ylim()[0] == 0.0
        rows = table[table["num_clients"] == num_clients]
        heights = sorted(bar.get_height() for bar in axis.patches)
        assert heights == sorted(rows["bits_in_sum"])
        assert axis.get_ylim()[1] > max(heights)
        # Each bar says how many bits are sent.
        assert sorted(int(text.get_text()) for text in axis.texts) == heights
    import_pyplot().close(figure)


def test_all_mechanisms_of_the_first_figure_have_the_same_error_at_their_own_best() -> None:
    """Each has the fewest levels that are enough: rounded more coarsely, peers erred seven times as much."""
    table = READ("equal_error")
    keys = ["num_clients", "run_epsilon", "mechanism"]
    assert set(table[keys].itertuples(index=False, name=None)) == set(
        itertools.product((100, 1000), (1.0, 4.0, 10.0), PEERS)
    )
    assert (table["ratio_to_central"] <= ALLOWED).all()
    assert np.all(table["epsilon_reached"] <= table["run_epsilon"])
    for mechanism in filter(has_levels, PEERS):
        (row,) = table.query(
            "mechanism == @mechanism and num_clients == 100 and run_epsilon == 4"
        ).itertuples()
        if row.levels > 2:
            fewer = error_row(mechanism, 7850, 100, 4.0, row.levels - 1)
            assert fewer is not None
            assert fewer["ratio_to_central"] > ALLOWED
