"""The central Gaussian baseline: its noise against another accountant, and what a run really adds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fl_privquant.errors import InvalidSpecError
from simulations.run import execute
from simulations.runner.central import calibrate_sum_noise
from simulations.runner.config import RunConfig
from simulations.runner.planned import central_statement, plan_run
from tests.finished_runs import rows_of
from tests.task_values import mean_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def config_of(folder: Path, **changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "mechanism": {"name": "central_gaussian"},
        "privacy": {"epsilon": 4.0},
        "encoding": {"l2_clip": 0.5},
        "task": mean_of(20_000),
        "federation": {"num_clients": 4, "rounds": 2},
        "output": str(folder),
        **changes,
    }
    return RunConfig.from_mapping(values)


@pytest.mark.parametrize(("rounds", "epsilon"), [(1, 1.0), (15, 4.0), (50, 10.0)])
def test_noise_has_the_budget_and_no_more(rounds: int, epsilon: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution

    sigma = calibrate_sum_noise(0.3, rounds, epsilon, 1e-5) / (2 * 0.3)
    single = privacy_loss_distribution.from_gaussian_mechanism(sigma, value_discretization_interval=1e-4)
    assert single.self_compose(rounds).get_epsilon_for_delta(1e-5) == pytest.approx(epsilon, rel=2e-3)


def test_a_run_adds_that_noise(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    execute(config)
    rows = rows_of(config)
    expected = (calibrate_sum_noise(0.5, 2, 4.0, 1e-5) / 4) ** 2
    # 20 000 coordinates: the mean of squares is within 5 % but for one run in 10^6. The updates' norm,
    # below 4, is clipped to 0.5, which is next to nothing a coordinate.
    assert rows["mean_squared_error"].iloc[1] == pytest.approx(expected, rel=0.05)
    assert math.isinf(rows["epsilon_client_total"].iloc[-1])


def test_two_rounds_have_two_noises_and_a_seed_repeats_them(tmp_path: Path) -> None:
    found = []
    for folder in ("a", "b"):
        config = config_of(tmp_path / folder)
        execute(config)
        found.append(rows_of(config))
    assert found[0]["loss"].tolist() == found[1]["loss"].tolist()
    assert found[0]["loss"].nunique() == 3


def test_it_is_stated_as_what_it_is(tmp_path: Path) -> None:
    statement = central_statement(config_of(tmp_path))
    assert (statement.epsilon, str(statement.view)) == (4.0, "central")
    assert "a trusted server" in statement.assumptions


def test_secure_aggregation_hides_nothing_from_a_trusted_server(tmp_path: Path) -> None:
    assert not config_of(tmp_path, secagg={"enabled": True}).secagg.enabled


def test_without_a_target_there_is_no_noise_to_choose(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpecError, match=r"privacy\.epsilon=8"):
        config_of(tmp_path, privacy={"epsilon": None})


def test_a_target_sets_the_mechanism_for_the_view_of_the_run(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "mechanism": {"name": "one_bit"},
        "federation": {"num_clients": 100, "rounds": 5},
    }
    secure = plan_run(config_of(tmp_path, secagg={"enabled": True}, **settings), 100)
    local = plan_run(config_of(tmp_path, **settings), 100)
    assert secure is not None
    assert local is not None
    assert (str(secure.statement.view), str(local.statement.view)) == ("aggregate of 80", "local")
    assert 3.5 < secure.statement.epsilon <= 4.0
    assert 3.5 < local.statement.epsilon <= 4.0
    assert local.encoding.mechanism.epsilon < secure.encoding.mechanism.epsilon


def test_noise_grows_with_the_scale_of_the_clips(tmp_path: Path) -> None:
    """An array of factor 3 is clipped to three times the norm, which the noise must hide."""
    found = []
    for number, scales in enumerate(({}, {"*": 3.0})):
        config = config_of(tmp_path / str(number), encoding={"l2_clip": 0.5, "clip_scales": scales})
        execute(config)
        rows = rows_of(config)
        found.append(rows["mean_squared_error"].iloc[1])
    assert found[1] == pytest.approx(9.0 * found[0], rel=0.05)


def test_parts_of_updates_are_refused(tmp_path: Path) -> None:
    """What is restored from a part is longer than the clip, by the root of how much was left out."""
    with pytest.raises(InvalidSpecError, match=r"encoding\.keep: 0\.25, but central_gaussian"):
        execute(config_of(tmp_path, encoding={"l2_clip": 0.5, "keep": 0.25, "rotate": True}))
