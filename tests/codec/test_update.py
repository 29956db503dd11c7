import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fl_privquant as pq
from fl_privquant.codec._clip import clip_l2
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError, PrivQuantError
from fl_privquant.packing.pack import HEADER_BYTES
from tests.typical import typical


def model(seed=0, dtype=np.float32):
    generator = np.random.default_rng(seed)
    return {
        "weight": generator.normal(0, 0.05, (7, 3)).astype(dtype),
        "steps": np.array(7),
        "scale": np.array(0.25, dtype=dtype),
        "empty": np.zeros((0, 4), dtype=dtype),
        "mask": np.array([True, False]),
        "bias": generator.normal(0, 0.05, 5).astype(dtype),
    }


def codec(mechanism=None, clip=0.2, arrays=None, rotation_seed=0, **options):
    mechanism = mechanism or pq.design("optm", epsilon=3.0, bits=2)
    return UpdateCodec(Layout.of(arrays or model()), Encoding(mechanism, clip, **options), rotation_seed)


def mechanism_of(name):
    """The mechanism of that name, whatever it is: with an epsilon and a delta if it takes them."""
    return typical(name, 0.9, delta=1e-6)


ROTATED = {"rotate": True, "rotation_seed": 5}
OPTIONS = [{}, {"l2_clip": 0.3}, ROTATED, {"l2_clip": 0.3, **ROTATED}]


def test_the_stages_reversed_give_the_update_on_average():
    arrays = {"w": np.random.default_rng(0).normal(0, 0.02, 3000).astype(np.float32)}
    coder = codec(pq.design("optm", epsilon=3.0, bits=2), 0.1, arrays, rotate=True, rotation_seed=1)
    stream = pq.RandomStream.seeded(4)
    mean = np.mean([coder.decode(coder.encode(arrays, stream))["w"] for _ in range(200)], axis=0)
    # Standard error of a mean of 200: 0.1 sqrt(mse / 200), so that 6 of them are missed once in 10^5 runs.
    bound = 6.0 * 0.1 * math.sqrt(coder.mechanism.mse() / 200)
    assert np.abs(mean - arrays["w"]).max() < bound


def test_buffers_that_are_no_floats_are_left_out():
    coder = codec()
    assert coder.layout.names == ("weight", "scale", "empty", "bias")
    assert coder.dimension == 21 + 1 + 0 + 5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_types_and_shapes_come_back(dtype):
    old = {key: each for key, each in model(0, dtype).items() if each.dtype.kind == "f"}
    new = {key: each for key, each in model(1, dtype).items() if each.dtype.kind == "f"}
    coder = codec(arrays=old)
    result = coder.apply(coder.encode_difference(new, old).pack(), old)
    assert {key: (each.shape, each.dtype) for key, each in result.items()} == {
        key: (each.shape, each.dtype) for key, each in old.items()
    }


