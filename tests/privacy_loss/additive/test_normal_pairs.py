"""The slack of a normal pair: it never costs more than is charged for it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from fl_privquant.privacy_loss.additive.normal_pairs import spare_for


def added_power(spare: float, most: float) -> float:
    """What a slack adds to the power of tests, by the normal distribution itself: s + H_m(s)."""
    return spare + float(ndtr(ndtri(spare) + most))


@settings(max_examples=60, deadline=None)
@given(st.floats(0.001, 1.5), st.floats(-40.0, -10.0))
def test_what_is_spared_stays_below_what_may_be_revealed(most: float, log_rate: float) -> None:
    rate, left = math.exp(log_rate), 2.0 * float(ndtr(-0.5 * most))
    spare = spare_for(rate, most)
    assert added_power(spare, most) <= rate * left
    # A negative control: a slack as large as the rate itself costs more.
    assert added_power(rate, most) > rate * left


def test_larger_separations_leave_less_to_spare() -> None:
    spares = [spare_for(1e-12, most) for most in (0.01, 0.1, 1.0, 3.0)]
    assert spares == sorted(spares, reverse=True)
    assert spares[0] == pytest.approx(0.5e-12, rel=0.1)
