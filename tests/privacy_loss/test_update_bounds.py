"""What a whole update of bounded norm costs, whatever its number of coordinates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

import fl_privquant as pq
from fl_privquant.accounting import Release, View, round_statement
from fl_privquant.mechanisms.additive._integer_noise import AdditiveMechanism
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.privacy_loss.update_bounds import UpdateNorms, WholeUpdate


@pytest.mark.parametrize("order", [2.0, 4.0])
def test_poisson_binomials_are_bounded_by_the_norm_too(order: float) -> None:
    """By brute force: the Rényi divergence of the whole sum of 6 clients of 3 trials, others at the ends."""
    mechanism = pq.design("pbm", theta=0.02, levels=4)
    bound = mechanism.update_losses(WholeUpdate(UpdateNorms(l2=1.0), 1, View(6)))[0]
    assert bound.name == "l2 gaussian of the sum"
    claimed = bound.loss.log_moment(order - 1.0) / (order - 1.0)
    for ones in range(6):
        others = np.ones(1)
        for client in range(5):
            share = 0.5 + (0.02 if client < ones else -0.02)
            others = np.convolve(others, binom.pmf(np.arange(4), 3, share))
        first, second = (np.convolve(others, binom.pmf(np.arange(4), 3, share)) for share in (0.52, 0.48))
        exact = math.log(float((first**order * second ** (1.0 - order)).sum())) / (order - 1.0)
        assert exact <= claimed < 1.5 * exact


def output_distribution(mechanism: pq.Mechanism, x: float) -> np.ndarray:
    """The exact distribution of what one coordinate becomes; of integer noise, before it wraps."""
    if isinstance(mechanism, TableMechanism):
        return mechanism.distribution.pmf(x)[0]
    assert isinstance(mechanism, AdditiveMechanism)
    noise = mechanism.noise.pmf(np.arange(-600, 601))
    below, share = divmod((x + 1.0) / mechanism.step, 1.0)
    return (1.0 - share) * np.roll(noise, int(below)) + share * np.roll(noise, int(below) + 1)


@pytest.mark.parametrize("norm", [0.003, 0.03, 1.0])
@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        *((name, 12.0) for name in ("optm", "one_bit", "grr", "skellam", "discrete_gaussian")),
        *((name, 1.0) for name in ("optm", "mvu", "one_bit", "rqm", "skellam", "discrete_gaussian")),
    ],
)
def test_no_statement_by_the_norm_is_below_the_exact_one(name: str, epsilon: float, norm: float) -> None:
    """One coordinate, local view: against the distributions of two inputs as far apart as the norm allows."""
    delta = 1e-6
    mechanism = pq.design(name, epsilon=epsilon, **({} if name == "one_bit" else {"levels": 4}))
    stated = round_statement(Release(mechanism, 1, norms=UpdateNorms(l2=norm)), delta).epsilon
    for start in np.linspace(-1.0, 1.0 - 2.0 * norm, 9):
        near, far = (
            output_distribution(mechanism, float(start)),
            output_distribution(mechanism, float(start) + 2.0 * norm),
        )
        for first, second in ((near, far), (far, near)):
            lost = np.maximum(first - math.exp(stated) * second, 0.0).sum()
            assert lost <= delta * (1.0 + 1e-9) + 1e-12
