"""Skellam: randomized rounding plus the difference of two Poisson numbers.

Guarantee: (``epsilon``, ``delta``)-differential privacy of each coordinate and release, local view,
certified on the table that the noise is drawn from, not by the paper's Rényi bound; unbiased.
Assumes: nothing about the inputs.
Reference: Agarwal, Kairouz, Liu, "The Skellam Mechanism for Differentially Private Federated Learning",
NeurIPS 2021. Sums of Skellam noises are Skellam noise: the aggregate of n clients has n times the
variance. In that paper the sum protects a client; the guarantee above, for the local view, rests on the
client's own noise alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from fl_privquant.mechanisms.additive._integer_noise import AdditiveMechanism, ApproximateSpec
from fl_privquant.mechanisms.registry import register
from fl_privquant.sampling.integer_noise import Skellam


@dataclass(frozen=True)
class SkellamSpec(ApproximateSpec):
    """The specification of Skellam; see :class:`ApproximateSpec`."""

    noise_type = Skellam


class SkellamMechanism(AdditiveMechanism, kind="skellam"):
    """Rounding plus Skellam noise modulo 2^wrap_bits; see :class:`AdditiveMechanism`."""

    noise_type = Skellam


register("skellam", SkellamSpec, 130, "#6ec5e9", cached=True, plans_for_sums=True, plans_for_local=True)(
    SkellamMechanism.of
)
