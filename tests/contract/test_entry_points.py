"""Mechanisms of other installed packages: found by their entry points, and harmless where they are broken."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms import registry

MODULE = """
from dataclasses import dataclass

from fl_privquant.mechanisms import Spec, TableMechanism, register
from fl_privquant.mechanisms.tables.grr import make_response_table


@dataclass(frozen=True)
class CoinSpec(Spec):
    epsilon: float


@register("{name}", CoinSpec)
def design_coin(spec):
    table = make_response_table(spec.epsilon, 2)
    return TableMechanism("{name}", table, spec.epsilon, parameters=spec.parameters())
"""


def install_packages(folder: Path, modules: dict[str, str]) -> None:
    """Let pip install a wheel for each module, which is its entry point, into a folder of packages."""
    wheels = []
    for package, module in modules.items():
        metadata = f"{package}-1.0.dist-info"
        files = {
            f"{package}.py": module,
            f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n",
            f"{metadata}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{metadata}/entry_points.txt": f"[fl_privquant.mechanisms]\n{package} = {package}\n",
        }
        wheels.append(str(folder / f"{package}-1.0-py3-none-any.whl"))
        with zipfile.ZipFile(wheels[-1], "w") as wheel:
            for name, text in {**files, f"{metadata}/RECORD": ""}.items():
                wheel.writestr(name, text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, str(folder), *wheels], check=True, capture_output=True)


def run_with(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join([str(folder), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": search},
    )


USE_COIN = (
    "import fl_privquant as pq\n"
    "assert 'coin' in pq.available_mechanisms()\n"
    "coin = pq.design('coin', epsilon=1.0)\n"
    "assert 0.999 < coin.epsilon <= 1.0\n"
    "assert pq.Mechanism.from_bytes(coin.to_bytes()).to_bytes() == coin.to_bytes()\n"
    "plan = pq.Target(epsilon=20.0, rounds=2, num_clients=100).plan(50, mechanism='coin')\n"
    "print(plan.encoding.mechanism.name)\n"
)


@pytest.mark.parametrize("first", ["", "import coin_package\n"])
def test_a_mechanism_of_an_installed_package_is_designed_and_planned(tmp_path: Path, first: str) -> None:
    install_packages(tmp_path, {"coin_package": MODULE.format(name="coin")})
    done = run_with(tmp_path, first + USE_COIN)
    assert (done.stderr, done.stdout) == ("", "coin\n")


def test_a_broken_package_is_reported_and_the_others_work(tmp_path: Path) -> None:
    modules = {
        "a_broken_package": "raise RuntimeError('needs a newer\\nversion')\n",
        "coin_package": MODULE.format(name="coin"),
        "z_same_name": MODULE.format(name="one_bit"),
    }
    install_packages(tmp_path, modules)
    done = run_with(tmp_path, USE_COIN + "print(pq.design('one_bit', epsilon=1.0).name)")
    assert done.stdout == "coin\none_bit\n", done.stderr
    broken, same_name = sorted(done.stderr.splitlines())
    assert "a_broken_package = a_broken_package of a_broken_package cannot be loaded" in broken
    assert r"(RuntimeError: needs a newer\nversion)" in broken
    assert "'one_bit' is already registered by fl_privquant.mechanisms.tables.one_bit" in same_name


def test_a_name_of_another_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = dict(registry._ENTRIES)
    monkeypatch.setattr(registry, "_ENTRIES", entries)
    registered = entries["one_bit"]
    with pytest.raises(InvalidSpecError, match="'one_bit' is already registered by"):
        registry.register("one_bit", registered.spec)(lambda spec: registered.build(spec))
    # A module that is imported again registers its own names again.
    registry.register("one_bit", registered.spec)(registered.build)
    assert entries["one_bit"].build is registered.build
