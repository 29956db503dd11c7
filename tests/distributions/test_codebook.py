"""The codebook: lattices, sums, overflow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_privquant.distributions.codebook import FINE_MAX_CODE, Codebook
from fl_privquant.errors import CodeOverflowError, InvalidSpecError


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ([-3.0, -0.5, 0.5, 3.0], [0, 5, 7, 12]),
        ([-2.6, -0.4, 0.4, 2.6], [0, 11, 15, 26]),
        ([-2.6, -2.6 / 3, 2.6 / 3, 2.6], [0, 1, 2, 3]),
        ([-4.0, 0.2, 0.6, 4.0], [0, 21, 23, 40]),
        ([-1.0, 7.0], [0, 1]),
    ],
)
def test_the_coarsest_lattice_is_found(values: list[float], codes: list[int]) -> None:
    book = Codebook.from_values(values)
    assert book.codes.tolist() == codes
    assert book.values == pytest.approx(values, abs=1e-8)


def test_values_on_no_lattice_are_kept_to_24_bits() -> None:
    values = [-np.pi, -1 / np.e, np.sqrt(2) / 3, 3.0]
    book = Codebook.from_values(values)
    assert book.max_code == FINE_MAX_CODE
    assert book.values == pytest.approx(values, abs=4e-7)


@given(
    codes=st.lists(st.integers(1, 500), min_size=1, max_size=9, unique=True),
    num_clients=st.integers(1, 50),
    seed=st.integers(0, 1000),
)
def test_a_sum_of_codes_decodes_to_the_mean_value(codes: list[int], num_clients: int, seed: int) -> None:
    book = Codebook(np.array([0, *sorted(codes)]), 0.37, -5.5)
    indices = np.random.default_rng(seed).integers(0, book.num_levels, (num_clients, 7))
    mean = book.decode(indices, clip=0.1).mean(axis=0)
    total = book.codes[indices].sum(axis=0)
    assert book.decode_sum(total, num_clients, clip=0.1) == pytest.approx(mean, abs=1e-12)
    assert total.max() < 2 ** book.sum_bits(num_clients)


def test_overflow_is_checked() -> None:
    book = Codebook(np.array([0, FINE_MAX_CODE]), 1.0, 0.0)
    with pytest.raises(CodeOverflowError, match="more than 63"):
        book.sum_bits(2**40)
    with pytest.raises(CodeOverflowError, match=r"0\.\."):
        book.decode_sum([2 * FINE_MAX_CODE + 1], num_clients=2)
    with pytest.raises(CodeOverflowError, match="index 2"):
        book.decode([0, 2])
    with pytest.raises(CodeOverflowError, match="index -1"):
        book.decode([-1])


@pytest.mark.parametrize(
    "arguments",
    [
        {"codes": [1, 2], "step": 1.0, "offset": 0.0},
        {"codes": [0, 2, 2], "step": 1.0, "offset": 0.0},
        {"codes": [0], "step": 1.0, "offset": 0.0},
        {"codes": [0, 1], "step": 0.0, "offset": 0.0},
        {"codes": [0, 1], "step": 1.0, "offset": np.nan},
        {"codes": [0, FINE_MAX_CODE + 1], "step": 1.0, "offset": 0.0},
    ],
)
def test_bad_codebooks_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidSpecError):
        Codebook(**{**arguments, "codes": np.array(arguments["codes"])})


@pytest.mark.parametrize("values", [[1.0, 1.0], [2.0, 1.0], [0.0, np.nan], [[0.0, 1.0]], [1.0]])
def test_bad_values_are_refused(values: list[float]) -> None:
    with pytest.raises(InvalidSpecError):
        Codebook.from_values(values)
