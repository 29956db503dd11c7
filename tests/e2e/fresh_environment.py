"""An environment with the wheel in it, as somebody has it who installed the package, and not this folder.

Its dependencies are those of the environment that runs the tests: installing torch once more takes minutes.
What is editable there is not seen from here; the package, the simulations and Flower's programs are its own.
So is one file besides, by which Flower's processes wait less for one another.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

__all__ = ["build_wheel", "create", "packages_of", "scripts_of", "variables"]

ROOT = Path(__file__).parents[2]
_FLOWER = ("flower-*", "flwr*")


def build_wheel(folder: Path) -> None:
    """Build the wheel of this repository into a folder."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", folder, ROOT], check=True, capture_output=True)


def create(folder: Path, wheel: Path) -> None:
    """Create an environment in a folder, and install the wheel into it."""
    venv.create(folder, with_pip=False)
    python = scripts_of(folder) / "python"
    install = [sys.executable, "-m", "pip", f"--python={python}", "install", "--no-deps", "--quiet"]
    subprocess.run([*install, "--no-index", wheel], check=True, capture_output=True)
    # Links that are kept in this folder, such as that of an editable package, are not followed from there.
    (packages_of(folder) / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    shutil.copy(ROOT / "tests" / "impatient" / "sitecustomize.py", packages_of(folder))
    for pattern in _FLOWER:
        for script in Path(sysconfig.get_paths()["scripts"]).glob(pattern):
            copy = scripts_of(folder) / script.name
            copy.write_text(script.read_text().replace(f"#!{sys.executable}", f"#!{python}", 1))
            copy.chmod(0o755)


def variables(programs: Path) -> dict[str, str]:
    """The environment variables of a process that finds these programs, and not those that run the tests."""
    own = str(Path(sys.executable).parent)
    others = [each for each in os.environ["PATH"].split(os.pathsep) if each != own]
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {"PATH": os.pathsep.join([str(programs), *others])}


def scripts_of(folder: Path) -> Path:
    """Where the programs of an environment are."""
    return Path(_paths(folder)["scripts"])


def packages_of(folder: Path) -> Path:
    """Where the packages of an environment are."""
    return Path(_paths(folder)["purelib"])


def _paths(folder: Path) -> dict[str, str]:
    return sysconfig.get_paths("venv", vars={"base": str(folder), "platbase": str(folder)})
