"""Messages: one encoding each, and every other string of bytes is refused as malformed."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.secagg._wire import RoundId, Subset
from fl_privquant.secagg.crypto.keys import SEED_BYTES
from fl_privquant.secagg.crypto.shamir import SHARE_BYTES
from fl_privquant.secagg.messages import (
    CORRECTION_BYTES,
    Confirmation,
    Invitation,
    KeyAdvertisement,
    MaskedInput,
    MaskRequest,
    Roster,
    SharedSeeds,
    SurvivorList,
    UnmaskReply,
    UnmaskRequest,
)

ids = st.integers(0, 2**64 - 1)
keys = st.binary(min_size=32, max_size=32)
seeds = st.binary(min_size=SEED_BYTES, max_size=SEED_BYTES)
signatures = st.sampled_from([b"", b"s" * 64])
rounds = st.builds(RoundId, st.binary(min_size=16, max_size=16), ids)
increasing = st.lists(ids, unique=True, max_size=6).map(lambda some: tuple(sorted(some)))


def blocks(size: int) -> st.SearchStrategy[tuple[bytes, ...]]:
    return st.lists(st.binary(min_size=size, max_size=size), max_size=4).map(tuple)


@st.composite
def subsets(draw: st.DrawFn) -> Subset:
    chosen = draw(st.lists(st.booleans(), max_size=20))
    return Subset(len(chosen), tuple(at for at, taken in enumerate(chosen) if taken))


@st.composite
def rosters(draw: st.DrawFn) -> Roster:
    numbers = [draw(st.integers(0, 2**32 - 1)) for _ in range(4)]
    identified = draw(subsets())
    identities = tuple(draw(keys) for _ in identified.places)
    lists = (draw(blocks(32)), draw(blocks(32)), draw(increasing), draw(subsets()), identified, identities)
    return Roster(draw(rounds), *numbers, draw(st.booleans()), *lists)


@st.composite
def unmask_requests(draw: st.DrawFn) -> UnmaskRequest:
    signers = draw(subsets())
    given = tuple(draw(st.binary(min_size=64, max_size=64)) for _ in signers.places)
    return UnmaskRequest(draw(rounds), draw(subsets()), signers, given)


MESSAGES = st.one_of(
    st.builds(
        Invitation,
        rounds,
        st.integers(0, 2**32 - 1),
        ids,
        st.integers(0, 255),
        st.none() | st.integers(1, 2**64 - 1),
        st.booleans(),
    ),
    st.builds(KeyAdvertisement, rounds, ids, signatures, keys, st.sampled_from([b"", b"i" * 32])),
    rosters(),
    st.builds(
        SharedSeeds,
        rounds,
        ids,
        signatures,
        seeds,
        seeds,
        blocks(SEED_BYTES),
        blocks(CORRECTION_BYTES),
    ),
    st.builds(MaskedInput, rounds, ids, signatures, st.binary(max_size=100)),
    st.builds(MaskRequest, rounds, subsets()),
    st.builds(SurvivorList, rounds, subsets()),
    st.builds(Confirmation, rounds, ids, signatures, keys),
    unmask_requests(),
    st.builds(UnmaskReply, rounds, ids, signatures, blocks(SHARE_BYTES), blocks(SHARE_BYTES)),
)


@given(MESSAGES)
def test_messages_come_back_as_they_were(message: object) -> None:
    assert type(message).from_bytes(message.to_bytes()) == message


@given(MESSAGES, st.data())
def test_any_other_bytes_are_refused_or_have_this_one_encoding(message: object, data: st.DataObject) -> None:
    encoded = message.to_bytes()
    cut = data.draw(st.integers(0, len(encoded) - 1))
    for wrong in (encoded[:cut], encoded + b"\0", encoded + encoded):
        with pytest.raises(InvalidUpdateError):
            type(message).from_bytes(wrong)
    changed = bytearray(encoded)
    changed[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        other = type(message).from_bytes(bytes(changed))
    except InvalidUpdateError:
        return
    assert other != message
    assert other.to_bytes() == changed


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    for kind in (
        Invitation,
        KeyAdvertisement,
        Roster,
        SharedSeeds,
        MaskRequest,
        MaskedInput,
        SurvivorList,
        Confirmation,
        UnmaskReply,
    ):
        with pytest.raises(InvalidUpdateError):
            kind.from_bytes(noise)


def test_a_kind_is_not_taken_for_another() -> None:
    message = UnmaskRequest(RoundId(bytes(16), 1), Subset(3, (0, 1)))
    with pytest.raises(InvalidUpdateError, match="kind 7"):
        SurvivorList.from_bytes(message.to_bytes())


def test_sides_of_different_versions_refuse_each_other_and_say_why() -> None:
    """A client of the version before gets this one's invitation, or this one an answer of that."""
    for message in (
        Invitation(RoundId(bytes(16), 1), 10, 100, 8, 15, True),
        Confirmation(RoundId(bytes(16), 1), 5, b"s" * 64, bytes(32)),
    ):
        data = bytearray(message.to_bytes())
        data[2] -= 1
        with pytest.raises(
            InvalidUpdateError, match="version 5 of the secure-aggregation protocol, expected 6"
        ):
            type(message).from_bytes(bytes(data))


@pytest.mark.parametrize("wrong", [(2, 1), (1, 1), (5, 5, 6)])
def test_lists_of_clients_increase_strictly(wrong: tuple[int, ...]) -> None:
    """So no client can stand on a roster twice."""
    message = Roster(RoundId(bytes(16), 1), 3, 2, 2, 0, False, (), (), wrong)
    with pytest.raises(InvalidUpdateError, match="increase"):
        Roster.from_bytes(message.to_bytes())


def test_marks_beyond_the_list_are_refused() -> None:
    message = SurvivorList(RoundId(bytes(16), 1), Subset(3, (0, 2)))
    data = message.to_bytes()
    assert data[-1] == 0b101
    with pytest.raises(InvalidUpdateError, match="more than the 3 members"):
        SurvivorList.from_bytes(data[:-1] + bytes([0b1101]))


def test_counts_larger_than_the_message_are_refused_before_anything_is_made() -> None:
    prefix = UnmaskRequest(RoundId(bytes(16), 1), Subset()).to_bytes()[:-8]
    with pytest.raises(InvalidUpdateError, match="too early"):
        UnmaskRequest.from_bytes(prefix + struct.pack("<I", 2**32 - 1) + bytes(100))


def test_a_signature_is_of_all_that_stands_before_it() -> None:
    message = MaskedInput(RoundId(bytes(16), 1), 5, b"", b"payload")
    signed = replace(message, signature=b"s" * 64)
    data = signed.to_bytes()
    assert data[:-65] == signed.body() == message.body() == message.to_bytes()[:-1]
    assert bytes(MaskedInput.body_of(data)) == message.body()
    assert MaskedInput.close(message.body(), b"s" * 64) == data
    assert MaskedInput.close(message.body(), b"") == message.to_bytes()


def test_rounds_are_checked() -> None:
    for session, number in ((bytes(15), 1), (bytes(16), -1), (bytes(16), 2**64)):
        with pytest.raises(InvalidUpdateError):
            RoundId(session, number)
