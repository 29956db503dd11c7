"""What ``python -m simulations.run --help`` prints: groups with their choices, keys with what they mean.

The texts are not written again here: the first comment of each YAML file says what a choice is, and the
docstrings of the configuration's classes and of the mechanism's spec say what a key means.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fl_privquant.cli.layout import output_console
from fl_privquant.mechanisms.registry import entry, mechanisms
from simulations.config import RunConfig
from simulations.targets import TARGET
from simulations.tasks import described

_WIDEST_NAME = 30

_OPENING = """\
Federated simulations with private quantization.

python -m simulations.run KEY=VALUE ...        one run
python -m simulations.run -m KEY=A,B ...       a sweep, ends with a report
python -m simulations.run -m experiment=NAME   a study that conf/experiment has

Exit codes: 0 all runs completed; 2 an error; 3 a privacy budget ended a run
early, with the model so far as its result; 130 Ctrl-C. Finished runs are not
computed again, and interrupted ones go on from their last checkpoint.
"""


def print_help(values: Mapping[str, Any], chosen: Mapping[str, str], conf: Path) -> None:
    """Print the help for a composed config.

    Parameters
    ----------
    values
        The config, as plain values.
    chosen
        The file that is chosen of each group.
    conf
        The configuration's directory.
    """
    console = output_console()
    console.print(_OPENING, highlight=False, markup=False)
    console.print("Groups (choose with GROUP=NAME; * is chosen now):", style="bold")
    for group in sorted(path for path in conf.iterdir() if path.is_dir()):
        console.print(group.name, style="bold")
        for name, meaning in choices(group).items():
            _print_entry(console, f"{'*' if chosen.get(group.name) == name else ' '} {name}", meaning)
    console.print("\nKeys (change with KEY=VALUE):", style="bold")
    for key, value, meaning in _keys(RunConfig, values, ""):
        _print_entry(console, f"  {key}={'null' if value is None else value}", meaning)


def choices(group: Path) -> dict[str, str]:
    """The files of a group, with the first comment of each."""
    files = {}
    for file in sorted(group.rglob("*.yaml")):
        comments = (
            line[1:].strip() for line in file.read_text(encoding="utf-8").splitlines() if line[:1] == "#"
        )
        descriptions = (comment for comment in comments if not comment.startswith("@"))
        files[file.relative_to(group).with_suffix("").as_posix()] = next(descriptions, "")
    return files


def meanings(kind: Callable[..., Any]) -> dict[str, str]:
    """What each parameter of a class means, by the section "Parameters" of its docstring.

    >>> from simulations.config import SecaggConfig
    >>> meanings(SecaggConfig)["enabled"]
    'Whether the server sees sums of codes only.'
    """
    _, _, section = (inspect.getdoc(kind) or "").partition("Parameters\n----------\n")
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in section.split("\n\n")[0].splitlines():
        if not line.startswith(" "):
            names = line.split(", ")
            texts |= dict.fromkeys(names, "")
        else:
            texts |= {name: f"{texts[name]} {line.strip()}".strip() for name in names}
    return {name: _plain(text) for name, text in texts.items()}


def _plain(meaning: str) -> str:
    """A description without the markup of docstrings: names in code quotes, and references to objects.

    >>> _plain("See :class:`~simulations.data.Examples` or ``none``.")
    'See Examples or none.'
    """
    return re.sub(r":\w+:`~[\w.]*?(\w+)`|:\w+:`([\w.]+)`", r"\1\2", meaning).replace("``", "")


def _keys(kind: type, values: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any, str]]:
    """Each key with its value and meaning, groups before the keys in them."""
    hints, texts = typing.get_type_hints(kind), meanings(kind)
    for field in dataclasses.fields(kind):
        value, key = values.get(field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _keys(typing.cast(type, hints[field.name]), value or {}, f"{key}.")
        elif isinstance(value, Mapping) and value:
            spec = _of_mapping(key, value) or dict.fromkeys(value, texts[field.name])
            for parameter, number in value.items():
                yield f"{key}.{parameter}", number, spec.get(parameter, "The other choices do not use it.")
        else:
            yield key, value, texts.get(field.name, "")


def _of_mapping(key: str, values: Mapping[str, Any]) -> dict[str, str]:
    """What the keys of a group that is no dataclass mean; empty if the group's own description says it."""
    if key == "task":
        return _of_task(values)
    return _of_mechanism(str(values.get("name"))) if key == "mechanism" else {}


def _of_mechanism(name: str) -> dict[str, str]:
    """What the parameters of a mechanism mean."""
    spec = meanings(entry(name).spec) if name in mechanisms() else {}
    return spec | {"name": "The mechanism.", "bits": "Its outputs are 2^bits values; or give levels."}


def _of_task(values: Mapping[str, Any]) -> dict[str, str]:
    """What the arguments of a task mean, by its class and by the functions that it names."""
    texts = {TARGET: "Import path of the task's class: one of simulations.tasks, or your own."}
    for source in reversed(described(values)):
        texts |= meanings(source)
    return texts


def _print_entry(console: Console, name: str, meaning: str) -> None:
    """A name and its meaning in two columns, or one under the other where the name is long."""
    lines = textwrap.wrap(meaning, max(20, console.width - _WIDEST_NAME - 2)) or [""]
    if len(name) > _WIDEST_NAME:
        console.print(Text(name), highlight=False, soft_wrap=True)
        name = ""
    for line in lines:
        console.print(Text(f"{name:<{_WIDEST_NAME}}  {line}".rstrip()), highlight=False, soft_wrap=True)
        name = ""
