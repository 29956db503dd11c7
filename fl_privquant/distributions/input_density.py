"""How inputs are distributed on [-1, 1]: uniform, a scipy distribution, or samples.

Errors of a mechanism are integrals of piecewise polynomials against the input density. A
density is therefore reduced to a quadrature: nodes and weights that integrate such polynomials
exactly (uniform, samples) or to rounding (scipy distributions) between given break points.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fl_privquant._array_types import Floats
from fl_privquant.errors import MISSING, InvalidSpecError

# Two Gauss-Legendre nodes are exact up to degree 3: a linear row times a squared error.
_CUBIC_NODES, _CUBIC_WEIGHTS = np.polynomial.legendre.leggauss(2)
_SMOOTH_NODES, _SMOOTH_WEIGHTS = np.polynomial.legendre.leggauss(16)

_TAILS = np.geomspace(1e-12, 1e-2, 6)
_PANEL_SHARES = np.concatenate([_TAILS, np.linspace(0.0, 1.0, 65)[1:-1], 1.0 - _TAILS])


class Density(ABC):
    """A distribution of inputs, clipped to [-1, 1] just as the encoder clips them."""

    @property
    @abstractmethod
    def symmetric(self) -> bool:
        """Whether the density is known to be symmetric around 0."""

    @abstractmethod
    def quadrature(self, breaks: Floats) -> tuple[Floats, Floats]:
        """Nodes and weights, exact for cubics between ``breaks`` (sorted, from -1 to 1)."""

    @abstractmethod
    def describe(self) -> str:
        """A short text that identifies the density; it is part of keys of the design cache."""


@dataclass(frozen=True)
class UniformDensity(Density):
    """Inputs uniform on [-1, 1].

    >>> nodes, weights = UniformDensity().quadrature(np.array([-1.0, 0.0, 1.0]))
    >>> bool(np.isclose(weights @ nodes**2, 1 / 3))
    True
    """

    symmetric = True

    def quadrature(self, breaks: Floats) -> tuple[Floats, Floats]:
        nodes, weights = _panels(breaks, _CUBIC_NODES, _CUBIC_WEIGHTS)
        return nodes, weights / 2.0

    def describe(self) -> str:
        return "uniform"


@dataclass(frozen=True)
class SampleDensity(Density):
    """Inputs distributed as the given samples, each with the same weight."""

    samples: Floats
    symmetric: bool = False

    def quadrature(self, breaks: Floats) -> tuple[Floats, Floats]:
        return self.samples, np.full(self.samples.size, 1.0 / self.samples.size)

    def describe(self) -> str:
        digest = hashlib.sha256(self.samples.astype("<f8").tobytes()).hexdigest()
        return f"samples:{self.samples.size}:{digest}"


@dataclass(frozen=True)
class DistributionDensity(Density):
    """Inputs distributed as a frozen, continuous ``scipy.stats`` distribution.

    Mass outside [-1, 1] sits at the ends, where the encoder's clipping puts it. For a
    *truncated* distribution pass a truncated distribution, such as ``scipy.stats.truncnorm``.
    """

    distribution: Any

    @cached_property
    def symmetric(self) -> bool:
        """Whether the two tails beyond -t and t have the same mass, to 9 digits, at many points t.

        Symmetry only saves work: designs then need not search among asymmetric values. Distributions and
        errors are computed from the density itself.
        """
        quantiles = np.abs(self.distribution.ppf(_PANEL_SHARES))
        at = np.union1d(quantiles[quantiles < 1.0], np.linspace(0.0, 1.0, 65))
        return bool(np.abs(self.distribution.cdf(-at) - self.distribution.sf(at)).max() < 1e-9)

    def quadrature(self, breaks: Floats) -> tuple[Floats, Floats]:
        # Quantiles are further break points: a narrow density needs nodes where its mass is.
        panels = np.unique(np.concatenate([breaks, self._own_breaks]))
        nodes, widths = _panels(panels, _SMOOTH_NODES, _SMOOTH_WEIGHTS)
        weights, ends = widths * self.distribution.pdf(nodes), self._ends
        if not (np.all(np.isfinite(weights)) and np.all(np.isfinite(ends))):
            raise InvalidSpecError(
                "density",
                MISSING,
                "its pdf is not finite on [-1, 1]",
                "give a continuous scipy.stats distribution with a finite pdf, or samples drawn from it",
            )
        total = float(weights.sum() + ends.sum())
        if abs(total - 1.0) > 1e-6:
            raise InvalidSpecError(
                "density",
                MISSING,
                f"it integrates to {total:.6g}, not to 1",
                "give a continuous scipy.stats distribution, or samples drawn from it",
            )
        nodes = np.concatenate([[-1.0], nodes, [1.0]])
        weights = np.concatenate([ends[:1], weights, ends[1:]]) / total
        return nodes, weights

    @cached_property
    def _own_breaks(self) -> Floats:
        """Break points of every quadrature: quantiles, and a few equidistant ones."""
        quantiles = self.distribution.ppf(_PANEL_SHARES)
        inside = quantiles[(quantiles > -1.0) & (quantiles < 1.0)]
        return np.concatenate([inside, np.linspace(-1.0, 1.0, 17)])

    @cached_property
    def _ends(self) -> Floats:
        """(2,) the masses outside of [-1, 1]."""
        return np.array([self.distribution.cdf(-1.0), self.distribution.sf(1.0)], dtype=np.float64)

    def describe(self) -> str:
        frozen = self.distribution
        arguments = [np.asarray(value).tolist() for value in frozen.args]
        keywords = {key: np.asarray(value).tolist() for key, value in sorted(frozen.kwds.items())}
        # Designs from before symmetry was detected had asymmetric values, and must have other keys.
        mirrored = ":symmetric" if self.symmetric else ""
        return f"scipy:{frozen.dist.name}:{json.dumps([arguments, keywords])}{mirrored}"


def as_density(density: Density | ArrayLike | Any | None) -> Density:
    """The :class:`Density` of what a user may pass: None (uniform), a scipy distribution, or samples.

    Parameters
    ----------
    density
        None, a frozen scipy.stats distribution, samples, or a density.

    Returns
    -------
    Density
        The density, clipped to [-1, 1].

    Raises
    ------
    InvalidSpecError
        It is none of these, or has no finite density that integrates to 1.

    >>> as_density(None).describe()
    'uniform'
    >>> as_density([0.1, -3.0]).samples
    array([ 0.1, -1. ])
    """
    if density is None:
        return UniformDensity()
    if isinstance(density, Density):
        return density
    if hasattr(density, "ppf") and hasattr(density, "dist"):
        if not hasattr(density.dist, "pdf"):
            raise InvalidSpecError(
                "density",
                density.dist.name,
                "is a discrete distribution",
                "give a continuous scipy.stats distribution, or samples",
            )
        frozen = DistributionDensity(density)
        frozen.quadrature(np.array([-1.0, 1.0]))
        return frozen
    try:
        samples = np.asarray(density, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise InvalidSpecError(
            "density",
            density,
            "cannot be read",
            "give None for uniform inputs, a frozen scipy.stats distribution, or an array of samples",
        ) from None
    if samples.size == 0 or not np.all(np.isfinite(samples)):
        bad = int(np.count_nonzero(~np.isfinite(samples)))
        raise InvalidSpecError(
            "density",
            samples.size,
            f"samples, {bad} of them NaN or infinite",
            "give at least one sample and only finite ones",
        )
    return SampleDensity(np.clip(samples, -1.0, 1.0))


def _panels(breaks: Floats, nodes: Floats, weights: Floats) -> tuple[Floats, Floats]:
    half = np.diff(breaks)[:, None] / 2.0
    middle = (breaks[:-1] + breaks[1:])[:, None] / 2.0
    return (middle + half * nodes).ravel(), (half * weights).ravel()
