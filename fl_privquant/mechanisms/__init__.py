"""The registered mechanisms: one file each, and the registry."""

from fl_privquant.mechanisms import (
    discrete_gaussian,
    discrete_laplace,
    erm,
    gaussian,
    laplace,
    none,
    one_bit,
    optm,
    rqm,
    skellam,
    stochastic,
)

__all__ = [
    "discrete_gaussian",
    "discrete_laplace",
    "erm",
    "gaussian",
    "laplace",
    "none",
    "one_bit",
    "optm",
    "rqm",
    "skellam",
    "stochastic",
]
