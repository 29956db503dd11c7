"""Shamir's sharing: known vectors, an independent implementation, any subset, and what fewer shares tell."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from functools import partial
from operator import eq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.secagg.crypto import shamir, sharing
from fl_privquant.secagg.crypto.sharing import max_wrong_shares, open_secret


def split(secret: bytes, threshold: int, num_shares: int) -> np.ndarray:
    """(num_shares, 20 m) shares of a secret of 16 m bytes, the first drawn; row i is at the point i + 1."""
    size = threshold - 1, len(secret) // shamir.SECRET_BYTES * 5
    given = np.random.default_rng().integers(shamir.PRIME, size=size).astype("<u4").view(np.uint8)
    return np.concatenate([given, shamir.complete_shares(secret, given, num_shares)])


def limbs_of(secret: bytes) -> list[int]:
    """The 5 limbs with Python's integers: 26 bits each, the lowest first."""
    number = int.from_bytes(secret, "little")
    return [(number >> (26 * i)) & ((1 << 26) - 1) for i in range(5)]


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
    values = np.array([[1234], [1494], [1942]], dtype=np.uint64)
    assert shamir.extrapolate(values, 6).ravel().tolist() == [2578, 3402, 4414, 5614]


def test_extrapolation_against_python_integers_at_the_limits() -> None:
    p = shamir.PRIME
    coefficients = [[p - 1] * 3, [p - 1, 0, 1], [0, p - 1, 2]] * 7

    def exact(x: int) -> list[int]:
        return [sum(row[i] * x**power for power, row in enumerate(coefficients)) % p for i in range(3)]

    values = shamir.extrapolate(np.array([exact(x) for x in range(21)], dtype=np.uint64), 300)
    assert len(values) == 280
    for x in (21, 22, 77, 300):
        assert values[x - 21].tolist() == exact(x)


def test_known_shares() -> None:
    """The bytes of the shares are fixed: little-endian words, points 1, 2, ..., 5 words a secret."""
    secret, drawn = bytes(range(1, 17)), np.frombuffer(bytes(range(40)), dtype="<u4") >> 1
    shares = shamir.complete_shares(secret, drawn.view(np.uint8).reshape(2, 20), num_shares=4)
    # Of a parabola with f(0), f(1), f(2) given, f(3) = f(0) - 3 f(1) + 3 f(2).
    words = [
        (limb - 3 * int(drawn[i]) + 3 * int(drawn[5 + i])) % shamir.PRIME
        for i, limb in enumerate(limbs_of(secret))
    ]
    assert shares[0].tobytes() == np.array(words, dtype="<u4").tobytes()
    assert shares.shape == (2, 20)


def test_shares_that_are_given_fix_the_others() -> None:
    secret, given = (
        os.urandom(32),
        [shamir.share_from_stream(os.urandom(2 * shamir.STREAM_BYTES)) for _ in range(4)],
    )
    rows = np.frombuffer(b"".join(given), dtype=np.uint8).reshape(4, 40)
    rest = shamir.complete_shares(secret, rows, 9)
    assert rest.shape == (5, 40)
    shares = np.concatenate([rows, rest])
    for points in ((1, 2, 3, 4, 5), (5, 6, 7, 8, 9), (1, 9, 3, 7, 5)):
        assert shamir.combine(points, shares[[x - 1 for x in points]]) == secret
    # A threshold of 1: every share is the secret.
    alone = shamir.complete_shares(secret[:16], np.empty((0, 20), dtype=np.uint8), 2)
    assert alone.view("<u4").tolist() == [limbs_of(secret[:16])] * 2


@given(st.binary(min_size=80, max_size=80))
def test_shares_from_a_stream_are_its_numbers_modulo_the_prime(stream: bytes) -> None:
    numbers = [int.from_bytes(stream[at : at + 16], "little") for at in range(0, 80, 16)]
    words = np.frombuffer(shamir.share_from_stream(stream), dtype="<u4").tolist()
    assert words == [number % shamir.PRIME for number in numbers]


@given(st.binary(min_size=16, max_size=16), st.integers(1, 12), st.data())
def test_any_threshold_shares_open_the_secret(secret: bytes, threshold: int, data: st.DataObject) -> None:
    num_shares = data.draw(st.integers(threshold, 20))
    shares = split(secret, threshold, num_shares)
    points = data.draw(st.permutations(range(1, num_shares + 1)))[:threshold]
    chosen = shares[[x - 1 for x in points]]
    assert shamir.combine(points, chosen) == secret
    words = chosen.view("<u4").tolist()
    assert [at_zero(points, [row[i] for row in words]) for i in range(5)] == limbs_of(secret)


