"""The rotation: transforms against matrices, an orthogonal map, its inverse, and evenness for any update."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import hadamard as hadamard_matrix

from fl_privquant.codec._loops import hadamard_blocks, hadamard_columns
from fl_privquant.codec._rotation import Rotation, _sizes, _steps
from fl_privquant.errors import InvalidUpdateError

Vector = NDArray[np.float64]


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 1024, 2048])
def test_blocks_are_multiplied_by_the_hadamard_matrix(size: int) -> None:
    vectors = np.random.default_rng(size).normal(size=(3, size))
    expected = 0.5 * vectors @ hadamard_matrix(size)
    hadamard_blocks(vectors.reshape(-1), size, 0.5)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("rows", "dimension"), [(1, 3), (2, 2), (2, 9), (8, 8), (8, 1003), (64, 9000)])
def test_columns_of_turned_rows_are_multiplied_by_the_hadamard_matrix(rows: int, dimension: int) -> None:
    rng = np.random.default_rng(rows)
    vector = rng.normal(size=dimension)
    starts = np.arange(rows + 1) * dimension // rows
    shifts = rng.integers(0, np.diff(starts))
    turned = [np.roll(part, -by) for part, by in zip(np.split(vector, starts[1:-1]), shifts, strict=True)]
    width = dimension // rows
    mixed = 0.5 * hadamard_matrix(rows) @ np.array([row[:width] for row in turned])
    expected = [
        np.roll(np.append(new, old[width:]), by) for new, old, by in zip(mixed, turned, shifts, strict=True)
    ]
    hadamard_columns(vector, starts, shifts, 0.5)
    np.testing.assert_allclose(vector, np.concatenate(expected), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("dimension", "size"), [(6, 6), (6, 4), (4, 0), (4, -2)])
def test_blocks_that_do_not_fit_are_refused_before_anything_is_written(dimension: int, size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        hadamard_blocks(np.zeros(dimension), size, 1.0)


@pytest.mark.parametrize(
    ("starts", "shifts"),
    [
        ([0, 2, 4, 6], [0, 0, 0]),
        ([0, 6], [0, 0]),
        ([0, 3, 7], [0, 0]),
        ([0, 3, 6], [0, 3]),
        ([-1, 3, 6], [0, 0]),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_written(
    starts: list[int], shifts: list[int]
) -> None:
    with pytest.raises(ValueError, match="hadamard_columns"):
        hadamard_columns(np.zeros(6), np.array(starts), np.array(shifts), 1.0)


@given(
    dimension=st.integers(0, 5000),
    seed=st.integers(0, 2**62),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=60, deadline=None)
def test_backward_undoes_forward_and_norms_are_kept(dimension: int, seed: int, dtype: type) -> None:
    vector = np.random.default_rng(dimension).normal(size=dimension).astype(dtype)
    rotated = vector.copy()
    rotation = Rotation(dimension, seed)
    rotation.forward(rotated)
    tolerance = 1e-5 if dtype is np.float32 else 1e-12
    assert np.linalg.norm(rotated) == pytest.approx(np.linalg.norm(vector), rel=tolerance)
    rotation.backward(rotated)
    np.testing.assert_allclose(rotated, vector, rtol=0, atol=5 * tolerance)


@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 7, 12, 64, 100, 257])
def test_it_is_an_orthogonal_matrix_that_pads_nothing(dimension: int) -> None:
    columns = []
    for unit in np.eye(dimension):
        Rotation(dimension, seed=9).forward(unit)
        columns.append(unit)
    matrix = np.array(columns)
    assert matrix.shape == (dimension, dimension)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(dimension), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dimension", [999_999, 2**20, 10**7])
def test_large_updates_keep_their_norm_as_accounting_assumes_and_come_back(dimension: int) -> None:
    vector = np.random.default_rng(1).normal(size=dimension).astype(np.float32)
    rotated = vector.copy()
    rotation = Rotation(dimension, seed=5)
    rotation.forward(rotated)
    norms = [math.sqrt(float(np.dot(each, each))) for each in (vector.astype(float), rotated.astype(float))]
    assert norms[1] == pytest.approx(norms[0], rel=6.2e-6)
    rotation.backward(rotated)
    assert float(np.linalg.norm(rotated - vector)) <= 2 * 6.2e-6 * norms[0]


@pytest.mark.parametrize("dimension", [1, 3, 255, 650, 7850, 2**20 + 1, 10**7, 2**30 - 1, 2**30])
def test_stages_are_no_more_than_the_proof_of_the_norm_counts(dimension: int) -> None:
    # The proof in codec/clip.py: at most 2^36 in block and column together, two of each at the most.
    block, rows = _sizes(dimension)
    assert block * rows <= 2**36
    assert block * rows >= 64 * dimension or dimension < 256
    if dimension < 10_000:
        assert len(_steps(dimension, 0)) <= 4


def adversarial(dimension: int) -> dict[str, Vector]:
    """Updates that a rotation by transforms of blocks could leave uneven, of norm sqrt(dimension)."""
    rng = np.random.default_rng(dimension)
    block, rows = _sizes(dimension)
    positions = np.arange(dimension)
    walsh = 1.0 - 2.0 * (np.bitwise_count(positions & 0b1010110) % 2)
    half = 1 << ((dimension - 1).bit_length() - 1)
    updates = {
        "first": positions == 0,
        "last": positions == dimension - 1,
        "two neighbors": positions < 2,
        "32 neighbors": positions < 32,
        "first half": positions < half,
        "last half": positions >= dimension - half,
        "a normal end": np.where(positions >= dimension - 64, rng.normal(size=dimension), 0.0),
        "border of blocks": (positions == block - 1) | (positions == block % dimension),
        "one in each row": positions % max(dimension // rows, 1) == 0,
        "all equal": np.ones(dimension),
        "a row of the Hadamard matrix": walsh,
        "such a row in one block": np.where(positions < block, walsh, 0.0),
        "sparse": rng.random(dimension) < 0.01,
        "dense": rng.normal(size=dimension),
    }
    return {name: one * math.sqrt(dimension / np.sum(one**2)) for name, one in updates.items() if np.any(one)}


@pytest.mark.parametrize("dimension", [257, 650, 1023, 4096, 7850])
def test_any_update_becomes_nearly_normal_numbers_of_one_variance(dimension: int) -> None:
    """Sixteenths of the rotated vector have mean square 1, over seeds, and fourth moments are at most normal.

    A mean of m squares of normal numbers deviates by sqrt(2 / m), one of fourth powers by sqrt(96 / m). The
    bounds are six such deviations beyond 3 %, for what columns share and for second moments that are even to
    1 / 64 only: odds below 1 to 10^8 for each.
    """
    seeds = max(30, 50_000 // dimension)
    for name, update in adversarial(dimension).items():
        second, fourth = np.zeros(dimension), 0.0
        for seed in range(seeds):
            rotated = update.copy()
            Rotation(dimension, seed).forward(rotated)
            second += rotated**2 / seeds
            fourth += float(np.mean(rotated**4)) / seeds
        energies = [float(part.mean()) for part in np.array_split(second, 16)]
        off = 6.0 * math.sqrt(2.0 * 16.0 / (seeds * dimension)) + 0.03
        assert max(energies) < 1.0 + off, name
        assert min(energies) > 1.0 - off, name
        assert fourth < 3.0 * 1.03 + 6.0 * math.sqrt(96.0 / (seeds * dimension)), name


@pytest.mark.parametrize("dimension", [3, 7, 13, 30, 63, 100])
def test_small_updates_are_spread_evenly_over_every_coordinate(dimension: int) -> None:
    """Mean squares of single coordinates over 1000 seeds: five deviations of 4.5 % beyond what is stated."""
    for at in (0, dimension // 2, dimension - 1):
        second = np.zeros(dimension)
        for seed in range(1000):
            rotated = np.zeros(dimension)
            rotated[at] = math.sqrt(dimension)
            Rotation(dimension, seed).forward(rotated)
            second += rotated**2 / 1000
        assert second.max() < (1.04 if dimension >= 32 else 1.17) + 5 * 0.045
        assert second.min() > (0.96 if dimension >= 32 else 0.83) - 5 * 0.045


def test_an_update_in_the_first_half_does_not_stay_there() -> None:
    # Of two overlapping blocks of 4096, the first 3754 of 7850 coordinates kept 92 % of the energy.
    update = np.where(np.arange(7850) < 4096, np.random.default_rng(1).normal(size=7850), 0.0)
    Rotation(7850, seed=3).forward(update)
    assert float(np.sum(update[:3754] ** 2) / np.sum(update**2)) == pytest.approx(3754 / 7850, abs=0.05)


@pytest.mark.parametrize("at", [0, 1, 34_464, 65_535, 99_999])
def test_one_large_coordinate_is_spread_over_all(at: int) -> None:
    vector = np.zeros(100_000)
    vector[at] = math.sqrt(100_000)
    Rotation(100_000, seed=3).forward(vector)
    # Of normal numbers 1 in 4 * 10^11 is above 7. Some 84 equal numbers of random signs cancel 1 time in 12.
    assert np.abs(vector).max() < 7.0
    assert np.count_nonzero(np.abs(vector) > 1e-3) > 0.85 * 100_000


def test_rounds_rotate_differently_and_a_seed_always_alike() -> None:
    vectors = [np.ones(64) for _ in range(3)]
    for vector, seed in zip(vectors, (1, 2, 1), strict=True):
        Rotation(64, seed).forward(vector)
    assert not np.array_equal(vectors[0], vectors[1])
    np.testing.assert_array_equal(vectors[0], vectors[2])


@pytest.mark.parametrize(
    ("dimension", "dtype", "digest"),
    [
        (650, np.float32, "e53b89763b3c82cb"),
        (7850, np.float32, "53c03029eb44af76"),
        (7850, np.float64, "5e19f23e6b05a53f"),
        (4096, np.float64, "2f80eff45c1819f0"),
    ],
)
def test_a_seed_gives_the_same_bits_on_any_machine(dimension: int, dtype: type, digest: str) -> None:
    vector = (np.arange(dimension) % 97 - 48).astype(dtype) / dtype(64.0)
    Rotation(dimension, seed=12345).forward(vector)
    little_endian = vector.astype(vector.dtype.newbyteorder("<"))
    assert hashlib.sha256(little_endian.tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("vector", [np.zeros(5), np.zeros((2, 2)), np.zeros(8)[::2], np.zeros(4, np.float16)])
def test_what_does_not_fit_is_refused(vector: NDArray[np.generic]) -> None:
    with pytest.raises(InvalidUpdateError):
        Rotation(4, 0).forward(vector)
