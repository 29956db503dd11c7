"""Bounds of a run's numbers beyond which its privacy target means nothing."""

from __future__ import annotations

from fl_privquant.errors import InvalidSpecError, counted

_MOST_DELTA = 0.01


def checked_run_delta(delta: float, num_clients: int) -> float:
    """The δ of a run, if it is small enough: within δ, everything about a client may be told."""
    most = min(_MOST_DELTA, 1.0 / num_clients)
    if not 0.0 <= delta <= most:
        raise InvalidSpecError(
            f"delta: {delta:g} is outside 0..{most:.3g}, the smaller of {_MOST_DELTA:g} and 1 / "
            f"{counted(num_clients, 'client')}; with that probability a run may tell everything about a "
            "client; 1e-5 is usual"
        )
    return delta


def checked_participations(participations: int | None, rounds: int) -> int:
    """How many rounds of a run a client takes part in: all of them by default, and never more."""
    if participations is not None and participations > rounds:
        raise InvalidSpecError(
            f"participations: {participations} of {counted(rounds, 'round')}; give at most {rounds}, or "
            "leave it out for all rounds"
        )
    return participations or rounds
