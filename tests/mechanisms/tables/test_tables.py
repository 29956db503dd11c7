"""OPTM, RQM, ERM, one bit: parameters as given, tuning, bad input, and forged blobs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.errors import CertificationError, InfeasibleDesignError, InvalidSpecError
from tests.mechanisms.forgery import assert_forgeries_are_refused, forged


@pytest.mark.parametrize(
    ("parameters", "epsilon", "mae"),
    [
        ({"name": "rqm", "margin": 1.7, "keep": 0.22}, 0.99877, 1.99734),
        ({"name": "erm", "gamma": 0.043, "bins": (-2.7, -0.4, 0.4, 2.7)}, 1.49978, 1.29822),
    ],
)
def test_parameters_as_given(parameters: dict[str, Any], epsilon: float, mae: float) -> None:
    mechanism = pq.design(**parameters)
    assert mechanism.epsilon == pytest.approx(epsilon, abs=6e-6)
    assert mechanism.mae() == pytest.approx(mae, abs=6e-6)


@pytest.mark.parametrize(("epsilon", "bound"), [(0.5, 4.0056), (1.0, 1.9974), (1.5, 1.3139)])
def test_rqm_tunes_at_min_as_well_as_the_paper(epsilon: float, bound: float) -> None:
    """At 0.5 the paper prints N/A: its search range ended too early."""
    mechanism = pq.design("rqm", epsilon=epsilon, bits=2, objective="mae")
    assert mechanism.epsilon <= epsilon
    assert mechanism.mae() <= bound
    assert mechanism.codes.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("epsilon", "bound"), [(0.5, 4.01), (1.0, 2.2062), (1.5, 1.2983)])
def test_erm_tunes_at_min_as_well_as_the_paper(epsilon: float, bound: float) -> None:
    mechanism = pq.design("erm", epsilon=epsilon, bits=2, objective="mae")
    assert mechanism.epsilon <= epsilon
    assert mechanism.mae() <= bound


def test_small_gamma_cannot_be_private_enough() -> None:
    with pytest.raises(InfeasibleDesignError, match="raise epsilon"):
        pq.design("erm", epsilon=0.5, bins=(-6.0, -0.4, 0.4, 6.0))
    with pytest.raises(InfeasibleDesignError, match="raise epsilon"):
        pq.design("rqm", epsilon=0.5, margin=0.5)


def test_the_published_bound_of_erm_is_false() -> None:
    """Theorem erm_privacy claims epsilon < gamma + log(2 m (c + margin) / c); 6.42 against 2.19."""
    margin, gamma, levels = 0.01, 0.1, 4
    bins = tuple(np.linspace(-1 - margin, 1 + margin, levels))
    exact = pq.design("erm", gamma=gamma, bins=bins).epsilon
    claimed = gamma + math.log(2 * levels * (1 + margin))
    assert claimed < 2.2
    assert exact == pytest.approx(6.42, abs=0.01)
    assert exact <= gamma + math.log(levels**2 * (1 + margin) / (2 * margin))


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 1.0, 5.0, 15.0])
def test_one_bit_is_exact(epsilon: float) -> None:
    mechanism = pq.design("one_bit", epsilon=epsilon)
    ideal = (math.exp(epsilon) + 1) / (math.exp(epsilon) - 1)
    assert mechanism.epsilon <= epsilon
    assert mechanism.values[1] == pytest.approx(ideal, rel=1e-3)
    assert mechanism.distribution.max_bias <= 1e-12 * ideal


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 4.0, 8.0, 12.0])
def test_optm_far_from_one(epsilon: float) -> None:
    mechanism = pq.design("optm", epsilon=epsilon, bits=2)
    assert mechanism.epsilon <= epsilon
    assert mechanism.distribution.max_bias <= 1e-8
    assert mechanism.mse() <= pq.design("one_bit", epsilon=epsilon).mse() * (1 + 1e-4)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epsilon": 0.0}, "epsilon: 0.0 is not a finite number above 0"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({}, "epsilon: required"),
        ({"epsilon": 1.0, "bits": 0}, "bits: 0"),
        ({"epsilon": 1.0, "bits": 17}, "bits: 17"),
        ({"epsilon": 1.0, "bits": 2.5}, "bits: 2.5"),
        ({"epsilon": 1.0, "bits": 2, "levels": 4}, "give one of the two"),
        ({"epsilon": 1.0, "levels": 1}, "levels: 1"),
        ({"epsilon": 1.0, "bins": (3.0, -3.0)}, "increase strictly"),
        ({"epsilon": 1.0, "bins": (-3.0, 1.0, 1.0, 3.0)}, "without repeats"),
        ({"epsilon": 1.0, "bins": (-0.9, 0.0, 3.0)}, "do not cover"),
        ({"epsilon": 1.0, "bins": (-3.0, math.nan, 3.0)}, "finite"),
        ({"epsilon": 1.0, "density": [0.1, math.nan]}, "density"),
        ({"epsilon": 1.0, "family": "fre"}, "did you mean 'free'"),
        ({"epsilon": 1.0, "objective": "rmse"}, "did you mean 'mse'"),
        ({"epsilon": 1.0, "max_code": 2}, "max_code: 2"),
        ({"epsilon": 1.0, "num_knots": 1}, "num_knots: 1"),
        ({"epsilon": 1.0, "max_value": math.inf}, "max_value"),
        ({"epsilon": 1.0, "constraints": "constraint2"}, "family='independent'"),
        ({"epsilon": 1.0, "famly": "free"}, "did you mean 'family'"),
    ],
)
def test_bad_input_to_optm(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        pq.design("optm", **parameters)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("rqm", {}, "give the privacy loss of a coordinate, or margin and keep"),
        ("rqm", {"margin": -1.0, "keep": 0.5}, "margin"),
        ("rqm", {"margin": 1.0, "keep": 1.0}, "keep"),
        ("erm", {"gamma": 0.1}, "give the privacy loss of a coordinate, or gamma and bins"),
        ("erm", {"epsilon": 1.0, "gamma": -1.0}, "gamma"),
        ("one_bit", {"epsilon": 1.0, "bits": 2}, "one_bit has 2"),
        ("one_bit", {"epsilon": 1e-12}, "too small"),
        ("optmm", {"epsilon": 1.0}, "did you mean 'optm'"),
    ],
)
def test_bad_input_to_others(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        pq.design(name, **parameters)


FORGERIES: list[dict[str, Any]] = [
    {"epsilon": (0.99).hex()},
    {"epsilon": math.nan.hex()},
    {"epsilon": "x"},
    {"levels": 5},
    {"levels": 10**12},
    {"rows": 0},
    {"rows": -3},
    {"pieces": 10**9},
    {"step": (0.2).hex()},
    {"step": (-1.0).hex()},
    {"offset": math.inf.hex()},
    {"kind": "pickle"},
    {"kind": None},
    {"name": None, "parameters": 3},
]


def test_forged_headers_raise() -> None:
    mechanism = pq.design("optm", epsilon=1.0, bins=(-3.0, -0.5, 0.5, 3.0))
    assert pq.Mechanism.from_bytes(forged(mechanism)).epsilon <= 1.0
    assert_forgeries_are_refused(mechanism, FORGERIES)


def test_a_forged_weight_raises() -> None:
    """One unit moved between two weights breaks the mean of a row or its privacy: both are seen."""
    mechanism = pq.design("one_bit", epsilon=1.0)
    weights = mechanism.table.weights.copy()
    weights[0] += [1, -1]
    body = b"".join(
        [
            mechanism.codes.astype("<u4").tobytes(),
            weights.astype("<u8").tobytes(),
            mechanism.table.start_rows.astype("<u4").tobytes(),
            mechanism.table.end_rows.astype("<u4").tobytes(),
        ]
    )
    claim = mechanism.epsilon.hex()
    assert pq.Mechanism.from_bytes(forged(mechanism, epsilon=claim)).epsilon == mechanism.epsilon
    with pytest.raises(CertificationError, match="above the claimed"):
        pq.Mechanism.from_bytes(forged(mechanism, body, epsilon=claim))


def test_repr_states_unit_and_view() -> None:
    assert "(coordinate release, local view, replace-one)" in repr(pq.design("one_bit", epsilon=1.0))
