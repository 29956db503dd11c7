"""What a check of the paper's text is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """What a check found, in words; whether that confirms the correction; and the figures behind it."""

    text: str
    confirmed: bool
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A claim of the paper's text, what is put in its place, and what tells: run(number of random cases)."""

    name: str
    where: str
    claim: str
    verdict: str
    run: Callable[[int], Finding]
