"""The command ``lint``: what the privacy of a Flower app really is."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from fl_privquant.cli.layout import output_console, print_sentence
from fl_privquant.errors import pluralize
from fl_privquant.flower.lint import Severity, lint_app
from fl_privquant.statement import Relation

EXIT_FINDINGS = 1
"""The exit code if an app does not have the privacy that it claims."""


def lint_and_print(folder: Path, run_config: str, relation: Relation) -> int:
    """Print what an app's privacy costs, and what is wrong with it; return 1 if there are errors, else 0."""
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
    severities = Counter(finding.severity for finding in findings)
    counts = [pluralize(severities[kind], str(kind)) for kind in (Severity.ERROR, Severity.WARNING)]
    print_sentence(console, f"{folder}: {', '.join(counts)}; nothing was trained")
    return EXIT_FINDINGS if severities[Severity.ERROR] else 0
