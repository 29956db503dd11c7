"""Integer noise at its own best lattice: within the bits, and certified for the target."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from fl_privquant.accounting.accountant import Accountant
from fl_privquant.accounting.release import Release
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms.additive.skellam import SkellamMechanism
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.optimize.sums.noise_lattice import best_lattice, certify_lattice
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.sampling.integer_noise import DiscreteGaussian, DiscreteLaplace, IntegerNoise, Skellam
from fl_privquant.statement import View

LAX = RunRequirements(num_clients=1000, dimension=650, rounds=50, epsilon=10.0)
SOME_CORRUPT = RunRequirements(num_clients=200, dimension=300, rounds=10, epsilon=4.0, corrupt=50)
KINDS = {"gaussian": DiscreteGaussian, "skellam": Skellam, "laplace": DiscreteLaplace}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_more_bits_are_never_worse(kind: type[IntegerNoise]) -> None:
    errors = [best_lattice(kind, LAX, bits).error / LAX.central_error for bits in (6, 7, 8, 10, 24)]
    assert errors == sorted(errors, reverse=True)
    # With bits to spare only the clip and the rounding of 256 levels are left.
    assert 1.0 < errors[-1] < 1.001


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_code_holds_the_lattice_and_the_noise(kind: type[IntegerNoise]) -> None:
    """The exact tail of the noise beside the lattice: codes of 8 bits wrap about never."""
    lattice = best_lattice(kind, LAX, 8)
    noise = kind.of_variance(Fraction(lattice.variance))
    assert float(noise.variance) == pytest.approx(lattice.variance, rel=1e-6)
    assert noise.tail((2**8 - lattice.levels) // 2) < 1e-8


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_certified_noise_is_little_more_than_what_is_searched_with(kind: type[IntegerNoise]) -> None:
    lattice = best_lattice(kind, SOME_CORRUPT, 10)
    certified = certify_lattice(kind, SOME_CORRUPT, lattice)
    assert 1.0 < certified.variance / lattice.variance < 1.3
    assert lattice.error < certified.error < 1.3 * lattice.error


def test_the_accountant_states_that_certified_noise_meets_the_target_and_hardly_less() -> None:
    lattice = best_lattice(Skellam, SOME_CORRUPT, 10)
    noise = Skellam.of_variance(Fraction(certify_lattice(Skellam, SOME_CORRUPT, lattice).variance))
    mechanism = SkellamMechanism("skellam", noise, lattice.levels, 200, 20, 32.0, 1.0, 1e-6)
    norms = UpdateNorms(l2=math.sqrt(SOME_CORRUPT.dimension) / lattice.spread)
    accountant = Accountant()
    accountant.add(Release(mechanism, SOME_CORRUPT.dimension, View.aggregate(150), norms=norms), 10)
    assert 0.99 * 4.0 < accountant.statement(1e-5).epsilon <= 4.0


def test_too_few_bits_are_refused() -> None:
    with pytest.raises(InfeasibleDesignError, match="bits: 2 hold no lattice"):
        best_lattice(Skellam, LAX, 2)
