"""Options that several commands share: each has one name, one type and one meaning everywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fl_privquant.errors import InvalidSpecError
from fl_privquant.statement import Relation

# Arguments of pq.design that are not parameters of a mechanism.
_NO_PARAMETERS = ("name", "cache")

PICTURE_SUFFIXES = (".pdf", ".png", ".svg")

# The most that counts may be: no federation is larger, and floats hold all integers up to it exactly.
_MAX_COUNT = 10**12


def check_picture_path(path: Path | None) -> Path | None:
    """Refuse a picture whose file name does not end in a format that can be drawn."""
    if path is not None and path.suffix.lower() not in PICTURE_SUFFIXES:
        raise typer.BadParameter(f"{str(path)!r} does not end in {', '.join(PICTURE_SUFFIXES)}")
    return _check_folder(path)


def _check_folder(path: Path | None) -> Path | None:
    """Refuse a file in a folder that cannot be written to, before the work and not after it."""
    if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise typer.BadParameter(f"there is no folder {str(path.parent)!r} that can be written to")
    return path


_EPSILON = typer.Option(help="Privacy loss of one coordinate and release, local view, replace-one.")
Epsilon = Annotated[float | None, _EPSILON]
RequiredEpsilon = Annotated[float, _EPSILON]
Delta = Annotated[float, typer.Option(help="The δ at which ε is stated.")]
MaxBits = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=16,
        help="Most bits of a code before it is masked: 4 by default, 2 where designs are listed. "
        "rounded_gaussian chooses its own width.",
    ),
]
Bits = Annotated[int | None, typer.Option(min=1, max=16, help="2^bits output values or lattice points.")]
Levels = Annotated[int | None, typer.Option(help="Number of output values, if that is not a power of two.")]
Objective = Annotated[
    str | None, typer.Option(help="mse (governs averages over clients) or mae (the paper's).")
]
StatedRelation = Annotated[
    Relation,
    typer.Option(
        "--relation",
        help="Neighboring relation of ε: replace-one, or zero-out as most of the field counts. Tables show "
        "both. add-remove is refused: a server knows who takes part.",
    ),
]
Clients = Annotated[
    int, typer.Option(min=1, max=_MAX_COUNT, help="Clients whose updates are added up in a round.")
]
Dimension = Annotated[int, typer.Option(min=1, max=_MAX_COUNT, help="Coordinates of an update.")]
Rounds = Annotated[
    int,
    typer.Option(min=1, max=_MAX_COUNT, help="Rounds of the run; a client takes part in all by default."),
]
Participations = Annotated[
    int | None,
    typer.Option(min=1, max=_MAX_COUNT, help="Most rounds that one client takes part in."),
]
CorruptFraction = Annotated[
    float, typer.Option(help="Share of a round's clients that may work together with the server, rounded up.")
]
DropoutFraction = Annotated[
    float, typer.Option(help="Share of a round's clients that may drop out, rounded up.")
]
Error = Annotated[
    float | None,
    typer.Option(
        "--error",
        help="Largest squared error, over that of a trusted server that adds Gaussian noise; of the plans "
        "within it the one with the fewest bytes is chosen. By default 1.1 times (clients that stay ÷ honest "
        "clients that stay): only the noise of honest clients counts.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Print a plan even if nothing will be learned from its run.")
]
Kilobytes = Annotated[
    float | None,
    typer.Option(help="Instead of --error: most that one client sends in a round, for the least error."),
]
Compare = Annotated[
    bool,
    typer.Option("--compare", help="List all mechanisms for this target, with all coordinates sent."),
]
L2Norm = Annotated[
    float | None,
    typer.Option(
        help="L2 norm that updates are clipped to, in units of the coordinate clip. A plan for secure sums "
        "has the best one for each mechanism by default."
    ),
]
Mechanisms = Annotated[
    list[str] | None, typer.Option("--mechanism", help="Consider this mechanism only; may be repeated.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Another parameter, as key=value: family=paired, bins=-3,-.5,.5,3 ..."),
]
File = Annotated[Path | None, typer.Option(help="A mechanism that `design --output` wrote.")]
Output = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False, writable=True, callback=_check_folder, help="Write the certified mechanism here."
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False, writable=True, callback=check_picture_path, help="Draw to a PNG, PDF or SVG file."
    ),
]


def collect_parameters(settings: list[str] | None, **options: Any) -> dict[str, Any]:
    """The parameters of a design: those of ``--set``, and options that were given; refused if given twice.

    >>> collect_parameters(["family=paired", "bins=-3,.5"], epsilon=1.0, bits=None)
    {'family': 'paired', 'bins': [-3, 0.5], 'epsilon': 1.0}
    """
    parameters: dict[str, Any] = {}
    for text in settings or []:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise InvalidSpecError("--set", text, ", expected key=value")
        if key in _NO_PARAMETERS or options.get(key) is not None:
            reason = "not a parameter of a design" if key in _NO_PARAMETERS else f"given by --{key} too"
            raise InvalidSpecError("--set", text, f": {key} is {reason}")
        parameters[key] = (
            [_parse_scalar(item) for item in value.split(",")] if "," in value else _parse_scalar(value)
        )
    return parameters | {key: value for key, value in options.items() if value is not None}


def _parse_scalar(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


TargetEpsilon = Annotated[
    float,
    typer.Option(
        help="Target ε, for a client's whole run, against whoever sees the sums, and for --relation."
    ),
]
