"""Private quantization for federated learning: a few bits per coordinate, certified privacy.

>>> import fl_privquant as pq
>>> mechanism = pq.design("optm", epsilon=1.0, bits=2)
>>> mechanism.epsilon <= 1.0
True
>>> indices = mechanism.encode([0.02, -0.1, 0.07], clip=0.1)
>>> estimates = mechanism.decode(indices, clip=0.1)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fl_privquant.errors import (
    BudgetExhaustedError,
    CertificationError,
    CodeOverflowError,
    CulpritError,
    InfeasibleDesignError,
    InvalidSpecError,
    InvalidUpdateError,
    LedgerDamagedError,
    LedgerMismatchError,
    PrivQuantError,
    SecureAggregationError,
)

if TYPE_CHECKING:
    from fl_privquant.accounting import (
        Accountant,
        Budget,
        PerClient,
        PrivacyStatement,
        Relation,
        Release,
        SecureSum,
        SimulatedSum,
        SumOfCodes,
        Unit,
        View,
    )
    from fl_privquant.codec import ArrayChoice, Encoding
    from fl_privquant.distributions import Codebook, OutputDistribution
    from fl_privquant.mechanisms import Mechanism, available_mechanisms, design
    from fl_privquant.planning import CohortSampling, FixedSampling, Plan, PoissonSampling, Target
    from fl_privquant.sampling import RandomStream

__all__ = [
    "Accountant",
    "ArrayChoice",
    "Budget",
    "BudgetExhaustedError",
    "CertificationError",
    "CodeOverflowError",
    "Codebook",
    "CohortSampling",
    "CulpritError",
    "Encoding",
    "FixedSampling",
    "InfeasibleDesignError",
    "InvalidSpecError",
    "InvalidUpdateError",
    "LedgerDamagedError",
    "LedgerMismatchError",
    "Mechanism",
    "OutputDistribution",
    "PerClient",
    "Plan",
    "PoissonSampling",
    "PrivQuantError",
    "PrivacyStatement",
    "RandomStream",
    "Relation",
    "Release",
    "SecureAggregationError",
    "SecureSum",
    "SimulatedSum",
    "SumOfCodes",
    "Target",
    "Unit",
    "View",
    "__version__",
    "available_mechanisms",
    "design",
]

__version__ = "0.1.0"

# The package that each name comes from. It is imported when the name is first used (PEP 562), because numpy
# and scipy take most of a second to import and not every program that imports this package needs them.
_EXPORTS = {
    "accounting": (
        "Accountant",
        "Budget",
        "PerClient",
        "PrivacyStatement",
        "Relation",
        "Release",
        "SecureSum",
        "SimulatedSum",
        "SumOfCodes",
        "Unit",
        "View",
    ),
    "codec": ("ArrayChoice", "Encoding"),
    "distributions": ("Codebook", "OutputDistribution"),
    "mechanisms": ("Mechanism", "available_mechanisms", "design"),
    "planning": ("CohortSampling", "FixedSampling", "Plan", "PoissonSampling", "Target"),
    "sampling": ("RandomStream",),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name from the package that defines it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
