"""The results of a study on the terminal."""

from __future__ import annotations

from collections.abc import Collection
from operator import itemgetter

from rich.console import Console
from rich.text import Text

from fl_privquant.cli.layout import Column, output_console, print_sentence, print_table
from fl_privquant.plotting import color_of
from simulations.report.study import Study, describe_repeated
from simulations.report.tables import results_caption, results_table
from simulations.report.verdict import describe


def print_summary(
    study: Study, console: Console | None = None, panels: Collection[str | None] | None = None
) -> None:
    """Print the results and the verdict of each setting, and which runs are left out.

    Parameters
    ----------
    study
        The study.
    console
        Where to print; the standard output by default.
    panels
        Of a study that asks several questions, those to print, all by default; of the others the verdict is.
    """
    console = output_console() if console is None else console
    shown, captions = _settings_of(study, panels), set()
    others = [setting for setting in study.settings if setting not in shown]
    for setting in [*shown, *others]:
        if setting in shown:
            table = results_table(study, setting)
            columns = [Column("mechanism", lambda row: _colored(row["mechanism"]), words=True)]
            columns += [Column(name, itemgetter(name)) for name in table.columns[1:]]
            title = setting or str(study.constant.get("panel", ""))
            print_table(console, columns, table.to_dict("records"), title)
            caption = results_caption(study, setting)
            if caption not in captions:
                console.print(Text(caption, style="dim"), highlight=False)
            captions.add(caption)
        else:
            console.print()
            print_sentence(console, setting)
        for sentence in describe(study, setting).answers:
            console.print(Text(sentence, style="bold"), highlight=False)
    for problem in study.problems:
        print_sentence(console, f"{problem.kind}: {problem.run}: {problem.message}")
    if repeated := describe_repeated(study):
        print_sentence(console, repeated)


def _colored(series: str) -> Text:
    return Text(series, style=color_of(series.partition(", designed")[0]))


def _settings_of(study: Study, panels: Collection[str | None] | None) -> list[str]:
    """The settings of these panels; all settings, where the study has no panels."""
    if panels is None or not study.has_panels:
        return list(study.settings)
    shown = {study.setting_of(run) for run in study.runs if run.config.get("panel") in panels}
    return [setting for setting in study.settings if setting in shown]
