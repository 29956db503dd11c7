"""A study as data: its runs, what varies between them, and the two tidy tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fl_privquant.cli.plots import COLOURS
from fl_privquant.errors import InvalidSpecError
from simulations.report.load import NUMBER_COLUMNS, TEXT_COLUMNS, Problem, Run, load_runs
from simulations.report.words import joined

GROUP = ["setting", "series", "epsilon", "bits"]
"""Columns that define a group: runs that agree in all of them differ only in their seed."""

# The columns epsilon and bits of a group stand for these, unless several of their values share a column's.
_MECHANISM_AXES = ("mechanism.epsilon", "mechanism.bits", "mechanism.levels")
_AXES = ("study", "seed", *_MECHANISM_AXES)
# Groups of keys that do not change results, and are not part of a run's name.
_ROOMS_WITHOUT_EFFECT = ("output", "tracker")
_NOT_IN_NAMES = (*_ROOMS_WITHOUT_EFFECT, "study")
# These keys say which problem is solved: curves that differ here never share a panel. Any other key may
# belong to the mechanism (its own clip, its own tuning), and is then a part of what is compared.
_PROBLEM = ("panel", "task", "partition", "federation", "app", "app_config", "app_digest")
# Keys that only some values of another key use: with its other values they change nothing.
_USED_BY: dict[str, dict[str, tuple[Any, ...]]] = {
    "secagg.enabled": dict.fromkeys(
        ("secagg.corrupt_fraction", "secagg.dropout_fraction", "secagg.masked", "secagg.exact_sums"), (True,)
    ),
    "partition.name": {"partition.alpha": ("dirichlet",), "partition.shards_per_client": ("shards",)},
    "federation.strategy": {"federation.server_momentum": ("fedavgm", "fedadam")},
}
SECURE = " + secure aggregation"


@dataclass(frozen=True, eq=False)
class Study:
    """All finished runs of one directory, and what is wrong with the rest."""

    directory: Path
    runs: Sequence[Run]
    problems: Sequence[Problem]
    repeated: str = ""
    """A sentence about runs that are left out as they repeat others; empty if there are none."""

    @classmethod
    def load(cls, directory: Path) -> Study:
        """The study in a directory.

        Raises
        ------
        InvalidSpecError
            There is no such directory, or no run in it.
        """
        directory = directory.resolve()
        if not directory.is_dir():
            raise InvalidSpecError(f"{directory}: no such directory; a study is outputs/<study>")
        runs, problems = load_runs(directory)
        if not runs and not problems:
            raise InvalidSpecError(
                f"{directory}: no runs in it; expected outputs/<study>/<run>/config.json, rounds.parquet, ..."
            )
        return cls.of(directory, runs, problems)

    @classmethod
    def of(cls, directory: Path, runs: Sequence[Run], problems: Sequence[Problem]) -> Study:
        """The study of these runs."""
        # Runs that differ only in what has no effect are repetitions, and no further seeds.
        configs = _effective_configs(runs)
        once = {_identity(configs[run.name]): run for run in reversed(runs)}
        first_of = {run.name: once[_identity(configs[run.name])] for run in runs}
        kept = [run for run in runs if first_of[run.name] is run]
        return cls(directory, kept, problems, _repeated(runs, first_of))

    @property
    def name(self) -> str:
        """The name of the study's directory."""
        return self.directory.name

    @cached_property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The flat config of each run, with dotted keys, without settings that have no effect."""
        return _effective_configs(self.runs)

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """Keys that tell runs apart besides seed, mechanism, epsilon and bits; none of them is redundant."""
        varied = [key for key in (*self._keys, *_MECHANISM_AXES) if self._separates(key)]
        chosen: list[str] = []
        parts = 1

        def telling(key: str) -> tuple[bool, bool, int, str]:
            """Of keys that change together (a task and its model), panels come first, then names."""
            return key != "panel", not key.endswith(".name"), key.count("."), key

        for key in sorted(varied, key=telling):
            finer = len({self._values(run, [*chosen, key]) for run in self.runs})
            if finer > parts:
                chosen.append(key)
                parts = finer
        return tuple(sorted(chosen))

    @property
    def panels(self) -> bool:
        """Whether the runs answer several questions, which then name the settings."""
        return "panel" in self.varying

    @cached_property
    def constant(self) -> dict[str, Any]:
        """Keys with one value throughout, and the value."""
        first = self.configs[self.runs[0].name] if self.runs else {}
        return {key: first[key] for key in self._keys if len(self._distinct(key)) == 1}

    @cached_property
    def varied(self) -> dict[str, list[str]]:
        """Keys that differ between runs and their values in order; some mechanisms lack some keys."""
        settings: dict[str, list[str]] = {}
        for key in self._keys:
            if len(self._distinct(key)) > 1:
                values = {config[key] for config in self.configs.values() if key in config}
                settings[key] = [setting_value(value) for value in sorted(values, key=_sort_key)]
                settings[key] += ["where it applies"] if len(values) == 1 else []
        return settings

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round of a finished run, with the setting and the series it belongs to."""
        frames = [run.rounds.assign(**self._columns(run)) for run in self.runs]
        if not frames:
            return pd.DataFrame(columns=[*TEXT_COLUMNS, *NUMBER_COLUMNS, "series", "setting", "private"])
        return pd.concat(frames, ignore_index=True)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per finished run: its last round, its seconds, and its error averaged over the rounds."""
        rows = []
        for run in self.runs:
            row = run.rounds.iloc[-1].to_dict() | _scalars(run.summary) | self._columns(run)
            row["certified_epsilon"], row["delta"] = run.certified_epsilon, run.delta
            row["mean_squared_error_rounds"] = run.rounds["mean_squared_error"].mean()
            rows.append(row)
        return pd.DataFrame(rows) if rows else self.rounds

    @cached_property
    def series(self) -> tuple[str, ...]:
        """The series that are compared, in a fixed order: mechanisms with privacy first."""
        order = list(COLOURS)
        private = self.summary.groupby("series")["private"].any().to_dict() if self.runs else {}

        def place(series: str) -> tuple[bool, int, str]:
            label = label_of(series)
            return not private[series], order.index(label) if label in order else len(order), series

        return tuple(sorted(private, key=place))

    @cached_property
    def protects(self) -> dict[str, bool]:
        """Whether each series has privacy, in the order of the series."""
        return {series: any(run.private for run in self.runs_of(series)) for series in self.series}

    @cached_property
    def settings(self) -> tuple[str, ...]:
        """The settings that occur, in the order of their values; one empty text if nothing varies."""
        settings = {self._values(run, self.varying) for run in self.runs}
        ordered = sorted(settings, key=lambda values: [_sort_key(value) for value in values])
        return tuple(setting_text(self.varying, values) for values in ordered)

    def runs_of(self, series: str, setting: str | None = None) -> list[Run]:
        """The runs of one series, in one setting or in all."""
        return [
            run
            for run in self.runs
            if self._series(run) == series and (setting is None or self.setting_of(run) == setting)
        ]

    def setting_of(self, run: Run) -> str:
        """The setting of the run in words: what differs besides seed, mechanism, epsilon and bits."""
        return setting_text(self.varying, self._values(run, self.varying))

    def _columns(self, run: Run) -> dict[str, Any]:
        values = self._values(run, self.varying)
        extra = {
            key: value for key, value in zip(self.varying, values, strict=True) if key not in NUMBER_COLUMNS
        }
        return {
            **{key: self._uniform(key, value) for key, value in extra.items()},
            "study": self.name,
            "run": run.name,
            "label": run.label,
            "series": self._series(run),
            "setting": self.setting_of(run),
            "private": run.private,
        }

    def _uniform(self, key: str, value: Any) -> Any:
        """The value, as text where its column holds several types: parquet columns have one type."""
        kinds = {type(other) for other in self._distinct(key) if other is not None}
        if kinds <= {int, float} or len(kinds) == 1:
            return value
        return None if value is None else setting_value(value)

    @cached_property
    def _with_and_without_sums(self) -> set[str]:
        """Mechanisms that solve one problem both with secure aggregation and without it."""
        seen: dict[tuple[Any, ...], set[bool]] = {}
        for run in self.runs:
            config = self.configs[run.name]
            kept = {key: str(value) for key, value in config.items() if key.partition(".")[0] in _PROBLEM}
            problem = tuple(sorted(kept.items()))
            seen.setdefault((run.label, problem), set()).add(bool(config.get("secagg.enabled", False)))
        return {label for (label, _), values in seen.items() if len(values) > 1}

    def _series(self, run: Run) -> str:
        secure = self.configs[run.name].get("secagg.enabled", False)
        return run.label + SECURE if secure and run.label in self._with_and_without_sums else run.label

    @cached_property
    def _keys(self) -> list[str]:
        keys = {key for config in self.configs.values() for key in config}
        return sorted(
            key
            for key in keys
            if key not in _AXES
            and not key.endswith(".seed")
            and key.partition(".")[0] not in _ROOMS_WITHOUT_EFFECT
        )

    def _values(self, run: Run, keys: Iterable[str]) -> tuple[Any, ...]:
        return tuple(self.configs[run.name].get(key) for key in keys)

    def _distinct(self, key: str) -> set[Any]:
        return {config.get(key) for config in self.configs.values()}

    def _separates(self, key: str) -> bool:
        if key.partition(".")[0] in _PROBLEM:
            return len(self._distinct(key)) > 1
        groups: dict[tuple[Any, ...], set[Any]] = {}
        for run in self.runs:
            last = run.rounds.iloc[-1]
            group = (self._series(run), str(last["epsilon"]), str(last["bits"]))
            groups.setdefault(group, set()).add(self.configs[run.name].get(key))
        return any(len(values) > 1 for values in groups.values())


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys; lists become text.

    >>> flatten({"seed": 1, "task": {"name": "digits", "hidden": [32, 16]}})
    {'seed': 1, 'task.name': 'digits', 'task.hidden': '[32, 16]'}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return flat


def _in_effect(config: dict[str, Any]) -> dict[str, Any]:
    """A flat config without the keys that its other settings leave without effect.

    >>> _in_effect({"secagg.enabled": False, "secagg.corrupt_fraction": 0.3, "seed": 1})
    {'secagg.enabled': False, 'seed': 1}
    """
    idle = {
        key
        for chooser, used in _USED_BY.items()
        for key, users in used.items()
        if chooser in config and config[chooser] not in users
    }
    return {key: value for key, value in config.items() if key not in idle}


def _effective_configs(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """The flat config of each run, in which runs with the same mechanism have the same keys of it.

    A plan may ignore a key, such as the bits of noise whose width follows from the target. The mechanism that
    encoded says what a key did: runs that share it, and its clip, are given the keys of the first of them.
    """
    keys_of: dict[tuple[Any, ...], dict[str, Any]] = {}
    configs: dict[str, dict[str, Any]] = {}
    for run in runs:
        config = _in_effect(flatten(run.config))
        keys = {key: config.pop(key) for key in list(config) if key.partition(".")[0] == "mechanism"}
        if run.mechanism is not None:
            used = (run.label, run.mechanism.to_bytes(), *run.rounds["clip"].dropna().iloc[:1])
            keys = keys_of.setdefault(used, keys)
        configs[run.name] = config | keys
    return configs


def label_of(series: str) -> str:
    """The mechanism's label, which has the colour, without what was added to tell runs apart."""
    return series.removesuffix(SECURE)


