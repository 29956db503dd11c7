"""What a sweep says before, while and after it runs, as a newcomer reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg

from fl_privquant.flower import CheckpointStrategy
from simulations.report.study import Study, describe_repeated
from simulations.report.tables import results_table
from simulations.report.verdict import describe
from simulations.run import execute
from simulations.runner.config import RunConfig
from simulations.runner.recording import Row
from simulations.runner.results import RunDirectory
from tests.simulations.conftest import RunHere
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
    chosen = (f"hydra/launcher={launcher}", *parallel, f"output={tmp_path}")
    code, out, err = run_here(*SWEEP, 'panel="A. Who errs least?"', *chosen)
    assert code == 0, err
    first, second, third, *lines = err.splitlines()
    assert first == "A. Who errs least?"
    assert second.startswith("sweep of 6 runs")
    assert third.startswith("ε is for all updates of a client together (client total, δ = ")
    bounded = "Until a run ends, it is an upper bound that is quick to compute." in " ".join(err.split())
    assert bounded == (launcher == "basic")
    # A path is not broken.
    printed = [line for line in (*err.splitlines(), *out.splitlines()) if not line.startswith("report: ")]
    assert max(map(len, printed)) <= 80
    ended = r"(\d)/6 [\w-]+, seed \d: \w+ \S+, ε = \S+ \(local, replace-one\)"
    assert re.findall(ended, " ".join(lines)) == list("123456")
    assert "counted in full" not in err
    assert "quick bound" not in err
    # The question stands above the results too, and nothing that libraries log is printed.
    assert out.splitlines()[0].strip() == "A. Who errs least?"
    assert "subset" not in out + err


def test_bits_that_a_plan_ignores_are_no_further_seeds(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The width of Skellam noise follows from the target: three bits and two seeds were six seeds, ± 4.0."""
    monkeypatch.setenv("COLUMNS", "80")
    size = ("federation.num_clients=6", "federation.rounds=1", "task=mean", "task.dimension=21")
    target = ("mechanism=skellam", "privacy.epsilon=8", "secagg=on", "mechanism.bits=1,2,4", "seed=0,1")
    code, out, err = run_here("-m", *size, *target, "study=idle", f"output={tmp_path}")
    assert code == 0, err
    study = Study.load(tmp_path / "idle")
    assert (len(study.runs), study.repeated) == (2, 4)
    assert describe_repeated(study) in " ".join(out.split())
    assert len(results_table(study, "")) == 1
    first, *_ = describe(study).answers
    assert first.endswith("(2 seeds); there is nothing to compare it with.")
    assert f"skellam with {study.results['bits'].iloc[0]:g} bits has" in first


@pytest.mark.parametrize(
    ("randomness", "seconds", "written"),
    [
        ("seeded", 0.0, [(1, 1), (2, 2), (3, 3), (3, 3)]),
        ("secure", 60.0, [(1, 1), (2, 2), (3, 3), (3, 3)]),
        ("seeded", 60.0, [(3, 0)]),
    ],
)
def test_rows_are_written_with_the_checkpoint(
    randomness: str,
    seconds: float,
    written: list[tuple[int, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows of a run that is killed are as far as its checkpoint; a simulation that is short has none."""
    config = RunConfig.from_mapping(
        {
            "mechanism": {"name": "one_bit", "epsilon": 1.0},
            "task": mean_of(5),
            "federation": {"num_clients": 3, "rounds": 3},
            "privacy": {"randomness": randomness},
            "checkpoint_seconds": seconds,
            "output": str(tmp_path),
        }
    )
    seen: list[tuple[int, int]] = []
    write_rows = RunDirectory.write_rows

    def watched(directory: RunDirectory, rows: list[Row], final: bool = False) -> None:
        seen.append((rows[-1]["round"], CheckpointStrategy(FedAvg(), directory.checkpoint).finished_rounds))
        write_rows(directory, rows, final)

    monkeypatch.setattr(RunDirectory, "write_rows", watched)
    execute(config)
    assert seen == written
