"""What a run costs a record: one patient of a hospital, where updates are sums over randomly drawn records.

Each client (a *silo*) draws each of its records with a probability q, clips the gradient of each drawn
record, and sends the sum. The codes of all silos are added up, and only their sum is seen. For everybody but
the record's own silo that sum is the one of central DP-SGD, with the noise of all honest silos
(:mod:`fl_privquant.privacy_loss.additive.sampled_gaussian` has the loss, and the proof).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from fl_privquant.accounting.release import Release
from fl_privquant.errors import pluralize
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.privacy_loss.update_bounds import WholeUpdate
from fl_privquant.statement import PrivacyStatement, Relation, StatedView, Unit, ViewKind

_OF_SUMS = (
    "the adversary sees sums only (secure aggregation)",
    "that many honest silos in each sum (corrupt and dropped ones are not counted)",
)
_ASSUMPTIONS = (
    "secure randomness in each silo",
    "each silo draws its records in secret, and hides how many it drew and how long that took",
    "each person is one record of one silo (one with several is not covered)",
)
_NOT_OF_RECORDS = "not made of single records"


def record_statement(
    counts: Mapping[Release, int], delta: float, relation: Relation = Relation.ADD_REMOVE, refine: bool = True
) -> PrivacyStatement:
    """What all releases of a silo together cost any one of its records.

    Parameters
    ----------
    counts
        How often the silo made each release. One that is not a sum over sampled records
        (:attr:`~fl_privquant.privacy_loss.update_bounds.UpdateNorms.record`) protects no record.
    delta
        The δ of the statement.
    relation
        Add-remove and zero-out cost the same; replace-one costs more, up to about twice as much.
    refine
        Whether to count in full, or by quick bounds.
    """
    releases = list(counts)
    epsilon, method = _total_epsilon(tuple(counts.items()), delta, relation, refine)
    rounds = sum(counts.values())
    rates = [release.norms.record_rate or 1.0 for release in releases]
    drawn = f", each record drawn with probability {max(rates):g}" if rates else ""
    view = _view_of_sums(releases)
    return PrivacyStatement(
        epsilon=epsilon,
        delta=delta,
        unit=Unit.RECORD,
        view=view,
        relation=relation,
        method=method,
        assumptions=_ASSUMPTIONS if view.kind is ViewKind.LOCAL else (*_ASSUMPTIONS, *_OF_SUMS),
        scope=f"{pluralize(rounds, 'round')}{drawn}",
    )


# Every client of a simulation asks what the same round costs.
@lru_cache(maxsize=256)
def _total_epsilon(
    counts: tuple[tuple[Release, int], ...], delta: float, relation: Relation, refine: bool
) -> tuple[float, str]:
    """The epsilon of all releases together, and how it was found."""
    epsilon, method = math.inf, _NOT_OF_RECORDS
    for orders in record_parts(dict(counts), relation):
        bounds = [compose_epsilon(parts, delta, refine) for parts in orders]
        worst = max(bounds, key=lambda bound: bound.epsilon, default=None)
        if worst is None:
            epsilon, method = 0.0, "exact"
        elif worst.epsilon < epsilon:
            epsilon, method = worst.epsilon, f"sampled gaussian+{worst.method}"
    return epsilon, method


def record_parts(counts: Mapping[Release, int], relation: Relation) -> list[list[list[Part]]]:
    """The losses of all releases, for each way to count them, and for each order of two neighbors.

    There is no way if one of the releases protects no record.
    """
    losses = [
        release.mechanism.record_losses(WholeUpdate(release.norms, release.dimension, release.view, relation))
        for release in counts
    ]
    if not all(losses):
        return []
    # The simple count comes first, and the refined one, if there is one, last.
    return [
        [
            [Part(loss, count) for loss, count in zip(order, counts.values(), strict=True)]
            for order in zip(*(ways[place] for ways in losses), strict=True)
        ]
        for place in (0, -1)
    ]


def _view_of_sums(releases: list[Release]) -> StatedView:
    honest = sorted({release.view.honest_count for release in releases})
    if not honest or honest[-1] == 1:
        return StatedView()
    kind = ViewKind.AGGREGATE if honest[0] > 1 else ViewKind.LOCAL_OR_AGGREGATE
    return StatedView(kind, honest[0], honest[-1] if len(honest) > 1 else None)
