"""Entropy-coded payloads: close to the entropy, one for each vector, safe on hostile bytes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_privquant.codec.entropy import (
    WORTHWHILE_SAVING,
    expected_saving,
    pack_likely_indices,
    unpack_likely_indices,
)
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.packing.pack import HEADER_BYTES, packed_size

SKEWED = [70, 10, 10, 10]


def test_equal_levels_save_nothing() -> None:
    assert expected_saving([5, 5, 5, 5]) == pytest.approx(0.0, abs=1e-12)
    # Base-3 digits already take 1.6 bits of the 1.585 that three equal levels need.
    assert 0.0 < expected_saving([1, 1, 1]) < WORTHWHILE_SAVING
    assert expected_saving(SKEWED) > WORTHWHILE_SAVING


@pytest.mark.parametrize(
    "frequencies", [[1], [1, 0], [1, -1], [0.5, 0.5], [[1, 1], [1, 1]], [1, 2**33], [1] * 65537]
)
def test_bad_frequencies_are_refused(frequencies: list[int]) -> None:
    with pytest.raises(InvalidSpecError, match="frequencies"):
        expected_saving(frequencies)


class TestCoder:
    @pytest.fixture(autouse=True)
    def _needs_the_coder(self) -> None:
        pytest.importorskip("constriction")

    @settings(deadline=None, max_examples=100)
    @given(
        frequencies=st.lists(st.integers(1, 2**32), min_size=2, max_size=300),
        length=st.integers(0, 300),
        seed=st.integers(0, 1000),
    )
    def test_round_trip(self, frequencies: list[int], length: int, seed: int) -> None:
        indices = np.random.default_rng(seed).integers(0, len(frequencies), length)
        payload = pack_likely_indices(indices, frequencies)
        unpacked = unpack_likely_indices(payload, frequencies, length)
        assert unpacked.dtype == (np.uint8 if len(frequencies) <= 256 else np.uint16)
        np.testing.assert_array_equal(unpacked, indices)

    def test_saves_what_was_expected(self) -> None:
        # More than one chunk, so that the order of the chunks is tested too.
        length = (1 << 20) + 1000
        indices = np.random.default_rng(0).choice(4, length, p=np.array(SKEWED) / 100).astype(np.uint8)
        payload = pack_likely_indices(indices, SKEWED)
        np.testing.assert_array_equal(unpack_likely_indices(payload, SKEWED, length), indices)
        saving = 1.0 - len(payload) / packed_size(length, num_levels=4)
        assert saving == pytest.approx(expected_saving(SKEWED), abs=0.005)

    def test_known_bytes(self) -> None:
        """Payloads outlive a process: another release of the coder must read them."""
        payload = pack_likely_indices([0, 3, 2, 1, 0, 0, 0, 1] * 3, SKEWED)
        assert payload[:HEADER_BYTES].hex() == "50510103040000001800000000000000"
        assert payload[HEADER_BYTES:].hex() == "63af654b" + "c362d776aa31448f03000000"

    def test_wrong_payloads_are_refused(self) -> None:
        indices = np.arange(200) % 4
        payload = pack_likely_indices(indices, SKEWED)
        wrong = [
            payload[:HEADER_BYTES],
            payload[:-1],
            payload[:-4],
            payload + b"\0",
            payload + b"\0\0\0\0",
            payload + b"\1\0\0\0",
            payload[:HEADER_BYTES] + b"abcd" + payload[HEADER_BYTES + 4 :],
        ]
        for bytes_received in wrong:
            with pytest.raises(InvalidUpdateError, match="payload"):
                unpack_likely_indices(bytes_received, SKEWED, 200)
        with pytest.raises(InvalidUpdateError, match="law"):
            unpack_likely_indices(payload, [71, 10, 10, 10], 200)
        with pytest.raises(InvalidUpdateError, match="length"):
            unpack_likely_indices(payload, SKEWED, 201)
        with pytest.raises(InvalidUpdateError, match=r"indices: 4 is outside 0\.\.3"):
            pack_likely_indices([4], SKEWED)

    @settings(deadline=None, max_examples=500)
    @given(body=st.binary(max_size=40), length=st.integers(0, 100))
    def test_random_bytes_are_refused_or_canonical(self, body: bytes, length: int) -> None:
        head = pack_likely_indices(np.zeros(length, np.uint8), SKEWED)[: HEADER_BYTES + 4]
        payload = head + body[: len(body) // 4 * 4]
        try:
            indices = unpack_likely_indices(payload, SKEWED, length)
        except InvalidUpdateError:
            return
        assert pack_likely_indices(indices, SKEWED) == payload

    def test_empty_words_for_many_coordinates_end_in_time(self) -> None:
        """A short payload may claim any length, but the receiver decodes only the one it expects."""
        head = pack_likely_indices([0], SKEWED)
        with pytest.raises(InvalidUpdateError, match="length"):
            unpack_likely_indices(head, SKEWED, 10**15)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "constriction", None)
    with pytest.raises(InvalidSpecError, match=r"fl-privquant\[entropy\]"):
        pack_likely_indices([0], SKEWED)
