"""Every summable mechanism: sums of honest codes pass the test whatever the data, shifted ones do not."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.sum_check import RunningSum, make_sum_check
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidSpecError, SecureAggregationError
from fl_privquant.mechanisms.sum_limits import (
    FALSE_ALARM_ODDS,
    CoordinateNoise,
    bounded_noise,
    sum_limits,
)
from fl_privquant.mechanisms.vectors.base import VectorMechanism
from tests.typical import typical

CLIENTS, DIMENSION, CLIP = 25, 2003, 0.3


@cache
def design_summable(name: str) -> Any:
    if name == "none":
        return pq.design("none", fixed_point_bits=20)
    rings = ("discrete_gaussian", "discrete_laplace", "rounded_gaussian", "skellam")
    return typical(name, num_clients=CLIENTS) if name in rings else typical(name)


SUMMABLE = [name for name in pq.available_mechanisms() if design_summable(name).summable]
# Of the others coordinates are not independent: they are bounded without odds, and not by moments.
BY_COORDINATES = [name for name in SUMMABLE if not isinstance(design_summable(name), VectorMechanism)]
WITH_LISTED_LAWS = [name for name in BY_COORDINATES if hasattr(design_summable(name), "pmf")]


@pytest.fixture(params=SUMMABLE)
def mechanism(request: pytest.FixtureRequest) -> Any:
    return design_summable(request.param)


def test_the_lists_hold_what_they_should() -> None:
    assert {"optm", "one_bit", "pbm", "skellam", "cldp_linf", "none"} <= set(SUMMABLE)
    assert {"optm", "pbm", "skellam"} <= set(BY_COORDINATES)
    assert {"optm", "one_bit", "rqm"} <= set(WITH_LISTED_LAWS)


def codec_of(mechanism: Any, dimension: int = DIMENSION, l2_clip: float | None = None) -> UpdateCodec:
    layout = Layout.of({"weight": np.zeros(dimension, np.float32)})
    return UpdateCodec(
        layout, Encoding(mechanism, CLIP, l2_clip, rotate=l2_clip is not None), rotation_seed=3
    )


def summed(codec: UpdateCodec, updates: list[np.ndarray], stream: pq.RandomStream) -> np.ndarray:
    payloads = [codec.encode({"weight": update}, stream) for update in updates]
    total = np.sum([codec.codes(payload) for payload in payloads], axis=0)
    bits = codec.mechanism.sum_bits(len(updates))
    return np.asarray(total & ((1 << bits) - 1))


def extreme_updates(dimension: int) -> dict[str, list[np.ndarray]]:
    """Data that an honest client may hold, chosen to fail the test."""
    generator = np.random.default_rng(0)
    ones = np.ones(dimension, np.float32)
    sign = generator.choice([-1.0, 1.0], dimension).astype(np.float32)
    spike = np.zeros(dimension, np.float32)
    spike[5] = 1e6
    return {
        "all at the clip": [ones] * CLIENTS,
        "all at minus the clip": [-ones] * CLIENTS,
        "all far outside": [1e20 * sign] * CLIENTS,
        "all the same signs": [CLIP * sign] * CLIENTS,
        "zeros": [0 * ones] * CLIENTS,
        "one coordinate": [spike] * CLIENTS,
        "signs of their own": [
            generator.choice([-1.0, 1.0], dimension).astype(np.float32) for _ in range(CLIENTS)
        ],
        "one client": [ones, *[0 * ones] * (CLIENTS - 1)],
    }


@pytest.mark.parametrize("l2_clip", [None, CLIP * math.sqrt(DIMENSION) / 3])
def test_no_false_alarm_whatever_honest_clients_hold(mechanism: Any, l2_clip: float | None) -> None:
    """16 rounds a mechanism at odds of 1e-9 each."""
    codec = codec_of(mechanism, l2_clip=l2_clip)
    test = make_sum_check(codec, CLIENTS)
    assert test.limits.odds <= 1e-7
    stream = pq.RandomStream.seeded(11)
    for updates in extreme_updates(DIMENSION).values():
        test.check(summed(codec, updates, stream))


def test_a_sum_shifted_beyond_what_honest_clients_can_hold_alarms(mechanism: Any) -> None:
    """One client adds the same integer to all its codes, as a masked input lets it."""
    codec = codec_of(mechanism, l2_clip=CLIP * math.sqrt(DIMENSION) / 3)
    test, stream = make_sum_check(codec, CLIENTS), pq.RandomStream.seeded(12)
    honest = summed(codec, extreme_updates(DIMENSION)["zeros"], stream)
    test.check(honest)
    mean, moved = (codec.mechanism.decode_sum(total, CLIENTS) for total in (honest, honest + 1))
    step = float(np.median(np.abs(moved - mean)))
    shift = math.ceil(1.1 * math.sqrt((test.limits.energy - float(mean @ mean)) / DIMENSION) / step)
    bits = codec.mechanism.sum_bits(CLIENTS)
    largest = (1 << bits) - 1 if mechanism.max_code is None else CLIENTS * mechanism.max_code
    with pytest.raises(SecureAggregationError, match="not one of honest codes"):
        test.check(np.minimum(honest + shift, largest))


@pytest.mark.parametrize("mechanism", BY_COORDINATES, indirect=True)
def test_what_passes_is_little_more_than_honest_signal_and_noise(mechanism: Any) -> None:
    limits = mechanism.sum_limits(100, 100_000, math.sqrt(100_000) / 3, FALSE_ALARM_ODDS)
    signal, noise = min(1 / 3, mechanism.coordinate_noise.max_mean), mechanism.coordinate_noise.variance
    assert limits.energy <= 1.25 * 100_000 * (signal**2 + noise / 100)


@pytest.mark.parametrize("mechanism", WITH_LISTED_LAWS, indirect=True)
def test_what_is_known_of_the_noise_holds(mechanism: Any) -> None:
    """Moments of the exact distribution, at inputs between and at its knots, are inside the stated bounds."""
    noise = mechanism.coordinate_noise
    inputs = np.linspace(-1.0, 1.0, 333)
    pmf, values = mechanism.pmf(inputs), mechanism.values
    means = pmf @ values
    assert np.abs(means).max() <= noise.max_mean + 1e-9
    assert np.abs(means - inputs).max() <= noise.max_bias + 1e-9
    off = values - means[:, None]
    assert (pmf * off**2).sum(axis=1).max() <= noise.variance
    assert (pmf * off**4).sum(axis=1).max() <= noise.fourth_moment
    scale = math.sqrt(noise.variance)
    for rate in (0.01, 0.3, 1.0, 3.0):
        with np.errstate(over="ignore"):
            for sign in (-1.0, 1.0):
                moment = np.log((pmf * np.exp(sign * rate / scale * off)).sum(axis=1)).max()
                assert moment <= noise.log_moment(rate / scale) + 1e-12


@pytest.mark.parametrize("mechanism", BY_COORDINATES, indirect=True)
def test_log_moments_grow_at_min_as_squares(mechanism: Any) -> None:
    """What the bound of the cross term rests on: psi(r) / r^2 does not decrease."""
    noise = mechanism.coordinate_noise
    rates = np.geomspace(1e-4, 1e2, 300) / math.sqrt(noise.variance)
    ratio = np.array([noise.log_moment(rate) for rate in rates.tolist()]) / rates**2
    finite = ratio[np.isfinite(ratio)]
    assert np.all(finite[1:] >= finite[:-1] * (1.0 - 1e-6))
    assert np.isfinite(ratio[: finite.size]).all()


def test_the_variance_is_attained() -> None:
    """The limit is no looser than it must be: the stated variance is that of some input."""
    for name in ("optm", "one_bit", "grr", "biased", "pbm"):
        mechanism = design_summable(name)
        inputs = np.linspace(-1.0, 1.0, 20001)
        pmf = mechanism.pmf(inputs)
        largest = (pmf @ mechanism.values**2 - (pmf @ mechanism.values) ** 2).max()
        assert mechanism.coordinate_noise.variance == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("inputs", [0.0, 1.0])
def test_the_false_alarm_odds_hold_and_the_limit_is_near(inputs: float) -> None:
    """At odds of one half, with 400 rounds: alarms are rarer, and half the noise would be noticed.

    More than 250 alarms of 400 have odds below 1e-6 if one half is true. Negative control: limits for half
    the variance are exceeded by every round.
    """
    mechanism, clients, dimension = design_summable("one_bit"), 30, 900
    generator = np.random.default_rng(3)
    chance = float(mechanism.pmf(inputs)[0, 1])
    totals = generator.binomial(clients, chance, (400, dimension))
    energies = np.array([(mechanism.decode_sum(total, clients) ** 2).sum() for total in totals])
    noise = mechanism.coordinate_noise
    limits = sum_limits(noise, clients, dimension, None if inputs else 0.0, 0.5)
    assert (energies > limits.energy).sum() <= 250
    assert np.median(energies) > 0.75 * limits.energy
    if not inputs:
        half = CoordinateNoise(noise.max_mean, noise.max_bias, noise.variance / 2, noise.log_moment)
        assert (energies > sum_limits(half, clients, dimension, 0.0, 0.5).energy).all()


def test_what_one_hostile_client_can_still_do() -> None:
    """The figures of the threat model: 100 clients, 100,000 coordinates, two bits of OPTM at epsilon 1.

    A shift of all coordinates passes up to about 1.01 clips without an L2 clip and 0.34 with one of
    sqrt(d) / 3 clips; before the test any shift up to 1.78 clips did.
    """
    mechanism, clients, dimension = pq.design("optm", epsilon=1.0, bits=2), 100, 100_000
    generator = np.random.default_rng(0)
    draws = generator.multinomial(clients, mechanism.pmf(0.0)[0], dimension)
    honest = draws @ mechanism.codes
    per_code = mechanism.codebook.step / clients
    for l2_clip, passes, noticed in ((None, 0.98, 1.02), (CLIP * math.sqrt(dimension) / 3, 0.32, 0.36)):
        test = make_sum_check(codec_of(mechanism, dimension, l2_clip), clients)
        test.check(honest + math.floor(passes / per_code))
        for shift in (noticed, 1.78):
            with pytest.raises(SecureAggregationError, match="its energy is"):
                test.check(np.minimum(honest + math.floor(shift / per_code), clients * mechanism.max_code))


def plan_codec(
    num_clients: int, dimension: int, epsilon: float, **wanted: Any
) -> tuple[pq.Plan, UpdateCodec]:
    plan = pq.Target(epsilon=epsilon, rounds=10, num_clients=num_clients).plan(dimension, **wanted)
    layout = Layout.of({"weight": np.zeros(dimension, np.float32)})
    return plan, UpdateCodec(layout, plan.encoding, rotation_seed=5)


SETTINGS = [(50, 7850, 2.0, {}), (20, 500, 1.0, {}), (100, 900, 8.0, {}), (50, 7850, 2.0, {"keep": 1000})]


@pytest.mark.parametrize(("clients", "dimension", "epsilon", "wanted"), SETTINGS)
def test_no_larger_shift_than_the_plan_states_passes(
    clients: int, dimension: int, epsilon: float, wanted: dict[str, Any]
) -> None:
    """The page promised about one L2 clip. Where noise dominates, a shift of ten or more clips passes.

    At odds of 0.001 at most in each of 10 rounds; two shifts that pass have odds below 1e-4.
    """
    plan, codec = plan_codec(clients, dimension, epsilon, **wanted)
    largest = plan.largest_shift
    assert largest is not None
    test, generator = make_sum_check(codec, clients), np.random.default_rng(2)
    zeros = np.zeros(dimension, np.float32)
    passed = {0.5: 0, 1.0: 0}
    for seed in range(10):
        total = summed(codec, [zeros] * clients, pq.RandomStream.seeded(seed))
        mean = codec.mechanism.decode_sum(total, clients)
        direction = generator.standard_normal(codec.dimension)
        for part in passed:
            shift = part * largest / test.scale * direction / np.linalg.norm(direction)
            passed[part] += float(np.sum((mean + shift) ** 2)) <= test.limits.energy
    # The bound is not far above what passes.
    assert passed[1.0] <= 1
    assert passed[0.5] >= 9
    assert f"by up to {largest:.3g} times the L2 clip before the server refuses the sum." in str(plan)


def test_the_plan_of_single_updates_states_no_influence() -> None:
    plan = pq.Target(epsilon=8.0, rounds=10, num_clients=100).plan(900, aggregation=pq.PerClient())
    assert plan.largest_shift is None
    assert "hostile" not in str(plan)


@pytest.mark.parametrize("keep", [None, 400])
def test_a_shift_that_hides_in_the_noise_of_one_round_shows_in_the_sum_of_many(keep: int | None) -> None:
    """Honest rounds pass before, beside and after it; each round has a rotation and a subset of its own."""
    clients, dimension = 20, 2000
    plan, _ = plan_codec(clients, dimension, 1.0, **({} if keep is None else {"keep": keep}))
    layout = Layout.of({"weight": np.zeros(dimension, np.float32)})
    honest, attacked, stream = RunningSum(), RunningSum(), pq.RandomStream.seeded(4)
    zeros = np.zeros(dimension, np.float32)
    shift = np.full(dimension, 0.6 * (plan.largest_shift or 0.0) / math.sqrt(dimension))
    reasons: list[str] = []
    for server_round in range(40):
        codec = UpdateCodec(layout, plan.encoding, rotation_seed=server_round)
        test = make_sum_check(codec, clients)
        mean = codec.decode_sum(summed(codec, [zeros] * clients, stream), clients)["weight"]
        honest.add({"weight": mean}, layout, test)
        moved = mean.astype(np.float64) + shift
        assert np.sum(moved**2) < test.limits.energy * test.scale**2
        try:
            attacked.add({"weight": moved}, layout, test)
        except SecureAggregationError as error:
            assert server_round > 0
            reasons.append(str(error))
            attacked.add({"weight": mean}, layout, test)
    assert len(reasons) > 5
    assert all("the mean updates of all rounds add up to an L2 norm of" in reason for reason in reasons)


def test_one_coordinate_alone_is_noticed() -> None:
    codec = codec_of(design_summable("one_bit"))
    test = make_sum_check(codec, 1000)
    total = np.full(DIMENSION, 500)
    total[77] = 1000
    with pytest.raises(SecureAggregationError, match=r"its largest coordinate is 2\.16"):
        test.check(total)
    total[77] = 730
    test.check(total)


def test_the_vote_on_the_clip_is_allowed_for() -> None:
    layout = Layout.of({"weight": np.zeros(3, np.float32)})
    mechanism = pq.design("stochastic", levels=64)
    codec = UpdateCodec(layout, Encoding(mechanism, CLIP, 1e-3, rotate=True), clip_quantile=0.9)
    stream = pq.RandomStream.seeded(1)
    total = summed(codec, [np.ones(3, np.float32)] * 9, stream)
    make_sum_check(codec, 9).check(total)


def test_refusals() -> None:
    noise = bounded_noise(1.0, 0.0, 1.0, 2.0)
    for odds in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(InvalidSpecError, match="odds"):
            sum_limits(noise, 10, 10, None, odds)
    for clients, dimension in ((0, 10), (10, 0)):
        with pytest.raises(InvalidSpecError, match=r"num_clients|dimension"):
            sum_limits(noise, clients, dimension, None, FALSE_ALARM_ODDS)
    with pytest.raises(InvalidSpecError, match="does not encode each coordinate"):
        make_sum_check(codec_of(pq.design("gaussian", epsilon=1.0)), 5)
