"""Mechanisms for whole updates: privacy and unbiasedness by algebra on integers, draws, bytes, payloads."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

import fl_privquant as pq
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import (
    CertificationError,
    CodeOverflowError,
    InvalidSpecError,
    PrivQuantError,
)
from fl_privquant.mechanisms.vectors.base import (
    CHANCES,
    VectorMechanism,
    draw_bernoulli,
    respond,
    response_weights,
)
from fl_privquant.mechanisms.vectors.cldp import derive_direction
from fl_privquant.mechanisms.vectors.sphere import mean_projection
from fl_privquant.privacy_loss.composition.compose import UpdateNorm
from tests.mechanisms.forgery import assert_forgeries_are_refused, forged

NAMES = ("cldp_linf", "cldp_l2", "vqsgd", "vqsgd_private")
PRIVATE = ("cldp_linf", "cldp_l2", "vqsgd_private")


def design_vector(name: str, epsilon: float = 1.5, **parameters: Any) -> Any:
    private = {"epsilon": epsilon} if name in PRIVATE else {}
    return pq.design(name, **private, **parameters)


class Fixed:
    """A source of given numbers."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def below(self, bound: int) -> int:
        number = self.numbers.pop(0)
        assert 0 <= number < bound
        return number


def index_distribution(mechanism: Any, x: np.ndarray) -> np.ndarray:
    """(2 d,) probabilities of the indices of one draw, from the published description."""
    d = mechanism.dimension
    common, rare = mechanism._weights if mechanism.private else (1, 0)
    total = CHANCES if mechanism.private else 1
    if mechanism.name == "cldp_linf":
        signs = np.stack([1.0 + x, 1.0 - x], axis=1) / 2.0
        return ((rare + (common - rare) * signs) / total / d).ravel()
    corners = np.stack([np.maximum(x, 0.0), np.maximum(-x, 0.0)], axis=1).ravel() / math.sqrt(d)
    corners += (1.0 - corners.sum()) / (2 * d)
    return (rare + (common - rare) * corners) / total


@pytest.mark.parametrize("answers", [2, 3, 200, 2**31])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 1.0, 7.0, 40.0, 5000.0])
def test_the_ratio_of_chances_is_inside_epsilon(epsilon: float, answers: int) -> None:
    common, rare = response_weights(epsilon, answers)
    assert common + (answers - 1) * rare == CHANCES
    assert common > rare >= 1
    with localcontext() as context:
        context.prec = 60
        ratio = (Decimal(common) / Decimal(rare)).ln()
        assert ratio <= Decimal(epsilon)
        # A chance less would be too few: the budget is used, as far as 128 bits can tell.
        if rare > 1:
            wasteful = (Decimal(CHANCES - (answers - 1) * (rare - 1)) / Decimal(rare - 1)).ln()
            assert wasteful > Decimal(epsilon)
            assert Decimal(epsilon) - ratio < Decimal(answers) / rare * 2 + Decimal("1e-45")


def test_chances_that_are_too_coarse_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match="raise epsilon"):
        response_weights(1e-39, 2)


@pytest.mark.parametrize("truth", [0, 1, 3])
def test_every_answer_has_its_chances(truth: int) -> None:
    """From the ends of each range of numbers, so exactly."""
    weights = common, rare = response_weights(0.7, 4)
    assert {respond(truth, weights, Fixed(n)) for n in (0, common - 1)} == {truth}
    others = [answer for answer in range(4) if answer != truth]
    for place, answer in enumerate(others):
        first = common + place * rare
        assert [respond(truth, weights, Fixed(n)) for n in (first, first + rare - 1)] == [answer, answer]
    assert common + 3 * rare == CHANCES


def test_a_share_happens_as_often() -> None:
    assert [draw_bernoulli(0.25, Fixed(n)) for n in (0, 2**51 - 1, 2**51, 2**53 - 1)] == [
        True,
        True,
        False,
        False,
    ]
    assert not draw_bernoulli(0.0, Fixed(0))
    assert draw_bernoulli(1.0, Fixed(2**53 - 1))


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("repeats", [1, 3, 50])
def test_epsilon_is_that_of_the_whole_message(name: str, repeats: int) -> None:
    mechanism = design_vector(name, 2.0, dimension=30, repeats=repeats)
    common, rare = mechanism._weights
    exact = Fraction(common, rare) ** repeats
    with localcontext() as context:
        context.prec = 60
        loss = (Decimal(exact.numerator) / Decimal(exact.denominator)).ln()
        assert loss <= Decimal(mechanism.epsilon) <= Decimal(2)
        assert Decimal(mechanism.epsilon) - loss < Decimal("1e-15")
    assert mechanism.epsilon > 2.0 - 1e-9


