"""A server that chooses clips where floats are coarse, a client whose update has extreme values.

Whatever either does, the norm of what is encoded is within what accounting assumes, or the clip is refused.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fl_privquant as pq
from fl_privquant.codec._clip import clip_l2
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidSpecError
from fl_privquant.privacy_loss.sums.gaussian_bound import NORM_ROUNDING


def encoded_vector(codec: UpdateCodec, vector: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """What the codec hands to the mechanism for this update."""
    kept: list[np.ndarray] = []
    original = UpdateCodec._draw_output

    def keep(self, given, rng):
        kept.append(np.array(given))
        return original(self, given, rng)

    with monkeypatch.context() as patch:
        patch.setattr(UpdateCodec, "_draw_output", keep)
        codec.encode({"x": vector}, pq.RandomStream.seeded(1))
    return kept[0]


def exact_norm_ratio(vector: np.ndarray, bound: float) -> float:
    """The norm over the bound, without any rounding of squares."""
    squares = sum(Fraction(float(each)) ** 2 for each in vector)
    return math.sqrt(squares / Fraction(bound) ** 2)


def layout(dimension: int, dtype: type) -> Layout:
    return Layout.of({"x": np.zeros(dimension, dtype)})


@pytest.fixture(scope="module")
def mechanism() -> pq.Mechanism:
    return pq.design("one_bit", epsilon=1.0)


@pytest.mark.parametrize("dimension", [1, 2, 7, 33, 1024, 1025])
@pytest.mark.parametrize("rotation_seed", [None, 3])
def test_small_l2_clips_hold_or_are_refused(
    mechanism: pq.Mechanism, dimension: int, rotation_seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = 0
    # The worst of rounding to multiples of 2^-149: all coordinates round up by nearly one half.
    for exponent, share in itertools.product(range(-149, -80, 4), (1.5, 1.51, 2.5, 1.0)):
        l2_clip = share * 2.0**exponent * math.sqrt(dimension)
        encoding = Encoding(mechanism, 1.0, l2_clip, rotate=rotation_seed is not None)
        try:
            codec = UpdateCodec(layout(dimension, np.float32), encoding, rotation_seed or 0)
        except InvalidSpecError:
            assert share * 2.0**exponent < 2.0**-99
            continue
        for update in (np.ones(dimension), np.linspace(-3.0, 1.0, dimension)):
            encoded = encoded_vector(codec, update.astype(np.float32), monkeypatch)
            assert exact_norm_ratio(encoded, l2_clip) <= NORM_ROUNDING
            held += 1
    assert held


def test_the_attack_that_was_found(mechanism: pq.Mechanism) -> None:
    # 1024 coordinates of 0.75 * 2^-149 each became 2^-149: 1.33 times the bound; 1.875 times at the worst.
    with pytest.raises(InvalidSpecError, match=r"l2_clip: .* for 1024 coordinates.*float32 is accurate"):
        UpdateCodec(layout(1024, np.float32), Encoding(mechanism, 1.0, 0.75 * 2.0**-149 * 32.0))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_clips_at_the_ends_of_a_types_range_are_refused(mechanism: pq.Mechanism, dtype: type) -> None:
    # A vector of float16 is computed with in float32.
    reach = np.finfo(np.float64 if dtype is np.float64 else np.float32)
    for clip, l2_clip in itertools.product((1e-300, 1e-40, 1e-38, 1e-31, 1e38, 1e305), (None, 1.0)):
        if 2.0**26 * float(reach.tiny) <= clip <= float(reach.max) / 2.0**26:
            UpdateCodec(layout(25, dtype), Encoding(mechanism, clip, l2_clip))
        else:
            with pytest.raises(InvalidSpecError, match=r"clip: .* accurate"):
                UpdateCodec(layout(25, dtype), Encoding(mechanism, clip, l2_clip))


@pytest.mark.parametrize(
    ("size", "bound"),
    [
        # Squares that vanish: 1e-165 squared is no float, and the norm was taken for 0.
        *itertools.product((1e-200, 1e-165, 1e-320, 5e-324), (1e-170, 1e-290)),
        # A factor that is no float: bound / norm was rounded to the smallest of them, off by a third.
        *itertools.product((1e303, 1.7e308), (1e-20, 1.3e-20, 2.2e-20, 1e-290)),
    ],
)
def test_vectors_at_the_ends_of_floats_are_clipped(size: float, bound: float) -> None:
    vector = np.full(1000, size)
    clip_l2(vector, bound)
    assert exact_norm_ratio(vector, bound) <= NORM_ROUNDING
    if size * math.sqrt(1000) > bound:
        assert exact_norm_ratio(vector, bound) >= 1.0 - 1e-5


@settings(max_examples=60)
@given(
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    st.floats(-990.0, 990.0),
    st.booleans(),
)
@example(np.float64, [1e308] * 33, -600.0, True)
@example(np.float32, [3e38] * 7 + [1e-45] * 6, -97.0, True)
@example(np.float16, [6e-8] * 25, -24.0, False)
def test_any_update_and_any_clip(dtype: type, values: list[float], exponent: float, rotate: bool) -> None:
    mechanism = pq.design("one_bit", epsilon=1.0)
    with np.errstate(over="ignore"):
        vector = np.array(values).astype(dtype)
    vector = np.nan_to_num(vector)
    l2_clip = 2.0**exponent
    try:
        codec = UpdateCodec(layout(vector.size, dtype), Encoding(mechanism, 1.0, l2_clip, rotate), 5)
    except InvalidSpecError:
        return
    with pytest.MonkeyPatch.context() as patch:
        try:
            encoded = encoded_vector(codec, vector, patch)
        except pq.InvalidUpdateError:
            # A transform of huge values may overflow: then the client encodes zeros.
            assert rotate
            return
    if np.isfinite(encoded).all():
        assert exact_norm_ratio(encoded, l2_clip) <= NORM_ROUNDING
