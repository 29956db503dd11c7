"""What a whole update of bounded norm costs, whatever its number of coordinates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

import fl_privquant as pq
from fl_privquant.privacy.norm import Norms, norm_losses


@pytest.mark.parametrize("order", [2.0, 4.0])
def test_poisson_binomials_are_bounded_by_the_norm_too(order: float) -> None:
    """By brute force: the Rényi divergence of the whole sum of 6 clients of 3 trials, others at the ends."""
    mechanism = pq.design("pbm", theta=0.02, levels=4)
    bound = norm_losses(mechanism, Norms(l2=1.0), 1, 6)[0]
    assert bound[1] == "l2 gaussian of the sum"
    claimed = bound[0].log_moment(order - 1.0) / (order - 1.0)
    for ones in range(6):
        others = np.ones(1)
        for client in range(5):
            share = 0.5 + (0.02 if client < ones else -0.02)
            others = np.convolve(others, binom.pmf(np.arange(4), 3, share))
        first, second = (np.convolve(others, binom.pmf(np.arange(4), 3, share)) for share in (0.52, 0.48))
        exact = math.log(float((first**order * second ** (1.0 - order)).sum())) / (order - 1.0)
        assert exact <= claimed < 1.5 * exact
