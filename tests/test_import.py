"""Importing the package and asking for help are light, and public names are what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

import fl_privquant as pq

ROOT = Path(__file__).parents[1]
HEAVY = ("numpy", "scipy", "numba", "pulp", "highspy", "torch", "flwr", "matplotlib", "cryptography", "nacl")
HELP = """import contextlib, io
from fl_privquant.cli.main import main
sys.argv = {arguments}
with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
    main()
assert '{shown}' in printed.getvalue()"""
PROBES = {
    "import": "import fl_privquant",
    "version": "import fl_privquant; fl_privquant.__version__",
    "help": HELP.format(arguments=["fl-privquant", "--help"], shown="plan"),
    "help of a command": HELP.format(arguments=["fl-privquant", "plan", "--help"], shown="--epsilon"),
}


def imported(program: str, modules: Sequence[str]) -> list[str]:
    """Those of the modules that a program has imported in the end."""
    program = f"import json, sys\n{program}\nprint(json.dumps([n for n in {modules} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("probe", PROBES)
def test_nothing_heavy_is_imported(probe: str) -> None:
    assert imported(PROBES[probe], HEAVY) == []


def test_planning_is_imported_without_flower_and_numba() -> None:
    heavy = ("torch", "flwr", "dp_accounting", "matplotlib", "numba", "scipy.stats")
    assert imported("import fl_privquant as pq; pq.design, pq.available_mechanisms()", heavy) == []


@pytest.mark.parametrize(
    "first",
    [
        "import fl_privquant.optimize.optm.free",
        "import fl_privquant.mechanisms.base",
        "from fl_privquant import Target",
    ],
)
def test_functions_keep_their_names_whatever_is_imported_first(first: str) -> None:
    used = "assert callable(pq.design) and 'optm' in pq.available_mechanisms()"
    program = f"{first}\nimport fl_privquant as pq\n{used}"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_public_name_is_there() -> None:
    assert all(getattr(pq, name) is not None for name in pq.__all__)
    assert set(pq.__all__) <= set(dir(pq))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pq.nothing


def test_there_is_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    assert [project["version"], *cited] == [pq.__version__] * 2
