"""Sums of bits of randomized response, such as the Poisson binomial mechanism: only the sum is sent.

The laws for inputs x have likelihood ratios that are monotone in x, because more bits lean up: every
hockey-stick curve is largest between x = -1 and x = 1 (a set of largest ratios is a set of largest codes,
whose probability grows with x), where the law is Binomial(trials, 1/2 -+ theta). In the sum over n clients,
each bit of the n - 1 others is a fair coin with probability 2 rare / 2^32, whatever the input: the blanket of
:mod:`fl_privquant.loss.blanket`, bit by bit.

The mechanism's own theorem is in :mod:`fl_privquant.accounting.theorems`.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from fl_privquant.law.lattice import LatticeLaw
from fl_privquant.law.table import TOTAL_WEIGHT
from fl_privquant.loss.blanket import BlanketDraws, covered_loss
from fl_privquant.loss.distribution import ROUNDING, PrivacyLoss
from fl_privquant.mechanisms.sum_of_bits import SumOfBits

__all__ = ["pbm_loss"]

# Accuracy of scipy's binomial probabilities.
_BINOMIAL = 1e-11


def pbm_loss(mechanism: SumOfBits, num_honest: int = 1) -> PrivacyLoss:
    """The loss of one coordinate, in the sum of ``num_honest`` honest clients; 1 is the local view."""
    codes = np.arange(mechanism.trials + 1)
    rare = mechanism.rare / TOTAL_WEIGHT
    # All trials of k ones: (2 k - trials) times the loss of one bit.
    losses = (2.0 * codes - mechanism.trials) * (mechanism.epsilon / mechanism.trials)
    local = PrivacyLoss(
        np.minimum(losses * (1.0 + ROUNDING), mechanism.epsilon),
        binom.pmf(codes, mechanism.trials, 1.0 - rare),
        0.0,
        _BINOMIAL,
    )
    if num_honest == 1:
        return local
    rows = np.stack([binom.pmf(codes, mechanism.trials, share) for share in (rare, 1.0 - rare)])
    coin = LatticeLaw(0, np.array([0.5, 0.5]))
    draws = BlanketDraws(coin, (num_honest - 1) * mechanism.trials, 2.0 * rare)
    return covered_loss(rows, codes, draws, local, _BINOMIAL)
