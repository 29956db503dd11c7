"""Keeping a random subset of rotated coordinates: unbiased, bounded in norm, counted for what is sent."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.codec._coordinate_subset import Subset
from fl_privquant.codec._rotation import Rotation
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding, kept_norm, norm_clip_factor
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidSpecError, PrivQuantError
from fl_privquant.privacy_loss.sums.gaussian_bound import NORM_ROUNDING


def encoding(keep: int | float | None, dimension: int, l2_clip: float = 1.0) -> Encoding:
    return Encoding(pq.design("one_bit", epsilon=2.0), 3.0 / math.sqrt(dimension), l2_clip, True, keep)


def test_every_subset_is_drawn_equally_often() -> None:
    """All 10 pairs of 5 places, in 20 000 draws: a chi-squared of 9 degrees beyond 45 has odds of 1e-6."""
    counts = dict.fromkeys(itertools.combinations(range(5), 2), 0)
    for seed in range(20_000):
        counts[tuple(sorted(Subset(5, 2, seed).places.tolist()))] += 1
    expected = 20_000 / len(counts)
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 45.0


def test_the_mean_over_all_subsets_is_the_vector() -> None:
    vector = np.random.default_rng(1).normal(size=6)
    every = []
    for places in itertools.combinations(range(6), 2):
        subset = Subset(6, 2, seed=0)
        subset.__dict__["places"] = np.array(places)
        every.append(subset.restore(subset.take(vector)))
    assert np.allclose(np.mean(every, axis=0), vector, atol=1e-15)
    # The error that keeping adds, as stated: (d / k - 1) |x|^2.
    errors = [float(np.sum((estimate - vector) ** 2)) for estimate in every]
    assert np.mean(errors) == pytest.approx((6 / 2 - 1) * float(np.sum(vector**2)))


@pytest.mark.parametrize(("dimension", "kept"), [(1, 1), (7, 7), (1000, 1), (1000, 999), (100_000, 321)])
def test_places_are_different_and_the_same_for_the_same_seed(dimension: int, kept: int) -> None:
    places = Subset(dimension, kept, seed=3).places
    assert np.unique(places).size == kept
    assert places.min() >= 0
    assert places.max() < dimension
    assert np.array_equal(places, Subset(dimension, kept, seed=3).places)


@pytest.mark.parametrize("keep", [1, 37, 0.25, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e30])
def test_what_is_sent_holds_the_norm_that_is_counted(
    keep: int | float, dtype: type[np.floating], size: float
) -> None:
    """Whatever the update: all in one coordinate, even, or huge."""
    dimension = 300
    for vector in (np.eye(1, dimension)[0], np.ones(dimension), np.linspace(-1, 1, dimension) ** 9):
        update = {"w": (size * vector).astype(dtype)}
        codec = UpdateCodec(Layout.of(update), encoding(keep, dimension), rotation_seed=5)
        sent = np.asarray(codec._prepare(codec.layout.flatten(update)), dtype=np.float64)
        assert sent.shape == (codec.kept,)
        share = norm_clip_factor(codec.kept) if codec.kept < dimension else 1.0
        assert codec.l2_bound == pytest.approx(share * math.sqrt(codec.kept / dimension))
        assert np.linalg.norm(sent) <= codec.l2_bound * NORM_ROUNDING


def test_an_update_inside_the_ball_is_decoded_without_bias() -> None:
    """With a lossless mechanism: the mean over 400 rounds is the update, to 6 standard errors."""
    dimension, rounds = 64, 400
    update = np.random.default_rng(2).normal(size=dimension)
    update *= 0.5 / np.linalg.norm(update)
    plain = Encoding(pq.design("none"), 1.0, 1.0, True, 16)
    estimates = []
    for seed in range(rounds):
        codec = UpdateCodec(Layout.of({"w": update}), plain, seed)
        estimates.append(codec.decode(codec.encode({"w": update}))["w"])
    errors = np.std(estimates, axis=0, ddof=1) / math.sqrt(rounds)
    assert np.all(np.abs(np.mean(estimates, axis=0) - update) < 6.0 * errors)
    added = np.mean([np.sum((estimate - update) ** 2) for estimate in estimates])
    assert added == pytest.approx(3.0 * np.sum(update**2), rel=0.15)


def test_keeping_all_is_the_rotation() -> None:
    vector = np.random.default_rng(3).normal(size=50)
    subset = Subset(50, 50, seed=1)
    assert np.array_equal(subset.restore(subset.take(vector)), vector)


def test_sums_votes_and_metrics_follow_what_is_kept() -> None:
    dimension = 200
    update = {"w": np.full(dimension, 0.05, dtype=np.float32)}
    from fl_privquant.codec.metrics import MetricRange

    codec = UpdateCodec(
        Layout.of(update),
        encoding(20, dimension),
        7,
        clip_quantile=0.5,
        private_metrics=(MetricRange("m", 0, 4),),
    )
    assert codec.dimension == 22
    total = np.zeros(22, dtype=np.int64)
    for client in range(3000):
        codec.add_codes(
            codec.encode(update, pq.RandomStream.seeded(0, client=client), metrics={"m": 3.0}), total
        )
    assert codec.decode_metric_means(total, 3000)["m"] == pytest.approx(3.0, abs=0.3)
    assert codec.clip_vote_fraction(total, 3000) == pytest.approx(1.0, abs=0.15)
    rotated = update["w"].copy()
    Rotation(dimension, 7).forward(rotated)
    mean = codec.decode_sum(total, 3000)["w"].copy()
    Rotation(dimension, 7).forward(mean)
    places = Subset(dimension, 20, 7).places
    others = np.setdiff1d(np.arange(dimension), places)
    assert np.allclose(mean[others], 0.0, atol=1e-6)
    assert np.allclose(mean[places], 10.0 * np.clip(rotated[places], -codec.clip, codec.clip), atol=0.35)


def test_the_size_of_a_payload_is_that_of_what_is_kept() -> None:
    update = {"w": np.zeros(8000, dtype=np.float32)}
    codec = UpdateCodec(Layout.of(update), encoding(0.1, 8000))
    assert len(codec.encode(update)) == codec.num_bytes == 16 + 100


def test_one_and_one_point_zero_are_not_the_same() -> None:
    assert encoding(1, 10) != encoding(1.0, 10)
    assert (encoding(1, 10).count_kept(10), encoding(1.0, 10).count_kept(10)) == (1, 10)


@pytest.mark.parametrize("keep", [0, -1, 0.0, 1.5, -0.1, math.nan, True, "0.1", 2.0])
def test_what_cannot_be_kept_is_refused(keep: object) -> None:
    with pytest.raises(InvalidSpecError, match=r"keep: .*share"):
        encoding(keep, 10)  # type: ignore[arg-type]


def test_keeping_needs_the_rotation_and_a_norm() -> None:
    mechanism = pq.design("one_bit", epsilon=1.0)
    with pytest.raises(InvalidSpecError, match="set rotate=True"):
        Encoding(mechanism, 0.1, 1.0, False, 10)
    with pytest.raises(InvalidSpecError, match="set l2_clip"):
        Encoding(mechanism, 0.1, None, True, 10)
    with pytest.raises(InvalidSpecError, match="the update has 10; keep fewer"):
        encoding(11, 10).count_kept(10)
    with pytest.raises(PrivQuantError, match="encodes whole updates"):
        UpdateCodec(
            Layout.of({"w": np.zeros(8)}), Encoding(pq.design("cldp_linf", epsilon=1.0), 1.0, 1.0, True, 4)
        )


def test_a_mechanism_for_whole_updates_encodes_what_is_kept() -> None:
    """Unbiased, with the noise that it has without keeping, and the error of the subset on top."""
    dimension, kept, draws = 256, 32, 300
    mechanism = pq.design("shared_codebook", epsilon=8.0, levels=64)
    x = np.random.default_rng(3).normal(size=dimension)
    # Short enough that the norm of what is kept is hardly ever clipped.
    x *= 0.4 / np.linalg.norm(x)
    layout = Layout.of({"w": x})
    estimates = []
    for seed in range(draws):
        codec = UpdateCodec(layout, Encoding(mechanism, 1.0, 1.0, True, kept), rotation_seed=seed)
        estimates.append(codec.decode(codec.encode({"w": x}, pq.RandomStream.seeded(seed)))["w"])
    bound = kept_norm(1.0, kept, dimension)
    assert (codec.clip, codec.mechanism.dimension) == (bound, kept)
    errors = ((np.array(estimates) - x) ** 2).sum(axis=1)
    scale = dimension / kept
    part = np.zeros(kept)
    part[0] = 0.4 * math.sqrt(kept / dimension) / bound
    expected = (scale * bound) ** 2 * codec.mechanism.squared_error(part) + (scale - 1.0) * 0.16
    assert errors.mean() == pytest.approx(expected, rel=0.05)
    # Along the update: 5 standard errors.
    along = np.array(estimates) @ x / 0.16
    assert abs(along.mean() - 1.0) < 5.0 * along.std() / math.sqrt(draws)
