"""Noise that one round hands over to the next, as a mechanism describes it to client, server and plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HandedNoise:
    """What the rounds must keep to so that noise which is handed over counts as planned."""

    correlation: float
    """The share of a round's handed noise that the next round takes off."""
    private: float
    """The variance of the noise that a client keeps to itself, over that of the noise that it hands over."""
    rounds: int
    """Number of rounds of the run."""
    rounds_apart: int
    """How many rounds apart a client takes part, at least."""
    num_honest: int
    """Honest clients in the sum of each round, at least."""
    num_corrupt: int
    """Corrupt clients of each round, at most."""
    num_opened: int
    """Seeds of a round that the server is told, at most, because their receivers are lost."""


@dataclass(frozen=True)
class NoiseSeeds:
    """The seeds of the handed noise of one code: 32 bytes each, to be used once."""

    own: bytes
    """Of the noise that is added, and handed over to the next round."""
    previous: bytes | None = None
    """Of the noise of a client of the round before, which is taken off; None if there is none."""

    def __repr__(self) -> str:
        # Seeds must not be shown.
        return f"NoiseSeeds(previous={'given' if self.previous else None})"
