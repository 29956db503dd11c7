"""The wheel, in an environment of its own outside this folder: all of the package, and nothing besides."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", folder, ROOT], check=True, capture_output=True)
    (built,) = folder.glob("fl_privquant-*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_besides(wheel: Path) -> None:
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = ROOT / "fl_privquant"
    expected = {str(path.relative_to(ROOT)) for path in [*package.rglob("*.py"), package / "py.typed"]}
    assert names == expected


@pytest.mark.slow
def test_the_wheel_runs_where_this_folder_is_not(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    paths = sysconfig.get_paths("venv", vars={"base": str(home), "platbase": str(home)})
    packages = Path(paths["purelib"])
    install = [sys.executable, "-m", "pip", f"--python={paths['scripts']}/python", "install", "--no-deps"]
    subprocess.run([*install, "--quiet", "--no-index", wheel], check=True, capture_output=True)
    # The dependencies are those of this environment; links that are kept there are not followed from here.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    script = "import fl_privquant as pq\nprint(pq.__file__, pq.design('grr', epsilon=1, bits=1).epsilon <= 1)"
    done = subprocess.run(
        [f"{paths['scripts']}/python", "-c", script], cwd=tmp_path, capture_output=True, text=True, env={}
    )
    assert done.stdout.split() == [str(packages / "fl_privquant" / "__init__.py"), "True"], done.stderr
    said = subprocess.run(
        [f"{paths['scripts']}/fl-privquant", "--help"], cwd=tmp_path, capture_output=True, text=True, env={}
    )
    assert said.returncode == 0, said.stderr
    assert "plan" in said.stdout
