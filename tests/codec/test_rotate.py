import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard as hadamard_matrix

from fl_privquant.codec.rotate import Rotation
from fl_privquant.codec.vector_loops import hadamard
from fl_privquant.errors import InvalidUpdateError


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 1024, 4096, 8192])
def test_the_transform_is_that_of_the_hadamard_matrix(size):
    vector = np.random.default_rng(size).normal(size=size)
    expected = hadamard_matrix(size) @ vector
    hadamard(vector)
    np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-9)


def test_a_size_that_is_no_power_of_two_is_refused_before_anything_is_written():
    with pytest.raises(ValueError, match="power of two"):
        hadamard(np.zeros(6))


@given(
    dimension=st.integers(0, 5000),
    seed=st.integers(0, 2**62),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=60, deadline=None)
def test_backward_undoes_forward_and_norms_are_kept(dimension, seed, dtype):
    vector = np.random.default_rng(dimension).normal(size=dimension).astype(dtype)
    rotated = vector.copy()
    rotation = Rotation(dimension, seed)
    rotation.forward(rotated)
    tolerance = 1e-5 if dtype is np.float32 else 1e-12
    assert np.linalg.norm(rotated) == pytest.approx(np.linalg.norm(vector), rel=tolerance)
    rotation.backward(rotated)
    np.testing.assert_allclose(rotated, vector, rtol=0, atol=5 * tolerance)


@pytest.mark.parametrize("dimension", [3, 5, 7, 12, 100])
def test_it_is_an_orthogonal_matrix_that_pads_nothing(dimension):
    columns = []
    for unit in np.eye(dimension):
        Rotation(dimension, seed=9).forward(unit)
        columns.append(unit)
    matrix = np.array(columns)
    assert matrix.shape == (dimension, dimension)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(dimension), rtol=0, atol=1e-12)


@pytest.mark.parametrize("at", [0, 1, 34_464, 65_535, 99_999])
def test_one_large_coordinate_is_spread_over_all(at):
    # 65536 is the largest power of two up to 10^5: 1 becomes some 1/256 everywhere it reaches.
    vector = np.zeros(100_000)
    vector[at] = 1.0
    Rotation(100_000, seed=3).forward(vector)
    assert np.abs(vector).max() < 6.0 / 256.0
    assert np.count_nonzero(vector) >= 65_536


def test_rounds_rotate_differently_and_a_seed_always_alike():
    vectors = [np.ones(64) for _ in range(3)]
    for vector, seed in zip(vectors, (1, 2, 1), strict=True):
        Rotation(64, seed).forward(vector)
    assert not np.array_equal(vectors[0], vectors[1])
    np.testing.assert_array_equal(vectors[0], vectors[2])


@pytest.mark.parametrize("vector", [np.zeros(5), np.zeros((2, 2)), np.zeros(8)[::2], np.zeros(4, np.float16)])
def test_what_does_not_fit_is_refused(vector):
    with pytest.raises(InvalidUpdateError):
        Rotation(4, 0).forward(vector)
