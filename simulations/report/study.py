"""A study as data: its runs, what varies between them, and one row per run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fl_privquant.errors import MISSING, InvalidSpecError, pluralize
from fl_privquant.plotting import COLORS
from fl_privquant.statement import ViewKind
from simulations.report.runs import Problem, Run, load_runs

GROUP = ["setting", "series", "epsilon", "bits"]
"""Columns of results that runs share which differ only in their seed."""

# These keys say which problem is solved: runs that differ here are not compared with each other. Any other
# key may belong to the mechanism (its own clip, its own tuning), and is then a part of what is compared.
_PROBLEM = ("panel", "task", "partition", "federation", "app", "app_config", "app_digest")
# Columns of the results stand for these keys.
_AXES = ("seed", "privacy.epsilon", "mechanism.epsilon")
_WITHOUT_EFFECT = ("study", "output", "tracker", "engine", "hydra")
# Measured times differ between runs that are the same.
_SECONDS = "seconds_"


@dataclass(frozen=True, eq=False)
class Study:
    """All finished runs of one directory, and what is wrong with the rest.

    Parameters
    ----------
    repeated
        How many runs were left out, as they have the results of another one with the same seed.
    """

    directory: Path
    runs: Sequence[Run]
    problems: Sequence[Problem]
    repeated: int = 0

    @classmethod
    def load(cls, directory: Path) -> Study:
        """The study in a directory.

        Raises
        ------
        InvalidSpecError
            There is no such directory, or no run in it.
        """
        directory = Path(directory).resolve()
        if not directory.is_dir():
            raise InvalidSpecError(str(directory), MISSING, "no such directory", "a study is outputs/<study>")
        runs, problems = load_runs(directory)
        if not runs and not problems:
            raise InvalidSpecError(
                str(directory),
                MISSING,
                "no runs in it",
                "expected outputs/<study>/<run>/config.json, rounds.csv, ...",
            )
        # Of runs that repeat each other the one with the smallest settings is kept, for every seed the same.
        ordered = sorted(runs, key=lambda run: str(sorted(run.config.items())), reverse=True)
        once = {_result_key(run): run for run in ordered}
        kept = [run for run in runs if once[_result_key(run)] is run]
        return cls(directory, kept, problems, len(runs) - len(kept))

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """Keys that tell runs apart besides seed, mechanism, epsilon and bits; none of them is redundant."""
        chosen: list[str] = []
        # Of keys that change together (a task and its model), panels come first, then names.
        for key in sorted(filter(self._separates, self._keys), key=_by_importance):
            if self._num_settings([*chosen, key]) > self._num_settings(chosen):
                chosen.append(key)
        return tuple(sorted(chosen))

    @property
    def has_panels(self) -> bool:
        """Whether the runs answer several questions, which then name the settings."""
        return "panel" in self.varying

    @cached_property
    def constant(self) -> dict[str, Any]:
        """Keys with one value in all runs, and the value."""
        return {key: self.runs[0].config[key] for key in self._keys if self._num_settings([key]) == 1}

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round of every run, with its setting and series."""
        return pd.concat([run.rounds.assign(**self._place(run)) for run in self.runs], ignore_index=True)

    @cached_property
    def results(self) -> pd.DataFrame:
        """One row per run: its place in the study, its last round, its mean error, bytes and epsilon.

        The column ``epsilon`` is what runs are compared at: the target of a whole run, or else the epsilon
        that the mechanism was designed for.
        """
        rows = []
        for run in self.runs:
            last = run.rounds.iloc[-1]
            sent = 1e3 * max(1.0, last["round"]) * last["num_clients"]
            rows.append(
                self._place(run)
                | {key: last[key] for key in ("seed", "round", "accuracy", "loss")}
                | {
                    "error": run.rounds["mean_squared_error"].mean(),
                    "kilobytes": last["bytes_up"] / sent,
                    "handshake_kilobytes": last["bytes_handshake"] / sent,
                    "total": run.total.epsilon,
                    "delta": run.total.delta,
                    "budget_delta": 0.0 if run.target is None else run.total.delta,
                    "relation": str(run.total.relation),
                    "statement": run.total,
                    "certified": run.certified,
                    "whole_run": run.target is not None,
                    "baseline": run.total.view.kind is ViewKind.CENTRAL,
                    "private": any(math.isfinite(statement.epsilon) for statement in run.statements),
                }
            )
        return pd.DataFrame(rows).sort_values(GROUP, ignore_index=True, key=self._sort_key)

    @cached_property
    def series(self) -> tuple[str, ...]:
        """The series that are compared, in the order of their colors."""
        order = list(COLORS)
        labels = sorted({run.label for run in self.runs})
        return tuple(sorted(labels, key=lambda each: order.index(each) if each in order else len(order)))

    @cached_property
    def settings(self) -> tuple[str, ...]:
        """The settings that occur, in the order of their values; one empty text if nothing varies."""
        values = {tuple(map(run.config.get, self.varying)): self.setting_of(run) for run in self.runs}
        # Numbers come before words, and what is not set comes first.
        order = lambda key: [(isinstance(value, str), value or 0) for value in key]  # noqa: E731
        return tuple(values[key] for key in sorted(values, key=order))

    def setting_of(self, run: Run) -> str:
        """The setting of a run in words: what differs besides seed, mechanism, epsilon and bits."""
        others = [key for key in self.varying if key != "panel"]
        panel = [str(run.config.get("panel") or "other runs")] if self.has_panels else []
        values = [f"{key.removesuffix('.name')} {setting_value(run.config.get(key))}" for key in others]
        return ", ".join(panel + values)

    @cached_property
    def _keys(self) -> list[str]:
        keys = {key for run in self.runs for key in run.config}
        ignored = {*_AXES, *(key for key in keys if key.endswith(".seed"))}
        return sorted(key for key in keys - ignored if key.partition(".")[0] not in _WITHOUT_EFFECT)

    def _place(self, run: Run) -> dict[str, Any]:
        last = run.rounds.iloc[-1]
        return {
            "run": run.name,
            "setting": self.setting_of(run),
            "series": run.label,
            "epsilon": last["epsilon"] if run.target is None else run.target,
            "bits": last["bits"],
        }

    def _num_settings(self, keys: Sequence[str], runs: Iterable[Run] | None = None) -> int:
        return len({tuple(map(run.config.get, keys)) for run in runs or self.runs})

    def _separates(self, key: str) -> bool:
        """Whether a key tells apart two runs that solve different problems, or else have one mechanism."""
        if key.partition(".")[0] in _PROBLEM:
            return self._num_settings([key]) > 1
        groups: dict[tuple[str, ...], list[Run]] = {}
        for run in self.runs:
            last = run.rounds.iloc[-1]
            group = (run.label, str(run.target or last["epsilon"]), str(last["bits"]))
            groups.setdefault(group, []).append(run)
        return any(self._num_settings([key], runs) > 1 for runs in groups.values())

    def _sort_key(self, column: pd.Series) -> pd.Series:
        order: Sequence[str] = {"setting": self.settings, "series": self.series}.get(str(column.name), ())
        return column.map(order.index) if order else column.fillna(math.inf)


