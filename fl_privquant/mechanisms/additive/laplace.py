"""Laplace: the clipped input plus Laplace noise of scale 2 / epsilon, in floating point.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, in exact arithmetic
only: floats leak (see :class:`ContinuousMechanism`). A baseline for ``discrete_laplace``; unbiased.
Assumes: nothing about the inputs.
Reference: Dwork, McSherry, Nissim, Smith, "Calibrating Noise to Sensitivity in Private Data Analysis",
TCC 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fl_privquant._array_types import ArrayLike, Floats
from fl_privquant.distributions.input_density import Density
from fl_privquant.mechanisms._continuous import ContinuousMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec
from fl_privquant.privacy_loss.closed_forms import laplace_loss
from fl_privquant.privacy_loss.composition.compose import NamedLoss
from fl_privquant.statement import LOCAL, Relation, View


@dataclass(frozen=True)
class LaplaceSpec(Spec):
    """The specification of the Laplace baseline."""

    epsilon: float


class LaplaceMechanism(ContinuousMechanism, kind="laplace"):
    """The clipped input plus Laplace noise; see :class:`ContinuousMechanism`."""

    def _is_private(self) -> bool:
        return 2 / Fraction(self.scale) <= Fraction(self.claimed_epsilon) and self.claimed_delta >= 0.0

    def _lower_quantile(self, shares: Floats) -> Floats:
        return np.asarray(np.log(shares))

    def loss(self, view: View = LOCAL, relation: Relation = Relation.REPLACE_ONE) -> NamedLoss:
        return NamedLoss(laplace_loss(relation.distance / self.scale), relation=relation)

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        return self.scale

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return 2.0 * self.scale**2


@register("laplace", LaplaceSpec, 140, "#e29578", plans_for_local=True)
def design_laplace(spec: LaplaceSpec) -> LaplaceMechanism:
    """The baseline at ``epsilon``."""
    # Inputs are at most 2 apart; rounded up, so that the loss is not above epsilon.
    scale = math.nextafter(2.0 / spec.epsilon, math.inf)
    return LaplaceMechanism("laplace", scale, spec.epsilon, 0.0, parameters=spec.parameters())
