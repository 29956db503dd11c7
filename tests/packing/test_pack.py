"""Payloads: one for each vector, byte for byte, and nothing else is let in."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.packing.pack import (
    HEADER_BYTES,
    pack_codes,
    pack_indices,
    packed_size,
    unpack_codes,
    unpack_indices,
)

# The first call compiles or loads the kernels.
relaxed = settings(deadline=None, max_examples=150)

levels = st.one_of(st.integers(2, 300), st.sampled_from([565, 1024, 1625, 4097, 7131, 7132, 65535, 65536]))
lengths = st.one_of(st.integers(0, 400), st.integers(65_500, 66_000))


def vector(seed: int, length: int, bound: int) -> np.ndarray:
    """Integers below ``bound``: uniform, or all at one end, where carries and borrows would show."""
    rng = np.random.default_rng(seed)
    if seed % 5 == 0:
        return np.full(length, bound - 1)
    return rng.integers(0, bound, length)


def digits_per_word(num_levels: int) -> int:
    count = 0
    while num_levels ** (count + 1) <= 2**64:
        count += 1
    return count


def reference_bits(values: list[int], width: int) -> bytes:
    number = sum(value << (i * width) for i, value in enumerate(values))
    return number.to_bytes((len(values) * width + 7) // 8, "little")


def reference_digits(values: list[int], base: int) -> bytes:
    per_word = digits_per_word(base)
    body = b""
    for start in range(0, len(values), per_word):
        part = values[start : start + per_word]
        number = sum(value * base**i for i, value in enumerate(part))
        size = 8 if len(part) == per_word else ((base ** len(part) - 1).bit_length() + 7) // 8
        body += number.to_bytes(size, "little")
    return body


@relaxed
@given(num_levels=levels, length=lengths, seed=st.integers(0, 1000))
def test_indices_round_trip(num_levels: int, length: int, seed: int) -> None:
    indices = vector(seed, length, num_levels)
    payload = pack_indices(indices, num_levels)
    unpacked = unpack_indices(payload, num_levels, length)
    assert unpacked.dtype == (np.uint8 if num_levels <= 256 else np.uint16)
    np.testing.assert_array_equal(unpacked, indices)
    assert isinstance(payload, bytes)
    assert len(payload) == packed_size(length, num_levels=num_levels)


@relaxed
@given(width=st.integers(1, 32), length=lengths, seed=st.integers(0, 1000))
def test_codes_round_trip(width: int, length: int, seed: int) -> None:
    codes = vector(seed, length, 1 << width)
    payload = pack_codes(codes, width)
    unpacked = unpack_codes(payload, width, length)
    assert unpacked.dtype == np.uint32
    np.testing.assert_array_equal(unpacked, codes)
    assert len(payload) == packed_size(length, width=width) == HEADER_BYTES + (length * width + 7) // 8


@pytest.mark.parametrize("num_levels", range(2, 301))
def test_indices_are_the_documented_bytes(num_levels: int) -> None:
    for length in (1, 63, 64, 65, 130):
        indices = vector(num_levels, length, num_levels)
        body = pack_indices(indices, num_levels)[HEADER_BYTES:]
        width = (num_levels - 1).bit_length()
        if digits_per_word(num_levels) * width > 64:
            assert body == reference_digits(indices.tolist(), num_levels)
        else:
            assert body == reference_bits(indices.tolist(), width)


@pytest.mark.parametrize("width", range(1, 33))
def test_codes_are_the_documented_bytes(width: int) -> None:
    for length in (1, 63, 64, 65, 200):
        codes = vector(width, length, 1 << width)
        assert pack_codes(codes, width)[HEADER_BYTES:] == reference_bits(codes.tolist(), width)


@pytest.mark.parametrize(
    ("pack", "values", "parameter", "expected"),
    [
        (pack_indices, [], 4, "50510101040000000000000000000000"),
        (pack_indices, [0, 1, 2, 3, 3, 2], 4, "50510101040000000600000000000000" + "e40b"),
        # 3^40 - 1 is 0xa8b8b452291fe820.
        (pack_indices, [2] * 41, 3, "50510101030000002900000000000000" + "20e81f2952b4b8a8" + "02"),
        (pack_indices, [256, 0, 1], 257, "50510101010100000300000000000000" + "00010400"),
        (pack_codes, [1, 2, 3], 12, "505101020c0000000300000000000000" + "0120000300"),
        (pack_codes, [2**32 - 1, 1], 32, "50510102200000000200000000000000" + "ffffffff01000000"),
    ],
)
def test_known_bytes(
    pack: Callable[[list[int], int], bytes], values: list[int], parameter: int, expected: str
) -> None:
    assert pack(values, parameter).hex() == expected


@pytest.mark.parametrize(
    ("num_levels", "bits"),
    [(2, 1), (3, 1.6), (4, 2), (5, 64 / 27), (6, 64 / 24), (7, 64 / 22), (8, 3), (14, 4), (65536, 16)],
)
def test_bits_per_coordinate_is_what_is_spent(num_levels: int, bits: float) -> None:
    spent = 8 * (len(pack_indices(np.zeros(10**5, dtype=np.uint16), num_levels)) - HEADER_BYTES) / 10**5
    assert spent == pytest.approx(bits, rel=1e-3)


def test_every_grouping_saves() -> None:
    for num_levels in range(2, 8000):
        bits = 8 * (packed_size(64_000, num_levels=num_levels) - HEADER_BYTES) / 64_000
        assert bits <= (num_levels - 1).bit_length()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64])
def test_any_integers_any_shape_any_strides(dtype: type) -> None:
    grid = np.arange(600, dtype=np.int64).reshape(20, 30) % 3
    indices = grid.astype(dtype)
    expected = pack_indices(grid.ravel(), 3)
    assert pack_indices(indices, 3) == expected
    assert pack_indices(np.asfortranarray(indices), 3) == expected
    assert pack_indices(indices.astype(np.dtype(dtype).newbyteorder(">")), 3) == expected
    assert pack_codes(indices[::2, 1::3], 2) == pack_codes(grid[::2, 1::3].ravel(), 2)
    assert pack_codes(indices.ravel()[1:], 2) == pack_codes(grid.ravel()[1:], 2)
    assert pack_indices(np.array(2, dtype=dtype), 3) == pack_indices([2], 3)


def test_numpy_numbers_are_numbers() -> None:
    payload = pack_indices([1, 2], np.int64(3))  # type: ignore[arg-type]
    assert unpack_indices(payload, np.int32(3), np.int64(2)).tolist() == [1, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda p: np.frombuffer(p, np.uint8)])
def test_any_buffer_unpacks(wrap: type) -> None:
    indices = np.arange(1000) % 5
    np.testing.assert_array_equal(unpack_indices(wrap(pack_indices(indices, 5)), 5, 1000), indices)
    shifted = memoryview(b"x" + pack_codes(indices, 3))[1:]
    np.testing.assert_array_equal(unpack_codes(shifted, 3, 1000), indices)


def test_unpacked_arrays_are_the_callers_own() -> None:
    for values in (unpack_codes(pack_codes([7], 32), 32, 1), unpack_indices(pack_indices([7], 256), 256, 1)):
        assert values.flags.writeable
        values[0] = 1
        assert values.tolist() == [1]


@pytest.mark.parametrize("bad", [[4], [-1], [0, 10**6]])
def test_values_out_of_range_are_not_packed(bad: list[int]) -> None:
    with pytest.raises(InvalidUpdateError, match=r"outside 0\.\.3"):
        pack_indices(bad, 4)
    with pytest.raises(InvalidUpdateError, match=r"outside 0\.\.3"):
        pack_codes(bad, 2)


def test_floats_are_not_packed() -> None:
    with pytest.raises(InvalidUpdateError, match="float64"):
        pack_indices([0.0, 1.0], 4)


@pytest.mark.parametrize("num_levels", [-1, 0, 1, 65537])
def test_impossible_levels(num_levels: int) -> None:
    with pytest.raises(InvalidSpecError):
        pack_indices([0], num_levels)
    with pytest.raises(InvalidSpecError):
        unpack_indices(b"", num_levels, 0)


@pytest.mark.parametrize("width", [-1, 0, 33])
def test_impossible_widths(width: int) -> None:
    with pytest.raises(InvalidSpecError):
        pack_codes([0], width)
    with pytest.raises(InvalidSpecError):
        unpack_codes(b"", width, 0)


def test_packed_size_wants_one_layout() -> None:
    for arguments in ({}, {"num_levels": 4, "width": 2}):
        with pytest.raises(InvalidSpecError, match="one of the two"):
            packed_size(1, **arguments)
    with pytest.raises(InvalidSpecError, match="length"):
        packed_size(-1, width=2)


def with_body(num_levels: int, length: int, body: bytes) -> bytes:
    return struct.pack("<2sBBIQ", b"PQ", 1, 1, num_levels, length) + body


PAYLOAD = with_body(4, 101, reference_bits([i % 4 for i in range(101)], 2))


def changed(at: int, value: int) -> bytes:
    altered = bytearray(PAYLOAD)
    altered[at] = value
    return bytes(altered)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "0 bytes"),
        (PAYLOAD[:15], "15 bytes"),
        (PAYLOAD[:16], "16 bytes, expected 42"),
        (PAYLOAD[:-1], "41 bytes, expected 42"),
        (PAYLOAD + b"\0", "43 bytes, expected 42"),
        (changed(0, 0), "magic"),
        (changed(2, 2), "version 2 is not 1, .* install the same fl-privquant"),
        (changed(3, 2), "kind 2, expected 1"),
        (changed(3, 9), "kind 9, expected 1"),
        (changed(4, 5), "number of levels 5, expected 4"),
        (changed(8, 100), "length 100, expected 101"),
        (changed(15, 255), "length"),
        (changed(41, 0x0C), "last byte 0x0c"),
        ("PQ", "str"),
        (memoryview(PAYLOAD)[::2], "contiguous"),
    ],
)
def test_malformed_payloads_are_refused(payload: bytes, message: str) -> None:
    with pytest.raises(InvalidUpdateError, match=message):
        unpack_indices(payload, 4, 101)


def test_what_was_not_asked_for_is_refused() -> None:
    assert pack_indices(np.arange(101) % 4, 4) == PAYLOAD
    with pytest.raises(InvalidUpdateError, match="number of levels 4, expected 3"):
        unpack_indices(PAYLOAD, 3, 101)
    with pytest.raises(InvalidUpdateError, match="length 101, expected 102"):
        unpack_indices(PAYLOAD, 4, 102)
    with pytest.raises(InvalidUpdateError, match="kind 1, expected 2"):
        unpack_codes(PAYLOAD, 4, 101)
    with pytest.raises(InvalidUpdateError, match="width 3, expected 2"):
        unpack_codes(pack_codes([1], 3), 2, 1)


def test_digits_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidUpdateError, match=r"indices: 15 is outside 0\.\.13"):
        unpack_indices(with_body(14, 2, b"\xf0"), 14, 2)
    for num_levels in (3, 5, 6, 7, 10, 11, 565, 1500, 7131):
        per_word = digits_per_word(num_levels)
        largest = num_levels**per_word - 1
        fits = unpack_indices(
            with_body(num_levels, per_word, largest.to_bytes(8, "little")), num_levels, per_word
        )
        assert np.all(fits == num_levels - 1)
        for number in (largest + 1, 2**64 - 1):
            with pytest.raises(InvalidUpdateError, match="word 0"):
                unpack_indices(
                    with_body(num_levels, per_word, number.to_bytes(8, "little")), num_levels, per_word
                )
    with pytest.raises(InvalidUpdateError, match="last word is 243"):
        unpack_indices(with_body(3, 5, b"\xf3"), 3, 5)


@settings(deadline=None, max_examples=400)
@given(
    body=st.binary(max_size=80),
    num_levels=st.integers(2, 300),
    length=st.integers(0, 200),
    fit=st.booleans(),
)
def test_random_bodies_are_refused_or_canonical(body: bytes, num_levels: int, length: int, fit: bool) -> None:
    if fit:
        size = packed_size(length, num_levels=num_levels) - HEADER_BYTES
        body = (body * size)[:size] if body else bytes(size)
    payload = with_body(num_levels, length, body)
    try:
        indices = unpack_indices(payload, num_levels, length)
    except InvalidUpdateError:
        return
    assert pack_indices(indices, num_levels) == payload


@settings(deadline=None, max_examples=300)
@given(payload=st.binary(max_size=200), width=st.integers(1, 32), length=st.integers(0, 400))
def test_random_bytes_never_crash(payload: bytes, width: int, length: int) -> None:
    for start in (b"", struct.pack("<2sBBIQ", b"PQ", 1, 2, width, length)):
        try:
            codes = unpack_codes(start + payload, width, length)
        except InvalidUpdateError:
            continue
        assert pack_codes(codes, width) == start + payload


def test_flipped_bits_never_give_the_same_vector() -> None:
    indices = np.arange(50) % 3
    payload = pack_indices(indices, 3)
    decoded = refused = 0
    for bit in range(8 * len(payload)):
        altered = bytearray(payload)
        altered[bit // 8] ^= 1 << bit % 8
        try:
            assert not np.array_equal(unpack_indices(altered, 3, 50), indices)
            decoded += 1
        except InvalidUpdateError:
            refused += 1
    # Flips of the header are refused, and most of those of the values give another vector.
    assert decoded > 0
    assert refused > 0
