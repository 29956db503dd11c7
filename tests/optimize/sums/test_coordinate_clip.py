"""The clip of rotated updates: closed forms against numbers drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_privquant.optimize.sums.coordinate_clip import compute_clipped_moments, rescale_to_unit_gain


@pytest.mark.parametrize("spread", [0.7, 2.0, 3.1])
def test_moments_of_a_clipped_normal_number(spread: float) -> None:
    numbers = np.random.default_rng(1).normal(size=2_000_000)
    clipped = numbers.clip(-spread, spread)
    square, gain = compute_clipped_moments(spread)
    assert square == pytest.approx(float((clipped**2).mean()), rel=5e-3)
    assert gain == pytest.approx(float((numbers * clipped).mean()), rel=5e-3)
    # What is left after division by the gain errs by noise and by what the clip distorts.
    noise, clients = 4.0, 20
    noisy = clipped + np.random.default_rng(2).normal(scale=math.sqrt(noise / clients), size=numbers.size)
    error = float(((noisy / gain - numbers) ** 2).mean())
    assert rescale_to_unit_gain(noise, spread, clients) / clients == pytest.approx(error, rel=1e-2)
