"""How many rotated coordinates a round sends, from the norm of the mean updates of earlier rounds.

A plan with ``keep`` assumes that all clients send the same update, with an L2 norm equal to the clip C. If k
of the d rotated coordinates are sent, the missing ones then add (d / k - 1) C^2 to the squared error. The
mean update x is usually much shorter than C. A smaller number k' then has the same error:

    (d / k' - 1) |x|^2 = (d / k - 1) C^2.

**The norm costs no privacy.** The mean that the server decodes from a round's sum has the expected squared
norm k (|x|^2 / d + v), where v is the known variance of the noise on a coordinate. So it gives an estimate of
|x|^2. This is post-processing of a sum that the server sees anyway. The two clips shrink updates. The
estimate undoes this as if every update were at both clips; if some are not, |x|^2 is overestimated, and more
coordinates are sent than necessary.

**The run stays within its target.** Every k has a plan of its own for the whole target: a mechanism designed
and certified for k coordinates and their norm, with the budget divided equally among the rounds. The k of a
round depends on what earlier rounds showed. That needs care: where the privacy curves (delta as a function of
epsilon) of two designs cross, an adversary gains if the next design depends on the loss so far, and adding up
the designs that were used does not bound this gain. Curves of *normal pairs*, that is of two normal
distributions with the same variance, do not cross. So a k is used only if its design and the plan's are both
certified by normal pairs, and if the target would hold even with the larger separation of the two in every
round of a client: whatever the choices are, each round is dominated by such a pair (Smith, Thakurta, "Fully
Adaptive Composition for Gaussian Differential Privacy", 2022). The run's ledger counts each round for what it
sends, whatever the policy says, and begins none that would exceed the target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant import _validation
from fl_privquant.codec.encoding import Encoding, norm_clip_factor
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.distributions.integer_distribution import round_count_down
from fl_privquant.errors import MISSING, InfeasibleDesignError, InvalidSpecError
from fl_privquant.flower.policies.schedules import Policy
from fl_privquant.optimize.sums.coordinate_clip import (
    compute_clipped_moments,
    compute_kept_moments,
    noise_at_norm_bound,
)
from fl_privquant.planning.target import Plan
from fl_privquant.privacy_loss.closed_forms import NormalLoss
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.privacy_loss.update_bounds import UpdateNorms, WholeUpdate
from fl_privquant.statement import View


@_validation.check_argument_names
class AdaptiveKeep(Policy):
    """Sends fewer rotated coordinates than a plan in rounds whose mean update is short.

    ``PrivQuantStrategy(FedAvg(), AdaptiveKeep(plan))`` uses the plan's aggregation, and the target as a
    budget. The first round sends as many coordinates as the plan; later rounds send as many, a half of them,
    a quarter, and so on.

    Guarantee: the number of coordinates follows from sums that the server has opened before, so that it is
    public. No run exceeds the plan's target, whatever these sums are.
    Assumes: a plan for sums of codes in which only some coordinates are kept.

    Parameters
    ----------
    plan
        The plan of the first round; no later round sends more coordinates.
    halvings
        How often the number of coordinates may be halved.
    smoothing
        Weight of the past, in [0, 1), in the running mean of the estimates of |x|^2: the estimate of a single
        round is mostly noise.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> plan = pq.Target(epsilon=2.0, rounds=10, num_clients=50).plan(dimension=4000, max_bits=1, keep=400)
    >>> policy = AdaptiveKeep(plan)
    >>> policy(1).count_kept(4000)
    400
    >>> policy.observe_energy(0.0)  # the estimate of a round without any signal
    >>> policy.energy, policy(2).count_kept(4000)
    (0.9, 400)
    """

    def __init__(self, plan: Plan, *, halvings: int = 3, smoothing: float = 0.9) -> None:
        super().__init__(plan.encoding)
        self._plan = plan
        kept = plan.encoding.count_kept(plan.dimension)
        if plan.central_error is None or kept == plan.dimension:
            reason = "is for the local view" if plan.central_error is None else "sends all coordinates"
            raise InvalidSpecError(
                "plan",
                MISSING,
                f"it {reason}, so that the norm of the mean decides nothing",
                "plan for a secure sum, with keep or max_error",
            )
        self.halvings = _validation.check_integer("halvings", halvings, 0, 20)
        self.smoothing = _validation.check_in_interval("smoothing", smoothing, "[0, 1)")
        # The squared norm of the mean, in units of the squared L2 clip: at first the worst case.
        self.energy = 1.0
        # The encodings for fewer coordinates, by their number; None if one would exceed the target.
        self._encodings: dict[int, Encoding | None] = {}

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def adaptive(self) -> bool:
        """False: every choice keeps the target, as normal pairs dominate each round (see the module)."""
        return False

    def change_encoding(self, encoding: Encoding, server_round: int) -> Encoding:
        """The encoding with as few coordinates as the mean of past rounds allows."""
        dimension = self.plan.dimension
        most = encoding.count_kept(dimension)
        # Estimates are noisy, so their mean may be negative, or larger than the clip allows.
        energy = min(max(self.energy, 1e-9), 1.0)
        wanted = dimension / (1.0 + (dimension / most - 1.0) / energy)
        steps = min(int(math.log2(most / wanted)), self.halvings)
        while steps > 0:
            kept = math.ceil(most / 2**steps)
            if kept not in self._encodings:
                self._encodings[kept] = self._plan_encoding(kept)
            planned = self._encodings[kept]
            if planned is not None:
                return planned
            steps -= 1
        return encoding

    def _plan_encoding(self, kept: int) -> Encoding | None:
        """The encoding that keeps ``kept`` coordinates, planned for the whole target; None if that fails."""
        encoding, plan = self.plan.encoding, self.plan
        try:
            fewer = plan.target.plan(
                plan.dimension,
                encoding.l2_clip or 1.0,
                mechanism=encoding.mechanism.name,
                max_bits=int(encoding.mechanism.bits_per_coordinate),
                keep=kept,
                aggregation=plan.aggregation,
                force=True,
            )
        except InfeasibleDesignError:
            return None
        planned_pair, fewer_pair = self._find_normal_pair(encoding), self._find_normal_pair(fewer.encoding)
        if planned_pair is None or fewer_pair is None:
            return None
        costlier = replace(
            planned_pair,
            separation=max(planned_pair.separation, fewer_pair.separation),
            infinity=max(planned_pair.infinity, fewer_pair.infinity),
            log_ratio=max(planned_pair.log_ratio, fewer_pair.log_ratio),
        )
        run = [Part(costlier, plan.target.counted_rounds)]
        within = compose_epsilon(run, plan.target.delta).epsilon <= plan.target.epsilon
        return fewer.encoding if within else None

    def _find_normal_pair(self, encoding: Encoding) -> NormalLoss | None:
        """The least separated normal pair that dominates a round of an encoding; None if there is none."""
        dimension, view = self.plan.dimension, self.plan.aggregation.view(self.plan.target.num_clients)
        norms = UpdateNorms(l2=(encoding.l2_bound(dimension) or math.inf) / encoding.clip)
        kept, counted = encoding.count_kept(dimension), View(round_count_down(view.honest_count))
        losses = encoding.mechanism.for_dimension(kept).update_losses(WholeUpdate(norms, kept, counted))
        pairs = [named.loss for named in losses if isinstance(named.loss, NormalLoss) and named.count == 1]
        return min(pairs, key=lambda pair: pair.separation, default=None)

    def observe_sum(self, codec: UpdateCodec, total: NDArray[Any], num_clients: int) -> None:
        super().observe_sum(codec, total, num_clients)
        self.observe_energy(estimate_mean_energy(codec, total, num_clients))

    def observe_energy(self, energy: float) -> None:
        """Take note of a round's estimate of |x|^2 / C^2, which noise may put below 0 or above 1."""
        if math.isfinite(energy):
            self.energy = self.smoothing * self.energy + (1.0 - self.smoothing) * energy

    def get_learned_state(self) -> dict[str, Any]:
        return {"energy": self.energy}

    def set_learned_state(self, state: Mapping[str, Any]) -> None:
        energy = float(state["energy"])
        if not math.isfinite(energy):
            raise InvalidSpecError("energy", energy, "is not finite", "the checkpoint is damaged, begin anew")
        self.energy = energy


def estimate_mean_energy(codec: UpdateCodec, total: NDArray[Any], num_clients: int) -> float:
    """The squared L2 norm of the mean update over the squared L2 clip, estimated from a sum of codes.

    It is unbiased if all clients are at the L2 clip, except that the noise is assumed to be that of
    coordinates at the clip. If updates are shorter, it is a little too large.
    """
    encoding, dimension, kept = codec.encoding, codec.layout.dimension, codec.kept
    mean = codec.mechanism.decode_sum(np.asarray(total)[:kept], num_clients, encoding.clip)
    # In units of the variance of a coordinate of an update at the clip.
    variance = (encoding.l2_clip or 1.0) ** 2 / dimension
    spread, share = encoding.clip / math.sqrt(variance), norm_clip_factor(kept) if kept < dimension else 1.0
    noise = share**2 * noise_at_norm_bound(codec.mechanism.mse, spread / share) / num_clients
    gain = compute_clipped_moments(spread / share)[1] * compute_kept_moments(kept, dimension, share)[1]
    return (float(mean @ mean) / (kept * variance) - noise) / gain**2
