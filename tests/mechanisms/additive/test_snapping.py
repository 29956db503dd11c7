"""The snapping mechanism: its privacy in rational numbers, its distribution, its bias, and forged bytes."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.errors import CertificationError, InvalidSpecError
from fl_privquant.mechanisms.additive.snapping import SnappingMechanism
from fl_privquant.sampling.chunks import Chunk
from tests.mechanisms.forgery import assert_forgeries_are_refused, forged


def exact_distribution(mechanism: SnappingMechanism, x: float) -> list[Decimal]:
    """Output probabilities of one input as they are drawn, from the integers themselves."""
    position = x / mechanism.step
    cell = round(position)  # to even at ties, as numpy's rint
    place = position - cell
    down, up = (
        Decimal(math.floor(0.5 * float(np.exp(-mechanism.rate * (0.5 + side * place))) * 2.0**64)) / 2**64
        for side in (1.0, -1.0)
    )
    block = [Decimal(1), *(Decimal(int(each)) / 2**64 for each in mechanism._further_weights)]
    size = len(block) - 1

    def at_least(cells: int) -> Decimal:
        blocks, rest = divmod(cells, size)
        return block[size] ** blocks * block[rest]

    reach = mechanism.reach
    distribution = []
    for output in range(-reach, reach + 1):
        if output == cell:
            distribution.append(1 - down - up)
            continue
        cells = abs(output - cell) - 1
        further = at_least(cells) if abs(output) == reach else at_least(cells) - at_least(cells + 1)
        distribution.append((up if output > cell else down) * further)
    return distribution


@pytest.mark.parametrize("epsilon", [0.05, 0.7, 1.0, 3.0, 20.0])
def test_epsilon_bounds_the_loss_of_what_is_drawn(epsilon: float) -> None:
    mechanism = pq.design("snapping", epsilon=epsilon)
    inputs = [-1.0, 1.0, 0.0, 0.3, -0.77, 0.5 * mechanism.step, math.nextafter(0.5 * mechanism.step, 9.0)]
    with localcontext() as context:
        context.prec = 60
        distributions = [exact_distribution(mechanism, x) for x in inputs if abs(x) <= 1.0]
        assert all(abs(sum(distribution) - 1) < Decimal("1e-50") for distribution in distributions)
        loss = max((max(column) / min(column)).ln() for column in zip(*distributions, strict=True))
        assert loss <= Decimal(mechanism.epsilon) <= Decimal(epsilon)
        # It is attained beyond both ends, so a smaller claim would be wrong.
        assert loss > Decimal(epsilon) * (1 - Decimal("1e-8"))
    for x, distribution in zip([x for x in inputs if abs(x) <= 1.0], distributions, strict=True):
        assert mechanism.pmf([x])[0] == pytest.approx([float(each) for each in distribution], rel=1e-9)


def test_the_lattice_is_the_published_one() -> None:
    for epsilon in (0.1, 0.9, 1.0, 3.0, 11.0):
        mechanism = pq.design("snapping", epsilon=epsilon)
        scale = 2.0 / epsilon
        assert mechanism.scale == pytest.approx(scale, rel=1e-6)
        assert math.log2(mechanism.step) == math.ceil(math.log2(scale) - 1e-6)
        assert mechanism.values == pytest.approx(
            np.arange(-mechanism.reach, mechanism.reach + 1) * mechanism.step
        )
        assert mechanism.bound >= 1 + 14 * scale * (1 - 1e-6)
        assert mechanism.epsilon - 2.0 / mechanism.scale <= 1e-12  # what rounding costs


def test_coarse_chances_are_not_certified() -> None:
    """The negative control: chances of 24 bits would be off by more than epsilon has room for."""
    mechanism = pq.design("snapping", epsilon=1.0)
    coarse = (mechanism._further_weights >> np.uint64(40)) << np.uint64(40)
    mechanism.__dict__["_further_weights"] = coarse
    del mechanism.__dict__["epsilon"]
    with pytest.raises(CertificationError, match="above the claimed"):
        mechanism.__post_init__()


class _Stream:
    """Zeros as reserved words, and given words to continue with, before the largest ones."""

    def __init__(self, *words: int) -> None:
        self.continuation = words

    def fill(self, out: np.ndarray, first_word: int) -> None:
        assert first_word < 1 << 64
        out[:] = 0

    def integer(self, first_word: int, count: int) -> int:
        assert first_word >= 1 << 64
        words, self.continuation = self.continuation[:count], self.continuation[count:]
        padded = [*words, *[2**64 - 1] * (count - len(words))]
        return sum(word << 64 * place for place, word in enumerate(padded))


def test_noise_goes_on_beyond_a_block() -> None:
    mechanism = pq.design("snapping", epsilon=40.0)
    size = mechanism._further_weights.size
    thresholds = mechanism._further_weights.tolist()
    for words, cells in (
        ((2**64 - 1,), size),
        ((thresholds[2] - 1, 0), size + 3),
        ((thresholds[2], 0), size + 2),
        ((0, 0, thresholds[0] - 1), 3 * size + 1),
    ):
        chunk = Chunk(np.zeros(1), 1.0, np.zeros(1, np.uint64), np.zeros(1, np.uint8), _Stream(*words), 0, 7)
        assert mechanism._draw_cells_further(chunk).tolist() == [cells]
    endless = Chunk(np.zeros(1), 1.0, np.zeros(1, np.uint64), np.zeros(1, np.uint8), _Stream(*[0] * 32), 0, 7)
    assert mechanism._draw_cells_further(endless)[0] > 2 * mechanism.reach


def test_bias_is_exact_odd_and_from_rounding_and_clamp() -> None:
    mechanism = pq.design("snapping", epsilon=1.3)
    x = np.linspace(-1, 1, 9)
    bias = mechanism.bias(x)
    assert bias == pytest.approx(-bias[::-1], abs=1e-12)
    assert 0.0 < mechanism.max_bias < 0.02 * mechanism.step
    near = pq.design("snapping", epsilon=1.3, bound=2.0)
    assert near.num_levels == 3
    # Clamped close to the inputs, the mean moves inwards, and the error falls.
    assert near.bias([1.0])[0] < -0.25
    assert near.mse() < mechanism.mse()
    assert mechanism.bias(np.zeros((2, 3))).shape == (2, 3)


@pytest.mark.parametrize(
    "parameters", [{"bound": 0.5}, {"bound": math.inf}, {"bound": 1e9}, {"epsilon": 1e5}]
)
def test_specs_that_are_none(parameters: dict[str, float]) -> None:
    with pytest.raises(InvalidSpecError):
        pq.design("snapping", **{"epsilon": 1.0, **parameters})


def test_extreme_epsilons() -> None:
    for epsilon in (1e-9, 900.0):
        mechanism = pq.design("snapping", epsilon=epsilon)
        assert mechanism.epsilon <= epsilon
        assert mechanism.encode(np.linspace(-2, 2, 100)).max() < mechanism.num_levels


def test_forged_bytes() -> None:
    mechanism = pq.design("snapping", epsilon=1.0)
    changes: list[dict[str, Any]] = [
        {"epsilon": (0.999999).hex()},
        {"epsilon": "nan"},
        {"rate": (1.5).hex()},
        {"rate": (0.5).hex()},
        {"rate": "nan"},
        {"step_exponent": 0},
        {"step_exponent": 10**6},
        {"step_exponent": -30},
        {"reach": 0},
        {"reach": 10**7},
        {"reach": "far"},
    ]
    assert_forgeries_are_refused(mechanism, changes)
    smaller = pq.Mechanism.from_bytes(forged(mechanism, step_exponent=2))
    assert smaller.epsilon == pytest.approx(0.5, rel=1e-6)  # a wider step is more noise: no claim is broken
