"""Mechanisms as data: output distributions, codebooks, certified tables, lattices and input densities."""

from fl_privquant.distributions.certified_table import BiasedTable, CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.input_density import (
    Density,
    DistributionDensity,
    SampleDensity,
    UniformDensity,
    as_density,
)
from fl_privquant.distributions.integer_distribution import IntegerDistribution
from fl_privquant.distributions.output_distribution import OutputDistribution

__all__ = [
    "BiasedTable",
    "CertifiedTable",
    "Codebook",
    "Density",
    "DistributionDensity",
    "IntegerDistribution",
    "OutputDistribution",
    "SampleDensity",
    "UniformDensity",
    "as_density",
]
