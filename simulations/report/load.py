"""Reading the runs of a study from disk: a damaged file costs a run, never the report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.errors import PrivQuantError, one_line
from fl_privquant.mechanisms.base import Mechanism
from simulations.config import CENTRAL

TEXT_COLUMNS = ("study", "run", "label", "mechanism", "composition_method", "composition_method_sum")
NUMBER_COLUMNS = (
    *("epsilon", "bits", "seed", "round", "accuracy", "loss", "mean_squared_error", "share_clipped"),
    *("clip", "bits_per_coordinate"),
    *("bytes_up", "bytes_down", "bytes_handshake"),
    *("epsilon_coordinate", "delta_client_total", "num_honest"),
    *("epsilon_client_round", "epsilon_client_round_sum", "epsilon_client_total", "epsilon_client_total_sum"),
    "epsilon_client_total_models",
    *("num_clients", "num_replies", "seconds_clients", "seconds_aggregate", "seconds_evaluate"),
)
_NEEDED = ("label", "seed", "round")
_RUN_FILES = ("config.json", "provenance.json", "rounds.parquet", "rounds.csv", "summary.json")


class DamagedFileError(PrivQuantError):
    """A file of a run cannot be read, or contradicts the run's other files."""


@dataclass(frozen=True)
class Problem:
    """A problem with a run, and its consequence for the report.

    Parameters
    ----------
    run
        Name of the run's directory.
    kind
        ``unfinished`` or ``damaged``: the run is left out; ``repaired``: it counts all the same.
    message
        What happened, with the name of the file.
    """

    run: str
    kind: str
    message: str


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its resolved config, where it comes from, its rounds and its last values."""

    name: str
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    rounds: pd.DataFrame
    summary: Mapping[str, Any]
    mechanism: Mechanism | None
    partition_picture: bytes | None = None

    @property
    def label(self) -> str:
        """The mechanism and its variant, which has one colour everywhere."""
        return str(self.provenance.get("mechanism_label") or self.rounds["label"].iloc[-1])

    @property
    def certified_epsilon(self) -> float:
        """The certified ε per coordinate and release, local view; infinite without privacy."""
        value = self.provenance.get("certified_epsilon")
        return math.inf if value is None or math.isnan(float(value)) else float(value)

    @property
    def delta(self) -> float:
        """The delta that goes with :attr:`certified_epsilon`."""
        return float(self.provenance.get("delta") or 0.0)

    @property
    def run_target(self) -> float | None:
        """The epsilon that the whole run may cost a client, if it was planned for one."""
        target = self.config.get("privacy", {}).get("epsilon")
        return None if target is None else float(target)

    @property
    def trusts_server(self) -> bool:
        """Whether the server sees the updates themselves, and adds the noise: the central baseline."""
        return bool(self.config.get("mechanism", {}).get("name") == CENTRAL)

    @property
    def private(self) -> bool:
        """Whether ε is finite for those who see the codes or, with a trusted server, the models."""
        return math.isfinite(self.certified_epsilon) or self.run_target is not None

    @property
    def certified(self) -> PrivacyStatement:
        """The certified epsilon of one unit of the mechanism, local view."""
        stated = self.provenance.get("statements") or ()
        unit = Unit(stated[0]["unit"]) if stated else Unit.COORDINATE
        return PrivacyStatement(self.certified_epsilon, self.delta, unit, method="exact")

    @property
    def asked(self) -> PrivacyStatement:
        """The epsilon that the mechanism was designed for, in its unit; infinite without one."""
        epsilon = float(self.rounds["epsilon"].iloc[-1])
        return replace(self.certified, epsilon=math.inf if math.isnan(epsilon) else epsilon)

    @property
    def statement(self) -> tuple[str, ...]:
        """The privacy statement of the run, line by line."""
        lines = self.provenance.get("statement") or ()
        return tuple(lines.splitlines() if isinstance(lines, str) else map(str, lines))

    @property
    def simulated(self) -> bool:
        """Whether the noise came from a seed: anybody who knows the seed can remove the noise."""
        return bool(self.provenance.get("simulated", False))


def load_runs(directory: Path) -> tuple[list[Run], list[Problem]]:
    """The finished runs below ``directory``, by name, and all that is wrong with the others."""
    runs: list[Run] = []
    problems: list[Problem] = []
    for path in sorted(entry for entry in directory.iterdir() if entry.is_dir()):
        if path.name.startswith(".") or not any((path / name).exists() for name in _RUN_FILES):
            continue
        try:
            if not (path / "summary.json").exists():
                problems.append(Problem(path.name, "unfinished", _progress(path)))
            else:
                runs.append(_load_run(path, problems))
        except DamagedFileError as error:
            problems.append(Problem(path.name, "damaged", str(error)))
    return runs, problems


def _load_run(path: Path, problems: list[Problem]) -> Run:
    summary = _read_json(path / "summary.json")
    if summary.get("finished") is not True:
        raise DamagedFileError("summary.json: does not say that the run finished")
    config, provenance = _read_json(path / "config.json"), _read_json(path / "provenance.json")
    rounds = _read_rounds(path, problems)
    last = int(rounds["round"].iloc[-1])
    if "round" in summary and last != summary["round"]:
        raise DamagedFileError(f"rounds end with round {last}, summary.json says {summary['round']}")
    mechanism, picture = _read_mechanism(path, problems), path / "partition.png"
    split = picture.read_bytes() if picture.is_file() else None
    run = Run(path.name, config, provenance, rounds, summary, mechanism, split)
    try:
        _ = run.label, run.certified, run.asked, run.statement, run.simulated, run.private, run.trusts_server
    except Exception as error:  # a damaged field can raise any error
        raise DamagedFileError(f"provenance.json: a field cannot be read ({_first_line(error)})") from error
    if run.mechanism is not None and run.mechanism.epsilon > run.certified_epsilon * (1 + 1e-9):
        raise DamagedFileError(
            f"mechanism.pqm has {run.mechanism.statement.brief}, provenance.json claims "
            f"{run.certified.figures}: the two do not belong together"
        )
    return run


def _progress(path: Path) -> str:
    try:
        rounds = _read_rounds(path, [])
        planned = _read_json(path / "config.json").get("federation", {}).get("rounds", "?")
    except DamagedFileError as error:
        return f"no summary.json; how far it came cannot be read ({error})"
    return f"no summary.json: stopped after round {int(rounds['round'].iloc[-1])} of {planned}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedFileError(f"{path.name}: missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path.name}: cannot be read ({_first_line(error)})") from error
    if not isinstance(content, dict):
        raise DamagedFileError(f"{path.name}: holds a {type(content).__name__}, expected an object")
    return content


def _read_rounds(path: Path, problems: list[Problem]) -> pd.DataFrame:
    """The rounds in order; if the parquet file is damaged, the CSV file is read instead."""
    try:
        return _tidy(path / "rounds.parquet")
    except DamagedFileError as error:
        if not (path / "rounds.csv").exists():
            raise
        try:
            rounds = _tidy(path / "rounds.csv")
        except DamagedFileError as other:
            raise DamagedFileError(f"{error}; {other}") from other
        problems.append(Problem(path.name, "repaired", f"{error}; rounds.csv was read instead"))
        return rounds


def _tidy(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        missing = [name for name in _NEEDED if name not in frame]
        if missing or frame.empty:
            what = f"without {', '.join(missing)}" if missing else "no rows"
            raise DamagedFileError(f"{path.name}: {what}")
        for name in NUMBER_COLUMNS:
            frame[name] = pd.to_numeric(frame[name]).astype(float) if name in frame else math.nan
        for name in TEXT_COLUMNS:
            frame[name] = frame[name].astype(str) if name in frame else ""
        if frame["round"].isna().any():
            raise DamagedFileError(f"{path.name}: a row without its round")
    except FileNotFoundError:
        raise DamagedFileError(f"{path.name}: missing") from None
    # pyarrow and the CSV parser have errors of many families, and a truncated file can cause any.
    except (OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise DamagedFileError(f"{path.name}: cannot be read ({_first_line(error)})") from error
    # A run that was resumed repeats the round it was stopped in; the later row is the one that counts.
    frame = frame.drop_duplicates("round", keep="last").sort_values("round", ignore_index=True)
    first, last = frame["round"].iloc[0], frame["round"].iloc[-1]
    if len(frame) != last - first + 1:
        raise DamagedFileError(
            f"{path.name}: {len(frame)} rounds between {first:g} and {last:g}, some missing"
        )
    return frame


def _read_mechanism(path: Path, problems: list[Problem]) -> Mechanism | None:
    try:
        return Mechanism.from_bytes((path / "mechanism.pqm").read_bytes())
    except (OSError, PrivQuantError) as error:
        message = f"mechanism.pqm: {_first_line(error)}; its law is not drawn from this run"
        problems.append(Problem(path.name, "repaired", message))
        return None


def _first_line(error: BaseException) -> str:
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0])
