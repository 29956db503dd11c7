"""What the privacy of a Flower app really is: its strategy, mods, config and sources, read without training.

The app's server runs until it starts its strategy, or sends its first model; no client is asked to train
(``_app``). Its Python files are parsed, for what objects do not show (``_sources``). What was read is then
compared with what protects (``_checks``): findings say what it costs, what is wrong, and what to write
instead.
"""

from fl_privquant.flower.lint._checks import (
    Finding,
    Severity,
    central_statement,
    lint_app,
    local_deviation,
    local_statement,
)

__all__ = [
    "Finding",
    "Severity",
    "central_statement",
    "lint_app",
    "local_deviation",
    "local_statement",
]
