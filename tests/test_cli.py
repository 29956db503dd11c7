"""The command line: real runs, exit codes, pictures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fl_privquant.cli import app
from fl_privquant.errors import CertificationError

RUNNER = CliRunner()


def run(*arguments: str) -> str:
    result = RUNNER.invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def test_compare_prints_every_mechanism_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "compare.png"
    out = run("compare", "--epsilon", "1", "--bits", "2", "--plot", str(picture))
    for text in ("optm", "optm paired", "optm independent", "rqm", "erm", "one_bit", "local view", "4.34"):
        assert text in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_compare_says_why_there_is_none() -> None:
    out = run("compare", "--epsilon", "0.3", "--levels", "3", "--mechanism", "rqm", "--mechanism", "one_bit")
    assert "one_bit" in out
    assert "optm" not in out


def test_design_then_audit(tmp_path: Path) -> None:
    file, picture = tmp_path / "mechanism.pqm", tmp_path / "law.pdf"
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
        (["compare", "--bits", "0"], "--bits: 0"),
        (["audit", "nowhere.pqm"], "no such file"),
    ],
)
def test_user_errors_are_messages_not_tracebacks(arguments: list[str], message: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from fl_privquant.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
