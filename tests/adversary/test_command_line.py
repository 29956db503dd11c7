"""Odd values for every option of the command line: one clear line and an exit code, no traceback, no hang."""

from __future__ import annotations

import sys

import click
import pytest

import fl_privquant as pq
from fl_privquant.cli import main as cli
from tests.cli.test_flags import COMMANDS, named_in
from tests.mechanisms.forgery import forged

NUMBERS = (
    *("nan", "inf", "-1", "0", "1e-320", "1e308", "1e400", "ten", "", "1" + "0" * 400, "9223372036854775808"),
    *("\u202e1", "--", "[1]"),
)
_SMALL = {
    "design": "design one_bit --epsilon 1",
    "compare": "compare --epsilon 1 --bits 1 --mechanism one_bit --mechanism csgm",
    "statement": "statement --mechanism one_bit --dimension 10 --clients 5 --rounds 2",
    "plan": "plan --epsilon 4 --clients 10 --dimension 10 --mechanism one_bit",
}
SMALL = {command: line.split() for command, line in _SMALL.items()}
OPTIONS = [
    (command, parameter.opts[0])
    for command in SMALL
    for parameter in COMMANDS[command].params
    if isinstance(parameter, click.Option) and not parameter.is_flag
]


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """The exit code, and what was printed on both streams; anything but an exit is an error of the test."""
    monkeypatch.setattr(sys, "argv", ["fl-privquant", *arguments])
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    out, err = capsys.readouterr()
    return code, out, err


def refusal(monkeypatch, capsys, *arguments: str) -> str:
    """The one line by which these arguments are refused."""
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert code == 2, (arguments, out)
    assert err.startswith("error: "), (arguments, err)
    assert err.count("\n") == 1, (arguments, err)
    assert "\x1b" not in err + out
    return err


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_odd_values_are_refused_in_one_line_or_answered(monkeypatch, capsys, tmp_path, command, option):
    monkeypatch.chdir(tmp_path)
    for value in NUMBERS:
        code, out, err = run(monkeypatch, capsys, *SMALL[command], f"{option}={value}")
        assert "Traceback" not in err + out
        if code:
            assert code == 2, (option, value)
            assert err.startswith("error: "), err
            assert err.count("\n") == 1, err
        else:
            assert out.strip(), (option, value)
        if code or "N/A" in out:
            assert not named_in(command, err or out), (value, err or out)


PATHS = (
    *("", "/", ".", "no/such/folder/file", "one_bit.pqm/file.png", "picture.xyz", "picture"),
    *("a" * 300 + ".png", "/proc/file.png", "folder.png"),
)


@pytest.mark.parametrize(
    ("command", "option"),
    [("design", "--output"), ("design", "--plot"), ("compare", "--plot"), ("audit", "--plot")],
)
def test_files_that_cannot_be_written_are_refused_in_one_line(monkeypatch, capsys, tmp_path, command, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one_bit.pqm").write_bytes(pq.design("one_bit", epsilon=1.0).to_bytes())
    (tmp_path / "folder.png").mkdir()
    arguments = ("audit", "one_bit.pqm") if command == "audit" else SMALL[command]
    pictures = option != "--output"
    for path in PATHS:
        if path.startswith("picture") and not pictures:
            continue  # a mechanism may be written to a file of any name
        refusal(monkeypatch, capsys, *arguments, f"{option}={path}")


def test_the_version(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "--version") == (0, f"fl-privquant {pq.__version__}\n", "")


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    def interrupted(*arguments: object, **parameters: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "design", interrupted)
    code, out, err = run(monkeypatch, capsys, "design", "one_bit", "--epsilon", "1")
    assert (code, out, err.strip()) == (130, "", "interrupted: the same command can be run again")


@pytest.mark.parametrize("command", ["plan", "statement"])
def test_a_norm_that_cannot_be_meant_is_refused(monkeypatch, capsys, command):
    for norm in ("-1", "nan", "1e-320", "3.5", "1e308"):
        err = refusal(monkeypatch, capsys, *SMALL[command], f"--l2-norm={norm}")
        assert err.startswith("error: --l2-norm:")
        assert "suits rotated updates" in err


def test_files_that_are_none_and_texts_that_are_markup(monkeypatch, capsys, tmp_path):
    hostile = tmp_path / "[bold]hostile[red]\x1b[2J"
    hostile.write_bytes(b"PQMECH" + bytes(100))
    for arguments in (
        ("audit", str(hostile)),
        ("audit", str(tmp_path)),
        ("audit", str(tmp_path / "[/x]missing\nerror: forged")),
        ("statement", "--file", str(hostile)),
        ("statement", "--file", str(tmp_path)),
        ("design", "[/red]"),
        ("design", "one_bit", "--epsilon", "1", "--output", str(tmp_path)),
        ("design", "one_bit", "--epsilon", "1", "--set", "[/]=1"),
        ("audit", str(tmp_path / ("a" * 300))),
    ):
        refusal(monkeypatch, capsys, *arguments)


def test_parameters_of_a_foreign_file_are_printed_as_they_are(monkeypatch, capsys, tmp_path):
    hostile = {"a[/]\x1b[31m": "x\nerror: forged", "b": ["[/]"] * 3}
    file = tmp_path / "forged.pqm"
    file.write_bytes(forged(pq.design("one_bit", epsilon=1.0), parameters=hostile))
    code, out, _ = run(monkeypatch, capsys, "audit", str(file))
    assert code == 0
    assert "\x1b" not in out
    assert not any(line.startswith("error:") for line in out.splitlines())
