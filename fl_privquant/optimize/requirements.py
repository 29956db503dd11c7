"""The run and the privacy target that mechanisms are designed for, and the form of quick estimates.

Estimates are no guarantee: they guide a choice, and the chosen design is certified afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

from fl_privquant import _validation
from fl_privquant._validation import integer_between, number_between
from fl_privquant.distributions.integer_distribution import round_count_down
from fl_privquant.errors import MISSING, InvalidSpecError, pluralize
from fl_privquant.optimize.sums.coordinate_clip import usual_norm_ratio
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon, gaussian_separation
from fl_privquant.privacy_loss.correlated_noise import RoundSchedule
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.statement import Relation, Unit, View

MAX_CLIENTS = 10_000_000
"""The most clients that a run is planned for."""
# Bounds for replace-one and for zero-out are not those of exactly the same normal noise.
_CONVERSION_ROOM = 0.9999


@_validation.check_argument_names
@dataclass(frozen=True)
class RunRequirements:
    """The run and the privacy target that a plan is made for."""

    num_clients: Annotated[int, integer_between(1, MAX_CLIENTS)]
    """Clients whose updates are averaged in a round."""
    dimension: Annotated[int, integer_between(1, 1 << 31)]
    """Number of coordinates."""
    rounds: Annotated[int, integer_between(1, 10**9)]
    """Number of rounds that a client takes part in."""
    epsilon: Annotated[float, number_between("(0, 1e9]")]
    """The epsilon of the privacy target, at ``delta``."""
    delta: Annotated[float, number_between("[0, 1)", "typical values are 1e-9 to 1e-5")] = 1e-5
    unit: Unit = Unit.TOTAL
    """What the target is for: one coordinate and release, one round of a client, or all its rounds."""
    in_sum: bool = True
    """Whether the target is for the aggregate view (secure aggregation), or for the local one."""
    relation: Relation = Relation.REPLACE_ONE
    """The neighboring relation of the target."""
    bits: Annotated[int, integer_between(1, 16)] = 2
    """Bits of a code before it is masked, for 2^bits output values. Mechanisms with integer noise that are
    designed for a target take more bits if these cannot hold the noise; others of them have 2^bits lattice
    points."""
    corrupt: int = 0
    """Clients of each round that collude with the adversary."""
    dropped: int = 0
    """Clients of each round that drop out."""
    norms: UpdateNorms = field(default_factory=UpdateNorms)
    """Norms that updates are clipped to, in units of the coordinate clip. Updates with an L2 norm are
    rotated."""
    own_clips: bool = False
    """Whether updates have an L2 norm and each mechanism chooses its coordinate clip, and so ``norms``."""
    exact_sums: bool = False
    """Whether the secure sum has bits for all sums of codes, or only as many as honest codes need."""
    parameters: tuple[tuple[str, Any], ...] = ()
    """Further parameters of designs, each a name and its value."""
    schedule: RoundSchedule | None = None
    """The run's rounds, where noise is to be correlated over rounds; None for independent noise."""

    def __post_init__(self) -> None:
        _validation.check_declared(self)
        if self.num_clients - self.corrupt - self.dropped < 1 or self.corrupt < 0 or self.dropped < 0:
            raise InvalidSpecError(
                "num_clients",
                MISSING,
                f"{pluralize(self.num_clients, 'client')}, minus {self.corrupt} corrupt and "
                f"{self.dropped} dropped, leave no honest client",
            )

    @property
    def view(self) -> View:
        """What the adversary sees."""
        return View.aggregate(self.num_clients, self.corrupt, self.dropped) if self.in_sum else View()

    @property
    def norm_ratio(self) -> float:
        """L2 clip over coordinate clip: that of :attr:`norms`, or the usual one for rotated updates."""
        return usual_norm_ratio(self.dimension) if self.norms.l2 is None else self.norms.l2

    @property
    def spread(self) -> float | None:
        """Coordinate clip in standard deviations of a rotated coordinate at the norm bound, if given."""
        return None if self.norms.l2 is None else math.sqrt(self.dimension) / self.norms.l2

    @property
    def counts_norms(self) -> bool:
        """Whether the target is for whole updates of bounded L2 norm in the sum, with a delta."""
        return (
            self.in_sum and self.unit is not Unit.COORDINATE and self.norms.l2 is not None and self.delta > 0
        )

    @property
    def replace_one_epsilon(self) -> float:
        """The epsilon for replace-one of normal noise that meets the target in its own relation.

        Designs for sums certify replace-one. The one for this epsilon is stated in the target's relation
        afterwards, so that a conversion that does not quite fit costs accuracy only.
        """
        if self.relation is Relation.REPLACE_ONE or self.delta == 0.0:
            return self.epsilon
        separation = gaussian_separation(self.epsilon * _CONVERSION_ROOM, self.delta)
        return gaussian_epsilon(Relation.REPLACE_ONE.distance * separation, self.delta)

    def for_replace_one(self, epsilon: float) -> RunRequirements:
        """The same run for that epsilon of replace-one, which designs for sums certify."""
        return replace(self, epsilon=epsilon, relation=Relation.REPLACE_ONE)

    @property
    def composed_rounds(self) -> int:
        """Number of rounds that the target covers."""
        return self.rounds if self.unit is Unit.TOTAL else 1

    @cached_property
    def num_honest(self) -> int:
        """Honest clients that are counted in a sum, rounded down so that similar runs share designs."""
        return round_count_down(self.view.honest_count)

    @cached_property
    def separation(self) -> float:
        """The privacy budget of one round for replace-one, as the separation of two normal distributions."""
        whole = gaussian_separation(self.replace_one_epsilon, self.delta)
        return whole / math.sqrt(self.composed_rounds)

    @cached_property
    def central_error(self) -> float:
        """The error of a central Gaussian mechanism, as a variance of noise per honest client.

        It is in units of the variance of a coordinate of a rotated update at its L2 norm bound.
        """
        return 4.0 * self.dimension / (self.separation**2 * self.num_honest)

    @property
    def survivors(self) -> int:
        """Clients whose updates are averaged."""
        return self.num_clients - self.dropped
