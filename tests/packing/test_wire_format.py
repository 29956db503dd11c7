"""Wire formats: every mechanism names one that writes, reads, decodes and adds up; one may bring its own."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fl_privquant as pq
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidUpdateError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.packing.wire_format import PackedIndices, WireFormat
from tests.typical import typical

DIMENSION, CLIP, FLOAT = 50, 0.2, np.dtype(np.float32)


def encode_typical(name: str) -> tuple[Any, WireFormat, NDArray[Any]]:
    """A mechanism, its wire format, and what it makes of an update."""
    mechanism = typical(name, 0.9, delta=1e-6).for_dimension(DIMENSION)
    update = np.random.default_rng(1).normal(0, 0.1, DIMENSION).astype(FLOAT)
    encoded = mechanism.encode(update, clip=CLIP, rng=pq.RandomStream.seeded(2))
    return mechanism, mechanism.wire_format(DIMENSION, CLIP, FLOAT), encoded


@pytest.mark.parametrize("name", pq.available_mechanisms())
def test_what_is_packed_is_read_decoded_and_added_up(name: str) -> None:
    mechanism, wire, encoded = encode_typical(name)
    payload = wire.pack(encoded)
    assert len(payload) == wire.num_bytes
    np.testing.assert_array_equal(wire.unpack(payload), encoded)
    estimate = mechanism.decode(encoded, CLIP).astype(FLOAT)
    np.testing.assert_array_equal(wire.estimate(payload), estimate)
    old = np.linspace(-1.0, 1.0, 20, dtype=FLOAT)
    add = wire.on_demand(payload)
    if add is not None:
        np.testing.assert_array_equal(add(slice(10, 30), old), old + estimate[10:30])
    if mechanism.summable:
        total = np.full(DIMENSION, 7, dtype=np.int64)
        wire.add_codes(payload, total)
        np.testing.assert_array_equal(total, 7 + mechanism.to_codes(encoded))
        np.testing.assert_array_equal(wire.codes(encoded), mechanism.to_codes(encoded))


@pytest.mark.parametrize("name", pq.available_mechanisms())
def test_payloads_of_another_size_are_refused_and_add_nothing(name: str) -> None:
    mechanism, wire, encoded = encode_typical(name)
    payload = wire.pack(encoded)
    total = np.zeros(DIMENSION, dtype=np.int64)
    for bad in (payload[:-1], payload + b"\0", b""):
        with pytest.raises(InvalidUpdateError):
            wire.unpack(bad)
        with pytest.raises(InvalidUpdateError):
            wire.estimate(bad)
        if mechanism.summable:
            with pytest.raises(InvalidUpdateError):
                wire.add_codes(bad, total)
    assert not total.any()


@dataclass(frozen=True, eq=False)
class Deflated(PackedIndices):
    """The same payload, compressed: a format that nothing in the package knows."""

    def pack(self, encoded: NDArray[Any]) -> bytes:
        return zlib.compress(super().pack(encoded))

    def unpack(self, payload: bytes) -> NDArray[Any]:
        return super().unpack(zlib.decompress(payload))


class DeflatedMechanism(TableMechanism, kind="deflated in a test"):
    """A mechanism that brings its own wire format."""

    def wire_format(self, dimension: int, clip: float, dtype: np.dtype[Any]) -> WireFormat:
        return Deflated(self, dimension, clip, dtype, self.num_levels)


def test_a_mechanism_may_bring_a_format_of_its_own() -> None:
    table = pq.design("one_bit", epsilon=2.0)
    own = DeflatedMechanism("one_bit", table.table, 2.0)
    update = {"weight": np.random.default_rng(3).normal(0, 0.1, 5000).astype(FLOAT)}
    codecs = [UpdateCodec(Layout.of(update), Encoding(each, CLIP, 0.5, rotate=True)) for each in (table, own)]
    payloads = [codec.encode(update, pq.RandomStream.seeded(1)) for codec in codecs]
    assert payloads[0] != payloads[1]
    assert zlib.decompress(payloads[1]) == payloads[0]
    for method in ("decode", "codes"):
        first, second = (
            getattr(codec, method)(payload) for codec, payload in zip(codecs, payloads, strict=True)
        )
        np.testing.assert_equal(second, first)
