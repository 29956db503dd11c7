"""The proof that a machine checks is checked again, where Coq is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROOF = Path(__file__).parents[1] / "docs" / "proofs" / "certificate.v"
needs_coq = pytest.mark.skipif(
    shutil.which("coqc") is None, reason="coqc is not installed (Debian: apt-get install coq)"
)


def _compile(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Coq writes beside its source, so a copy is compiled."""
    copy = directory / "certificate.v"
    copy.write_text(text)
    return subprocess.run(["coqc", str(copy)], capture_output=True, text=True, cwd=directory)


@needs_coq
def test_the_certificate_is_proved_without_axioms(tmp_path):
    done = _compile(tmp_path, PROOF.read_text())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Closed under the global context"] * 3


@needs_coq
def test_a_certificate_that_is_false_is_not_proved(tmp_path):
    """The control: with num and den exchanged, the theorem is wrong."""
    right = "den * mass (mixed p) inside n * weight q <= num * mass (mixed q) inside n * weight p."
    text = PROOF.read_text()
    assert text.count(right) == 1
    done = _compile(
        tmp_path, text.replace(right, right.replace("den", "x").replace("num", "den").replace("x", "num"))
    )
    assert done.returncode != 0
