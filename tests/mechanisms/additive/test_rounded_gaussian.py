"""Rounded Gaussian: integers that decide, distributions of codes and sums, claims, and plans."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Release, UpdateNorms, View
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding, norm_clip_factor
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import CertificationError, CodeOverflowError, InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.additive.rounded_gaussian import RoundedGaussianMechanism
from fl_privquant.optimize.sums.coordinate_clip import compute_kept_moments
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.privacy_loss.update_bounds import WholeUpdate
from fl_privquant.sampling.fine_gaussian import FineGaussian
from tests.mechanisms.forgery import assert_forgeries_are_refused, forged

FINE = 1 << 20


def design(**parameters: Any) -> RoundedGaussianMechanism:
    return pq.design("rounded_gaussian", cache=False, **parameters)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spacing", [3.0, 0.017])
def test_codes_are_integers_rounded_once(dtype: type, spacing: float) -> None:
    """A code is floor((A + G + F/2) / F) in integers; A is rounded towards zero, G is the seed's noise."""
    mechanism = design(spacing=spacing, deviation=1.5, wrap_bits=10)
    x = np.random.default_rng(1).uniform(-0.3, 0.3, 70_000).astype(dtype)
    codes = mechanism.encode(x, clip=0.25, rng=pq.RandomStream.seeded(5))
    noise = mechanism.noise.sample(x.size, pq.RandomStream.seeded(5)).tolist()
    points = (1.0 - 2.0**-50) / spacing * FINE
    for value, drawn, code in zip(x.tolist(), noise, codes.tolist(), strict=True):
        fine = math.trunc(min(max(value / 0.25, -1.0), 1.0) * points)
        assert code == ((fine + drawn + FINE // 2) // FINE + 512) % 1024


def test_inputs_never_grow() -> None:
    """Rounding towards zero: no coordinate, and so no norm, is longer on the fine lattice."""
    mechanism = design(spacing=1.0, deviation=2.0, wrap_bits=8)
    x = np.full(1000, 0.4999999)
    noise = mechanism.noise.sample(1000, pq.RandomStream.seeded(3))
    codes = mechanism.encode(x, rng=pq.RandomStream.seeded(3)).astype(int) - 128
    rounded_down = (noise + math.floor(0.4999999 * FINE) + FINE // 2) // FINE
    assert np.array_equal(codes, rounded_down)
    negative = mechanism.encode(-x, rng=pq.RandomStream.seeded(3)).astype(int) - 128
    assert np.array_equal(negative, (noise - math.floor(0.4999999 * FINE) + FINE // 2) // FINE)


@pytest.mark.parametrize("deviation", [1.0, 1.5, 4.0])
def test_the_tables_draw_the_stated_distribution(deviation: float) -> None:
    """A code's exact distribution, from the units of both tables, is that of rounded Gaussian noise."""
    mechanism = design(spacing=1.0, deviation=deviation, wrap_bits=7)
    noise = FineGaussian(Fraction(deviation))

    def two_sided(units: list[int]) -> np.ndarray:
        half = np.array([float(Fraction(unit, 1 << 128)) for unit in units])
        return np.concatenate([half[:0:-1], [2.0 * half[0]], half[1:]])

    coarse, fine = two_sided(noise._coarse.units()), two_sided(noise._fine.units())
    below = np.concatenate([[0.0], fine.cumsum()])
    middle, steps = fine.size // 2, np.arange(coarse.size) - coarse.size // 2
    for x in (0.0, 0.3, -0.75):
        exact = []
        for code in range(-8, 9):
            # A + 2^10 a + b from (code - 1/2) F to (code + 1/2) F - 1.
            starts = code * FINE - FINE // 2 - math.trunc(x * FINE) - (steps << 10) + middle
            ends = np.clip(starts + FINE, 0, fine.size)
            exact.append(float(coarse @ (below[ends] - below[np.clip(starts, 0, fine.size)])))
        stated = mechanism.pmf(x)[0, 64 - 8 : 64 + 9]
        assert np.array(exact) == pytest.approx(stated, abs=1e-13)
        # With the next fine point they would differ.
        assert np.abs(np.array(exact) - mechanism.pmf(x + 2.0**-20)[0, 64 - 8 : 64 + 9]).max() > 1e-8


def test_noise_has_its_deviation_and_its_certificate() -> None:
    noise = FineGaussian(Fraction(3, 2))
    drawn = noise.sample(400_000, pq.RandomStream.seeded(2)) / FINE
    assert drawn.std() == pytest.approx(1.5, rel=5.0 / math.sqrt(2 * drawn.size))
    assert abs(drawn.mean()) < 5.0 * 1.5 / math.sqrt(drawn.size)
    scores = np.sort(drawn) / 1.5
    distance = np.abs(ndtr(scores) - (np.arange(scores.size) + 0.5) / scores.size).max()
    # Kolmogorov's statistic: odds of 1e-6.
    assert distance < 2.7 / math.sqrt(scores.size)
    assert noise.total_variation < 2.0 * 2.0**-100
    assert 1.5 * (1.0 - 1e-11) < noise.proven_deviation < 1.5


def test_what_the_spec_refuses() -> None:
    for parameters, text in [
        ({}, "epsilon: missing; give the privacy loss of a coordinate, or spacing"),
        ({"epsilon": 1.0, "spacing": 1.0}, "give one of the two"),
        ({"spacing": 1.0, "deviation": 0.5}, "deviation: 0.5 is outside"),
        ({"spacing": 1.0, "deviation": 9.0}, "deviation: 9.0 is outside"),
        ({"spacing": -1.0}, "spacing"),
        ({"spacing": 1e-12}, "spacing"),
        ({"epsilon": 40.0}, "epsilon: 40.0 is outside"),
    ]:
        with pytest.raises(InvalidSpecError, match=text):
            design(**parameters)
    with pytest.raises(InfeasibleDesignError, match=r"100 clients with spacing 1 needs 9 bits .* not 8"):
        design(spacing=1.0, deviation=2.0, num_clients=100, wrap_bits=8)
    with pytest.raises(CodeOverflowError, match="design it with num_clients=101"):
        design(spacing=10.0, num_clients=100).sum_bits(101)


def test_forged_shares_are_refused() -> None:
    """Claims are checked against spacing and deviation: a finer lattice or smaller shares are refused."""
    mechanism = design(epsilon=1.0, num_clients=10)
    changes = [
        {"spacing": (0.999 * mechanism.spacing).hex()},
        {"deviation": (1.999).hex()},
        {"epsilon": (0.999).hex()},
        {"delta": (0.9e-6).hex()},
        {"wrap_bits": mechanism.wrap_bits - 1},
        {"num_clients": 200},
    ]
    assert_forgeries_are_refused(mechanism, changes, "claimed")
    with pytest.raises(CertificationError, match="spacing"):
        pq.Mechanism.from_bytes(
            forged(mechanism, spacing=(1e-300).hex(), coordinate_deviation=(1e-300).hex())
        )


def test_the_local_view_is_a_gaussian() -> None:
    mechanism = design(epsilon=1.0, delta=1e-6)
    sigma = mechanism.spacing * mechanism.deviation
    assert gaussian_delta(2.0 / sigma, 1.0) == pytest.approx(1e-6, rel=1e-4)
    assert mechanism.delta_at(2.0) < 1e-9
    coordinate = mechanism.loss().loss
    assert compose_epsilon([Part(coordinate, 1)], 1e-6).epsilon == pytest.approx(1.0, abs=1e-4)
    (update,) = mechanism.update_losses(WholeUpdate(UpdateNorms(l2=3.0), 1000))
    assert update.loss.separation == pytest.approx(6.0 / sigma, rel=2e-5)


def test_large_losses_in_the_local_view_count_the_tables() -> None:
    """The distance of tables counts e^epsilon times: 1e-30 matters from epsilon 41 on, and is certified."""
    certified = [design(spacing=spacing, delta=1e-6).epsilon for spacing in (0.25, 0.2, 0.17, 0.15)]
    assert certified == sorted(certified)
    assert 40.0 < certified[2] < 50.0
    assert math.isinf(certified[3])
    # So much that not even a bound of the whole update is a number.
    mechanism = design(spacing=1e-3)
    assert mechanism.update_losses(WholeUpdate(UpdateNorms(l2=100.0), 650)) == []
    assert mechanism.loss().loss.infinity == 1.0


@pytest.mark.parametrize(
    ("epsilon", "num_clients", "dimension"), [(16.0, 1000, 650), (14.0, 10_000, 7850), (20.0, 10_000, 7850)]
)
def test_plans_for_lax_targets_are_as_close_to_a_central_gaussian(
    epsilon: float, num_clients: int, dimension: int
) -> None:
    """Where a client on its own would hardly be protected."""
    target = pq.Target(epsilon, rounds=10, num_clients=num_clients)
    plan = target.plan(dimension, aggregation=EVERYBODY)
    assert (plan.ratio_to_central or math.inf) <= 1.01
    assert 0.9999 * epsilon < plan.statement.epsilon <= epsilon


def test_the_sum_protects_with_the_noise_of_honest_clients() -> None:
    mechanism = design(spacing=2.0, deviation=1.5, num_clients=100)
    simple, refined = mechanism.update_losses(
        WholeUpdate(UpdateNorms(l2=3.0), 1000, View.aggregate(100, corrupt=10, dropped=10))
    )
    noise = math.sqrt(80) * 1.5 * 2.0
    assert simple.loss.separation == pytest.approx(6.0 / noise, rel=2e-5)
    with_rounding = 2.0 * math.sqrt(80 * (2.25 + 1 / 12))
    assert refined.loss.separation == pytest.approx(6.0 / with_rounding, rel=1e-3)
    release = Release(mechanism, 1000, View.aggregate(80), norms=UpdateNorms(l2=3.0))
    statement = Accountant({release: 5}).statement(1e-5)
    assert statement.method == "l2 gaussian of rounded shares+exact"
    # Two honest clients with the smallest shares: the fractional parts still show a little.
    few = design(spacing=2.0, deviation=1.0, num_clients=100).update_losses(
        WholeUpdate(UpdateNorms(l2=3.0), 1000, View.aggregate(2))
    )
    assert few[0].loss.log_ratio > 0.1


def test_sums_that_wrap_are_counted() -> None:
    """The ring's window is around 0; a simulation sees codes, and so how many sums left it."""
    mechanism = design(spacing=1.0, deviation=1.5, num_clients=50, overflow_probability=0.01)
    ring = mechanism.sum_ring(50, 4000)
    stream = pq.RandomStream.seeded(4)
    codes = sum(mechanism.to_codes(mechanism.encode(np.full(4000, 0.2), rng=stream)) for _ in range(50))
    opened = ring.unwrap(ring.residues(codes), 50)
    wrapped = opened != codes
    assert np.array_equal(
        mechanism.decode_sum(opened, 50), mechanism.decode_sum(codes % (1 << ring.bits), 50)
    )
    assert wrapped.mean() <= 0.01
    beyond = sum(mechanism.to_codes(mechanism.encode(np.ones(4000), rng=stream)) for _ in range(120))
    far = ring.unwrap(ring.residues(beyond), 120) != beyond
    assert far.mean() > 0.1


@pytest.mark.parametrize("num_clients", [1, 2, 20, 1000])
def test_the_chance_of_a_wrap_is_bounded(num_clients: int) -> None:
    mechanism = design(spacing=5.0, deviation=1.5, num_clients=num_clients, overflow_probability=1e-4)
    reach = (1 << (mechanism.wrap_bits - 1)) - 1 - num_clients / 5.0
    exact = 2.0 * float(ndtr(-(reach + 0.5) / math.sqrt(num_clients * (2.25 + 1 / 12))))
    assert exact <= mechanism.overflow_probability <= 1e-4
    with pytest.raises(InfeasibleDesignError, match="bits"):
        design(
            spacing=5.0,
            deviation=1.5,
            num_clients=num_clients,
            overflow_probability=1e-4,
            wrap_bits=mechanism.wrap_bits - 1,
        )


def test_inputs_of_any_range() -> None:
    """A clip of 10^6 spacings, as sums of many records have: only the ring grows."""
    mechanism = design(spacing=1e-6, deviation=1.5, num_clients=10)
    assert mechanism.wrap_bits == 25
    x = np.linspace(-1.0, 1.0, 1001)
    stream = pq.RandomStream.seeded(8)
    total = sum(mechanism.to_codes(mechanism.encode(x, clip=7.0, rng=stream)) for _ in range(10))
    assert mechanism.decode_sum(total % (1 << 25), 10, clip=7.0) == pytest.approx(x, abs=2e-5)


EVERYBODY = pq.SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)


@pytest.mark.parametrize(
    ("num_clients", "bits", "by_simple_count", "dimensions"),
    [
        (100, 8, 1.025, (650, 7850, 10**6)),
        (100, 9, 1.006, (650, 7850, 10**6)),
        (1000, 9, 1.055, (10**6,)),
        (1000, 10, 1.015, (10**6,)),
    ],
)
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 10.0])
def test_errors_are_those_of_a_central_gaussian(
    num_clients: int, bits: int, by_simple_count: float, dimensions: tuple[int, ...], epsilon: float
) -> None:
    """In as many travelling bits, with 1000 rounds, of which each has a signal far below the noise.

    With 1000 clients and few coordinates the signal is not: its range takes further bits.
    """
    for dimension in dimensions:
        target = pq.Target(epsilon, rounds=1000, num_clients=num_clients)
        clip = 5.0 / math.sqrt(dimension)
        plan = target.plan(dimension, clip=clip, aggregation=EVERYBODY, wrap_bits=bits)
        mechanism = plan.encoding.mechanism
        assert isinstance(mechanism, RoundedGaussianMechanism)
        assert plan.bytes_per_round == math.ceil(bits * dimension / 8)
        assert 1.0 < (plan.ratio_to_central or math.inf) <= 1.01
        assert 1.0 + 1.0 / (12.0 * mechanism.deviation**2) <= by_simple_count
        assert 0.9999 * epsilon < plan.statement.epsilon <= epsilon


def test_plans_choose_the_narrowest_ring_and_rotate_where_it_helps() -> None:
    target = pq.Target(1.0, rounds=50, num_clients=100)
    plan = target.plan(7850, aggregation=EVERYBODY)
    assert plan.encoding.mechanism.bits_per_coordinate == 8
    # All clients at the L2 clip in one coordinate fit into the same ring: no rotation, no coordinate clip.
    assert (plan.encoding.rotate, plan.encoding.clip) == (False, 1.0)
    assert "after clipping to L2 norm 1.\n" in str(plan)
    lax = pq.Target(10.0, rounds=50, num_clients=100).plan(7850, aggregation=EVERYBODY)
    assert lax.encoding.rotate
    assert lax.encoding.clip == pytest.approx(5.0 / math.sqrt(7850))
    narrower = target.plan(7850, aggregation=EVERYBODY, wrap_bits=7)
    assert (narrower.ratio_to_central or 0.0) > 1.2
    with pytest.raises(InfeasibleDesignError, match=r"the noise of 100 clients .* not 6; raise wrap_bits"):
        target.plan(7850, aggregation=EVERYBODY, wrap_bits=6)
    kept = target.plan(7850, aggregation=EVERYBODY, keep=500)
    assert kept.encoding.rotate
    assert kept.bytes_per_round == 500


def test_plans_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to search for, so that nothing is kept, and nothing can be forged."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FL_PRIVQUANT_CACHE", str(folder))
    pq.Target(3.7, rounds=11, num_clients=10_000).plan(10**6)
    pq.Target(3.7, rounds=11, num_clients=10_000).plan(10**6, max_error=1.5)
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("keep", [None, 600])
def test_measured_errors_are_the_planned_ones(keep: int | None) -> None:
    """Of 90,000 coordinates: 3 % are more than six standard errors."""
    clients, dimension, rounds = 30, 3000, 30
    plan = pq.Target(8.0, rounds=4, num_clients=clients).plan(dimension, aggregation=EVERYBODY, keep=keep)
    update = np.random.default_rng(3).normal(size=dimension)
    arrays = {"x": (update / np.linalg.norm(update)).astype(np.float32)}
    # The clip of the norm of what is kept takes a known share of the signal, on average.
    gain = 1.0 if keep is None else compute_kept_moments(keep, dimension, norm_clip_factor(keep))[1]
    squares = []
    for number in range(rounds):
        codec = UpdateCodec(Layout.of(arrays), plan.encoding, rotation_seed=number)
        total = np.zeros(codec.dimension, dtype=np.int64)
        for client in range(clients):
            stream = pq.RandomStream.seeded(1, round=number, client=client)
            codec.add_codes(codec.encode(arrays, stream), total)
        ring = codec.sum_ring(clients)
        mean = codec.decode_sum(ring.unwrap(ring.residues(total), clients), clients)
        squares.append(float(np.mean((mean["x"] / gain - arrays["x"]) ** 2)))
    assert float(np.mean(squares)) == pytest.approx(plan.mean_squared_error, rel=0.03)


def test_rings_for_rotated_updates_hold_their_sums() -> None:
    """Equal updates at the norm bound, rotated: no more sums wrap than the ring allows, and hardly fewer."""
    clients, dimension, rounds, allowed = 40, 4096, 12, 5e-3
    signal = 6.0 / math.sqrt(dimension)
    parameters = {"spacing": 0.35, "deviation": 1.5, "num_clients": clients, "overflow_probability": allowed}
    mechanism = design(**parameters, coordinate_deviation=1.0 / 6.0)
    assert mechanism.wrap_bits < design(**parameters).wrap_bits
    encoding = Encoding(mechanism, signal, 1.0, rotate=True)
    update = np.zeros(dimension, dtype=np.float32)
    update[:3] = 1.0 / math.sqrt(3.0)
    wrapped = 0
    for number in range(rounds):
        codec = UpdateCodec(Layout.of({"x": update}), encoding, rotation_seed=number)
        total = np.zeros(dimension, dtype=np.int64)
        for client in range(clients):
            stream = pq.RandomStream.seeded(2, round=number, client=client)
            codec.add_codes(codec.encode({"x": update}, stream), total)
        ring = codec.sum_ring(clients)
        wrapped += int(np.count_nonzero(ring.unwrap(ring.residues(total), clients) != total))
    assert 0 < mechanism.overflow_probability <= allowed
    assert wrapped / (rounds * dimension) <= 1.5 * mechanism.overflow_probability + 1e-4
