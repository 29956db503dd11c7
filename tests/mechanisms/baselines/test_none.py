"""Fixed point: what `none` sends where only integers can be summed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fl_privquant as pq
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import CertificationError, CodeOverflowError, InvalidSpecError, InvalidUpdateError
from fl_privquant.mechanisms.baselines.none import DEFAULT_BITS, FixedPointMechanism, NoMechanism
from fl_privquant.packing.pack import pack_codes


def test_none_stays_float_unless_integers_are_needed():
    lossless = pq.design("none")
    assert type(lossless) is NoMechanism
    assert not lossless.summable
    summed = lossless.for_sums()
    assert type(summed) is FixedPointMechanism
    assert (summed.name, summed.bits, summed.summable) == ("none", DEFAULT_BITS, True)
    assert summed.epsilon == math.inf
    assert pq.design("none", fixed_point_bits=12).for_sums().bits == 12


@pytest.mark.parametrize("name", ["optm", "skellam", "laplace", "stochastic"])
def test_others_are_their_own(name):
    mechanism = pq.design(name, **({} if name == "stochastic" else {"epsilon": 1.0}))
    assert mechanism.for_sums() is mechanism


@pytest.mark.parametrize("bits", [2, 8, 20, 30])
def test_zero_and_the_ends_are_exact(bits):
    mechanism = pq.design("none", fixed_point_bits=bits)
    x = np.array([0.0, -0.3, 0.3, -9.0, 9.0])
    codes = mechanism.encode(x, clip=0.3)
    assert codes.tolist() == [mechanism.max_code // 2, *2 * [0, mechanism.max_code]]
    assert mechanism.decode(codes, clip=0.3).tolist() == pytest.approx([0.0, -0.3, 0.3, -0.3, 0.3], rel=1e-15)
    assert mechanism.decode(codes[:1], clip=0.3) == 0.0


@given(st.integers(2, 30), st.floats(1e-6, 1e6), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_an_estimate_is_less_than_a_step_away(bits, clip, seed):
    mechanism = pq.design("none", fixed_point_bits=bits)
    x = np.random.default_rng(seed).uniform(-clip, clip, 100)
    estimates = mechanism.decode(mechanism.encode(x, clip=clip, rng=pq.RandomStream.seeded(seed)), clip=clip)
    assert np.abs(estimates - x).max() <= mechanism.step * clip * (1 + 1e-6)


def test_the_sum_of_codes_is_exact_on_the_lattice():
    mechanism = pq.design("none", fixed_point_bits=20)
    generator = np.random.default_rng(0)
    codes = generator.integers(0, mechanism.max_code, (4096, 3), endpoint=True)
    assert mechanism.sum_bits(4096) == 32
    mean = mechanism.decode_sum(codes.sum(axis=0), 4096, clip=0.5)
    exact = [
        0.5 * (2 * int(total) - 4096 * mechanism.max_code) / (4096 * mechanism.max_code)
        for total in codes.sum(axis=0)
    ]
    assert mean == pytest.approx(exact, rel=1e-14)


def test_errors_are_those_of_a_given_density():
    mechanism = pq.design("none", fixed_point_bits=8)
    samples = np.random.default_rng(1).normal(0.0, 0.2, 1000).clip(-1, 1)
    position = (samples + 1.0) / mechanism.step
    share = position - np.floor(position)
    assert mechanism.mse(samples) == pytest.approx(mechanism.step**2 * np.mean(share * (1 - share)))
    assert mechanism.mse() == pytest.approx(mechanism.step**2 / 6)
    assert mechanism.mae() == pytest.approx(mechanism.step / 3)


def test_sums_that_do_not_fit_say_what_to_do():
    with pytest.raises(CodeOverflowError, match=r"33 bits, more than 32.*fixed_point_bits"):
        pq.design("none", fixed_point_bits=20).sum_bits(4098)


@pytest.mark.parametrize("bits", [1, 31, 2.5, True])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(InvalidSpecError, match="is not a whole number"):
        pq.design("none", fixed_point_bits=bits)


@pytest.mark.parametrize(
    ("total", "error"),
    [([-1], CodeOverflowError), ([2**20 - 1], CodeOverflowError), ([0.5], InvalidUpdateError)],
)
def test_what_is_no_sum_is_refused(total, error):
    with pytest.raises(error):
        pq.design("none", fixed_point_bits=20).decode_sum(np.array(total), 1)


def test_a_code_beyond_the_last_point_is_refused_with_its_payload():
    """It would not be seen in a sum: the client that sent it has to be found before."""
    mechanism = pq.design("none", fixed_point_bits=20)
    coder = UpdateCodec(Layout.of({"weight": np.zeros(3, np.float32)}), Encoding(mechanism, 0.1))
    total = np.zeros(3, dtype=np.int64)
    coder.add_codes(pack_codes([0, 5, mechanism.max_code], 20), total)
    with pytest.raises(InvalidUpdateError, match=r"outside 0\.\.1048574"):
        coder.add_codes(pack_codes([0, 5, mechanism.max_code + 1], 20), total)
    assert total.tolist() == [0, 5, mechanism.max_code]


def test_forged_bytes_are_refused():
    forged = pq.design("none", fixed_point_bits=20)
    object.__setattr__(forged, "bits", 40)
    with pytest.raises(CertificationError, match="from 2 to 30"):
        pq.Mechanism.from_bytes(forged.to_bytes())