@given(dimension=st.integers(0, 300), num_clients=st.integers(1, 9), rotate=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_sum_of_codes_decodes_to_the_mean_of_the_updates(dimension, num_clients, rotate):
    arrays = {"w": np.random.default_rng(dimension).normal(0, 0.1, dimension)}
    coder = codec(arrays=arrays, rotate=rotate, rotation_seed=3)
    payloads = [coder.encode(arrays, pq.RandomStream.seeded(i)) for i in range(num_clients)]
    total = np.sum([coder.codes(each) for each in payloads], axis=0, dtype=np.int64)
    mean = np.mean([coder.decode(each)["w"] for each in payloads], axis=0)
    np.testing.assert_allclose(coder.decode_sum(total, num_clients)["w"], mean, rtol=0, atol=1e-12)


def test_the_mechanism_none_is_lossless_bit_for_bit():
    old, new = model(0), model(1)
    coder = codec(pq.design("none"))
    assert not coder.carries_difference
    result = coder.apply(coder.encode_difference(new, old).pack(), old)
    for name in coder.layout.names:
        assert result[name].tobytes() == new[name].tobytes()


def test_a_difference_in_floating_point_is_not_lossless():
    # The reason for the above: with the difference, some sums would be off by a rounding.
    old, new = model(0), model(1)
    assert any(
        (old[name] + (new[name] - old[name])).tobytes() != new[name].tobytes() for name in ("weight", "bias")
    )


def test_zero_updates_pass_the_l2_clip():
    arrays = {"w": np.zeros(10)}
    coder = codec(arrays=arrays, l2_clip=1.0, rotate=True)
    assert np.isfinite(coder.decode(coder.encode(arrays))["w"]).all()


@given(st.integers(1, 200), st.floats(1e-3, 1e3), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=60, deadline=None)
def test_the_l2_clip_is_never_exceeded_and_leaves_small_updates_alone(size, bound, dtype):
    vector = np.random.default_rng(size).normal(size=size).astype(dtype)
    before = vector.copy()
    factor = clip_l2(vector, bound)
    assert np.linalg.norm(vector.astype(np.float64)) <= bound
    if np.linalg.norm(before.astype(np.float64)) <= bound:
        assert factor == 1.0
        np.testing.assert_array_equal(vector, before)


def test_the_l2_clip_survives_squares_that_overflow():
    vector = np.full(4, 1e200)
    clip_l2(vector, 1.0)
    np.testing.assert_allclose(vector, 0.5, rtol=1e-5)


def test_the_clipped_share_counts_coordinates_outside_the_clip():
    old = {"w": np.zeros(4)}
    assert codec(arrays=old, clip=1.0).clipped_fraction({"w": np.array([0.5, -2.0, 1.0, 3.0])}, old) == 0.5


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["optm", "none"])
def test_what_is_not_finite_is_refused(options, bad, name):
    old, new = model(0), model(1)
    new["bias"][2] = bad
    with pytest.raises(InvalidUpdateError, match="not finite"):
        codec(mechanism_of(name), **options).encode_difference(new, old)


@pytest.mark.parametrize(
    "change",
    [
        {"weight": np.zeros((3, 7), np.float32)},
        {"bias": np.zeros(4, np.float32)},
        {"bias": np.zeros(5, np.int64)},
        {"scale": np.zeros(1, np.float32)},
    ],
)
def test_arrays_of_another_shape_or_kind_are_refused(change):
    with pytest.raises(InvalidUpdateError, match="expected floats of shape"):
        codec().encode_difference({**model(1), **change}, model(0))


@pytest.mark.parametrize("name", ["optm", "none", "laplace", "stochastic"])
def test_damaged_payloads_are_refused(name):
    coder = codec(mechanism_of(name))
    payload = coder.encode({key: each for key, each in model(1).items() if each.dtype.kind == "f"})
    for bad in (b"", payload[:-1], payload + b"\0", b"XX" + payload[2:], payload[:3] + b"\x09" + payload[4:]):
        with pytest.raises(InvalidUpdateError):
            coder.decode(bad)


def test_a_payload_of_floats_that_are_not_finite_is_refused():
    coder = codec(pq.design("none"))
    with pytest.raises(InvalidUpdateError, match="not finite"):
        coder.decode(coder.encode(model())[:HEADER_BYTES] + b"\xff" * coder.layout.num_bytes)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf, "wide"])
def test_clips_that_are_none_are_refused(clip):
    with pytest.raises(InvalidSpecError, match="clip"):
        codec(clip=clip)
    with pytest.raises(InvalidSpecError, match="l2_clip"):
        codec(l2_clip=clip)


def test_mechanisms_of_floats_have_no_codes():
    coder = codec(pq.design("none"))
    with pytest.raises(PrivQuantError, match="sum"):
        coder.codes(coder.encode(model()))


def test_a_seed_gives_the_same_payload_each_time():
    arrays = {"w": np.random.default_rng(0).normal(size=100_001)}
    coder = codec(arrays=arrays)
    first, second = (coder.encode(arrays, pq.RandomStream.seeded(1)) for _ in range(2))
    assert first == second
    assert coder.encode(arrays) != coder.encode(arrays)
