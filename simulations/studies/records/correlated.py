"""What noise that is correlated over rounds would gain for records: exact, without training.

Silos are there in every round, so that each could take a share β of its own last noise off its next one: w_t
= z_t - β w_(t-1), which a run's prefix sums, its models, feel less than fresh noise. A record in every round
gains nothing. So records are dealt to two halves that take turns, and drawn with twice the probability in the
rounds of their half. As w is (I + β shift)^-1 z, a matrix of two bands, this costs a record what half as many
rounds of DP-SGD cost, with the noise of z over the norm sqrt(1 + β²) of a column (Choquette-Choo et al.,
"(Amplified) Banded Matrix Factorization", 2023). Rounding errors, which do not cancel, are left out, in favor
of correlated noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fl_privquant.privacy_loss.additive.sampled_gaussian import sampled_gaussian_losses
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon

EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
SHARES = np.linspace(0.0, 1.0, 41)
_PRECISION = 1.0001


def compare(epsilon: float, delta: float, rate: float, rounds: int) -> dict[str, Any]:
    """The squared error of models with noise of two bands, over that with fresh noise, at the best β."""
    fresh = find_multiplier(epsilon, delta, rate, rounds) ** 2 * model_error(0.0, rounds)
    in_turns = find_multiplier(epsilon, delta, 2.0 * rate, rounds // 2) ** 2
    errors = [in_turns * (1.0 + share**2) * model_error(share, rounds) for share in SHARES]
    best = int(np.argmin(errors))
    return {"epsilon": epsilon, "share": float(SHARES[best]), "error_ratio": errors[best] / fresh}


def model_error(share: float, rounds: int) -> float:
    """The mean over rounds of the variance of w_1 + ... + w_t, for noise z of deviation one.

    >>> model_error(0.0, 3), model_error(1.0, 4)
    (2.0, 1.5)
    """
    weights = np.cumsum((-share) ** np.arange(rounds))
    return float(np.cumsum(weights**2).mean())


def find_multiplier(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """The least noise multiplier of DP-SGD, to four digits, for that ε of a record (add-remove)."""
    low, high = 0.2, 1000.0
    while high > low * _PRECISION:
        middle = math.sqrt(low * high)
        losses = sampled_gaussian_losses(1.0 / middle, rate)
        spent = max(compose_epsilon([Part(loss, rounds)], delta).epsilon for loss in losses)
        low, high = (low, middle) if spent <= epsilon else (middle, high)
    return high
