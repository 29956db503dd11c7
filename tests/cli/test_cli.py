"""The command line: real runs, exit codes, pictures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fl_privquant.cli import main as cli
from fl_privquant.cli.main import app
from fl_privquant.cli.options import collect_parameters
from fl_privquant.errors import CertificationError, InvalidSpecError

RUNNER = CliRunner()


def run(*arguments: str) -> str:
    result = RUNNER.invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def test_compare_prints_every_mechanism_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "compare.png"
    out = run("compare", "--epsilon", "1", "--bits", "2", "--plot", str(picture))
    for text in (
        *("optm", "optm paired", "optm independent", "optm paper", "rqm", "erm", "one_bit"),
        *("local view", "4.34"),
    ):
        assert text in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_compare_says_why_there_is_none() -> None:
    out = run("compare", "--epsilon", "0.3", "--levels", "3", "--mechanism", "rqm", "--mechanism", "one_bit")
    assert "one_bit" in out
    assert "optm" not in out


def test_design_then_audit(tmp_path: Path) -> None:
    file, picture = tmp_path / "mechanism.pqm", tmp_path / "distribution.pdf"
    out = run(
        "design", "optm", "--epsilon", "1", "--set", "bins=-3,-.5,.5,3", "--set", "family=paired",
        "--set", "objective=mae", "--output", str(file), "--plot", str(picture),
    )  # fmt: skip
    assert "1.85" in out
    assert picture.read_bytes().startswith(b"%PDF")
    audited = run("audit", str(file))
    assert "certified" in audited
    assert "local view" in audited
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CertificationError):
        run("audit", str(file))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["design", "optn", "--epsilon", "1"], "did you mean 'optm'"),
        (["design", "optm", "--epsilon", "-1"], "not a finite number above 0"),
        (["design", "optm", "--epsilon", "1", "--set", "family"], "expected key=value"),
        (["compare", "--bits", "2", "--levels", "4"], "give one of the two"),
        (["compare", "--bits", "0"], "'--bits': 0 is not in the range"),
        (["audit", "nowhere.pqm"], "FILE: nowhere.pqm does not exist; give a file that"),
        (
            ["audit", "."],
            "FILE: . is a folder; give a file that 'fl-privquant design NAME --output",
        ),
        (["audit", __file__], "expected b'PQMECH'; give a file that 'fl-privquant design"),
        (["identity", "show", __file__], "no private key in PEM; give a file that 'fl-privquant"),
        (["desing", "optm"], "command 'desing'. Did you mean 'design'? See "),
        (["plan", "--delta", "0.5"], "--delta: 0.5 is outside 0..0.01, the smaller of 0.01 and 1 / 100"),
        (["plan", "--delta", "0.005", "--clients", "1000"], "--delta: 0.005 is outside 0..0.001"),
        (["statement", "--delta", "0.5"], "--delta: 0.5 is outside"),
        (["plan", "--participations", "20", "--rounds", "10"], "--participations: 20 of 10 rounds; give"),
        (["statement", "--file", "x.pqm", "--epsilon", "3"], "--epsilon: the mechanism in --file"),
        (["statement", "--file", "x.pqm", "--bits", "3", "--mechanism", "rqm"], "--bits, --mechanism: the"),
        (["plan", "--epsilon", "0.01"], "nothing will be learned. Take more clients or a larger"),
    ],
)
def test_user_errors_are_messages_not_tracebacks(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fl-privquant", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    shown = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in shown
    assert shown.lower().count("did you mean") <= 1
    assert "Traceback" not in shown


def test_an_error_of_ours_is_a_message_and_exit_code_2() -> None:
    command = [sys.executable, "-m", "fl_privquant.cli.main", "audit", "nowhere.pqm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: FILE: nowhere.pqm does not exist")
    assert done.stderr.count("\n") == 1


def test_a_file_is_audited_drawn_and_stated(tmp_path: Path) -> None:
    file, picture = tmp_path / "mechanism.pqm", tmp_path / "distribution.png"
    run("design", "rqm", "--epsilon", "1", "--levels", "4", "--output", str(file))
    assert f"drawn to {picture}" in " ".join(run("audit", str(file), "--plot", str(picture)).split())
    assert picture.read_bytes().startswith(b"\x89PNG")
    stated = run("statement", "--file", str(file), "--dimension", "10", "--clients", "3", "--rounds", "2")
    assert "rqm: what its ε means" in stated
    assert "client total (10 coordinates, 2 rounds)" in stated


def test_what_has_no_table_is_described_and_not_drawn(tmp_path: Path) -> None:
    out = run("design", "skellam", "--epsilon", "1", "--levels", "8")
    assert "δ" in out
    assert "certificate" not in out
    with pytest.raises(InvalidSpecError, match="'skellam' has no table"):
        run(
            "design",
            "skellam",
            "--epsilon",
            "1",
            "--levels",
            "8",
            "--plot",
            str(tmp_path / "distribution.png"),
        )


def test_values_of_other_parameters_are_read_as_what_they_are() -> None:
    read = collect_parameters(["lattice=False", "bins=-3,.5,x", "family=free"], epsilon=2.0, bits=None)
    assert read == {"lattice": False, "bins": [-3, 0.5, "x"], "family": "free", "epsilon": 2.0}


def test_a_bias_gets_a_column_of_its_own() -> None:
    with_bias = run("compare", "--levels", "4", "--mechanism", "biased", "--mechanism", "one_bit")
    assert "max bias" in with_bias
    assert "max bias" not in run("compare", "--levels", "4", "--mechanism", "one_bit")
