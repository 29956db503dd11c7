"""Discrete Gaussian: randomized rounding plus noise with P[k] proportional to exp(-k^2 / (2 sigma^2)).

Guarantee: (``epsilon``, ``delta``)-differential privacy of each coordinate and release, local view,
certified on the table that the noise is drawn from, not by a formula for the continuous Gaussian; unbiased.
Assumes: nothing about the inputs.
Reference: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020 (the
noise); Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with
Secure Aggregation", ICML 2021 (rounding, noise and wrap on each client). In that paper the sum of the
clients' noises protects a client; the guarantee above, for the local view, rests on the client's own noise
alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from fl_privquant.mechanisms.additive._integer_noise import AdditiveMechanism, ApproximateSpec
from fl_privquant.mechanisms.registry import register
from fl_privquant.sampling.integer_noise import DiscreteGaussian


@dataclass(frozen=True)
class DiscreteGaussianSpec(ApproximateSpec):
    """The specification of discrete Gaussian; see :class:`ApproximateSpec`."""

    noise_type = DiscreteGaussian


class DiscreteGaussianMechanism(AdditiveMechanism, kind="discrete_gaussian"):
    """Rounding plus discrete Gaussian noise modulo 2^wrap_bits; see :class:`AdditiveMechanism`."""

    noise_type = DiscreteGaussian


register(
    "discrete_gaussian",
    DiscreteGaussianSpec,
    120,
    "#355070",
    cached=True,
    plans_for_sums=True,
    plans_for_local=True,
)(DiscreteGaussianMechanism.of)
