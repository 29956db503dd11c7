"""The encode kernel: exact alias tables, one answer for every layout, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.sampling import _loops
from fl_privquant.sampling.kernel import Sampler
from fl_privquant.sampling.stream import RandomStream


def dithered_response(levels: int, keep: float = 0.5) -> CertifiedTable:
    """Randomized rounding to ``levels`` values, replaced by a uniform one with odds 1 - keep."""
    values = np.linspace(-1.0, 1.0, levels) / keep
    rows = keep * np.eye(levels) + (1.0 - keep) / levels
    distribution = OutputDistribution.from_knots(values, values * keep, rows)
    return CertifiedTable.from_distribution(distribution, Codebook.from_values(values), np.inf)


def sixteen_bit_table() -> CertifiedTable:
    """65536 levels, one piece: weights 1, 3, 5 ... and their mirror image."""
    falling = 65536 + 65535 - 2 * np.arange(65536)
    outer = 3.0 * (1.0 + 1e-4)
    book = Codebook(np.arange(65536), step=2 * outer / 65535, offset=-outer)
    return CertifiedTable(book, np.stack([falling, falling[::-1]]), np.array([0]), np.array([1]))


def uneven_table(means: list[int], draw) -> CertifiedTable:
    """Values -2, 0, 2 and a row at each of the given means (units of 2^-32 codes), else arbitrary."""
    rows = []
    for mean in means:
        twos = draw(st.integers(max(0, mean - TOTAL_WEIGHT), mean // 2))
        rows.append([TOTAL_WEIGHT - mean + twos, mean - 2 * twos, twos])
    pieces = np.arange(len(means) - 1)
    return CertifiedTable(Codebook(np.arange(3), 2.0, -2.0), np.array(rows), pieces, pieces + 1)


def unpack(cells: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """(R, C) alias and threshold of each cell."""
    by_row = cells.astype(np.int64).reshape(-1, TOTAL_WEIGHT >> shift)
    return by_row >> shift, by_row & ((1 << shift) - 1)


def drawn_weights(cells: np.ndarray, shift: int, levels: int) -> np.ndarray:
    """(R, m) of the 2^32 values of a draw, how many give each output."""
    aliases, thresholds = unpack(cells, shift)
    weights = np.zeros((len(aliases), max(levels, aliases.shape[1])), dtype=np.int64)
    for row, alias, threshold in zip(weights, aliases, thresholds, strict=True):
        row[: threshold.size] += threshold
        np.add.at(row, alias, (1 << shift) - threshold)
    assert not weights[:, levels:].any()
    return weights[:, :levels]


def reference(sampler: Sampler, x: np.ndarray, words: np.ndarray, clip: float = 1.0) -> np.ndarray:
    """The same draws, with a search instead of a grid and one step after the other."""
    distribution, tables = sampler.table.distribution, sampler._tables
    scaled = np.clip(x.astype(np.float64) / clip, -1.0, 1.0)
    piece = np.clip(np.searchsorted(distribution.starts, scaled, side="right") - 1, 0, None)
    threshold = (scaled - distribution.starts[piece]) * (
        TOTAL_WEIGHT / (distribution.ends - distribution.starts)[piece]
    )
    at_end = (words >> np.uint64(32)).astype(np.float64) + 0.5 < threshold
    row = np.where(at_end, sampler.table.end_rows[piece], sampler.table.start_rows[piece])
    low = (words & np.uint64(0xFFFFFFFF)).astype(np.int64)
    aliases, thresholds = unpack(tables.cells, tables.shift)
    own, rest = low >> tables.shift, low & ((1 << tables.shift) - 1)
    return np.where(rest < thresholds[row, own], own, aliases[row, own])


@st.composite
def weight_rows(draw) -> np.ndarray:
    levels = draw(st.integers(2, 40))
    edge = st.sampled_from([0, 1, TOTAL_WEIGHT // 2, TOTAL_WEIGHT - 1, TOTAL_WEIGHT])
    cut = st.one_of(edge, st.integers(0, TOTAL_WEIGHT), st.integers(0, 64).map(lambda k: k << 26))
    cuts = st.lists(cut, min_size=levels - 1, max_size=levels - 1).map(sorted)
    rows = draw(st.lists(cuts, min_size=1, max_size=4))
    return np.diff(np.array([[0, *row, TOTAL_WEIGHT] for row in rows], dtype=np.int64), axis=1)


@settings(deadline=None, max_examples=300)
@given(weight_rows())
def test_alias_cells_draw_the_exact_weights(weights: np.ndarray) -> None:
    levels = weights.shape[1]
    shift = 32 - (levels - 1).bit_length()
    np.testing.assert_array_equal(drawn_weights(_loops.alias_cells(weights, shift), shift, levels), weights)


@pytest.mark.parametrize("levels", [2, 3, 4, 5, 16, 17, 256, 257])
def test_the_prepared_tables_are_exact(levels: int) -> None:
    sampler = Sampler(dithered_response(levels))
    tables = sampler._tables
    drawn = drawn_weights(tables.cells, tables.shift, levels)
    np.testing.assert_array_equal(drawn, sampler.table.weights)
    row_cells = TOTAL_WEIGHT >> tables.shift
    np.testing.assert_array_equal(tables.rows[0::2], sampler.table.start_rows * row_cells)
    np.testing.assert_array_equal(tables.rows[1::2], sampler.table.end_rows * row_cells)
    assert sampler.encode([0.0]).dtype == (np.uint8 if levels <= 256 else np.uint16)


def test_sixteen_bits() -> None:
    sampler = Sampler(sixteen_bit_table())
    tables = sampler._tables
    drawn = drawn_weights(tables.cells, tables.shift, 65536)
    np.testing.assert_array_equal(drawn, sampler.table.weights)
    x = np.linspace(-1.1, 1.1, 70_001)
    stream = RandomStream.seeded(3)
    indices = sampler.encode(x, stream=stream)
    assert indices.dtype == np.uint16
    assert indices.min() < 300
    assert indices.max() > 65_200
    np.testing.assert_array_equal(indices, reference(sampler, x, RandomStream.seeded(3).words(x.size)))


@st.composite
def uneven_tables(draw) -> CertifiedTable:
    # From half a code to one and a half is from -1 to 1; a run of neighbors is pieces 5e-10 long.
    inside = st.integers(TOTAL_WEIGHT // 2, 3 * TOTAL_WEIGHT // 2)
    means = {TOTAL_WEIGHT // 2, 3 * TOTAL_WEIGHT // 2, *draw(st.lists(inside, max_size=12))}
    for start in draw(st.lists(inside, max_size=3)):
        means.update(range(start, min(start + draw(st.integers(1, 40)), 3 * TOTAL_WEIGHT // 2)))
    return uneven_table(sorted(means), draw)


@settings(deadline=None, max_examples=100)
@given(table=uneven_tables(), clip=st.sampled_from([1.0, 0.1, 3.7, 1e-300, 1e290]), seed=st.integers(0, 99))
def test_pieces_of_any_length_are_found(table: CertifiedTable, clip: float, seed: int) -> None:
    sampler = Sampler(table)
    knots = table.knots
    x = np.concatenate(
        [
            knots,
            np.nextafter(knots, np.inf),
            np.nextafter(knots, -np.inf),
            np.linspace(-1.2, 1.2, 500),
            np.array([-0.0, 5e-324, -1e9]),
        ]
    )
    x = np.tile(x * clip, 3)
    indices = sampler.encode(x, clip=clip, stream=RandomStream.seeded(seed))
    np.testing.assert_array_equal(
        indices, reference(sampler, x, RandomStream.seeded(seed).words(x.size), clip)
    )


def test_many_uneven_pieces() -> None:
    # Half of 4000 knots within 1e-5 of zero: no grid in bounds separates them.
    rng = np.random.default_rng(0)
    middle = TOTAL_WEIGHT
    means = np.unique(
        np.concatenate(
            [
                rng.integers(middle // 2, 3 * middle // 2, 2000),
                rng.integers(middle - 10**4, middle + 10**4, 2000),
                [middle // 2, 3 * middle // 2],
            ]
        )
    )
    twos = rng.integers(np.maximum(0, means - TOTAL_WEIGHT), means // 2 + 1)
    weights = np.stack([TOTAL_WEIGHT - means + twos, means - 2 * twos, twos], axis=1)
    pieces = np.arange(means.size - 1)
    table = CertifiedTable(Codebook(np.arange(3), 2.0, -2.0), weights, pieces, pieces + 1)
    sampler = Sampler(table)
    assert sampler._tables.first_step > 1
    x = np.concatenate([table.knots, rng.uniform(-1, 1, 50_000), rng.uniform(-1e-5, 1e-5, 50_000)])
    indices = sampler.encode(x, stream=RandomStream.seeded(1))
    np.testing.assert_array_equal(indices, reference(sampler, x, RandomStream.seeded(1).words(x.size)))


def test_pieces_beyond_the_input_range_do_no_harm() -> None:
    # Knots at -1.8, -1.2, -0.2 ... 1.8: some pieces no input can reach.
    knots = np.array([-1.8, -1.2, -0.2, 0.9, 1.2, 1.8])
    rows = np.stack([0.3 - knots / 6, 0.4 + 0 * knots, 0.3 + knots / 6], axis=1)
    rows += np.array([1.0, -2.0, 1.0]) * np.array([0.0, 0.02, 0.05, 0.0, 0.03, 0.0])[:, None] / 2
    distribution = OutputDistribution.from_knots([-3.0, 0.0, 3.0], knots, rows)
    book = Codebook.from_values(distribution.values)
    sampler = Sampler(CertifiedTable.from_distribution(distribution, book, np.inf))
    x = np.linspace(-1.0, 1.0, 9999)
    indices = sampler.encode(x, stream=RandomStream.seeded(2))
    np.testing.assert_array_equal(indices, reference(sampler, x, RandomStream.seeded(2).words(x.size)))


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler(dithered_response(4))


@pytest.fixture(scope="module")
def update() -> np.ndarray:
    values = np.random.default_rng(0).normal(0.0, 0.05, 77 * 1300)
    return values.astype(np.float32)


@pytest.fixture(scope="module")
def expected(sampler: Sampler, update: np.ndarray) -> np.ndarray:
    return sampler.encode(update, clip=0.1, stream=RandomStream.seeded(11))


def test_the_kernel_follows_the_reference(sampler, update, expected) -> None:
    words = RandomStream.seeded(11).words(update.size)
    np.testing.assert_array_equal(expected, reference(sampler, update, words, 0.1))


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble, ">f4", "<f4", ">f8"])
def test_precision_and_byte_order_do_not_matter(sampler, update, expected, dtype) -> None:
    indices = sampler.encode(update.astype(dtype), clip=0.1, stream=RandomStream.seeded(11))
    np.testing.assert_array_equal(indices, expected)


def unaligned(values: np.ndarray) -> np.ndarray:
    raw = np.empty(values.nbytes + 1, dtype=np.uint8)
    shifted = raw[1:].view(values.dtype)
    shifted[:] = values
    return shifted


def read_only(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(values.tobytes(), dtype=values.dtype)


@pytest.mark.parametrize(
    "layout",
    [
        lambda values: np.repeat(values, 3)[::3],
        lambda values: values[::-1].copy()[::-1],
        unaligned,
        read_only,
        lambda values: np.asfortranarray(values.reshape(-1, 77)),
        lambda values: np.kron(values.reshape(-1, 77), np.ones((2, 3), np.float32))[::2, ::3],
    ],
    ids=["strided", "reversed", "unaligned", "read-only", "columns first", "strided matrix"],
)
def test_layout_does_not_matter(sampler, update, expected, layout) -> None:
    values = layout(update)
    writable = values.flags.writeable
    indices = sampler.encode(values, clip=0.1, stream=RandomStream.seeded(11))
    np.testing.assert_array_equal(indices.ravel(), expected)
    np.testing.assert_array_equal(values.ravel(), update)
    assert indices.flags.c_contiguous
    assert values.flags.writeable == writable


def test_a_stream_is_used_up(sampler) -> None:
    x = np.zeros(1000)
    stream = RandomStream.seeded(1)
    first, second = sampler.encode(x, stream=stream), sampler.encode(x, stream=stream)
    assert not np.array_equal(first, second)
    both = sampler.encode(np.zeros(2000), stream=RandomStream.seeded(1))
    np.testing.assert_array_equal(np.concatenate([first, second]), both)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_what_is_not_finite_is_refused(sampler, bad: float, dtype) -> None:
    x = np.zeros((2, 50_000), dtype=dtype)
    x[1, 123] = x[1, 45_000] = bad
    for values in (x, np.asfortranarray(x)):
        with pytest.raises(InvalidUpdateError, match=r"2 of 100000 .* flat index 50123;"):
            sampler.encode(values)


def test_the_largest_numbers_are_clipped_not_refused(sampler) -> None:
    largest = np.finfo(np.float64).max
    assert sampler.encode([largest, -largest], clip=5e-324).shape == (2,)
    with pytest.raises(InvalidUpdateError, match="1 of 1"):
        sampler.encode(np.array([np.longdouble(largest) * 4]))


@pytest.mark.parametrize("x", [[1, 2], np.zeros(3, dtype=bool), np.zeros(2, dtype=complex), ["a"], [None]])
def test_what_is_not_floating_point_is_refused(sampler, x) -> None:
    with pytest.raises(InvalidUpdateError, match="floating point"):
        sampler.encode(x)


def test_a_refused_call_takes_no_words(sampler) -> None:
    stream = RandomStream.seeded(1)
    with pytest.raises(InvalidSpecError):
        sampler.encode([0.0], clip=-1.0, stream=stream)
    assert stream.reserve(0) == 0


def test_the_tables_cannot_be_changed(sampler) -> None:
    with pytest.raises(ValueError, match="read-only"):
        sampler._tables.cells[0] = 0


def test_importing_the_sampler_does_not_import_numba() -> None:
    code = "import sys, fl_privquant.sampling.kernel; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
