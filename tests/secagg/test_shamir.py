"""Shamir's sharing: known vectors, an independent implementation, any subset, and what fewer shares tell."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.secagg import shamir


def limbs_of(secret: bytes) -> list[int]:
    """The 9 limbs with Python's integers: 29 bits each, the lowest first."""
    number = int.from_bytes(secret, "little")
    return [(number >> (29 * i)) & ((1 << 29) - 1) for i in range(9)]


def at_zero(points: list[int], values: list[int]) -> int:
    """Lagrange interpolation at 0 with Python's integers."""
    total = 0
    for x, value in zip(points, values, strict=True):
        weight = 1
        for y in points:
            if y != x:
                weight = weight * y * pow(y - x, -1, shamir.PRIME) % shamir.PRIME
        total += weight * value
    return total % shamir.PRIME


def test_the_textbook_polynomial() -> None:
    """1234 + 166 x + 94 x^2, the worked example of the Wikipedia article on Shamir's scheme."""
    coefficients = np.array([[1234], [166], [94]], dtype=np.uint64)
    values = shamir.evaluate(coefficients, 6).ravel().tolist()
    assert values == [1494, 1942, 2578, 3402, 4414, 5614]


def test_evaluation_against_python_integers_at_the_limits() -> None:
    p = shamir.PRIME
    rows = [[p - 1] * 3, [p - 1, 0, 1], [0, p - 1, 2]] * 7
    values = shamir.evaluate(np.array(rows, dtype=np.uint64), 300)
    for x in (1, 2, 77, 300):
        for column in range(3):
            exact = sum(row[column] * x**power for power, row in enumerate(rows)) % p
            assert int(values[x - 1, column]) == exact


def test_known_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of the shares are fixed: little-endian words, points 1, 2, ..., 9 words a secret."""
    monkeypatch.setattr(os, "urandom", lambda size: (bytes(range(256)) * (size // 256 + 1))[:size])
    shares = shamir.split(bytes(range(1, 33)), threshold=3, num_shares=3)
    # 31 uniform bits a word, from the top of each little-endian 32-bit word drawn.
    drawn = np.frombuffer((bytes(range(256)))[: 4 * 18], dtype="<u4") >> 1
    for x in (1, 2, 3):
        words = [
            (limb + int(drawn[i]) * x + int(drawn[9 + i]) * x * x) % shamir.PRIME
            for i, limb in enumerate(limbs_of(bytes(range(1, 33))))
        ]
        assert shares[x - 1].tobytes() == np.array(words, dtype="<u4").tobytes()
    assert shares[0].tobytes().hex() == (
        "131517193e4750195c9dde1f36393c3f223445362fb13234868b903591b2d33450525435"
    )


@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_any_threshold_shares_open_the_secret(secret: bytes, threshold: int, data: st.DataObject) -> None:
    num_shares = data.draw(st.integers(threshold, 20))
    shares = shamir.split(secret, threshold, num_shares)
    points = data.draw(st.permutations(range(1, num_shares + 1)))[:threshold]
    chosen = shares[[x - 1 for x in points]]
    assert shamir.combine(points, chosen) == secret
    words = chosen.view("<u4").tolist()
    assert [at_zero(points, [row[i] for row in words]) for i in range(9)] == limbs_of(secret)


def test_every_subset_of_two_secrets_at_once() -> None:
    secret = os.urandom(64)
    shares = shamir.split(secret, 3, 6)
    assert shares.shape == (6, 72)
    for points in itertools.combinations(range(1, 7), 3):
        assert shamir.combine(points, shares[[x - 1 for x in points]]) == secret
        halves = shares[[x - 1 for x in points]][:, 36:]
        assert shamir.combine(points, np.ascontiguousarray(halves)) == secret[32:]


def test_large_thresholds() -> None:
    secret = bytes([255]) * 32
    shares = shamir.split(secret, 500, 999)
    points = list(range(999, 499, -1))
    assert shamir.combine(points, shares[[x - 1 for x in points]]) == secret


def test_fewer_shares_do_not_depend_on_the_secret() -> None:
    """A share's words are uniform whatever the secret: chi-square, fails by chance once in 10^6.

    Negative control: with threshold 1 the share is the secret, and the same test must fail.
    """

    def p_value(secret: bytes, threshold: int) -> float:
        words = np.concatenate([shamir.split(secret, threshold, 2)[0].view("<u4") for _ in range(3000)])
        counts = np.bincount(words >> np.uint32(27), minlength=16)
        return float(stats.chisquare(counts).pvalue)

    for secret in (bytes(32), bytes([255]) * 32):
        assert p_value(secret, 2) > 1e-6
        assert p_value(secret, 1) < 1e-6


def test_coefficients_are_redrawn_where_the_word_is_the_prime(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([b"\xff" * 36, b"\x05\x00\x00\x00" * 9])
    monkeypatch.setattr(os, "urandom", lambda size: next(draws))
    shares = shamir.split(bytes(32), 2, 2)
    assert shares.view("<u4").tolist() == [[2] * 9, [4] * 9]


def test_shares_of_different_polynomials_open_nothing() -> None:
    """Each limb is 29 of 31 bits: the chance that all 9 still fit is below 2^-18."""
    secret = os.urandom(32)
    shares = shamir.split(secret, 3, 5)
    shares[1] = shamir.split(secret, 3, 5)[1]
    with pytest.raises(InvalidUpdateError, match="polynomial"):
        shamir.combine([1, 2, 3], shares[:3])


def test_what_is_a_share() -> None:
    assert shamir.are_shares(shamir.split(bytes(32), 2, 2)[0].tobytes())
    assert shamir.are_shares(shamir.split(bytes(64), 2, 2).tobytes())
    assert not shamir.are_shares(bytes(35))
    assert not shamir.are_shares(bytes(68) + (shamir.PRIME).to_bytes(4, "little"))
    assert not shamir.are_shares(bytes(32) + (shamir.PRIME).to_bytes(4, "little"))
    assert shamir.are_shares(bytes(32) + (shamir.PRIME - 1).to_bytes(4, "little"))


def test_refusals() -> None:
    for threshold, shares in ((0, 3), (4, 3), (2, 1 << 16)):
        with pytest.raises(InvalidSpecError, match="threshold"):
            shamir.split(bytes(32), threshold, shares)
    for size in (0, 31, 33):
        with pytest.raises(InvalidSpecError, match="secret"):
            shamir.split(bytes(size), 2, 3)
    with pytest.raises(InvalidSpecError, match="distinct"):
        shamir.combine([1, 1], np.zeros((2, 36), dtype=np.uint8))


def test_the_modulus_is_a_mersenne_prime() -> None:
    """Lucas and Lehmer's test, which is exact for 2^p - 1."""
    exponent = 31
    assert (1 << exponent) - 1 == shamir.PRIME
    residue = 4
    for _ in range(exponent - 2):
        residue = (residue * residue - 2) % shamir.PRIME
    assert residue == 0
