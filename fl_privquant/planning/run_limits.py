"""Bounds of a run's numbers beyond which its privacy target means nothing."""

from __future__ import annotations

from fl_privquant.errors import InvalidSpecError, pluralize
from fl_privquant.statement import Relation

_MAX_DELTA = 0.01


def check_run_delta(delta: float, num_clients: int) -> float:
    """The δ of a run, if it is small enough: within δ, everything about a client may be told."""
    most = min(_MAX_DELTA, 1.0 / num_clients)
    if not 0.0 <= delta <= most:
        raise InvalidSpecError(
            "delta",
            delta,
            f"is outside 0..{most:.3g}, the smaller of {_MAX_DELTA:g} and 1 / "
            f"{pluralize(num_clients, 'client')}",
            "with that probability a run may tell everything about a client; 1e-5 is usual",
        )
    return delta


def check_participations(participations: int | None, rounds: int) -> int:
    """How many rounds of a run a client takes part in: all of them by default, and never more."""
    if participations is not None and participations > rounds:
        raise InvalidSpecError(
            "participations",
            participations,
            f"of {pluralize(rounds, 'round')}",
            f"give at most {rounds}, or leave it out for all rounds",
        )
    return participations or rounds


def check_target_relation(relation: Relation | str, of_records: bool = False) -> Relation:
    """The neighboring relation of a target, by its name too; if that is empty, the default one.

    Nobody sees which records take part, but the server sees which clients do.
    """
    allowed = [Relation.REPLACE_ONE, Relation.ZERO_OUT]
    if of_records:
        allowed.insert(0, Relation.ADD_REMOVE)
    if relation in ("", *allowed):
        return Relation(relation or allowed[0])
    reason = "is not a relation of targets"
    if relation == Relation.ADD_REMOVE:
        reason = "would hide whether a client takes part, but the server knows it"
    raise InvalidSpecError("relation", str(relation), reason, f"give {' or '.join(allowed)}")
