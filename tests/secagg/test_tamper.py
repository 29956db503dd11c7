"""One bit of one message changed on the way: an exact sum of those that are left, or none at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_privquant.errors import SecureAggregationError
from tests.secagg.driver import Lost, Round, open_round

KINDS = (
    "Invitation",
    "KeyAdvertisement",
    "Roster",
    "SharedSeeds",
    "MaskRequest",
    "MaskedInput",
    "SurvivorList",
    "Confirmation",
    "UnmaskRequest",
    "UnmaskReply",
)
CLIENT = 10
# Prefix, client id, size and header of the payload; behind it are masked codes.
PAYLOAD_STARTS = 28 + 8 + 8 + 16


def changed_round(kind: str, position: float, bit: int, signed: bool) -> tuple[Round, list[int]]:
    """A round in which one bit of a client's message is flipped; and where it was flipped, once it was."""
    flipped: list[int] = []

    def wire(sent: str, client: int, data: bytes) -> bytes:
        if sent != kind or client != CLIENT:
            return data
        changed = bytearray(data)
        flipped.append(int(position * len(changed)))
        changed[flipped[0]] ^= 1 << bit
        return bytes(changed)

    round_ = open_round(6, 30, signed=signed, wire=wire, restore=False, dropout_fraction=1 / 3)
    return round_, flipped


@settings(max_examples=30)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(
    position=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    lost=st.sampled_from([Lost(), Lost(mask=[3]), Lost(unmask=[3])]),
)
def test_a_flipped_bit(kind: str, signed: bool, position: float, bit: int, lost: Lost) -> None:
    round_, flipped = changed_round(kind, position, bit, signed)
    try:
        result = round_.run(lost)
    except SecureAggregationError:
        return
    expected = round_.expected(result.survivors)
    if kind == "MaskedInput" and not signed and flipped[0] >= PAYLOAD_STARTS and CLIENT in result.survivors:
        # Without identities only the transport can tell that codes were changed: another input was summed.
        difference = result.total.astype(np.int64) - expected
        assert np.count_nonzero(difference % (1 << 7)) <= 1
        return
    np.testing.assert_array_equal(result.total, expected)
    if signed and kind in ("KeyAdvertisement", "SharedSeeds", "MaskedInput"):
        assert CLIENT not in result.survivors
        assert CLIENT in round_.server.rejected


def test_messages_of_one_client_are_not_taken_for_anothers() -> None:
    """Two clients' messages exchanged at any stage: neither is used."""
    for kind in ("KeyAdvertisement", "SharedSeeds", "MaskedInput"):
        swapped = open_round(8, 10, restore=False, dropout_fraction=0.2)
        pending: dict[int, bytes] = {}
        number = {"KeyAdvertisement": 2, "SharedSeeds": 4, "MaskedInput": 6}[kind]
        receive = swapped.server.receive

        def exchanged(sender: int, data: bytes, receive=receive, pending=pending, number=number) -> bool:
            if sender not in (10, 17) or data[3] != number:
                return receive(sender, data)
            pending[27 - sender] = data
            if len(pending) == 2:
                assert not receive(10, pending[10])
                assert not receive(17, pending[17])
            return True

        swapped.server.receive = exchanged
        result = swapped.run()
        assert result.survivors == (3, 24, 31, 38, 45, 52)
        np.testing.assert_array_equal(result.total, swapped.expected(result.survivors))
        assert {10, 17} <= swapped.server.rejected.keys()
