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


def error_by_jax(schedule: RoundSchedule, coefficients: Any, toeplitz: Any) -> float:
    """The error of a strategy matrix with these Toeplitz coefficients, over that of fresh noise."""
    sensitivity = toeplitz.minsep_sensitivity_squared(
        coefficients, schedule.rounds_apart, schedule.max_participations, n=schedule.rounds
    )
    variance = toeplitz.per_query_error(strategy_coef=coefficients, n=schedule.rounds).mean()
    independent = schedule.max_participations * 0.5 * (schedule.rounds + 1)
    return float(sensitivity * variance / independent)


def lag_coefficients(schedule: RoundSchedule, correlation: float, toeplitz: Any) -> Any:
    """The strategy matrix of one lag, whose error by jax-privacy must be our own figure."""
    noising = toeplitz.pad_coefs_to_n(toeplitz.jnp.array([1.0, -correlation]), schedule.rounds)
    return toeplitz.inverse_coef(noising, schedule.rounds)


def blt_coefficients(schedule: RoundSchedule, buffered: Any) -> Any:
    """The best buffered linear Toeplitz matrix (BLT) for the mean error."""
    blt = buffered.optimize(
        n=schedule.rounds,
        min_sep=schedule.rounds_apart,
        max_participations=schedule.max_participations,
        error="mean",
    )
    return blt.toeplitz_coefs(schedule.rounds)


def main() -> None:
    """Print a table of errors."""
    try:
        jax = import_module("jax")
        toeplitz, buffered = (
            import_module(f"jax_privacy.matrix_factorization.{name}")
            for name in ("toeplitz", "buffered_toeplitz")
        )
    except ImportError as error:
        raise SystemExit(f"{error}: install jax-privacy, in an environment of its own") from error
    jax.config.update("jax_enable_x64", True)
    print("rounds apart  correlation  one lag  by jax-privacy  BLT     banded, as many bands as rounds apart")
    for schedule in SCHEDULES:
        correlation = find_correlation(schedule)
        banded = toeplitz.optimize_banded_toeplitz(schedule.rounds, schedule.rounds_apart)
        others = (
            lag_coefficients(schedule, correlation, toeplitz),
            blt_coefficients(schedule, buffered),
            banded,
        )
        lag, blt, best = (error_by_jax(schedule, matrix, toeplitz) for matrix in others)
        print(
            f"{schedule.rounds:6} {schedule.rounds_apart:5}  {correlation:11.4f}  "
            f"{error_ratio(schedule, LagNoise(correlation)):7.4f}  {lag:14.4f}  {blt:.4f}  {best:.4f}"
        )


if __name__ == "__main__":
    main()
