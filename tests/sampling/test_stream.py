"""The random stream: known answers, addressing, and no word twice."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_privquant.errors import InvalidSpecError
from fl_privquant.sampling import stream as stream_module
from fl_privquant.sampling.stream import RandomStream


def read(stream: RandomStream, first_word: int, count: int) -> np.ndarray:
    out = np.empty(count, dtype=np.uint64)
    stream.fill(out, first_word)
    return out


def test_keystream_is_that_of_nist_sp_800_38a() -> None:
    # Appendix F.5.5, CTR-AES256.Encrypt: ciphertext xor plaintext is the keystream.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    plaintext = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    ciphertext = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    words = read(RandomStream(key, simulated=True), 2 * counter, 8)
    keystream = words.astype("<u8").tobytes()
    assert bytes(a ^ b for a, b in zip(keystream, plaintext, strict=True)) == ciphertext


@pytest.mark.parametrize("first_word", [0, 1, 6, (1 << 65) + 3])
def test_an_integer_is_the_next_words(first_word: int) -> None:
    stream = RandomStream.seeded(4)
    words = [int(word) for word in read(stream, first_word, 7)]
    assert stream.integer(first_word, 7) == sum(word << 64 * place for place, word in enumerate(words))
    assert stream.integer(first_word + 1, 2) == words[1] + (words[2] << 64)
    stream.integer((1 << 129) - 1, 1)
    with pytest.raises(InvalidSpecError, match="left of the stream"):
        stream.integer((1 << 129) - 1, 2)
    with pytest.raises(InvalidSpecError, match="outside the stream"):
        stream.integer((2 << 128) + 1, 1)


def test_seeded_streams_never_change() -> None:
    # Recorded results depend on these words: a change of the derivation needs a new domain string.
    assert [hex(word) for word in RandomStream.seeded(0).words(2)] == [
        "0x90023bb1d0a73b3d",
        "0xb660b86762135034",
    ]
    address = RandomStream.seeded(-3, round=12, client=345, purpose="dither")
    assert [hex(word) for word in address.words(2)] == ["0xba36b3d66d7d19d5", "0xd5c732b1c88305b0"]


def test_every_part_of_the_address_matters() -> None:
    streams = [
        RandomStream.seeded(1),
        RandomStream.seeded(2),
        RandomStream.seeded(1, round=1),
        RandomStream.seeded(1, client=1),
        RandomStream.seeded(1, round=1, client=1),
        RandomStream.seeded(11, client=1),
        RandomStream.seeded(1, round=11),
        RandomStream.seeded(1, purpose="mask"),
        RandomStream.seeded(1, purpose="0\0encode"),
        RandomStream.seeded(1, purpose=""),
    ]
    assert len({int(stream.words(1)[0]) for stream in streams}) == len(streams)


def test_numpy_integers_are_the_same_address() -> None:
    assert RandomStream.seeded(np.int64(4), client=np.uint8(2)).words(1) == RandomStream.seeded(
        4, client=2
    ).words(1)


def test_secure_streams_differ_and_say_so() -> None:
    first, second = RandomStream.secure(), RandomStream.secure()
    assert not first.simulated
    assert RandomStream.seeded(0).simulated
    assert not np.array_equal(first.words(4), second.words(4))


@settings(deadline=None, max_examples=60)
@given(
    first_word=st.one_of(st.integers(0, 70_000), st.integers(0, (2 << 128) - 5000)),
    count=st.integers(0, 4999),
    cut=st.integers(0, 4999),
)
def test_words_depend_on_their_address_only(first_word: int, count: int, cut: int) -> None:
    stream = RandomStream.seeded(5)
    whole = read(stream, first_word, count)
    cut = min(cut, count)
    parts = [read(stream, first_word, cut), read(stream, first_word + cut, count - cut)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_long_fills_are_seamless() -> None:
    # Longer than one call of the cipher, from an odd word on.
    count = 3 * len(stream_module._ZEROS) // 8 + 5
    stream = RandomStream.seeded(6)
    whole = read(stream, 1, count)
    np.testing.assert_array_equal(whole[-7:], read(stream, 1 + count - 7, 7))
    assert np.unique(whole).size == count


def test_threads_read_the_same_words() -> None:
    stream = RandomStream.seeded(7)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda first: read(stream, first, 1000), range(0, 64_000, 1000)))
    np.testing.assert_array_equal(np.concatenate(parts), read(stream, 0, 64_000))


def test_no_word_is_handed_out_twice() -> None:
    stream = RandomStream.seeded(8)
    with ThreadPoolExecutor(4) as pool:
        firsts = sorted(pool.map(stream.reserve, [3] * 500))
    assert firsts == list(range(0, 1500, 3))
    np.testing.assert_array_equal(stream.words(2), read(stream, 1500, 2))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_streams_cannot_be_copied(duplicate) -> None:
    with pytest.raises(TypeError, match="repeat its words"):
        duplicate(RandomStream.secure())


def test_the_key_is_not_shown() -> None:
    key = bytes(range(32))
    assert repr(RandomStream(key, simulated=False)) == "RandomStream(secure)"


def test_misuse_is_refused() -> None:
    stream = RandomStream.seeded(0)
    with pytest.raises(InvalidSpecError, match="31 bytes"):
        RandomStream(bytes(31), simulated=True)
    with pytest.raises(InvalidSpecError, match="uint64"):
        stream.fill(np.empty(4, dtype=np.int64), 0)
    with pytest.raises(InvalidSpecError, match="contiguous"):
        stream.fill(np.empty(8, dtype=np.uint64)[::2], 0)
    with pytest.raises(InvalidSpecError, match="first_word"):
        stream.fill(np.empty(4, dtype=np.uint64), -1)
    with pytest.raises(InvalidSpecError, match="first_word"):
        stream.fill(np.empty(0, dtype=np.uint64), (2 << 128) + 1)
    with pytest.raises(InvalidSpecError, match="4 words, with 3 left"):
        stream.fill(np.empty(4, dtype=np.uint64), (2 << 128) - 3)
    with pytest.raises(InvalidSpecError, match="count"):
        stream.reserve(-1)
    with pytest.raises(InvalidSpecError, match=r"seed: 0\.5 is not a whole number"):
        RandomStream.seeded(0.5)