def test_fewer_shares_do_not_depend_on_the_secret() -> None:
    """A share's words are uniform whatever the secret: chi-square, fails by chance once in 10^6.

    Negative control: with threshold 1 the share is the secret, and the same test must fail.
    """

    def p_value(secret: bytes, threshold: int) -> float:
        words = np.concatenate([split(secret, threshold, 2)[0].view("<u4") for _ in range(3000)])
        counts = np.bincount(words >> np.uint32(27), minlength=16)
        return float(stats.chisquare(counts).pvalue)

    for secret in (bytes(16), bytes([255]) * 16):
        assert p_value(secret, 2) > 1e-6
        assert p_value(secret, 1) < 1e-6


def spoiled(shares: np.ndarray, rows: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """The shares with these rows wrong, each in some of its words."""
    changed = shares.copy()
    words = changed.view("<u4")
    for row in rows:
        columns = generator.random(words.shape[1]) < 0.4
        columns[generator.integers(words.shape[1])] = True
        shift = generator.integers(1, shamir.PRIME, words.shape[1])
        words[row] = np.where(columns, (words[row] + shift) % shamir.PRIME, words[row])
    return changed


@given(st.data())
def test_as_many_wrong_shares_as_the_code_allows_are_found(data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, 12))
    received = data.draw(st.integers(threshold, threshold + 9))
    points = data.draw(st.permutations(range(1, received + 8)))[:received]
    wrong = sorted(
        data.draw(st.permutations(points))[: data.draw(st.integers(0, (received - threshold) // 2))]
    )
    secret = data.draw(st.binary(min_size=16, max_size=16))
    shares = split(secret, threshold, received + 7)[[x - 1 for x in points]]
    generator = np.random.default_rng(data.draw(st.integers(0, 999)))
    shares = spoiled(shares, [points.index(x) for x in wrong], generator)
    found = shamir.find_wrong(points, shares, threshold)
    assert found is not None
    assert sorted(found) == wrong
    kept = [i for i, x in enumerate(points) if x not in wrong]
    assert shamir.combine([points[i] for i in kept], shares[kept]) == secret


@pytest.mark.parametrize(("threshold", "received"), [(1, 1), (1, 4), (2, 6), (3, 7), (4, 7), (5, 5), (3, 8)])
def test_every_set_of_wrong_shares_exhaustively(threshold: int, received: int) -> None:
    """All error patterns of a small code: found as far as it corrects, and one beyond by the commitment.

    With more, never a wrong secret: the commitment is the judge.
    """
    secret, generator = os.urandom(16), np.random.default_rng(threshold)
    shares = split(secret, threshold, received)
    points = list(range(1, received + 1))
    for count in range(received + 1):
        for wrong in itertools.combinations(points, count):
            changed = spoiled(shares, [x - 1 for x in wrong], generator)
            if count <= (received - threshold) // 2:
                assert shamir.find_wrong(points, changed, threshold) == wrong
            by_point = {x: changed[x - 1].tobytes() for x in points}
            opened = open_secret(by_point, threshold, partial(eq, secret))
            if count <= max_wrong_shares(received, threshold):
                assert opened == (secret, list(wrong))
            else:
                assert opened is None or opened[0] == secret


def test_wrong_shares_that_agree_with_one_another() -> None:
    """Colluders whose wrong shares lie on one polynomial of another secret: the majority decides."""
    secret, other = bytes(16), bytes([1]) * 16
    shares, others = split(secret, 4, 11), split(other, 4, 11)
    for count in range(4):
        mixed = np.concatenate([others[:count], shares[count:]])
        assert shamir.find_wrong(range(1, 12), mixed, 4) == tuple(range(1, count + 1))
    # From 8 of 11 on it is the honest ones that look wrong: only a commitment can tell.
    mixed = np.concatenate([others[:8], shares[8:]])
    assert shamir.find_wrong(range(1, 12), mixed, 4) == (9, 10, 11)
    rows = {x: mixed[x - 1].tobytes() for x in range(1, 12)}
    assert open_secret(rows, 4, partial(eq, secret)) is None


def test_hundreds_of_shares_are_decoded() -> None:
    """Guessing subsets failed for 150 holders with 3 wrong shares."""
    generator = np.random.default_rng(5)
    for received, threshold, count in ((150, 83, 3), (150, 83, 33), (501, 301, 100)):
        secret = os.urandom(16)
        wrong = sorted(generator.choice(received, count, replace=False))
        changed = spoiled(split(secret, threshold, received), wrong, generator)
        rows = {x + 1: changed[x].tobytes() for x in range(received)}
        assert open_secret(rows, threshold, partial(eq, secret)) == (secret, [x + 1 for x in wrong])


def test_suspects_are_left_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three spare shares are wrong: one has to be guessed, and a suspect saves the guessing."""
    secret, generator = os.urandom(16), np.random.default_rng(1)
    changed = spoiled(split(secret, 5, 8), [6, 7], generator)
    rows, searched, find_wrong = {x: changed[x - 1].tobytes() for x in range(1, 9)}, [], shamir.find_wrong

    def counted(points: list[int], shares: np.ndarray, threshold: int) -> tuple[int, ...] | None:
        searched.append(points)
        return find_wrong(points, shares, threshold)

    monkeypatch.setattr(shamir, "find_wrong", counted)
    assert open_secret(rows, 5, partial(eq, secret), suspects=[7]) == (secret, [7, 8])
    assert len(searched) == 2
    assert open_secret(rows, 5, partial(eq, secret)) == (secret, [7, 8])
    assert len(searched) == 2 + 8


def test_shares_of_different_polynomials_open_nothing() -> None:
    """Each limb is 26 of 31 bits: the chance that all 5 still fit is below 2^-24."""
    secret = os.urandom(16)
    shares = split(secret, 3, 5)
    shares[1] = split(secret, 3, 5)[1]
    with pytest.raises(InvalidUpdateError, match="polynomial"):
        shamir.combine([1, 2, 3], shares[:3])


def test_what_is_a_share() -> None:
    assert shamir.are_shares(split(bytes(16), 2, 2)[0].tobytes())
    assert shamir.are_shares(split(bytes(32), 2, 2).tobytes())
    assert not shamir.are_shares(bytes(19))
    assert not shamir.are_shares(bytes(36) + (shamir.PRIME).to_bytes(4, "little"))
    assert not shamir.are_shares(bytes(16) + (shamir.PRIME).to_bytes(4, "little"))
    assert shamir.are_shares(bytes(16) + (shamir.PRIME - 1).to_bytes(4, "little"))


def test_refusals() -> None:
    for threshold, shares in ((4, 3), (2, 1 << 16)):
        with pytest.raises(InvalidSpecError, match="threshold"):
            split(bytes(16), threshold, shares)
    for size in (0, 15, 17):
        with pytest.raises(InvalidSpecError, match="secret"):
            split(bytes(size), 2, 3)
    with pytest.raises(InvalidSpecError, match="distinct"):
        shamir.combine([1, 1], np.zeros((2, 20), dtype=np.uint8))


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_dealt_shares_are_those_that_each_holder_derives_and_the_corrections(size: int) -> None:
    holders, secrets, kept = [7 * i + 3 for i in range(size)], os.urandom(32), os.urandom(160)
    for dealer, threshold in itertools.product(holders, range(1, size + 1)):
        pairs = {holder: os.urandom(32) for holder in holders if holder != dealer}
        own, corrections = sharing.deal(secrets, kept, threshold, dealer, holders, pairs)
        shares = {holder: sharing.derive_share(pair, dealer, holder) for holder, pair in pairs.items()}
        needed = sharing.holders_to_correct(dealer, holders, threshold)
        for holder, correction in zip(needed, corrections, strict=True):
            shares[holder] = shamir.add_corrections(shares[holder], correction)
        rows = np.array([np.frombuffer((shares | {dealer: own})[holder], np.uint8) for holder in holders])
        points = range(1, size + 1)
        for chosen in itertools.combinations(points, threshold):
            assert shamir.combine(chosen, rows[[point - 1 for point in chosen]]) == secrets
        held = sharing.derive_held_shares(pairs, dealer)
        assert held == {peer: sharing.derive_share(pair, peer, dealer) for peer, pair in pairs.items()}
