"""Shamir's secret sharing of 16-byte secrets, vectorised over shares and secrets.

A secret is cut into 5 limbs of at most 26 bits. Each limb is the value at 0 of a polynomial of degree
threshold - 1 over the field of p = 2^31 - 1 elements; share x = 1, 2, ... holds the 5 values at x, as
little-endian 32-bit words (20 bytes). Any ``threshold`` shares determine the secret; fewer are independent of
it.

**Shares that need not be sent.** The secret and the first threshold - 1 shares determine the polynomials, and
if these shares are uniform, so are the polynomials' coefficients. So a dealer may use as these shares numbers
that the dealer and the holder both derive from a key (:func:`share_from_stream`). The other shares follow
(:func:`complete_shares`), and differ from what their holders derive by corrections (:func:`subtract_shares`).

**Wrong shares.** The shares of a secret are a word of a Reed-Solomon code, so that t + 2 e of them determine
the secret even if e are wrong, and tell which ones are (:func:`find_wrong`). Errors are located once, on a
random combination of the limbs, by Berlekamp and Massey's algorithm on the syndromes. It takes a time that is
quadratic in the number of shares, and some milliseconds for hundreds of them.

Why not a library: the one in the dependency tree, pycryptodome's (which Flower uses), works on 16
bytes in pure Python over GF(2^128) and takes 120 ms for 101 shares at threshold 60, some hundred times as
long as the code below. Why this field: code with one prime above 2^128 and Python's integers would be
shorter, but it would be slower, take a time that depends on the secret, and leave the secret in integers that
cannot be overwritten.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl_privquant.errors import MISSING, InvalidSpecError, InvalidUpdateError

PRIME: Final = (1 << 31) - 1
"""Number of elements of the field, a Mersenne prime: remainders need no division."""

SECRET_BYTES: Final = 16
"""Bytes of a secret that is shared."""

SHARE_BYTES: Final = 20
"""Bytes of one share of it."""

STREAM_BYTES: Final = 80
"""Uniform bytes that make one share (:func:`share_from_stream`)."""

_LIMBS: Final = 5
_LIMB_BITS: Final = 26
_LIMB_WEIGHTS: Final = np.left_shift(np.uint64(1), np.arange(_LIMB_BITS, dtype=np.uint64))
# Sums of this many numbers below 2^31 stay far below 2^64.
_MAX_SHARES: Final = (1 << 16) - 1
_P: Final = np.uint64(PRIME)
_SHIFT: Final = np.uint64(31)
_WORD: Final = np.dtype("<u4")

Elements = NDArray[np.uint64]


def complete_shares(
    secret: bytes | bytearray, given: NDArray[np.uint8], num_shares: int
) -> NDArray[np.uint8]:
    """(num_shares - len(given), 20 m) the shares that follow from a secret of 16 m bytes and the first ones.

    ``given`` are the shares at 1, ..., threshold - 1. They must be uniform and secret to their holders; the
    rows returned belong to the points threshold, ..., num_shares.

    >>> secret, given = bytes(range(16)), np.zeros((2, 20), dtype=np.uint8)
    >>> shares = np.concatenate([given, complete_shares(secret, given, num_shares=5)])
    >>> combine([5, 1, 3], shares[[4, 0, 2]]) == secret
    True
    """
    threshold = len(given) + 1
    if not threshold <= num_shares <= _MAX_SHARES:
        raise InvalidSpecError(
            "threshold",
            threshold,
            f"of {num_shares} shares, expected a threshold up to the number of shares, which is at "
            f"most {_MAX_SHARES}",
        )
    if not secret or len(secret) % SECRET_BYTES:
        raise InvalidSpecError(
            "secret", MISSING, f"{len(secret)} bytes, expected a multiple of {SECRET_BYTES}"
        )
    values = np.empty((threshold, len(secret) // SECRET_BYTES * _LIMBS), dtype=np.uint64)
    values[0] = _to_limbs(secret)
    values[1:] = np.ascontiguousarray(given).view(_WORD)
    shares = extrapolate(values, num_shares).astype(_WORD).view(np.uint8)
    values.fill(0)
    return shares


def share_from_stream(stream: bytes) -> bytes:
    """A share made of uniform bytes: each word is 16 of them modulo p, which is uniform up to 2^-97.

    >>> share_from_stream(bytes(8) + bytes([1]) + bytes(71)).hex()[:8]
    '04000000'
    """
    halves = np.frombuffer(stream, dtype="<u8").reshape(-1, 2) % _P
    # 2^64 is 4 modulo p.
    words = (halves[:, 0] + halves[:, 1] * np.uint64(4)) % _P
    return words.astype(_WORD).tobytes()


def subtract_shares(shares: bytes, others: bytes) -> bytes:
    """What must be added to the other shares to give these, word by word in the field.

    >>> corrections = subtract_shares(bytes([5, 0, 0, 0]), bytes([9, 0, 0, 0]))
    >>> add_corrections(bytes([9, 0, 0, 0]), corrections) == bytes([5, 0, 0, 0])
    True
    """
    these, from_those = (np.frombuffer(words, dtype=_WORD).astype(np.uint64) for words in (shares, others))
    return ((these + _P - from_those) % _P).astype(_WORD).tobytes()


def add_corrections(shares: bytes, corrections: bytes) -> bytes:
    """The shares with their corrections added (:func:`subtract_shares`)."""
    words, added = (np.frombuffer(part, dtype=_WORD).astype(np.uint64) for part in (shares, corrections))
    return ((words + added) % _P).astype(_WORD).tobytes()


def combine(points: Sequence[int], shares: NDArray[np.uint8]) -> bytearray:
    """The secret of which ``shares`` (threshold rows or more of :func:`complete_shares`) lie at ``points``.

    Wrong shares give a wrong secret: the caller needs a way to recognize the right one. All rows
    take part, so that a single wrong one never goes unnoticed.
    Raises InvalidUpdateError where the result is no secret at all.
    """
    _check_points(points, shares)
    weights = _weights_at_zero(tuple(points))[:, None]
    values = np.ascontiguousarray(shares).view(_WORD).astype(np.uint64)
    limbs: Elements = _multiply(weights, values).sum(axis=0) % _P
    secret = _from_limbs(limbs)
    values.fill(0)
    limbs.fill(0)
    return secret


def are_shares(shares: bytes | bytearray) -> bool:
    """Whether these are bytes of shares, of one secret or of several in a row."""
    return len(shares) % SHARE_BYTES == 0 and bool((np.frombuffer(shares, dtype=_WORD) < PRIME).all())


def extrapolate(values: Elements, last: int) -> Elements:
    """(last - t + 1, m) the values at t, ..., last of m polynomials with these values at 0, ..., t - 1.

    >>> extrapolate(np.array([[1234], [1494], [1942]], dtype=np.uint64), 5).ravel().tolist()
    [2578, 3402, 4414]
    """
    weights = _weights_beyond(len(values), last)
    beyond: Elements = _multiply(weights[:, :, None], values[None]).sum(axis=1) % _P
    return beyond


def find_wrong(points: Sequence[int], shares: NDArray[np.uint8], threshold: int) -> tuple[int, ...] | None:
    """The points of wrong shares, if they are at most floor((len(points) - threshold) / 2); else None.

    A share is wrong if it is off the polynomials of degree threshold - 1 on which the others lie. With more
    wrong shares than that the answer is None, or names points whose removal leaves a secret that nobody
    shared: the caller needs a way to recognize the right one. Each wrong share is overlooked with odds of
    2^-31, over a random combination of the limbs that is drawn here.

    >>> given = np.zeros((2, 20), dtype=np.uint8)
    >>> shares = np.concatenate([given, complete_shares(bytes(range(16)), given, num_shares=7)])
    >>> shares[[1, 4], 0] ^= 1
    >>> find_wrong([1, 2, 3, 4, 5, 6, 7], shares, threshold=3)
    (2, 5)
    """
    _check_points(points, shares)
    spare = len(points) - threshold
    x = np.array(points, dtype=np.uint64)
    values = np.ascontiguousarray(shares).view(_WORD).astype(np.uint64)
    factors = np.array([secrets.randbelow(PRIME) for _ in range(values.shape[1])], dtype=np.uint64)
    combined = _multiply(values, factors).sum(axis=1) % _P
    # With v_i = 1 / prod (x_i - x_k), every polynomial f of degree below len(points) - 1 has
    # sum v_i f(x_i) = 0. So these sums, for the shares times x^j, depend on the errors and on nothing else.
    terms = _multiply(combined, _invert(_difference_products(tuple(points))))
    syndromes = []
    for _ in range(spare):
        syndromes.append(int(terms.sum() % _P))
        terms = _multiply(terms, x)
    values.fill(0)
    locator = _shortest_recurrence(syndromes)
    num_wrong = len(locator) - 1
    if 2 * num_wrong > spare:
        return None
    # Sums of powers of the wrong points obey the recurrence whose polynomial vanishes at these points.
    at = np.zeros_like(x)
    for coefficient in locator:
        at = (_multiply(at, x) + coefficient) % _P
    wrong = x[at == 0]
    return tuple(wrong.tolist()) if wrong.size == num_wrong else None


def _check_points(points: Sequence[int], shares: NDArray[np.uint8]) -> None:
    if len(points) != len(shares) or len(set(points)) != len(points):
        raise InvalidSpecError(
            "points", MISSING, f"{len(points)} for {len(shares)} shares, expected distinct ones"
        )


def _shortest_recurrence(sequence: Sequence[int]) -> Elements:
    """(L + 1,) coefficients 1, c_1, ..., c_L with s_k + c_1 s_(k-1) + ... + c_L s_(k-L) = 0 and L least.

    Berlekamp and Massey's algorithm (Massey, "Shift-register synthesis and BCH decoding", 1969).

    >>> _shortest_recurrence([1, 2, 4, 8]).tolist() == [1, PRIME - 2]
    True
    """
    size = len(sequence) + 1
    # Newest first, so that the last terms are one slice.
    newest = np.array([*sequence[::-1], 0], dtype=np.uint64)
    current, previous = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.uint64)
    current[0] = previous[0] = 1
    length, gap, last = 0, 1, 1
    for k in range(len(sequence)):
        terms = newest[size - 2 - k : size - 1 - k + length]
        mismatch = int(_multiply(current[: terms.size], terms).sum() % _P)
        if mismatch == 0:
            gap += 1
            continue
        factor = np.array(PRIME - mismatch * pow(last, -1, PRIME) % PRIME, dtype=np.uint64)
        changed = current.copy()
        changed[gap:] += _multiply(previous[: size - gap], factor)
        changed %= _P
        if 2 * length <= k:
            previous, last, length, gap = current, mismatch, k + 1 - length, 1
        else:
            gap += 1
        current = changed
    return current[: length + 1]


@lru_cache(maxsize=1024)
def _weights_at_zero(points: tuple[int, ...]) -> Elements:
    """Lagrange's weights: the value at 0 is the sum of weight times share.

    The weight of x is the product over the other points y of y / (y - x).
    """
    x = np.array(points, dtype=np.uint64)
    # The product of the differences has the other sign for each of the other points.
    product = _multiply_rows(x[:, None]) if len(points) % 2 else _P - _multiply_rows(x[:, None]) % _P
    return _multiply(product, _invert(_multiply(x, _difference_products(points))))


@lru_cache(maxsize=64)
def _weights_beyond(num_points: int, last: int) -> Elements:
    """(last - t + 1, t) Lagrange's weights: the values at 0, ..., t - 1 times row x - t give that at x.

    The weight of i at x is the product over the other j < t of (x - j) / (i - j).
    """
    factorials, inverses = [1], [0, *_invert(np.arange(1, last + 1, dtype=np.uint64)).tolist()]
    for number in range(1, last + 1):
        factorials.append(factorials[-1] * number % PRIME)
    degree, own = num_points - 1, []
    for i in range(num_points):
        divisor = factorials[i] * factorials[degree - i] * (-1) ** (degree - i)
        own.append(pow(divisor, -1, PRIME))
    rows = [
        [falling * inverses[x - i] % PRIME * own[i] % PRIME for i in range(num_points)]
        for x in range(num_points, last + 1)
        for falling in [factorials[x] * pow(factorials[x - num_points], -1, PRIME) % PRIME]
    ]
    return np.array(rows, dtype=np.uint64).reshape(-1, num_points)


@lru_cache(maxsize=1024)
def _difference_products(points: tuple[int, ...]) -> Elements:
    """The product over the other points y of x - y, for each point x."""
    x = np.array(points, dtype=np.int64)
    differences = (x[:, None] - x[None, :]) % PRIME
    np.fill_diagonal(differences, 1)
    return _multiply_rows(differences.astype(np.uint64).T)


def _invert(values: Elements) -> Elements:
    """Inverses of public numbers; the time that this takes may depend on them."""
    return np.array([pow(int(value), -1, PRIME) for value in values], dtype=np.uint64)


def _multiply_rows(factors: Elements) -> Elements:
    """The product over the rows, by halves."""
    while len(factors) > 1:
        half = len(factors) // 2
        rest = factors[2 * half :]
        factors = np.concatenate([_multiply(factors[:half], factors[half : 2 * half]), rest])
    return np.asarray(factors[0])


def _multiply(a: Elements, b: Elements) -> Elements:
    """Products of values up to 2^31, as values up to 2^31 (p may stand for 0)."""
    product = a * b
    for _ in range(2):
        product = (product & _P) + (product >> _SHIFT)
    return product


def _to_limbs(secret: bytes | bytearray) -> Elements:
    octets = np.frombuffer(secret, dtype=np.uint8).reshape(-1, SECRET_BYTES)
    bits = np.zeros((len(octets), _LIMBS * _LIMB_BITS), dtype=np.uint64)
    bits[:, : 8 * SECRET_BYTES] = np.unpackbits(octets, axis=1, bitorder="little")
    limbs = bits.reshape(-1, _LIMB_BITS) @ _LIMB_WEIGHTS
    bits.fill(0)
    return limbs


def _from_limbs(limbs: Elements) -> bytearray:
    bits = (limbs[:, None] >> np.arange(32, dtype=np.uint64)) & np.uint64(1)
    whole = bits[:, :_LIMB_BITS].reshape(-1, _LIMBS * _LIMB_BITS).astype(np.uint8)
    if bits[:, _LIMB_BITS:].any() or whole[:, 8 * SECRET_BYTES :].any():
        raise InvalidUpdateError("shares: they do not lie on one polynomial, or are too few")
    secret = bytearray(np.packbits(whole[:, : 8 * SECRET_BYTES], axis=1, bitorder="little").tobytes())
    bits.fill(0)
    whole.fill(0)
    return secret
