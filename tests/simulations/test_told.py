"""What a sweep says before, while and after it runs, as a newcomer reads it."""

from __future__ import annotations

import io
import itertools
import logging
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg
from rich.console import Console

import fl_privquant as pq
from fl_privquant.flower import CheckpointStrategy
from simulations.config import RunConfig
from simulations.progress import Rounds
from simulations.report import build_report
from simulations.report.compared import verdict_of
from simulations.report.study_data import Study
from simulations.report.summary_tables import summary_table
from simulations.report.terminal import print_summary
from simulations.results import RunDirectory
from simulations.run import execute
from tests.simulations.conftest import RunHere
from tests.simulations.synthetic import write_run, write_study
from tests.task_values import mean_of

SWEEP = (
    *(
        "-m",
        "task=mean",
        "task.dimension=21",
        "federation.num_clients=5",
        "federation.rounds=4",
        "study=told",
    ),
    *("mechanism.epsilon=1", "mechanism=one_bit,optm", "seed=0,1,2"),
)


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_a_sweep_begins_with_its_question_and_what_epsilon_is(
    launcher: str, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parallel = ("hydra.launcher.n_jobs=1",) if launcher == "joblib" else ()
    chosen = (f"hydra/launcher={launcher}", *parallel, f"hydra.sweep.dir={tmp_path}", f"output={tmp_path}")
    code, out, err = run_here(*SWEEP, 'panel="A. Who errs least?"', *chosen)
    assert code == 0, err
    first, second, third, *lines = err.splitlines()
    assert first == "A. Who errs least?"
    assert second.startswith("sweep of 6 runs")
    assert third.startswith("ε is for all updates of a client together (client total, δ = 1e-05)")
    bounded = "Until a run ends, it is an upper bound that is quick to compute." in " ".join(lines)
    assert bounded == (launcher == "basic")
    # A path is not broken.
    printed = [line for line in (*err.splitlines(), *out.splitlines()) if not line.startswith("report: ")]
    assert max(map(len, printed)) <= 80
    ends = [line for line in lines if line[1:3] == "/6" and "round" not in line]
    assert [line[:4] for line in ends] == [f"{number}/6 " for number in range(1, 7)]
    assert all(line.endswith(" (local)") and ", ε = " in line for line in ends)
    assert "counted in full" not in err
    assert "quick bound" not in err
    # The question stands above the results too, and nothing that libraries log is printed.
    assert out.splitlines()[0].strip() == "A. Who errs least?"
    assert "subset" not in out + err


def test_libraries_of_fonts_log_no_more_than_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Hydra prints what is logged in a job's process: lines about glyphs were among the results."""
    write_study(tmp_path, ("optm",), seeds=(0,), rounds=2)
    with caplog.at_level(logging.INFO):
        build_report(tmp_path)
        assert logging.getLogger("fontTools.subset").getEffectiveLevel() >= logging.WARNING
    assert not [record for record in caplog.records if record.name.startswith("fontTools")]


def two_panels(folder: Path) -> Study:
    second = {"panel": "B. second?", "federation.num_clients": 50}
    write_study(folder, ("optm", "rqm"), rounds=2, settings=({"panel": "A. first?"}, second))
    return Study.load(folder)


def summary_of(study: Study, width: int = 80, **options: object) -> str:
    file = io.StringIO()
    print_summary(study, Console(file=file, width=width), **options)  # type: ignore[arg-type]
    return file.getvalue()


def test_a_sweep_shows_its_own_panel_and_names_the_others(tmp_path: Path) -> None:
    study = two_panels(tmp_path)
    shown = summary_of(study, panels={"B. second?"})
    assert shown.count("A. first?") == 1
    assert shown.rstrip().endswith("Also in the report: A. first?")
    assert shown.count("● optm\n") == 1
    assert " ".join(shown.split()).count("optm with 2 bits has the least squared error") == 1
    everything = summary_of(study)
    assert everything.count("● optm\n") == 2
    assert " ".join(everything.split()).count("optm with 2 bits has the least squared error") == 2
    assert "Also in the report" not in everything


@pytest.mark.parametrize("width", [80, 100, 160])
def test_several_tables_have_one_legend(width: int, tmp_path: Path) -> None:
    shown = " ".join(summary_of(two_panels(tmp_path), width).split())
    for note in (
        "MSE: mean squared error",
        "ε total: ε, client total",
        "MB up: megabytes",
        "± half of the 95 %",
    ):
        assert shown.count(note) == 1, note


@pytest.mark.parametrize("key", ["secagg.corrupt_fraction", "partition.alpha"])
def test_settings_without_effect_do_not_split_a_panel(key: str, tmp_path: Path) -> None:
    """Secure aggregation is off, and the partition is IID: what they would assume changes nothing."""
    off = {"secagg.enabled": False, "partition.name": "iid"}
    for seeds, value in (((0, 1), 0.1), ((2, 3), 0.4)):
        write_study(tmp_path, ("optm",), seeds=seeds, rounds=2, settings=({**off, key: value},))
    study = Study.load(tmp_path)
    assert study.varying == ()
    assert [row["seeds"] for row in summary_table(study).rows] == ["4"]
    on = {"secagg.enabled": True, "partition.name": "dirichlet"}
    for value in (0.1, 0.4):
        write_study(tmp_path / "on", ("optm",), rounds=2, settings=({**on, key: value},))
    assert Study.load(tmp_path / "on").varying == (key,)


def test_a_run_that_was_repeated_without_any_effect_is_no_further_seed(tmp_path: Path) -> None:
    for value in (0.1, 0.4):
        settings = ({"secagg.enabled": False, "secagg.dropout_fraction": value},)
        write_study(tmp_path, ("optm",), rounds=2, settings=settings)
    assert len(list(tmp_path.iterdir())) == 6
    study = Study.load(tmp_path)
    assert [row["seeds"] for row in summary_table(study).rows] == ["3"]
    said = "3 runs repeat others and are left out: secagg.dropout_fraction made no difference between them."
    assert study.repeated == said
    assert said in " ".join(summary_of(study).split())
    assert said in build_report(tmp_path).read_text()


def test_bits_that_a_plan_ignores_are_no_further_seeds(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The width of Skellam noise follows from the target: three bits and two seeds were six seeds, ± 4.0."""
    monkeypatch.setenv("COLUMNS", "80")
    size = ("federation.num_clients=6", "federation.rounds=1", "task=mean", "task.dimension=21")
    target = ("mechanism=skellam", "privacy.epsilon=8", "secagg=on", "mechanism.bits=1,2,4", "seed=0,1")
    code, out, err = run_here(
        "-m", *size, *target, "study=idle", f"output={tmp_path}", f"hydra.sweep.dir={tmp_path}"
    )
    assert code == 0, err
    study = Study.load(tmp_path / "idle")
    (row,) = summary_table(study).rows
    assert row["seeds"] == "2"
    assert "±" not in "".join(row.values())
    said = "4 runs repeat others and are left out: mechanism.bits made no difference between them."
    assert said in " ".join(out.split())
    (sentence,) = verdict_of(study)
    assert sentence.endswith("(2 seeds); there is nothing to compare it with.")
    assert f"skellam with {row['bits']} bits has" in sentence


@pytest.mark.parametrize("bits", [1, 2])
def test_seeds_of_settings_without_effect_join_one_group(bits: int, tmp_path: Path) -> None:
    """Other seeds with a setting that has no effect are further seeds of the same group."""
    for seeds, asked in (((0, 1), 1), ((2, 3), bits)):
        write_study(tmp_path, ("one_bit",), seeds=seeds, rounds=2, settings=({"mechanism.bits": asked},))
    study = Study.load(tmp_path)
    assert (study.varying, study.repeated) == ((), "")
    assert [row["seeds"] for row in summary_table(study).rows] == ["4"]


def test_levels_of_one_width_are_settings_of_their_own(tmp_path: Path) -> None:
    """Nine and sixteen levels both take four bits, and are two mechanisms."""
    for levels, seed in itertools.product((9, 16), range(3)):
        mechanism = pq.design("rqm", epsilon=1.0, levels=levels)
        setting = {"mechanism.bits": None, "mechanism.levels": levels}
        write_run(tmp_path, "rqm", mechanism, 1.0, seed, 2, setting)
    study = Study.load(tmp_path)
    assert study.varying == ("mechanism.levels",)
    assert [(row["bits"], row["seeds"]) for row in summary_table(study).rows] == [("4", "3"), ("4", "3")]


def test_runs_without_a_panel_are_other_runs(tmp_path: Path) -> None:
    write_study(tmp_path, ("optm",), rounds=2, settings=({"panel": "A. first?"}, {"panel": None}))
    assert Study.load(tmp_path).settings == ("A. first?", "other runs")


def test_a_round_is_shown_and_written_once_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed goes on after the last round of its checkpoint, which must not be behind."""
    config = RunConfig.from_mapping(
        {
            "mechanism": {"name": "one_bit", "epsilon": 1.0},
            "task": mean_of(5),
            "federation": {"num_clients": 3, "rounds": 4},
            "output": str(tmp_path),
        }
    )
    directory = RunDirectory.of(config)
    seen: list[tuple[int, int, int]] = []
    update = Rounds.update

    def watched(shown: Rounds, row: dict[str, object], spent: object) -> None:
        written = len((directory.path / "rounds.csv").read_text().splitlines()) - 2
        seen.append(
            (
                int(str(row["round"])),
                written,
                CheckpointStrategy(FedAvg(), directory.checkpoint).finished_rounds,
            )
        )
        update(shown, row, spent)  # type: ignore[arg-type]

    monkeypatch.setattr(Rounds, "update", watched)
    execute(config)
    assert seen == [(number, number, number) for number in range(5)]


def test_the_page_says_what_the_mechanisms_are(tmp_path: Path) -> None:
    write_study(tmp_path, ("optm", "rqm"), rounds=2)
    page = " ".join(build_report(tmp_path).read_text().split())
    assert "OPTM: the optimal randomized quantization mechanism, designed by linear programming." in page
    assert "RQM: randomized quantization to a random subset of uniform bins." in page
    assert "The mean update is the average of the clients' updates as the server decodes it." in page


def test_figures_of_an_earlier_report_do_not_stay_beside_those_that_replace_them(tmp_path: Path) -> None:
    study = tmp_path / "growing"
    write_study(study, ("optm",), seeds=(0,), rounds=2)
    build_report(study)
    earlier = {path.name for path in (study / "figures").iterdir()}
    assert "accuracy-rounds.png" in earlier
    own = study / "figures" / "my-own.png"
    own.write_bytes(b"a user's")
    write_study(study, ("optm",), seeds=(0,), rounds=2, settings=({"task.name": "a"}, {"task.name": "b"}))
    build_report(study)
    names = {path.name for path in (study / "figures").iterdir()}
    assert sum(name.startswith("accuracy-rounds--") for name in names) >= 4
    assert not {"accuracy-rounds.png", "accuracy-rounds.pdf"} & names
    assert own.exists()
