"""The command ``lint``: what the privacy of a Flower app really is.

The app is read in a process of its own, as its modules and its server are run: they may hang, or end the
process.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

from fl_privquant.cli.layout import output_console, print_sentence
from fl_privquant.errors import MISSING, InvalidSpecError, PrivQuantError, pluralize
from fl_privquant.flower.lint import Finding, Severity, lint_app
from fl_privquant.statement import Relation


def lint_and_print(folder: Path, run_config: str, relation: Relation, timeout: float) -> int:
    """Print what an app's privacy costs, and what is wrong with it; return 1 if there are errors, else 0.

    Raises InvalidSpecError if the app cannot be read, also if that takes more seconds than ``timeout``.
    """
    findings = _lint_apart(folder, run_config, relation, timeout)
    console = output_console()
    for finding in findings:
        print_sentence(console, str(finding))
    severities = Counter(finding.severity for finding in findings)
    counts = [pluralize(severities[kind], str(kind)) for kind in (Severity.ERROR, Severity.WARNING)]
    print_sentence(console, f"{folder}: {', '.join(counts)}; nothing was trained")
    return int(severities[Severity.ERROR] > 0)


def _lint_apart(folder: Path, run_config: str, relation: Relation, timeout: float) -> list[Finding]:
    """The findings about an app that is read in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_findings, args=(sender, folder, run_config, relation))
    process.start()
    sender.close()
    try:
        if not receiver.poll(timeout):
            raise InvalidSpecError(
                "app", MISSING, f"starts no strategy within {timeout:g} seconds", "give it a longer timeout"
            )
        told: list[Finding] | PrivQuantError = receiver.recv()
    except EOFError as error:
        raise InvalidSpecError("app", MISSING, "ends its process before it starts a strategy") from error
    finally:
        process.kill()
        process.join()
    if isinstance(told, PrivQuantError):
        raise told
    return told


def _send_findings(sender: Connection, folder: Path, run_config: str, relation: Relation) -> None:
    """Send what is found in an app, or why it cannot be read."""
    # Ctrl-C ends the parent, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The app's own strategy would log its settings.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        told: list[Finding] | PrivQuantError = lint_app(folder, run_config, relation)
    except PrivQuantError as error:
        told = error
    sender.send(told)
