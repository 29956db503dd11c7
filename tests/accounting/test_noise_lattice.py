"""Integer noise at its own best lattice: within the bits, and certified for the target."""

from __future__ import annotations

import math

import pytest

from fl_privquant.accounting.accountant import Accountant
from fl_privquant.accounting.noise_lattice import (
    NOISES,
    RunTarget,
    best_lattice,
    certified_lattice,
)
from fl_privquant.accounting.norm import Norms
from fl_privquant.accounting.release import UpdateRelease
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.statement import View

LAX = RunTarget(epsilon=10.0, delta=1e-5, rounds=50, dimension=650, num_clients=1000, num_honest=1000)


@pytest.mark.parametrize("name", NOISES)
def test_more_bits_are_never_worse(name: str) -> None:
    errors = [best_lattice(name, LAX, bits).error / LAX.central for bits in (6, 7, 8, 10, 24)]
    assert errors == sorted(errors, reverse=True)
    # With bits to spare only the clip and the rounding of 256 levels are left.
    assert 1.0 < errors[-1] < 1.001


@pytest.mark.parametrize("name", NOISES)
def test_a_code_holds_the_lattice_and_the_noise(name: str) -> None:
    """The exact tail of the noise beside the lattice, for one client: within a factor of what is allowed."""
    lattice = best_lattice(name, LAX, 8)
    mechanism = certified_lattice(name, LAX, lattice)
    room = 2**8 - lattice.levels
    assert mechanism.noise.tail(room // 2) < 1e-7


@pytest.mark.parametrize("name", ["skellam", "discrete_laplace"])
def test_the_certified_noise_meets_the_target_and_hardly_less(name: str) -> None:
    target = RunTarget(epsilon=4.0, delta=1e-5, rounds=10, dimension=300, num_clients=200, num_honest=150)
    lattice = best_lattice(name, target, 10)
    mechanism = certified_lattice(name, target, lattice)
    norms = Norms(l2=math.sqrt(target.dimension) / lattice.spread)
    accountant = Accountant()
    accountant.add(UpdateRelease(mechanism, target.dimension, View.aggregate(150), norms=norms), 10)
    stated = accountant.statement(1e-5)
    assert 0.99 * 4.0 < stated.epsilon <= 4.0
    # What is searched with is a little too small, by what the certificate adds.
    assert 1.0 < float(mechanism.noise.variance) / lattice.variance < 1.15
    assert mechanism.sum_bits(200) == mechanism.wrap_bits


def test_too_few_bits_are_refused() -> None:
    with pytest.raises(InfeasibleDesignError, match="bits: 3 hold no lattice"):
        best_lattice("skellam", LAX, 3)