def setting_value(value: Any) -> str:
    """A value of a setting as YAML would write it."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_repeated(study: Study) -> str:
    """A sentence about runs that were left out as repetitions; empty if there are none."""
    if not study.repeated:
        return ""
    verb = "has" if study.repeated == 1 else "have"
    return (
        f"{pluralize(study.repeated, 'run')} {verb} the results of another run with the same seed, and no "
        "further weight: what differs between them has no effect."
    )


def _by_importance(key: str) -> tuple[bool, bool, int, str]:
    return key != "panel", not key.endswith(".name"), key.count("."), key


def _result_key(run: Run) -> tuple[Any, ...]:
    """What two runs share of which one repeats the other: label, problem, seed, rounds and statements."""
    measured = run.rounds.drop(columns=["study", "run"], errors="ignore")
    measured = measured[[name for name in measured if not str(name).startswith(_SECONDS)]]
    return run.label, _problem(run.config), run.config.get("seed"), repr(measured.to_dict("list")), run.lines


def _problem(config: Mapping[str, Any]) -> str:
    return str([(key, config[key]) for key in sorted(config) if key.partition(".")[0] in _PROBLEM])


def join_words(words: Iterable[str]) -> str:
    """Words as a list in a sentence.

    >>> join_words(["a"]), join_words(["a", "b"]), join_words(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
