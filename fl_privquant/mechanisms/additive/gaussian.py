"""Gaussian: the clipped input plus normal noise, calibrated exactly, in floating point.

Guarantee: (``epsilon``, ``delta``)-differential privacy of each coordinate and release, local view, in exact
arithmetic only: floats leak (see :class:`ContinuousMechanism`). A baseline for ``discrete_gaussian`` and
``skellam``; unbiased.
Assumes: nothing about the inputs.
Reference: Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration
and Optimal Denoising", ICML 2018, Theorem 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from fl_privquant._array_types import ArrayLike, Floats
from fl_privquant.distributions.input_density import Density
from fl_privquant.mechanisms._continuous import ContinuousMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta, gaussian_separation
from fl_privquant.privacy_loss.closed_forms import gaussian_loss
from fl_privquant.privacy_loss.composition.compose import NamedLoss, UpdateNorm
from fl_privquant.privacy_loss.sums.gaussian_bound import NORM_ROUNDING
from fl_privquant.privacy_loss.update_bounds import WholeUpdate
from fl_privquant.statement import LOCAL, Relation, View

# Ensures that sensitivity / sigma does not exceed the allowed separation by rounding.
_FLOAT_ROOM = 1.0 + 1e-10


@dataclass(frozen=True)
class GaussianSpec(Spec):
    """The specification of the Gaussian baseline."""

    epsilon: float
    delta: float = 1e-6


class GaussianMechanism(ContinuousMechanism, kind="gaussian"):
    """The clipped input plus normal noise; see :class:`ContinuousMechanism`."""

    def _is_private(self) -> bool:
        return gaussian_delta(2.0 / self.scale, self.claimed_epsilon) <= self.claimed_delta

    def _lower_quantile(self, shares: Floats) -> Floats:
        return np.asarray(ndtri(0.5 * shares))

    def loss(self, view: View = LOCAL, relation: Relation = Relation.REPLACE_ONE) -> NamedLoss:
        if math.isinf(self.epsilon):
            return super().loss(view, relation)
        return NamedLoss(gaussian_loss(relation.distance / self.scale), relation=relation)

    def update_losses(self, update: WholeUpdate) -> list[NamedLoss]:
        if update.l2_distance is None:
            return []
        loss = gaussian_loss(update.l2_distance * NORM_ROUNDING / self.scale)
        return [NamedLoss(loss, "l2 gaussian", norm=UpdateNorm.L2, relation=update.relation)]

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        return self.scale * math.sqrt(2.0 / math.pi)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return self.scale**2


@register("gaussian", GaussianSpec, 150, "#83c5be", plans_for_local=True)
def design_gaussian(spec: GaussianSpec) -> GaussianMechanism:
    """The baseline with the least noise at (``epsilon``, ``delta``)."""
    sigma = analytic_sigma(2.0, spec.epsilon, spec.delta)
    return GaussianMechanism("gaussian", sigma, spec.epsilon, spec.delta, parameters=spec.parameters())


def analytic_sigma(sensitivity: float, epsilon: float, delta: float) -> float:
    """The least standard deviation, to 9 digits, of normal noise with (``epsilon``, ``delta``)."""
    return sensitivity / gaussian_separation(epsilon, delta) * _FLOAT_ROOM
