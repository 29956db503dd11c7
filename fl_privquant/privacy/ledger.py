"""What was released, apart from how it is counted: events, their ledger, and pure composition.

An event keeps what an accountant needs to count again, and better: which mechanism (by fingerprint),
its certified loss for one coordinate (or whatever its unit is), how many of them, and the round. Here
they are counted by basic composition, which is exact arithmetic on upper bounds: the losses of all
coordinates of all releases are added up, and so are the deltas.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError

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

    >>> Release(round=1, mechanism="", epsilon=0.5, delta=0.0, dimension=1000).total_epsilon
    500.0
    """

    round: int
    mechanism: str
    epsilon: float
    delta: float
    dimension: int
    count: int = -1

    def __post_init__(self) -> None:
        if self.count < 0:
            object.__setattr__(self, "count", self.dimension)

    @property
    def text(self) -> str:
        """All but the round, in one line, without loss."""
        losses = f"{float(self.epsilon).hex()} {float(self.delta).hex()}"
        return f"{self.mechanism} {losses} {self.dimension} {self.count}"

    @property
    def total_epsilon(self) -> float:
        """Loss of the whole update, one round, local view, by basic composition; rounded up."""
        return _total([(self.epsilon, self.count)])

    @property
    def total_delta(self) -> float:
        """The delta that goes with :attr:`total_epsilon`."""
        return _total([(self.delta, self.count)])


@dataclass(frozen=True)
class Budget:
    """What may be spent at most, over all releases."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0.0 and 0.0 <= self.delta <= 1.0):
            raise InvalidSpecError(
                f"budget: epsilon {self.epsilon}, delta {self.delta}; expected epsilon >= 0, delta in [0, 1]"
            )

    @property
    def unlimited(self) -> bool:
        """Whether anything may be spent."""
        return math.isinf(self.epsilon) and self.delta >= 1.0


class Ledger:
    """Every release so far.

    Releases that differ in their round only are kept together, so that checking a budget takes no
    longer after a thousand rounds than after one.

    >>> ledger = Ledger([Release(1, "", 0.5, 0.0, 10), Release(2, "", 0.25, 0.0, 10)])
    >>> ledger.epsilon, ledger.delta, len(ledger)
    (7.5, 0.0, 2)
    >>> ledger.check(Release(3, "", 0.5, 0.0, 10), Budget(epsilon=10.0))
    Traceback (most recent call last):
    ...
    fl_privquant.errors.BudgetExhaustedError: round 3 would spend epsilon 5, delta 0: with 7.5, 0 spent in \
2 releases this exceeds the budget of 10, 0 (local view, whole updates, basic composition)
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
    def epsilon(self) -> float:
        """Loss of all releases together, by basic composition; rounded up."""
        return _total((kind.epsilon, kind.count * len(rounds)) for kind, rounds in self._rounds.items())

    @property
    def delta(self) -> float:
        """The delta that goes with :attr:`epsilon`."""
        return _total((kind.delta, kind.count * len(rounds)) for kind, rounds in self._rounds.items())

    def add(self, release: Release) -> None:
        """Record a release."""
        self._rounds.setdefault(replace(release, round=0), array("q")).append(release.round)

    def check(self, release: Release, budget: Budget) -> None:
        """Raise BudgetExhaustedError if one more release would exceed the budget."""
        if budget.unlimited:
            return
        counts = [(kind, kind.count * len(rounds)) for kind, rounds in self._rounds.items()]
        counts.append((release, release.count))
        epsilon = _total((kind.epsilon, count) for kind, count in counts)
        delta = _total((kind.delta, count) for kind, count in counts)
        if epsilon <= budget.epsilon and delta <= budget.delta:
            return
        raise BudgetExhaustedError(
            f"round {release.round} would spend epsilon {release.total_epsilon:g}, delta "
            f"{release.total_delta:g}: "
            f"with {self.epsilon:g}, {self.delta:g} spent in {len(self)} releases this exceeds the budget "
            f"of {budget.epsilon:g}, {budget.delta:g} (local view, whole updates, basic composition)"
        )

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
        for key, rounds in content.items():
            mechanism, epsilon, delta, dimension, count = key.split(" ")
            kind = Release(
                0, mechanism, float.fromhex(epsilon), float.fromhex(delta), int(dimension), int(count)
            )
            ledger._rounds[kind] = array("q", map(int, rounds.split()))
        return ledger


def _total(losses: Iterable[tuple[float, int]]) -> float:
    """The sum of loss times count, never below the exact one."""
    counts: dict[float, int] = {}
    for loss, count in losses:
        counts[loss] = counts.get(loss, 0) + count
    if counts.pop(math.inf, 0):
        return math.inf
    exact = sum((Fraction(loss) * count for loss, count in counts.items()), Fraction(0))
    total = float(exact)
    return total if Fraction(total) >= exact else math.nextafter(total, math.inf)
