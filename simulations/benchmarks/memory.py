"""Memory of a private round: its peak beyond what was used before, as a multiple of the model's bytes.

A round of 10 clients with 10^7 parameters runs in a process of its own, after a small round that imports and
compiles. Updates are rotated and encoded with 2 bits, and codes are summed. It is measured once with the
strategy and the mod around an ordinary app, and once as ``python -m simulations.run`` does it, which also
measures errors. Clients run one after another. This works on Linux only: the peak is read from ``/proc``.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from simulations.benchmarks.measure import Row, at_most, output_of, resident_bytes

DIMENSION = 10**7
CLIENTS = 10
_MOST_MODELS = 8.0
_FIRST_DIMENSION = 10**4
_CLEAR = Path("/proc/self/clear_refs")


def run() -> list[Row]:
    """Each kind of round beside its target."""
    rows = []
    for kind, name in (
        ("strategy", "the strategy and the mod"),
        ("simulation", "a simulation, which measures"),
    ):
        printed = output_of("-m", __name__, kind, str(DIMENSION), str(CLIENTS))
        models = float(printed.splitlines()[-1])
        text = f"{DIMENSION:.0e} parameters, {CLIENTS} clients: peak of a round in models, {name}"
        rows.append(at_most(text, models, _MOST_MODELS))
    return rows


class DrawnTask:
    """Clients whose training adds noise that is drawn when it is needed, so that a task holds no data.

    Parameters
    ----------
    run
        The run's configuration.
    dimension
        Number of parameters.
    """

    def __init__(self, run: Any, *, dimension: int) -> None:
        self._dimension = dimension

    def initial_arrays(self) -> dict[str, Any]:
        """A model of zeros."""
        return {"model": np.zeros(self._dimension, np.float32)}

    def train(self, arrays: dict[str, Any], client: int, server_round: int) -> dict[str, Any]:
        """The model, and some noise in place: the memory of training itself is not what is measured."""
        trained = arrays["model"]
        generator = np.random.default_rng([client, server_round])
        for part in np.array_split(trained, max(1, trained.size // 10**5)):
            part += 1e-3 * generator.standard_normal(part.size, dtype=np.float32)
        return {"model": trained}

    def evaluate(self, arrays: dict[str, Any]) -> tuple[float, float]:
        """Neither accuracy nor loss: there are no data to evaluate on."""
        return float("nan"), float("nan")

    def num_examples(self, client: int) -> int:
        """Each client has one example."""
        return 1

    def plot_partition(self, path: Path) -> None:
        """Nothing to draw."""


def strategy_round(dimension: int, num_clients: int) -> None:
    """A round of the strategy and the mod around a client app that trains in place."""
    from flwr.app import Array, ArrayRecord, Context

    from fl_privquant.flower.engines import Federation
    from fl_privquant.flower.engines.inline import InlineGrid
    from simulations.benchmarks.flower_rounds import client_of, private_mod, private_strategy, run_round

    task = DrawnTask(None, dimension=dimension)

    def record(arrays: dict[str, Any]) -> ArrayRecord:
        return ArrayRecord({name: Array(array) for name, array in arrays.items()})

    def train(received: ArrayRecord, context: Context) -> ArrayRecord:
        return record(task.train({"model": received["model"].numpy()}, int(context.node_id), 1))

    grid = InlineGrid(client_of(train, [private_mod()]), Federation(num_clients))
    run_round(private_strategy(clip=0.01, rotate=True), record(task.initial_arrays()), grid)


def simulated_round(dimension: int, num_clients: int) -> None:
    """A run of one round, as ``python -m simulations.run`` does it."""
    from simulations.config import RunConfig
    from simulations.run import execute

    with tempfile.TemporaryDirectory() as folder:
        values = {
            "mechanism": {"name": "optm", "epsilon": 1.0, "bits": 2},
            "encoding": {"clip": 0.01, "rotate": True},
            "task": {"_target_": f"{DrawnTask.__module__}.DrawnTask", "dimension": dimension},
            "federation": {"num_clients": num_clients, "rounds": 1},
            "output": folder,
        }
        execute(RunConfig.from_mapping(values))


def peak_models(kind: str, dimension: int, num_clients: int) -> float:
    """The peak of a round over what the process had before it, in models of float32."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    call = strategy_round if kind == "strategy" else simulated_round
    call(_FIRST_DIMENSION, num_clients)
    before = resident_bytes("VmRSS")
    # Linux then forgets the peak so far.
    _CLEAR.write_text("5", encoding="ascii")
    call(dimension, num_clients)
    return (resident_bytes("VmHWM") - before) / (4 * dimension)


if __name__ == "__main__":
    # Imported by its name, so that the task's class is the one that the configuration names.
    from simulations.benchmarks import memory

    print(memory.peak_models(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
