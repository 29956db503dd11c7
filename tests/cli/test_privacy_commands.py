"""The commands that state, plan and attack, and the inversion demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fl_privquant as pq
from fl_privquant.cli.main import app, main
from fl_privquant.errors import CertificationError
from simulations.runner.config import compose_run
from simulations.runner.inversion import compute_gradient, correlation, reconstruct, simulate_received

RUNNER = CliRunner()


def run(*arguments: str) -> str:
    result = RUNNER.invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def test_statement_prints_all_levels() -> None:
    out = run(
        "statement", "--mechanism", "one_bit", "--clients", "20", "--dropout-fraction", "0", "--rounds", "30"
    )
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


def test_plan_lists_designs() -> None:
    out = run(
        "plan", "--epsilon", "8", "--clients", "100", "--dimension", "100", "--rounds", "5",
        "--mechanism", "one_bit", "--mechanism", "discrete_gaussian", "--compare",
    )  # fmt: skip
    for text in ("one_bit", "discrete_gaussian", "client total, view: aggregate of 80", "error ÷ central"):
        assert text in out


def test_plan_offers_every_mechanism_for_sums_at_its_own_clip() -> None:
    out = run("plan", "--compare", "--epsilon", "4", "--clients", "10", "--dimension", "10")
    names = ("rounded_gaussian", "pbm", "one_bit", "skellam", "discrete_gaussian", "discrete_laplace")
    rows = {name: next(line for line in out.splitlines() if line.split()[:1] == [name]) for name in names}
    # Each has a row with a clip of its own, and nothing is said to be missing.
    clips = {name: row.split("L2/")[1].split()[0] for name, row in rows.items()}
    assert len(set(clips.values())) > 1
    assert not [line for line in out.splitlines() if line.split(":")[0] in names]
    # Quiet where there is no terminal: no bar, no control characters.
    assert "\x1b" not in out
    assert "planning" not in out


JOINT = ("plan", "--epsilon", "4", "--clients", "40", "--dimension", "2000", "--rounds", "10")


def test_plan_chooses_and_says_how_to_run_it() -> None:
    """The printed lines make the plan that was printed, and the printed command is understood."""
    out = run(*JOINT, "--bits", "1", "--error", "1.4")
    assert "It sends the fewest bytes within 1.4 times a trusted server's error (--error)." in out
    command = next(line for line in out.splitlines() if line.startswith("python -m simulations.run"))
    plan = plan_of(out)
    assert 1.35 < (plan.ratio_to_central or 0.0) <= 1.4
    assert plan.statement.epsilon <= 4.0
    config = compose_run(*command.split()[3:])
    assert config.encoding.keep == pytest.approx(plan.encoding.count_kept(2000) / 2000, abs=1e-3)
    assert config.privacy.epsilon == 4.0
    assert config.secagg.enabled
    assert "FedAvg(min_available_nodes=40)" in out


def test_plans_of_the_command_of_python_and_of_a_simulation_assume_the_same_clients() -> None:
    out = run(*JOINT, "--bits", "1", "--kilobytes", "0.1")
    assert "aggregate view of 32, replace-one)" in out
    in_python = pq.Target(epsilon=4.0, rounds=10, num_clients=40).plan(2000, max_bits=1, max_kilobytes=0.1)
    assert in_python.statement == plan_of(out).statement
    command = next(line for line in out.splitlines() if "python -m simulations.run" in line)
    assert "fraction" not in command
    secagg = compose_run(*command.split()[3:]).secagg
    assert pq.SecureSum(secagg.corrupt_fraction, secagg.dropout_fraction) == pq.SecureSum()
    # What differs from the defaults is said in what is printed, and holds for what it runs.
    trusting = run(*JOINT, "--bits", "1", "--kilobytes", "0.1", "--corrupt-fraction", "0")
    assert "aggregate view of 36, replace-one)" in trusting
    assert "secagg.corrupt_fraction=0 " in trusting
    assert "secagg.dropout_fraction" not in trusting
    assert plan_of(trusting).aggregation == pq.SecureSum(corrupt_fraction=0.0)
    # Six digits of this fraction would be 5 clients of 40 instead of 6.
    odd = run(*JOINT, "--bits", "1", "--kilobytes", "0.1", "--corrupt-fraction", "0.1250001")
    assert "aggregate view of 30, replace-one)" in odd
    assert "secagg.corrupt_fraction=0.1250001 " in odd
    assert plan_of(odd).aggregation == pq.SecureSum(corrupt_fraction=0.1250001)


def test_plan_counts_the_rounds_that_a_client_takes_part_in() -> None:
    out = run(*JOINT[:-1], "100", "--participations", "10", "--bits", "1", "--kilobytes", "0.1")
    assert "10 of 100 rounds" in out
    plan = plan_of(out)
    assert plan.target == pq.Target(4.0, rounds=100, num_clients=40, participations=10)
    whole = plan_of(run(*JOINT, "--bits", "1", "--kilobytes", "0.1"))
    assert plan.statement == whole.statement
    command = next(line for line in out.splitlines() if "python -m simulations.run" in line)
    config = compose_run(*command.split()[3:])
    assert (config.sampling.name, config.sampling.rounds_apart) == ("cohorts", 10)
    assert config.federation.num_clients == 400
    assert "sampling=pq.CohortSampling(10)" in out


def test_plan_keeps_to_a_size() -> None:
    out = run(*JOINT, "--bits", "1", "--kilobytes", "0.1")
    assert "It has the least error within 0.1 kB (--kilobytes)." in out
    assert 90 < plan_of(out).bytes_per_round <= 100


def plan_of(out: str) -> pq.Plan:
    """The plan that the printed lines make."""
    made: dict[str, Any] = {"pq": pq}
    for line in out.splitlines():
        if line.startswith(("target = ", "plan = ")):
            exec(line, made)
    plan = made["plan"]
    assert isinstance(plan, pq.Plan)
    return plan


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--error", "1.1", "--kilobytes", "1"), "give one of the two"),
        (("--error", "1.1", "--compare"), "--error, --kilobytes: they choose"),
        (("--error", "1.0", "--bits", "1"), "with all coordinates the error is"),
        (("--clients", "3"), "error: --clients: 3 clients: 1 corrupt and 1 lost leave one honest client"),
        (("--clients", "3", "--error", "2"), "lower --corrupt-fraction"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fl-privquant", *JOINT, *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("epsilon", ["-1", "0", "nan"])
def test_a_target_that_is_no_target_is_refused_at_once(
    epsilon: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["fl-privquant", "plan", "--epsilon", epsilon, "--clients", "10", "--dimension", "10"]
    )
    monkeypatch.setattr("fl_privquant.planning.planner.design", None)  # nothing is designed before
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [f"error: --epsilon: {float(epsilon)} is outside (0, 1e9]"]


def test_plan_says_what_would_do() -> None:
    out = run(
        "plan", "--epsilon", "0.1", "--clients", "5", "--dimension", "5000", "--rounds", "9",
        "--mechanism", "one_bit", "--delta", "0",
    )  # fmt: skip
    assert "no design meets the target" in out
    assert "a target of" in out


def test_audit_attacks_the_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mechanism.pqm"
    file.write_bytes(pq.design("one_bit", epsilon=1.0).to_bytes())
    assert "not refuted" in run("audit", str(file), "--empirical", "--draws", "50000")
    # A decoder that shows the input: the attack must see it.
    from fl_privquant.mechanisms.base import TableMechanism

    monkeypatch.setattr(TableMechanism, "encode", lambda self, x, clip=1.0, rng=None: (x > 0).astype(int))
    with pytest.raises(CertificationError, match="refutes"):
        run("audit", str(file), "--empirical", "--draws", "50000")


def test_an_image_is_read_off_a_plain_update_and_not_off_a_private_one() -> None:
    rng = np.random.default_rng(0)
    image = rng.random(64)
    update = np.concatenate(
        [each.ravel() for each in compute_gradient(image, 3, np.zeros((10, 64)), np.zeros(10))]
    )
    found = [
        reconstruct(seen[:640].reshape(10, 64), seen[640:])
        for seen in (
            simulate_received(update, mechanism, float(np.abs(update).max()), 1, 0)
            for mechanism in (pq.design("none"), pq.design("optm", epsilon=1.0, bits=2))
        )
    ]
    assert np.allclose(found[0], image, atol=1e-12)
    assert abs(correlation(found[1], image)) < 0.4
