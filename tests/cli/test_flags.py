"""Messages of commands name the options that were or can be typed, never parameters of Python."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys

import click
import pytest
import typer

import fl_privquant as pq
from fl_privquant.accounting import RunRequirements
from fl_privquant.cli import main as cli
from fl_privquant.cli.program import FlagCommand, translate_error
from fl_privquant.errors import MISSING, InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.registry import available_mechanisms, get_entry

PROGRAM = typer.main.get_command(cli.app)
COMMANDS: dict[str, click.Command] = {
    name: command for name, command in PROGRAM.commands.items() if not isinstance(command, click.Group)
}
DESIGNS = {
    parameter for name in available_mechanisms() for parameter in get_entry(name).spec.parameter_names()
}
PARAMETERS = {
    *DESIGNS,
    *inspect.signature(pq.Target).parameters,
    *inspect.signature(pq.Target.plan).parameters,
    *inspect.signature(pq.SecureSum).parameters,
    *(field.name for field in dataclasses.fields(RunRequirements)),
}


def named_in(command: str, text: str) -> list[str]:
    """What a message names that the command does not have: parameters of Python, options of others."""
    # A list of what a mechanism takes, all of which --set gives; and where else a parameter can be set.
    text = re.sub(r"which takes [\w, ]+", "", text)
    own = {"--help", *(option for parameter in COMMANDS[command].params for option in parameter.opts)}
    settings = re.findall(r"(?:'design )?--set (\w+)", text)
    wrong = [name for name in settings if name not in DESIGNS]
    text = re.sub(r"'(?:fl-privquant )?design [^']+'", "", text)
    text = re.sub(r"--set \w+", "--set", text)
    wrong += [option for option in re.findall(r"(?<!\w)--[a-z][\w-]*", text) if option not in own]
    opening = re.match(r"error: ([a-z]\w*)(?:, [a-z]\w*)*: ", text)
    if opening and opening[1] in PARAMETERS:
        wrong.append(opening[1])
    wrong += [word for word in re.findall(r"(?<![\w'-])\w+_\w+(?![\w'])", text) if word in PARAMETERS]
    return wrong


def error_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[object, str]:
    monkeypatch.setattr(sys, "argv", ["fl-privquant", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    out, err = capsys.readouterr()
    return stopped.value.code, err or out


def test_every_command_translates() -> None:
    assert all(isinstance(command, FlagCommand) for command in COMMANDS.values())


@pytest.mark.parametrize(
    ("command", "error", "typed"),
    [
        ("plan", InvalidSpecError("corrupt_fraction", 2.0, "is outside [0, 1)"),
         "--corrupt-fraction: 2.0 is outside [0, 1)"),
        ("plan", InvalidSpecError("max_error", 1, "is low", "raise max_error or max_bits"),
         "--error: 1 is low; raise --error or --bits"),
        ("plan", InvalidSpecError("max_error, max_kilobytes", MISSING, "give one"),
         "--error, --kilobytes: give one"),
        ("design", InvalidSpecError("mechanism", "x", "is not one of a"), "NAME: 'x' is not one of a"),
        ("design", InvalidSpecError("family", "x", "is not one of a"), "--set family: 'x' is not one of a"),
        ("compare", InvalidSpecError("family", "x", "is none"), "design --set family: 'x' is none"),
        ("plan", InvalidSpecError("mechanism", "max_bits", "is none"), "--mechanism: 'max_bits' is none"),
        ("plan", InfeasibleDesignError("raise max_error (1.1) or dropout_fraction"),
         "raise --error (1.1) or --dropout-fraction"),
        # Words of a sentence and names of mechanisms stay as they are.
        ("plan", InfeasibleDesignError("3 clients in 5 rounds: an error of 2 bits"),
         "3 clients in 5 rounds: an error of 2 bits"),
        ("plan", InfeasibleDesignError("rounded_gaussian: no design"), "rounded_gaussian: no design"),
    ],
)  # fmt: skip
def test_parameters_become_options(command: str, error: pq.PrivQuantError, typed: str) -> None:
    with click.Context(COMMANDS[command]):
        assert str(translate_error(error)) == typed
    assert str(translate_error(error)) == str(error)


SETTINGS = (
    "max_value=1",
    "max_code=1",
    "bins=3,1",
    "family=x",
    "num_knots=0",
    "metric=l1",
    "levels=1",
    "bits=0",
)


@pytest.mark.parametrize("command", ["design", "statement"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_parameters_of_designs_are_named_as_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, setting: str
) -> None:
    start = ("design", "optm") if command == "design" else ("statement", "--mechanism", "optm")
    code, said = error_of(
        monkeypatch, capsys, *start, "--epsilon=1", "--set=family=paired", f"--set={setting}"
    )
    assert code == 2, said
    assert not named_in(command, said), said


def test_the_check_above_sees_what_was_printed_before() -> None:
    """Negative control: messages that commands once printed."""
    for command, said, wrong in [
        ("plan", "error: corrupt_fraction: 2.0 is outside [0, 1)", "corrupt_fraction"),
        ("plan", "error: with all coordinates the error is 1.3; raise max_error or max_bits", "max_bits"),
        ("statement", "error: lower dropout_fraction (0.1)", "dropout_fraction"),
        ("design", "error: epsilon: required by 'optm' and not given", "epsilon"),
        ("compare", "error: lower --corrupt-fraction", "--corrupt-fraction"),
    ]:
        assert wrong in named_in(command, said)
