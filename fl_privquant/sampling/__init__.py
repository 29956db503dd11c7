"""Randomness, and the encoders: all code that draws random codes."""

from fl_privquant.sampling.chunks import LazyVector, encode_in_chunks
from fl_privquant.sampling.fine_gaussian import FineGaussian
from fl_privquant.sampling.integer_noise import DiscreteGaussian, DiscreteLaplace, IntegerNoise, Skellam
from fl_privquant.sampling.kernel import Sampler
from fl_privquant.sampling.rounding import encode_on_lattice
from fl_privquant.sampling.stream import Randomness, RandomStream

__all__ = [
    "DiscreteGaussian",
    "DiscreteLaplace",
    "FineGaussian",
    "IntegerNoise",
    "LazyVector",
    "RandomStream",
    "Randomness",
    "Sampler",
    "Skellam",
    "encode_in_chunks",
    "encode_on_lattice",
]
