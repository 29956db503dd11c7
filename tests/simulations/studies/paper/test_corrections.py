"""Every check of the paper's text confirms, with the figures that are known; broken ones do not."""

from __future__ import annotations

import re

import pytest

from fl_privquant.mechanisms.tables.erm import erm_distribution
from simulations.studies.paper import experiment_checks, scalar, theorem_checks
from simulations.studies.paper.corrections import CHECKS, run_check
from tests.simulations.studies.paper.committed import READ

GOLDEN = {
    "grid-means": {
        "grid_0.5": 3.9041,
        "grid_1": 1.8818,
        "grid_1.5": 1.1794,
        "exact_0.5": 3.8978,
        "exact_1": 1.8785,
        "exact_1.5": 1.1737,
    },
    "clipped-gaussian": {"clipped_0.1": 1.774, "clipped_0.2": 1.839, "clipped_0.3": 1.969},
    "mvu-row": {"mvu_0.1": 1.962, "mvu_0.2": 1.951, "mvu_0.3": 1.937},
    "joint-constraint": {"spread": 1.0, "authors": 1.774, "independent": 1.632},
    "rqm-at-half": {"epsilon": 0.4995, "mae": 4.0055},
    "erm-at-half": {"epsilon": 0.5, "mae": 4.0013},
    "one-bit": {
        "optm_0.5": 22.22,
        "optm_1": 5.074,
        "optm_1.5": 2.720,
        "one_bit_1": 4.349,
        "one_bit_1.5": 2.146,
    },
    "features": {"logits": 1.0},
    "composed": {"one bit": 577.83, "best selection": 450.92},
    "erm-privacy": {"exact": 6.423, "claimed": 2.189},
    "erm-error": {"needed_gamma": 11.645},
    "constraint1-pairs": {"printed": 2.2348, "exact": 3.4219},
    "constraint2-feasible": {"weak": 1.5556, "free": 0.8184},
}


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_check_confirms_and_has_the_known_figures(name: str) -> None:
    finding = run_check(name, 30)
    assert finding.confirmed, finding.measured
    assert CHECKS[name]["finding"] % {**finding.measured, "configurations": 30}
    for key, value in GOLDEN.get(name, {}).items():
        assert finding.measured[key] == pytest.approx(value, rel=5e-4), key


def test_every_point_is_committed_and_confirmed() -> None:
    frame = READ("corrections")
    assert frame["check"].tolist() == list(CHECKS)
    assert frame["confirmed"].all()
    for column in ("where", "claim", "verdict"):
        assert frame[column].tolist() == [words[column] for words in CHECKS.values()]
    # Only figures differ between the words of a finding and what is committed.
    for name, finding in zip(frame["check"], frame["finding"], strict=True):
        words = re.split(r"%\([^)]*\)[+.0-9]*[dfg]", CHECKS[name]["finding"].replace("%%", "%"))
        assert re.fullmatch(r"[-+.0-9e]+".join(map(re.escape, words)), finding)


def test_a_check_fails_where_there_is_nothing_to_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: had the paper printed integrals, had RQM jumps, were a wider ERM all there is."""
    with monkeypatch.context() as patch:
        patch.setitem(scalar.PRINTED_1, "OPTM", {0.5: 3.8978, 1.0: 1.8785, 1.5: 1.1737})
        assert not run_check("grid-means", 1).confirmed
    with monkeypatch.context() as patch:
        patch.setattr(theorem_checks, "rqm_distribution", lambda bins, keep: erm_distribution(bins, 1.0))
        assert not run_check("jumps", 5).confirmed
    with monkeypatch.context() as patch:
        patch.setattr(
            theorem_checks, "_uniform_bins", lambda levels, margin: theorem_checks.np.linspace(-9, 9, levels)
        )
        assert not run_check("erm-privacy", 5).confirmed
    with monkeypatch.context() as patch:
        patch.setattr(experiment_checks, "_HALF_DIGIT", 0.0)
        assert not run_check("grid-means", 1).confirmed


def test_the_lemma_s_control_would_notice_a_wrong_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """With left and right limits swapped the set is wrong below -c instead of above c."""
    original = theorem_checks.Selections.mirror

    def mirrored(selections, selection):  # type: ignore[no-untyped-def]
        distribution = original(selections, selection)
        flip = slice(None, None, -1)
        return type(distribution)(
            distribution.values,
            -distribution.ends[flip],
            -distribution.starts[flip],
            distribution.end_rows[flip],
            distribution.start_rows[flip],
        )

    monkeypatch.setattr(theorem_checks.Selections, "mirror", mirrored)
    finding = run_check("maximum-set", 30)
    assert not finding.confirmed
    assert finding.measured["missed_below"] > 0