@pytest.mark.parametrize("name", ["cldp_linf", "vqsgd_private"])
def test_the_distribution_of_an_index_is_private_and_unbiased(name: str) -> None:
    mechanism = design_vector(name, dimension=4)
    generator = np.random.default_rng(0)
    inputs = np.concatenate(
        [np.eye(4), -np.eye(4), np.full((1, 4), 0.5), generator.uniform(-0.5, 0.5, (20, 4))]
    )
    distributions = np.array([index_distribution(mechanism, x) for x in inputs])
    assert distributions.sum(axis=1) == pytest.approx(1.0, abs=1e-14)
    loss = np.log(distributions.max(axis=0) / distributions.min(axis=0)).max()
    assert loss <= mechanism.epsilon + 1e-13
    # Attained where a coordinate is 1 and -1; a corner's weight stays below 1 for all of the ball.
    assert (loss > mechanism.epsilon - 1e-9) == (name == "cldp_linf")
    decoded = np.array([mechanism.decode(np.array([index])) for index in range(8)])
    assert distributions @ decoded == pytest.approx(inputs, abs=1e-13)
    for x, distribution in zip(inputs, distributions, strict=True):
        assert distribution @ ((decoded - x) ** 2).sum(axis=1) == pytest.approx(mechanism.squared_error(x))


@pytest.mark.parametrize("name", ["cldp_linf", "vqsgd", "vqsgd_private"])
def test_draws_follow_the_distribution(name: str) -> None:
    """Chi-squared at 1e-6: some 3e-6 of a false alarm; another epsilon or input is noticed."""
    mechanism = design_vector(name, dimension=3, repeats=1000)
    x = np.array([0.6, -0.1, 0.3])
    stream = pq.RandomStream.seeded(2)
    drawn = np.concatenate([mechanism.encode(x, rng=stream) for _ in range(20)])
    counts = np.bincount(drawn, minlength=6)
    distribution = index_distribution(mechanism, x)
    assert stats.chisquare(counts, distribution * drawn.size).pvalue > 1e-6
    for wrong in (index_distribution(mechanism, -x), index_distribution(mechanism, x[::-1])):
        if name == "vqsgd":
            assert stats.chisquare(counts, wrong * drawn.size).pvalue < 1e-9
    if name != "vqsgd":
        # At 1000 draws a share of epsilon is small; one draw with all of it shows the input.
        single = design_vector(name, 3.0, dimension=3)
        singles = np.concatenate([single.encode(x, rng=stream) for _ in range(5000)])
        counts = np.bincount(singles, minlength=6)
        assert stats.chisquare(counts, index_distribution(single, x) * 5000).pvalue > 1e-6
        for other, at in ((design_vector(name, 1.0, dimension=3), x), (single, -x)):
            assert stats.chisquare(counts, index_distribution(other, at) * 5000).pvalue < 1e-9


def test_cldp_l2_tells_the_side_of_its_hyperplane() -> None:
    """Given the seed, the sign is randomized response on the side, with the input's length as its share."""
    mechanism = design_vector("cldp_l2", 2.0, dimension=5, repeats=1024)
    common, _ = response_weights(2.0, 2, 1024)
    assert mechanism._weights[0] == common
    single = design_vector("cldp_l2", 2.0, dimension=5)
    x = np.array([0.3, -0.2, 0.4, 0.1, 0.0])
    stream = pq.RandomStream.seeded(3)
    agreed, draws = 0, 2000
    for _ in range(draws):
        bits = single.encode(x, rng=stream).tolist()
        assert len(bits) == 65
        seed = sum(bit << place for place, bit in enumerate(bits[:64]))
        side = derive_direction(seed, 0, 5) @ x
        agreed += (side < 0) == bool(bits[64])
    common, rare = single._weights
    share = 0.5 + 0.5 * np.linalg.norm(x) * (common - rare) / CHANCES
    assert stats.binomtest(agreed, draws, share).pvalue > 1e-6
    assert stats.binomtest(agreed, draws, 0.5).pvalue < 1e-9


