"""The streams of many rows as one: each row gets the words that it would get alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fl_privquant.errors import InvalidSpecError
from fl_privquant.sampling.row_stream import RowStream
from fl_privquant.sampling.stream import RandomStream, continuation_address

ROWS, LENGTH, BLOCKS = 5, 7, 3


def streams() -> list[RandomStream]:
    return [RandomStream.seeded(3, client=row) for row in range(ROWS)]


def test_every_row_gets_the_words_of_its_own_stream() -> None:
    """Read in pieces that begin and end anywhere, and in any order."""
    together = RowStream(streams(), LENGTH)
    count = ROWS * LENGTH * BLOCKS
    assert together.reserve(count) == 0
    words = np.empty(count, dtype=np.uint64)
    bounds = [0, 3, 4, 20, 21, 22, 60, 71, count]
    for start, stop in reversed([*pairwise(bounds)]):
        together.fill(words[start:stop], start)
    own = [stream.words(BLOCKS * LENGTH).reshape(BLOCKS, LENGTH) for stream in streams()]
    np.testing.assert_array_equal(words.reshape(BLOCKS, ROWS, LENGTH), np.stack(own, axis=1))


def test_further_words_of_a_draw_are_those_of_its_own_stream() -> None:
    together, alone = RowStream(streams(), LENGTH), streams()
    block, row, column, further = 2, 3, 4, 32
    word = (block * ROWS + row) * LENGTH + column
    own = block * LENGTH + column
    assert together.integer(word, 1) == alone[row].integer(own, 1)
    for address in (0, further):
        expected = alone[row].integer(continuation_address(own) + address, further)
        assert together.integer(continuation_address(word) + address, further) == expected


def test_blocks_go_on_from_call_to_call() -> None:
    together, alone = RowStream(streams(), LENGTH), streams()
    first, second = (together.words(ROWS * LENGTH).reshape(ROWS, LENGTH) for _ in range(2))
    for row, stream in enumerate(alone):
        np.testing.assert_array_equal([first[row], second[row]], stream.words(2 * LENGTH).reshape(2, LENGTH))


def test_no_word_is_used_twice() -> None:
    own = streams()
    RowStream(own, LENGTH).words(ROWS * LENGTH)
    assert [stream.reserve(0) for stream in own] == [LENGTH] * ROWS
    with pytest.raises(InvalidSpecError, match="used before"):
        RowStream(own, LENGTH).reserve(ROWS * LENGTH)
    with pytest.raises(InvalidSpecError, match="as many for each input"):
        RowStream(streams(), LENGTH).reserve(ROWS * LENGTH + 1)


def test_one_seeded_row_makes_privacy_simulated() -> None:
    assert not RowStream([RandomStream.secure()] * 2, LENGTH).simulated
    assert RowStream([RandomStream.secure(), RandomStream.seeded(1)], LENGTH).simulated
