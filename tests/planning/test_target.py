"""The joint choice of bits and kept coordinates: certified, within what was asked for, and the best."""

from __future__ import annotations

import math
from typing import Any

import pytest

import fl_privquant as pq
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.planning.target import Plan

TRUSTING = pq.SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
TARGET = pq.Target(epsilon=4.0, rounds=20, num_clients=60)
DIMENSION = 3000
BITS = "pbm"
"""A mechanism whose error depends on the number of bits."""


def check_width(plan: Plan) -> None:
    """The bytes are those of the ring that a round of this plan is summed in."""
    kept = plan.encoding.count_kept(plan.dimension)
    ring = plan.encoding.mechanism.sum_ring(plan.target.num_clients, kept)
    assert plan.bytes_per_round == math.ceil(ring.bits * kept / 8)


def test_the_min_bytes_for_an_error() -> None:
    chosen = TARGET.plan(DIMENSION, mechanism=BITS, max_bits=3, max_error=1.1, aggregation=TRUSTING)
    assert chosen.statement.epsilon <= 4.0
    assert 1.08 < (chosen.ratio_to_central or math.inf) <= 1.1
    check_width(chosen)
    # 1.8 masked bits for each coordinate of the model, where a masked code takes 8.
    assert 8 * chosen.bytes_per_round < 1.8 * DIMENSION
    # Fewer coordinates would err by more than was asked for.
    keep = int(0.9 * chosen.encoding.count_kept(DIMENSION))
    fewer = TARGET.plan(DIMENSION, mechanism=BITS, max_bits=3, keep=keep, aggregation=TRUSTING)
    assert (fewer.ratio_to_central or 0.0) > 1.1
    # Other numbers of bits take at least as many bytes, but for what estimates miss.
    for bits in (1, 2):
        other = TARGET.plan(DIMENSION, mechanism=BITS, max_bits=bits, max_error=1.1, aggregation=TRUSTING)
        assert chosen.bytes_per_round <= 1.02 * other.bytes_per_round


def test_the_default_chooses_its_width_itself() -> None:
    """Its plan hardly depends on the largest number of bits."""
    plan = TARGET.plan(DIMENSION, max_bits=5, max_error=1.1, aggregation=TRUSTING)
    assert 1.08 < (plan.ratio_to_central or math.inf) <= 1.1
    check_width(plan)
    bits = TARGET.plan(DIMENSION, mechanism=BITS, max_bits=5, max_error=1.1, aggregation=TRUSTING)
    assert plan.bytes_per_round < 1.1 * bits.bytes_per_round
    sized = TARGET.plan(DIMENSION, max_bits=5, max_kilobytes=0.15, aggregation=TRUSTING)
    assert 145 <= sized.bytes_per_round <= 150


def test_the_min_error_for_a_size() -> None:
    chosen = TARGET.plan(DIMENSION, mechanism=BITS, max_bits=3, max_kilobytes=0.15, aggregation=TRUSTING)
    assert 140 <= chosen.bytes_per_round <= 150
    assert chosen.statement.epsilon <= 4.0
    check_width(chosen)
    for bits in (1, 2):
        other = TARGET.plan(
            DIMENSION, mechanism=BITS, max_bits=bits, max_kilobytes=0.15, aggregation=TRUSTING
        )
        assert chosen.mean_squared_error <= 1.005 * other.mean_squared_error
    # A size with room for everything keeps everything.
    wide = TARGET.plan(DIMENSION, max_kilobytes=100.0, aggregation=TRUSTING)
    assert wide.encoding.keep is None
    assert wide.mean_squared_error < chosen.mean_squared_error


def test_exact_sums_take_more_bytes() -> None:
    exact = pq.SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0, exact_sums=True)
    narrow, wide = (
        TARGET.plan(DIMENSION, mechanism=BITS, max_bits=3, keep=300, aggregation=aggregation)
        for aggregation in (TRUSTING, exact)
    )
    assert wide.mean_squared_error == narrow.mean_squared_error
    assert wide.bytes_per_round == math.ceil(narrow.encoding.mechanism.sum_bits(60) * 300 / 8)
    assert narrow.bytes_per_round < wide.bytes_per_round


def test_a_mechanism_without_estimates_is_searched_by_its_plans() -> None:
    target = pq.Target(epsilon=4.0, rounds=5, num_clients=20)
    plan = target.plan(2000, mechanism="one_bit", max_bits=1, max_error=1.5, aggregation=TRUSTING)
    assert (plan.ratio_to_central or math.inf) <= 1.5
    assert plan.encoding.count_kept(2000) < 2000


@pytest.mark.parametrize(
    ("asked", "kind", "reason"),
    [
        ({"max_error": 1.0}, InfeasibleDesignError, "with all coordinates the error is"),
        ({"max_kilobytes": 1e-6}, InfeasibleDesignError, "too few"),
        ({"max_error": 1.1, "max_kilobytes": 1.0}, InvalidSpecError, "give only one of them"),
        ({"max_kilobytes": 1.0, "keep": 3}, InvalidSpecError, "give only one of them"),
        ({"max_kilobytes": 0.0}, InvalidSpecError, "max_kilobytes"),
    ],
)
def test_what_cannot_be_is_refused(asked: dict[str, Any], kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        TARGET.plan(DIMENSION, max_bits=1, aggregation=TRUSTING, **asked)
