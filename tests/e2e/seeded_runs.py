"""Models and statements of seeded runs: what a change of structure must leave as it is.

Models are compared by their hashes, where codes decide them. Processors differ in the last digits of what
they compute in floating point, so epsilons are compared to nine digits, and models that are made of
floating-point noise are only compared with those of other engines on the same machine.

``seeded_runs.json`` holds a row for each run. A change that is meant to change results writes it anew:

    python -m tests.e2e.seeded_runs

and says in its commit which rows changed, and why.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from fl_privquant.check import check
from simulations.run import execute
from simulations.runner.config import CONF, compose_run
from simulations.runner.results import RunDirectory

TABLE = Path(__file__).with_suffix(".json")

_MEAN = "task=mean task.dimension=37 federation.num_clients=7 federation.rounds=2"
_DIGITS = "task=digits federation.num_clients=11 federation.rounds=2"
# These have no sum of codes: their replies are floating-point numbers, or mean nothing when summed.
_NOT_SUMMABLE = {
    "gaussian",
    "laplace",
    "snapping",
    "none",
    "cldp_l2",
    "shared_codebook",
    "privunit",
    "sqkr",
    "mmrc",
    "mrc",
    "qsgd",
    "terngrad",
    "drive",
    "top_k",
    "vqsgd",
    "vqsgd_private",
}
# These are made for a target.
_TARGETS = {"central_gaussian"}
_VARIANTS = (
    "mechanism=optm mechanism.bits=3 encoding=rotated",
    "mechanism=pbm encoding=rotated secagg=on",
    "mechanism=optm encoding=quantile federation.fraction=0.6",
    "mechanism=optm encoding=quantile secagg=on",
    "mechanism=optm encoding=schedule",
    "mechanism=skellam encoding=rotated secagg=on partition=dirichlet",
    "mechanism=optm task.model=mlp federation.strategy=fedadam engine.threads=3",
    "mechanism=rounded_gaussian privacy.epsilon=8 secagg=on",
    "mechanism=pbm mechanism.bits=1 privacy.epsilon=2 secagg=on",
    "mechanism=optm privacy.epsilon=400",
    "mechanism=central_gaussian privacy.epsilon=8",
)
_ON_RAY = ("mechanism=optm", "mechanism=pbm secagg=on", "mechanism=cldp_l2")


def runs() -> list[str]:
    """The overrides of every run in the table."""
    names = sorted(path.stem for path in (CONF / "mechanism").glob("*.yaml"))
    per_client = [f"{_MEAN} mechanism={name}" for name in names if name not in _TARGETS]
    sums = [f"{each} secagg=on" for each in per_client if each.rpartition("=")[2] not in _NOT_SUMMABLE]
    variants = [f"{_DIGITS} {each}" for each in _VARIANTS]
    return [*per_client, *sums, *variants, *(f"{_MEAN} {each} engine=ray" for each in _ON_RAY)]


def outcome(run: str, *more: str) -> dict[str, Any]:
    """What is written down of one run from its beginning; ``more`` are overrides that must not change it.

    Raises DisagreementError if a statement of the run disagrees with :mod:`fl_privquant.check`.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = compose_run(*run.split(), *more, f"output={folder}")
        execute(config)
        folder_of_run = RunDirectory.of(config).path
        provenance = json.loads((folder_of_run / "provenance.json").read_text())
        not_checked = check(folder_of_run)
    statements = provenance["statements"]
    return {
        "model": provenance["model_sha256"],
        "statements": [f"{each['unit']}, {each['view']}, delta {each['delta']:.6g}" for each in statements],
        "epsilons": [each["epsilon"] for each in statements],
        "not_checked": not_checked,
    }


def same(one: dict[str, Any], other: dict[str, Any], models: bool = True) -> bool:
    """Whether two outcomes agree."""
    close = [
        math.isclose(*pair, rel_tol=1e-9) for pair in zip(one["epsilons"], other["epsilons"], strict=True)
    ]
    keys = ("statements", "model") if models else ("statements",)
    return all(close) and all(one[key] == other[key] for key in keys)


def main(asked: list[str]) -> None:
    """Write the table, or print the rows of the runs that are asked for."""
    table = {run: outcome(run) for run in asked or runs()}
    for row in table.values():
        row.pop("not_checked")
    text = json.dumps(table, indent=1, sort_keys=True) + "\n"
    if asked:
        sys.stdout.write(text)
    else:
        TABLE.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
