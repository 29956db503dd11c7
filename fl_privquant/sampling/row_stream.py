"""The random streams of many clients as one, so that one call encodes the updates of all of them."""

from __future__ import annotations

from collections.abc import Sequence

from fl_privquant._array_types import Words
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.sampling.stream import RandomStream, continuation_address


class RowStream(RandomStream):
    """The words for a matrix whose rows are encoded together: each row draws from a stream of its own.

    An encoder takes one block of words after the other, each with a word for every input. A row's part of a
    block is the next words of its own stream, so that it gets the words that it would get alone.

    Parameters
    ----------
    streams
        The stream of each row, of which no word was used.
    length
        Number of inputs of a row.
    """

    def __init__(self, streams: Sequence[RandomStream], length: int) -> None:
        # No word is drawn with this key.
        super().__init__(bytes(32), simulated=any(stream.simulated for stream in streams))
        self._streams = streams
        self._length = length

    def reserve(self, count: int) -> int:
        """Reserve ``count`` words, as many of each row's stream."""
        own = count // len(self._streams)
        first = super().reserve(count)
        if own % self._length or own * len(self._streams) != count:
            raise InvalidSpecError("count", count, "words are not as many for each input")
        begins = [stream.reserve(own) * len(self._streams) for stream in self._streams]
        if begins.count(first) < len(begins):
            raise InvalidSpecError("streams", MISSING, "words of a row were used before")
        return first

    def fill(self, out: Words, first_word: int) -> None:
        """Write the words from address ``first_word`` on into ``out``."""
        done = 0
        while done < out.size:
            row, word, left = self._find(first_word + done)
            self._streams[row].fill(out[done : done + left], word)
            done += left

    def integer(self, first_word: int, count: int) -> int:
        """The ``count`` words from address ``first_word`` on as one integer."""
        further, address = divmod(first_word, continuation_address(0))
        if not further:
            row, word, _ = self._find(address)
            return self._streams[row].integer(word, count)
        # Further words of a draw belong to its own word.
        row, word, _ = self._find(further - 1)
        return self._streams[row].integer(continuation_address(word) + address, count)

    def _find(self, address: int) -> tuple[int, int, int]:
        """The row that a word belongs to, its address there, and how many words follow in the block."""
        block, place = divmod(address, self._length * len(self._streams))
        row, column = divmod(place, self._length)
        return row, block * self._length + column, self._length - column