def setting_text(keys: Sequence[str], values: Sequence[Any]) -> str:
    """A setting in words.

    >>> setting_text(["partition.alpha", "task.name"], [0.1, "digits"])
    'partition.alpha 0.1, task digits'
    """
    named = sorted(zip(keys, values, strict=True), key=lambda pair: pair[0] != "panel")
    texts = [
        # Where a study asks several questions, some of its runs may belong to none of them.
        (key.removesuffix(".name"), "other runs" if (key, value) == ("panel", None) else setting_value(value))
        for key, value in named
    ]
    return ", ".join(text if key == "panel" else f"{key} {text}" for key, text in texts)


def setting_value(value: Any) -> str:
    """A value of a config as YAML would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _identity(config: Mapping[str, Any]) -> str:
    """What a run's numbers depend on, as text."""
    kept = {key: value for key, value in config.items() if key.partition(".")[0] not in _NOT_IN_NAMES}
    return json.dumps(kept, sort_keys=True, default=str)


def _repeated(runs: Iterable[Run], first_of: Mapping[str, Run]) -> str:
    """Which runs repeat another one, and the settings that differ between the two without any effect."""
    idle: set[str] = set()
    count = 0
    for run in runs:
        if (first := first_of[run.name]) is not run:
            count += 1
            own, other = flatten(run.config), flatten(first.config)
            idle |= {key for key in own | other if own.get(key) != other.get(key)}
    if not count:
        return ""
    keys = sorted(key for key in idle if key.partition(".")[0] not in _NOT_IN_NAMES)
    repeat = "1 run repeats another one and is" if count == 1 else f"{count} runs repeat others and are"
    return f"{repeat} left out: {joined(keys or ['nothing'])} made no difference between them."


def _scalars(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if isinstance(value, int | float | str)}


def _sort_key(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return 0, float(value), ""
    return (2, 0.0, "") if value is None else (1, 0.0, str(value))
