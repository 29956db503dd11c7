"""The random streams of many clients as one, so that one call encodes the updates of all of them."""

from __future__ import annotations

from collections.abc import Sequence

from fl_privquant._array_types import Words
from fl_privquant.errors import InvalidSpecError
from fl_privquant.sampling.stream import RandomStream, continuation_address


class CohortStream(RandomStream):
    """The words of several streams, addressed as those of the clients' vectors one after the other.

    Each client's coordinates get the words of its own stream that they would get if its vector were encoded
    alone: a block of ``length`` words for each word that an encoder takes per coordinate.

    Parameters
    ----------
    streams
        The stream of each client, of which no word was used.
    length
        Number of coordinates of a client.
    """

    def __init__(self, streams: Sequence[RandomStream], length: int) -> None:
        super().__init__(bytes(32), simulated=any(stream.simulated for stream in streams))
        self._streams = streams
        self._length = length

    def reserve(self, count: int) -> int:
        """Reserve ``count`` words, as many of each client's stream."""
        blocks, rest = divmod(count, self._length * len(self._streams))
        if rest:
            raise InvalidSpecError(
                "count",
                count,
                f"words are not as many for each of {len(self._streams)} clients with {self._length} "
                f"coordinates",
            )
        for stream in self._streams:
            stream.reserve(blocks * self._length)
        return super().reserve(count)

    def fill(self, out: Words, first_word: int) -> None:
        """Write the words from address ``first_word`` on into ``out``."""
        done = 0
        while done < out.size:
            stream, word, left = self._find(first_word + done)
            part = out[done : done + left]
            stream.fill(part, word)
            done += part.size

    def integer(self, first_word: int, count: int) -> int:
        """The ``count`` words from address ``first_word`` on as one integer."""
        stream, word, _ = self._find(first_word)
        return stream.integer(word, count)

    def _find(self, address: int) -> tuple[RandomStream, int, int]:
        """The stream that a word belongs to, its address there, and how many words follow until another's."""
        further, address = divmod(address, 1 << 64)
        word = address if not further else further - 1
        block, place = divmod(word, self._length * len(self._streams))
        client, coordinate = divmod(place, self._length)
        own = block * self._length + coordinate
        if further:
            return self._streams[client], continuation_address(own) + address, 1 << 63
        return self._streams[client], own, self._length - coordinate
