"""Reading the runs of a study from disk: a damaged file costs its run, never the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from fl_privquant.errors import PrivQuantError, one_line
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import PrivacyStatement, Unit, ViewKind

_NUMBERS = (
    *("epsilon", "bits", "seed", "round", "accuracy", "loss", "mean_squared_error"),
    *("bytes_up", "bytes_handshake", "num_clients"),
)
_FILES = ("config.json", "provenance.json", "rounds.csv", "summary.json")
# What a run is about: its secure sums or models if it has a statement about them, else single messages.
_VIEWS = (ViewKind.AGGREGATE, ViewKind.CENTRAL, ViewKind.LOCAL_OR_AGGREGATE, ViewKind.LOCAL, ViewKind.MODELS)

Content = TypeVar("Content")


class DamagedFileError(PrivQuantError):
    """A file of a run cannot be read, or contradicts the run's other files."""


@dataclass(frozen=True)
class Problem:
    """Why the run of a directory is left out: it is ``unfinished`` or ``damaged``."""

    run: str
    kind: str
    message: str


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: what its files say.

    Parameters
    ----------
    config
        The resolved settings, with dotted keys.
    label
        The mechanism and its variant, which has one color everywhere.
    statements
        The privacy statements of the run.
    lines
        The statements as text, with what else was said about privacy.
    beside
        What the whole run costs for the neighboring relation that is not the target's, where that is known.
    """

    name: str
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    rounds: pd.DataFrame
    label: str
    statements: tuple[PrivacyStatement, ...]
    lines: tuple[str, ...]
    beside: tuple[PrivacyStatement, ...] = ()

    @property
    def certified(self) -> PrivacyStatement:
        """The statement about one message of the mechanism."""
        return self.statements[0]

    @property
    def total(self) -> PrivacyStatement:
        """What the whole run costs, in the view that it is about; without privacy, the first statement."""
        totals = {
            statement.view.kind: statement
            for statement in reversed(self.statements)
            if statement.unit not in (Unit.COORDINATE, Unit.ROUND)
        }
        return next((totals[kind] for kind in _VIEWS if kind in totals), self.certified)

    @property
    def target(self) -> float | None:
        """The epsilon that the whole run was planned for; None if the mechanism has an epsilon of its own."""
        value = self.config.get("privacy.epsilon")
        return None if value is None else float(value)


def load_runs(directory: Path) -> tuple[list[Run], list[Problem]]:
    """The finished runs below ``directory``, by name, and all that is wrong with the others."""
    runs: list[Run] = []
    problems: list[Problem] = []
    for path in sorted(entry for entry in directory.iterdir() if entry.is_dir()):
        if path.name.startswith(".") or not any((path / name).exists() for name in _FILES):
            continue
        try:
            if (path / "summary.json").exists():
                runs.append(_load_run(path))
            else:
                problems.append(Problem(path.name, "unfinished", _describe_progress(path)))
        except DamagedFileError as error:
            problems.append(Problem(path.name, "damaged", str(error)))
    return runs, problems


def _load_run(path: Path) -> Run:
    config, provenance, summary = (
        _read(path / f"{name}.json", _parse_object) for name in ("config", "provenance", "summary")
    )
    rounds = _read(path / "rounds.csv", _parse_rounds)
    last = int(rounds["round"].iloc[-1])
    if summary.get("finished") is not True or summary.get("round", last) != last:
        raise DamagedFileError(
            f"rounds end with round {last}, summary.json says {summary.get('round')}, "
            f"finished: {summary.get('finished')}"
        )
    try:
        run = Run(
            name=path.name,
            config=flatten(config),
            provenance=provenance,
            rounds=rounds,
            label=str(provenance.get("mechanism_label") or rounds["label"].iloc[-1]),
            statements=tuple(map(PrivacyStatement.from_dict, provenance["statements"])),
            lines=tuple(map(str, provenance.get("statement") or ())),
            beside=tuple(map(PrivacyStatement.from_dict, provenance.get("beside", []))),
        )
        _ = run.total.brief, run.target
    except Exception as error:  # a damaged value can raise any error
        raise DamagedFileError(f"provenance.json: a value cannot be used ({_first_line(error)})") from error
    _check_mechanism(path / "mechanism.pqm", run)
    return run


def _check_mechanism(path: Path, run: Run) -> None:
    """Refuse a statement that the mechanism contradicts; without its file, nothing else is lost."""
    try:
        mechanism = Mechanism.from_bytes(path.read_bytes())
    except (OSError, PrivQuantError):
        return
    if mechanism.epsilon > run.certified.epsilon * (1 + 1e-9):
        raise DamagedFileError(
            f"{path.name} has {mechanism.statement.brief}, provenance.json claims {run.certified.figures}: "
            "the two do not belong together"
        )


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys without those that are null; lists become text.

    >>> flatten({"seed": 1, "task": {"name": "digits", "hidden": [32, 16], "root": None}})
    {'seed': 1, 'task.name': 'digits', 'task.hidden': '[32, 16]'}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return flat


def _describe_progress(path: Path) -> str:
    try:
        rounds = _read(path / "rounds.csv", _parse_rounds)
        planned = flatten(_read(path / "config.json", _parse_object)).get("federation.rounds", "?")
    except DamagedFileError as error:
        return f"no summary.json; how far it came cannot be read ({error})"
    return f"no summary.json: stopped after round {int(rounds['round'].iloc[-1])} of {planned}"


def _read(path: Path, parse: Callable[[Path], Content]) -> Content:
    try:
        return parse(path)
    except FileNotFoundError:
        raise DamagedFileError(f"{path.name}: missing") from None
    except Exception as error:  # parsers have errors of many families
        raise DamagedFileError(f"{path.name}: cannot be read ({_first_line(error)})") from error


def _parse_object(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise TypeError(f"holds a {type(content).__name__}, expected an object")
    return content


def _parse_rounds(path: Path) -> pd.DataFrame:
    """The rounds in order."""
    frame = pd.read_csv(path)
    frame = frame.reindex(columns=list(dict.fromkeys([*frame, *_NUMBERS])))
    frame[list(_NUMBERS)] = frame[list(_NUMBERS)].apply(pd.to_numeric).astype(float)
    # A run that was resumed repeats the round it was stopped in; the later row counts.
    frame = frame.drop_duplicates("round", keep="last").sort_values("round", ignore_index=True)
    first, last = int(frame["round"].iloc[0]), int(frame["round"].iloc[-1])
    if len(frame) != last - first + 1:
        raise ValueError(f"{len(frame)} rounds between {first} and {last}, some missing")
    frame = frame.astype({"round": int, "seed": int})
    frame[["label", "mechanism"]] = frame[["label", "mechanism"]].astype(str)
    return frame


def _first_line(error: BaseException) -> str:
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0])
