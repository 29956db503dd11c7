"""Private quantization for federated learning: a few bits a coordinate, exact and certified privacy.

>>> import fl_privquant as pq
>>> mechanism = pq.design("optm", epsilon=1.0, bits=2)
>>> mechanism.epsilon <= 1.0
True
>>> indices = mechanism.encode([0.02, -0.1, 0.07], clip=0.1)
>>> estimates = mechanism.decode(indices, clip=0.1)
"""

from typing import TYPE_CHECKING, Any

import fl_privquant.mechanisms as _registered  # noqa: F401  registers them
from fl_privquant.errors import (
    BudgetExhaustedError,
    CertificationError,
    CodeOverflowError,
    InfeasibleDesignError,
    InvalidSpecError,
    InvalidUpdateError,
    PrivQuantError,
)
from fl_privquant.law.codebook import Codebook
from fl_privquant.law.law import Law
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import design, mechanisms
from fl_privquant.sampling.stream import RandomStream

__all__ = [
    "BudgetExhaustedError",
    "CertificationError",
    "CodeOverflowError",
    "Codebook",
    "InfeasibleDesignError",
    "InvalidSpecError",
    "InvalidUpdateError",
    "Law",
    "Mechanism",
    "PerClient",
    "Plan",
    "PrivQuantError",
    "RandomStream",
    "SecureSum",
    "SumOfCodes",
    "Target",
    "design",
    "mechanisms",
]

if TYPE_CHECKING:
    from fl_privquant.accounting import PerClient, Plan, SecureSum, SumOfCodes, Target

_PLANNING = ("PerClient", "Plan", "SecureSum", "SumOfCodes", "Target")


def __getattr__(name: str) -> Any:
    """Planning is imported when it is asked for: designs and encodings do not need it."""
    if name not in _PLANNING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fl_privquant import accounting

    return getattr(accounting, name)
