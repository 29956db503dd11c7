"""The report of a study: tidy tables, tables and figures for a paper, and one HTML page.

``python -m simulations.report outputs/<study>`` and the end of a sweep call :func:`show_report`, which prints
the results too; :func:`build_report` writes only.
"""

from simulations.report.build import build_report, show_report, write_latex

__all__ = ["build_report", "show_report", "write_latex"]
