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


def main() -> None:
    """Print a table of errors."""
    import_module("jax").config.update("jax_enable_x64", True)
    modules = ("toeplitz", "buffered_toeplitz")
    toeplitz, buffered = (import_module(f"jax_privacy.matrix_factorization.{name}") for name in modules)
    print("rounds apart  correlation  one lag  by jax-privacy  BLT     banded, as many bands as rounds apart")
    for schedule in SCHEDULES:
        rounds, apart = schedule.rounds, schedule.rounds_apart
        correlation = find_correlation(schedule)
        noising = toeplitz.pad_coefs_to_n(toeplitz.jnp.array([1.0, -correlation]), rounds)
        blt = buffered.optimize(
            n=rounds, min_sep=apart, max_participations=schedule.max_participations, error="mean"
        )
        matrices = (
            toeplitz.inverse_coef(noising, rounds),
            blt.toeplitz_coefs(rounds),
            toeplitz.optimize_banded_toeplitz(rounds, apart),
        )
        own = error_ratio(schedule, LagNoise(correlation))
        lag, best, banded = (error_by_jax(schedule, matrix, toeplitz) for matrix in matrices)
        print(f"{rounds:6} {apart:5}  {correlation:11.4f}  {own:7.4f}  {lag:14.4f}  {best:.4f}  {banded:.4f}")


if __name__ == "__main__":
    main()
