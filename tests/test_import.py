"""Importing the package is light."""

from __future__ import annotations

import json
import subprocess
import sys

PROBE = """
import json, sys, fl_privquant
heavy = ("torch", "flwr", "dp_accounting", "matplotlib", "numba", "scipy.stats")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


def test_nothing_heavy_is_imported() -> None:
    out = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == []
