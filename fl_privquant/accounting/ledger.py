"""What was released, apart from how it is counted: releases, and the ledger that keeps them.

A release keeps what an accountant needs to count it: which mechanism (by fingerprint), how many coordinates,
which norm, and the round. Its certified loss goes with it for whoever reads a ledger by eye.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fl_privquant.errors import InvalidSpecError

__all__ = ["Budget", "Ledger", "Release", "fingerprint"]


def fingerprint(blob: bytes) -> str:
    """What identifies a mechanism, from its bytes: 32 hexadecimal digits."""
    return hashlib.sha256(blob).hexdigest()[:32]


@dataclass(frozen=True)
class Release:
    """One update that left a client, encoded by one mechanism.

    Parameters
    ----------
    round
        The round in which it was asked for.
    mechanism
        Fingerprint of the mechanism.
    epsilon, delta
        Certified loss of one unit of the mechanism, local view: mostly of one coordinate.
    dimension
        Number of coordinates.
    count
        How many units the update is; by default one for each coordinate.
    l2
        L2 norm that the update was clipped to, in units of the coordinate clip; None for any.
    """

    round: int
    mechanism: str
    epsilon: float
    delta: float
    dimension: int
    count: int = -1
    l2: float | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            object.__setattr__(self, "count", self.dimension)

    @property
    def kind(self) -> Release:
        """The release without its round: those of one kind cost the same."""
        return replace(self, round=0)

    @property
    def text(self) -> str:
        """All but the round, in one line, without loss.

        >>> Release(3, "ab", 0.5, 0.0, 10, l2=2.0).text
        'ab 0x1.0000000000000p-1 0x0.0p+0 10 10 0x1.0000000000000p+1'
        """
        losses = f"{float(self.epsilon).hex()} {float(self.delta).hex()}"
        norm = "" if self.l2 is None else f" {float(self.l2).hex()}"
        return f"{self.mechanism} {losses} {self.dimension} {self.count}{norm}"

    @classmethod
    def from_text(cls, text: str, number: int = 0) -> Release:
        """The release that :attr:`text` describes, in round ``number``."""
        mechanism, epsilon, delta, dimension, count, *norm = text.split(" ")
        if len(norm) > 1:
            raise ValueError(f"{text!r} is no release")
        return cls(
            number,
            mechanism,
            float.fromhex(epsilon),
            float.fromhex(delta),
            int(dimension),
            int(count),
            float.fromhex(norm[0]) if norm else None,
        )


@dataclass(frozen=True)
class Budget:
    """What a client may spend at most over all releases: their total epsilon at this delta.

    With delta 0 losses add up without an allowance (pure differential privacy); at 1e-5, say, the same
    epsilon lasts for many more releases.
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0.0 and 0.0 <= self.delta < 1.0):
            raise InvalidSpecError(
                f"budget: epsilon {self.epsilon}, delta {self.delta}; expected epsilon >= 0, delta in [0, 1)"
            )

    @property
    def unlimited(self) -> bool:
        """Whether anything may be spent."""
        return math.isinf(self.epsilon)


class Ledger:
    """Every release so far.

    Releases that differ in their round only are kept together, so that counting takes no longer after a
    thousand rounds than after one.

    >>> ledger = Ledger([Release(1, "ab", 0.5, 0.0, 10), Release(2, "ab", 0.5, 0.0, 10)])
    >>> len(ledger), [(kind.mechanism, count) for kind, count in ledger.counts]
    (2, [('ab', 2)])
    """

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        self._rounds: dict[Release, array[int]] = {}
        for release in releases:
            self.add(release)

    def __len__(self) -> int:
        return sum(len(rounds) for rounds in self._rounds.values())

    @property
    def releases(self) -> list[Release]:
        """All releases, those of the same kind together."""
        return [replace(kind, round=number) for kind, rounds in self._rounds.items() for number in rounds]

    @property
    def counts(self) -> list[tuple[Release, int]]:
        """Each kind of release, and how many there are."""
        return [(kind, len(rounds)) for kind, rounds in self._rounds.items()]

    def add(self, release: Release) -> None:
        """Record a release."""
        self._rounds.setdefault(release.kind, array("q")).append(release.round)

    def to_dict(self) -> dict[str, str]:
        """The ledger as texts, for JSON and records: what kind of release, and in which rounds.

        >>> Ledger([Release(1, "ab", 0.5, 0.0, 10), Release(2, "ab", 0.5, 0.0, 10)]).to_dict()
        {'ab 0x1.0000000000000p-1 0x0.0p+0 10 10': '1 2'}
        """
        return {kind.text: " ".join(map(str, rounds)) for kind, rounds in self._rounds.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, str]) -> Ledger:
        """The ledger that :meth:`to_dict` wrote."""
        ledger = cls()
        for text, rounds in content.items():
            ledger._rounds[Release.from_text(text)] = array("q", map(int, rounds.split()))
        return ledger
