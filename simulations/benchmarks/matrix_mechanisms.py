"""``python -m simulations.benchmarks.matrix_mechanisms``: one lag against jax-privacy's published matrices.

Both are for prefix sums, with clients that take part at most every ``rounds_apart`` rounds. The error is that
of models over the error of fresh noise, for the same privacy loss of a trusted server. It needs jax-privacy,
which is best installed into an environment of its own (``pip install jax-privacy scipy``), where this package
is on the ``PYTHONPATH``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fl_privquant.privacy_loss.correlated_noise import (
    LagNoise,
    RoundSchedule,
    error_ratio,
    find_correlation,
)

SCHEDULES = (RoundSchedule(100, 10), RoundSchedule(100, 50), RoundSchedule(100, 4), RoundSchedule(200, 20))


def banded_error(schedule: RoundSchedule, bands: int, toeplitz: Any) -> float:
    """The error of jax-privacy's best banded Toeplitz matrix, over that of fresh noise."""
    coefficients = toeplitz.optimize_banded_toeplitz(schedule.rounds, bands)
    sensitivity = toeplitz.minsep_sensitivity_squared(
        coefficients, schedule.rounds_apart, schedule.max_participations, n=schedule.rounds
    )
    variance = toeplitz.per_query_error(strategy_coef=coefficients, n=schedule.rounds).mean()
    independent = schedule.max_participations * 0.5 * (schedule.rounds + 1)
    return float(sensitivity * variance / independent)


def lag_error_by_jax(schedule: RoundSchedule, correlation: float, toeplitz: Any) -> float:
    """The error of one lag by jax-privacy's functions, which must be our own figure."""
    noising = toeplitz.pad_coefs_to_n(toeplitz.jnp.array([1.0, -correlation]), schedule.rounds)
    coefficients = toeplitz.inverse_coef(noising, schedule.rounds)
    sensitivity = toeplitz.minsep_sensitivity_squared(
        coefficients, schedule.rounds_apart, schedule.max_participations, n=schedule.rounds
    )
    variance = toeplitz.per_query_error(noising_coef=noising, n=schedule.rounds).mean()
    independent = schedule.max_participations * 0.5 * (schedule.rounds + 1)
    return float(sensitivity * variance / independent)


def main() -> None:
    """Print a table of errors."""
    try:
        jax = import_module("jax")
        toeplitz = import_module("jax_privacy.matrix_factorization.toeplitz")
    except ImportError as error:
        raise SystemExit(f"{error}: install jax-privacy, in an environment of its own") from error
    jax.config.update("jax_enable_x64", True)
    print("rounds apart  correlation  one lag  by jax-privacy  banded, as many bands as rounds apart")
    for schedule in SCHEDULES:
        correlation = find_correlation(schedule)
        ours = error_ratio(schedule, LagNoise(correlation))
        theirs = lag_error_by_jax(schedule, correlation, toeplitz)
        banded = banded_error(schedule, schedule.rounds_apart, toeplitz)
        print(
            f"{schedule.rounds:6} {schedule.rounds_apart:5}  {correlation:11.4f}  {ours:7.4f}  "
            f"{theirs:14.4f}  {banded:.4f}"
        )


if __name__ == "__main__":
    main()
