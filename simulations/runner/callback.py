"""What Hydra calls before and after runs: the lines that they print, and how each of them went."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape

from fl_privquant.cli import program
from fl_privquant.statement import PrivacyStatement, Unit
from hydra_plugins.fl_privquant_sweeper import swept_values
from simulations.runner.progress import epsilon_heading, print_line, set_position

_OUTCOME = "outcome.json"


class RunsCallback(Callback):
    """Prints a line for each run, and writes its outcome into Hydra's output directory.

    The launcher of a parallel sweep copies it into other processes, so that outcomes are files.
    """

    directory: ClassVar[Path | None] = None
    """Hydra's output directory of the command that this process has started last."""
    total: ClassVar[int | None] = None
    """The number of runs of its sweep; None for a single run."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._parallel = False

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Remember where the outcome of a single run goes."""
        RunsCallback.directory, RunsCallback.total = Path(config.hydra.run.dir), None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Say what a sweep asks, how many runs it has, and what the epsilon of their lines is."""
        swept = swept_values(config.hydra.overrides.task, config.hydra.sweeper.get("params") or {})
        self._total = math.prod(map(len, swept.values()))
        self._parallel = "basic" not in str(config.hydra.launcher.get("_target_", "")).lower()
        RunsCallback.directory, RunsCallback.total = Path(config.hydra.sweep.dir), self._total
        console = Console(stderr=True)
        if config.panel is not None:
            print_line(console, escape(str(config.panel)))
        print_line(
            console, f"sweep of {self._total} runs; a line for each that ends, and a report after the last"
        )
        # Parallel sweeps show no rounds, only what a run costs when it has ended.
        unit = Unit.RECORD if config.privacy.unit == "record" else Unit.TOTAL
        stated = PrivacyStatement(0.0, float(config.privacy.delta), unit)
        print_line(console, epsilon_heading(stated, not self._parallel))

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """Show the rounds of a run with its position in the sweep, and not at all in a parallel one."""
        in_sweep = f"{config.hydra.job.num + 1}/{self._total}" if self._total else ""
        set_position("quiet" if self._parallel else in_sweep)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Write the outcome of a run, and print its line; Hydra itself prints errors of the program."""
        if job_return.status is not JobStatus.COMPLETED:
            return
        outcome: dict[str, Any] = job_return.return_value
        directory = Path(config.hydra.runtime.output_dir)
        (directory / _OUTCOME).write_text(json.dumps(outcome))
        position = ""
        if self._total:
            position = f"{len(list(directory.parent.glob(f'*/{_OUTCOME}')))}/{self._total} "
        _print_outcome(outcome, position)


def read_outcomes() -> list[dict[str, Any]]:
    """The outcomes of the command's runs that have ended; empty for a command without runs."""
    if RunsCallback.directory is None:
        return []
    return [json.loads(path.read_text()) for path in sorted(RunsCallback.directory.rglob(_OUTCOME))]


def _print_outcome(outcome: dict[str, Any], position: str) -> None:
    if "error" in outcome:
        program.print_error(outcome["error"])
        return
    console, row = Console(stderr=True), outcome["summary"]
    quality = "nothing evaluated" if row["loss"] is None else f"loss {row['loss']:.4g}"
    if row["accuracy"] is not None:
        quality = f"accuracy {row['accuracy']:.4f}"
    if position:
        print_line(console, f"{position}{outcome['name']}: {quality}, {outcome['spent_in_short']}")
    else:
        done = f"{quality} after round {row['round']}, {row['wall_seconds']:.1f} s"
        print_line(console, f"{outcome['name']}: {done}; {outcome['spent']}")
    if row.get("stopped"):
        print_line(console, f"[bold]stopped:[/] {escape(row['stopped'])}")
