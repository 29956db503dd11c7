"""The command ``lint``: what the privacy of a Flower app really is."""

from __future__ import annotations

import logging
from pathlib import Path

from fl_privquant.cli.layout import output_console, print_sentence
from fl_privquant.errors import pluralize
from fl_privquant.flower.lint import lint_app
from fl_privquant.statement import Relation

EXIT_FINDINGS = 1
"""The exit code if an app does not have the privacy that it claims."""


def lint_and_print(folder: Path, run_config: str, relation: Relation) -> int:
    """Print what is wrong with an app's privacy; return 1 if there are errors, and 0 otherwise."""
    # The app's own strategy would log its settings.
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        findings = lint_app(folder, run_config, relation)
    finally:
        logger.setLevel(level)
    console = output_console()
    for finding in findings:
        print_sentence(console, str(finding))
    errors = sum(finding.is_error for finding in findings)
    counts = f"{pluralize(errors, 'error')}, {pluralize(len(findings) - errors, 'warning')}"
    print_sentence(console, f"{folder}: {counts}; nothing was trained")
    return EXIT_FINDINGS if errors else 0
