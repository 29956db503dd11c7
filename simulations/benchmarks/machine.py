"""The machine that benchmarks ran on: enough to judge a ratio, nothing that names the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from simulations.results import version_of

PACKAGES = ("numpy", "numba", "scipy", "pulp", "highspy", "flwr", "ray", "torch", "cryptography")


def describe() -> dict[str, str]:
    """Processor, cores, load, Python and package versions."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    description = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "load average meanwhile": load,
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
    }
    return description | {name: version_of(name) for name in PACKAGES}


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
