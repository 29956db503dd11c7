"""The commands that state, plan and attack, and the inversion demonstration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fl_privquant as pq
from fl_privquant.cli.main import app, main
from fl_privquant.errors import CertificationError
from simulations.inversion import correlation, gradient, received, reconstruct

RUNNER = CliRunner()


def run(*arguments: str) -> str:
    result = RUNNER.invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def test_statement_prints_all_levels() -> None:
    out = run("statement", "--mechanism", "one_bit", "--clients", "20", "--corrupt", "2", "--rounds", "30")
    for text in (
        "coordinate release",
        "client round (650 coordinates)",
        "client total (650 coordinates, 30 rounds)",
        "the sum only, aggregate of 18",
        "local",
        "poisson binomial+rdp",
        "one client's update replaced by any other",
        "secure randomness",
    ):
        assert text in out


def test_plan_lists_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "plan.png"
    out = run(
        "plan", "--epsilon", "8", "--clients", "100", "--dimension", "100", "--rounds", "5",
        "--mechanism", "one_bit", "--mechanism", "discrete_gaussian", "--plot", str(picture),
    )  # fmt: skip
    for text in ("one_bit", "discrete_gaussian", "client total, view: aggregate of 100", "error ÷ central"):
        assert text in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    local = run(
        "plan", "--epsilon", "40", "--clients", "5", "--dimension", "20", "--unit", "client round", "--local",
        "--mechanism", "one_bit",
    )  # fmt: skip
    assert "client round, view: local" in local
    assert "MSE of mean" in local


def test_plan_offers_every_mechanism_for_sums_at_its_own_clip() -> None:
    out = run("plan", "--epsilon", "4", "--clients", "10", "--dimension", "10")
    names = ("optm_aggregate", "pbm", "one_bit", "skellam", "discrete_gaussian", "discrete_laplace")
    rows = {name: next(line for line in out.splitlines() if line.split()[:1] == [name]) for name in names}
    # Each has a row with a clip of its own, and nothing is said to be missing.
    clips = {name: row.split("L2/")[1].split()[0] for name, row in rows.items()}
    assert len(set(clips.values())) > 1
    assert not [line for line in out.splitlines() if line.split(":")[0] in names]
    # Quiet where there is no terminal: no bar, no control characters.
    assert "\x1b" not in out
    assert "planning" not in out


@pytest.mark.parametrize("epsilon", ["-1", "0", "nan"])
def test_a_target_that_is_no_target_is_refused_at_once(
    epsilon: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["fl-privquant", "plan", "--epsilon", epsilon, "--clients", "10", "--dimension", "10"]
    )
    monkeypatch.setattr("fl_privquant.accounting.planner.design", None)  # nothing is designed before
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [f"error: epsilon: {float(epsilon)} is not a finite number above 0"]


def test_plan_says_what_would_do() -> None:
    out = run(
        "plan", "--epsilon", "0.1", "--clients", "5", "--dimension", "5000", "--rounds", "9",
        "--mechanism", "one_bit", "--local",
    )  # fmt: skip
    assert "no design meets the target" in out
    assert "a target of" in out


def test_audit_attacks_the_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mechanism.pqm"
    file.write_bytes(pq.design("one_bit", epsilon=1.0).to_bytes())
    assert "not refuted" in run("audit", str(file), "--empirical", "--draws", "50000")
    # A decoder that shows the input: the attack must see it.
    from fl_privquant.mechanisms.base import TableMechanism

    monkeypatch.setattr(
        TableMechanism, "encode", lambda self, x, clip=1.0, rng=None, threads=1: (x > 0).astype(int)
    )
    with pytest.raises(CertificationError, match="refutes"):
        run("audit", str(file), "--empirical", "--draws", "50000")


def test_an_image_is_read_off_a_plain_update_and_not_off_a_private_one() -> None:
    rng = np.random.default_rng(0)
    image = rng.random(64)
    update = np.concatenate([each.ravel() for each in gradient(image, 3, np.zeros((10, 64)), np.zeros(10))])
    found = [
        reconstruct(seen[:640].reshape(10, 64), seen[640:])
        for seen in (
            received(update, mechanism, float(np.abs(update).max()), 1, 0)
            for mechanism in (pq.design("none"), pq.design("optm", epsilon=1.0, bits=2))
        )
    ]
    assert np.allclose(found[0], image, atol=1e-12)
    assert abs(correlation(found[1], image)) < 0.4
