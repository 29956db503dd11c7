"""The wheel, in an environment of its own outside this folder: the package, the simulations, no more."""

from __future__ import annotations

import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.e2e import fresh_environment

ROOT = Path(__file__).parents[2]
LEFT_OUT = ("benchmarks", "studies", "tutorial.py", "tutorial.ipynb")


def files_of(name: str) -> set[str]:
    """The files of a folder that are tracked, without those that only this repository needs."""
    paths = (path.relative_to(ROOT) for path in (ROOT / name).rglob("*") if path.is_file())
    return {
        str(path)
        for path in paths
        if "__pycache__" not in path.parts and path.parts[1] not in LEFT_OUT and not path.name.startswith(".")
    }


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_nothing_besides(wheel: Path) -> None:
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    conf = {f"simulations/{name}" for name in files_of("conf")}
    assert names == files_of("fl_privquant") | files_of("simulations") | files_of("hydra_plugins") | conf


@pytest.mark.slow
def test_the_wheel_runs_where_this_folder_is_not(fresh: Path, tmp_path: Path) -> None:
    packages = fresh_environment.packages_of(fresh.parent)
    script = "import fl_privquant as pq\nprint(pq.__file__, pq.design('grr', epsilon=1, bits=1).epsilon <= 1)"
    done = subprocess.run(
        [fresh / "python", "-c", script], cwd=tmp_path, capture_output=True, text=True, env={}
    )
    assert done.stdout.split() == [str(packages / "fl_privquant" / "__init__.py"), "True"], done.stderr
    said = subprocess.run(
        [fresh / "fl-privquant", "--help"], cwd=tmp_path, capture_output=True, text=True, env={}
    )
    assert said.returncode == 0, said.stderr
    assert "plan" in said.stdout