def test_directions() -> None:
    first = derive_direction(5, 0, 7)
    assert first == pytest.approx(derive_direction(5, 0, 7), abs=0.0)
    assert np.linalg.norm(first) == pytest.approx(1.0)
    assert abs(first @ derive_direction(5, 1, 7)) < 0.999
    assert abs(first @ derive_direction(6, 0, 7)) < 0.999
    # Both ends must draw the same, on any machine and version: a change here breaks the wire.
    assert derive_direction(1, 0, 3) == pytest.approx([0.75876860, 0.20228587, 0.61915316], abs=1e-8)
    sample = np.array([derive_direction(seed, 0, 3) for seed in range(4000)])
    assert np.abs(sample.mean(axis=0)).max() < 6 / math.sqrt(3 * 4000)
    # Coordinates of a uniform direction in three dimensions are uniform (Archimedes).
    assert stats.kstest(sample[:, 1], stats.uniform(-1, 2).cdf).pvalue > 1e-6
    assert abs(derive_direction(1, 0, 1)[0]) == 1.0


@pytest.mark.parametrize("dimension", [1, 2, 5, 63, 64, 65, 66, 400])
def test_mean_projection(dimension: int) -> None:
    if dimension == 1:
        assert mean_projection(1) == 1.0
        return
    weight = (dimension - 2) / 2  # of cos^2 in the distribution of an angle to a fixed axis
    top = integrate.quad(lambda a: math.sin(a) * math.cos(a) ** (2 * weight), 0, math.pi / 2)[0]
    bottom = integrate.quad(lambda a: math.cos(a) ** (2 * weight), 0, math.pi / 2)[0]
    assert mean_projection(dimension) == pytest.approx(top / bottom, rel=1e-10)
    assert mean_projection(10**8) == pytest.approx(math.sqrt(2 / math.pi) * 1e-4, rel=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_outside_is_moved_to_the_surface(name: str) -> None:
    mechanism = design_vector(name, dimension=3, repeats=40)
    outside = np.array([3.0, -0.5, 4.0])
    inside = np.clip(outside, -1, 1) if mechanism.norm == "linf" else outside / np.linalg.norm(outside)
    messages = [mechanism.encode(x, rng=pq.RandomStream.seeded(8)) for x in (outside, inside * (1 - 1e-15))]
    assert np.array_equal(*messages)
    for x, clip in ((np.full(3, 1e300), 1e-20), (np.full(3, 5e-324), 1.0), (np.zeros(3), 1e-300)):
        assert np.isfinite(mechanism.decode(mechanism.encode(x, clip))).all()


@pytest.mark.parametrize("name", NAMES)
def test_sizes(name: str) -> None:
    mechanism = design_vector(name, dimension=10**6, repeats=3)
    bits = 64 + 3 if name == "cldp_l2" else 3 * 21
    assert mechanism.message_size * mechanism.message_bits == bits
    assert mechanism.bits_per_coordinate == bits / 10**6
    assert mechanism.encode(np.zeros(10**6, np.float32)).shape == (mechanism.message_size,)
    assert mechanism.for_dimension(10**6) is mechanism
    smaller = mechanism.for_dimension(10)
    assert (smaller.dimension, smaller.repeats, smaller.parameters["dimension"]) == (10, 3, 10)
    assert smaller.to_bytes() == design_vector(name, dimension=10, repeats=3).to_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_repeats_average(name: str) -> None:
    one, many = (design_vector(name, 8.0, dimension=6, repeats=repeats) for repeats in (1, 4))
    x = np.full(6, 0.2)
    if not one.private:
        assert many.squared_error(x) == pytest.approx(one.squared_error(x) / 4)
    assert many.mse() == pytest.approx(
        (many.output_norm**2 - 6 * (1 / 3 if one.norm is UpdateNorm.LINF else 1 / 8)) / 24
    )
    assert many.mse(np.array([0.5, -0.5])) == pytest.approx((many.output_norm**2 - 6 * 0.25) / 24)


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_mean_absolute_error_of_one_coordinate(repeats: int) -> None:
    mechanism = design_vector("vqsgd_private", 6.0, repeats=repeats)
    x = (np.arange(20_000) + 0.5) / 10_000 - 1.0
    outputs = mechanism.output_norm * (2.0 * np.arange(repeats + 1) / repeats - 1.0)
    distribution = stats.binom(repeats, 0.5 * (1 + x / mechanism.output_norm)[:, None]).pmf(
        np.arange(repeats + 1)
    )
    assert mechanism.mae() == pytest.approx(
        (distribution * np.abs(outputs - x[:, None])).sum(axis=1).mean(), rel=1e-7
    )
    assert mechanism.mse() == pytest.approx(
        (distribution * (outputs - x[:, None]) ** 2).sum(axis=1).mean(), rel=1e-7
    )
    with pytest.raises(InvalidSpecError, match="closed form"):
        mechanism.for_dimension(2).mae()


def test_of_one_coordinate_all_are_randomized_response() -> None:
    reference = pq.design("one_bit", epsilon=1.5)
    for name in PRIVATE:
        mechanism = design_vector(name)
        assert mechanism.mse() == pytest.approx(reference.mse(), rel=1e-8)
        assert mechanism.mae() == pytest.approx(reference.mae(), rel=1e-8)


@pytest.mark.parametrize(
    ("field", "value"),
    [("dimension", 0), ("dimension", 2.5), ("dimension", True), ("repeats", 0), ("repeats", 10**6)],
)
@pytest.mark.parametrize("name", NAMES)
def test_specs_that_are_none(name: str, field: str, value: Any) -> None:
    with pytest.raises(InvalidSpecError, match=field):
        design_vector(name, **{field: value})


def test_a_sum_needs_integers() -> None:
    axis = design_vector("cldp_linf", dimension=3)
    assert (axis.sum_bits(1), axis.sum_bits(100)) == (2, 8)
    with pytest.raises(CodeOverflowError, match=r"0\.\.4"):
        axis.decode_sum(np.array([0, 5, 1]), 2)
    for wrong, error in ((0, InvalidSpecError), (1 << 70, CodeOverflowError)):
        with pytest.raises(error):
            axis.sum_bits(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_forged_bytes(name: str) -> None:
    mechanism = design_vector(name, dimension=3)
    changes: list[dict[str, Any]] = [
        {"dimension": 0},
        {"dimension": -3},
        {"dimension": 1 << 40},
        {"repeats": 0},
        {"repeats": 1 << 20},
        {"dimension": "many"},
        {"epsilon": "nan"},
        {"epsilon": "-0x1p0"},
        {"epsilon": 1.5},
    ]
    if mechanism.private:
        changes += [{"epsilon": "inf"}, {"epsilon": (0.0).hex()}, {"epsilon": (1e-50).hex()}]
    else:
        changes.append({"epsilon": (1.0).hex()})  # a claim of privacy, where there is none
    assert_forgeries_are_refused(mechanism, changes)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_smaller_claim_makes_a_more_private_mechanism(name: str) -> None:
    """Chances follow from the claim, so nobody can state a loss that is not the one drawn with."""
    mechanism = design_vector(name, 3.0, dimension=3)
    other = pq.Mechanism.from_bytes(forged(mechanism, epsilon=(0.5).hex()))
    assert isinstance(other, VectorMechanism)
    assert 0.49 < other.epsilon <= 0.5
    assert other.output_norm > 2 * mechanism.output_norm
    # The negative control: chances that are not those of the claim do not pass.
    object.__setattr__(mechanism, "claimed_epsilon", mechanism.epsilon * 0.999)
    with pytest.raises(CertificationError, match="client round"):
        mechanism.__post_init__()


@pytest.mark.parametrize("name", NAMES)
def test_behind_the_codec(name: str) -> None:
    update = {"weight": np.full((4, 3), 0.05, np.float32), "bias": np.array([-0.1, 0.2])}
    codec = UpdateCodec(Layout.of(update), Encoding(design_vector(name, 40.0, repeats=5), clip=1.0))
    assert codec.mechanism.dimension == 14
    assert codec.mechanism.releases(codec.dimension) == 1
    stream = pq.RandomStream.seeded(1)
    payloads = [codec.encode(update, stream) for _ in range(400)]
    bits = codec.mechanism.message_size * codec.mechanism.message_bits
    assert {len(payload) for payload in payloads} == {16 + -(-bits // 8)} == {codec.num_bytes}
    estimates = [codec.decode(payload) for payload in payloads]
    assert estimates[0]["weight"].shape == (4, 3)
    flat = np.array([np.concatenate([each["weight"].ravel(), each["bias"]]) for each in estimates])
    x = codec.layout.flatten(update)
    assert np.all(np.abs(flat.mean(axis=0) - x) < 6 * flat.std(axis=0) / 20 + 1e-9)
    if codec.mechanism.summable:
        total = np.sum([codec.codes(payload) for payload in payloads], axis=0)
        mean = codec.decode_sum(total, 400)
        assert mean["weight"].ravel() == pytest.approx(flat.mean(axis=0)[:12], abs=1e-5)
    for damaged in (payloads[0][:-1], payloads[0] + b"\0", payloads[0][:-1] + b"\xff"):
        # 28 points in 5 bits: some patterns are none, and bits beyond the last one must be 0.
        with pytest.raises(PrivQuantError):
            codec.decode(damaged)
