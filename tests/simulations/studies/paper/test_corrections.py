"""Every check of the paper's theorems confirms, with the figures that are known; a broken one does not."""

from __future__ import annotations

import numpy as np
import pytest

from fl_privquant.mechanisms.tables.erm import erm_distribution
from simulations.studies.paper import corrections
from simulations.studies.paper.corrections import CHECKS, WORDS
from tests.simulations.studies.paper.committed import READ

GOLDEN = {
    "erm-privacy": {"exact": 6.423, "claimed": 2.189},
    "erm-error": {"needed_gamma": 11.645},
    "constraint1-pairs": {"printed": 2.2348, "exact": 3.4219},
    "constraint2-feasible": {"weak": 1.5556, "free": 0.8184},
}


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_check_confirms_and_has_the_known_figures(name: str) -> None:
    confirmed, measured = CHECKS[name](30)
    assert confirmed, measured
    assert WORDS[name]["finding"] % {**measured, "configurations": 30}
    for key, value in GOLDEN.get(name, {}).items():
        assert measured[key] == pytest.approx(value, rel=5e-4), key


def test_every_point_is_committed_and_confirmed() -> None:
    frame = READ("corrections")
    assert frame["check"].tolist() == list(CHECKS) == list(WORDS)
    assert frame["confirmed"].all()
    for column in ("where", "claim", "verdict"):
        assert frame[column].tolist() == [words[column] for words in WORDS.values()]


def test_a_check_fails_where_there_is_nothing_to_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: had RQM jumps, or with bins so wide that the printed bound would hold."""
    with monkeypatch.context() as patch:
        patch.setattr(corrections, "rqm_distribution", lambda bins, keep: erm_distribution(bins, 1.0))
        assert not corrections.jumps(5)[0]
    monkeypatch.setattr(corrections, "_uniform_bins", lambda levels, margin: np.linspace(-9, 9, levels))
    assert not corrections.erm_privacy(5)[0]
