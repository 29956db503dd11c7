"""Private quantization for federated learning: a few bits per coordinate, certified privacy.

>>> import fl_privquant as pq
>>> mechanism = pq.design("optm", epsilon=1.0, bits=2)
>>> mechanism.epsilon <= 1.0
True
>>> indices = mechanism.encode([0.02, -0.1, 0.07], clip=0.1)
>>> estimates = mechanism.decode(indices, clip=0.1)
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fl_privquant.errors import (
    BudgetExhaustedError,
    CertificationError,
    CodeOverflowError,
    InfeasibleDesignError,
    InvalidSpecError,
    InvalidUpdateError,
    PrivQuantError,
)

if TYPE_CHECKING:
    from fl_privquant.accounting import (
        CohortSampling,
        FixedSampling,
        PerClient,
        Plan,
        PoissonSampling,
        SecureSum,
        SumOfCodes,
        Target,
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
    "CohortSampling",
    "FixedSampling",
    "InfeasibleDesignError",
    "InvalidSpecError",
    "InvalidUpdateError",
    "Law",
    "Mechanism",
    "PerClient",
    "Plan",
    "PoissonSampling",
    "PrivQuantError",
    "RandomStream",
    "SecureSum",
    "SumOfCodes",
    "Target",
    "__version__",
    "design",
    "mechanisms",
]

__version__ = "0.1.0"

# Which module each name comes from. It is imported when the name is first used (PEP 562): numpy and scipy
# take most of a second, and not every program that imports this package designs a mechanism.
_HOMES = {
    "Codebook": "law.codebook",
    "CohortSampling": "accounting",
    "FixedSampling": "accounting",
    "Law": "law.law",
    "Mechanism": "mechanisms.base",
    "PerClient": "accounting",
    "Plan": "accounting",
    "PoissonSampling": "accounting",
    "RandomStream": "sampling.stream",
    "SecureSum": "accounting",
    "SumOfCodes": "accounting",
    "Target": "accounting",
    "design": "mechanisms.registry",
    "mechanisms": "mechanisms.registry",
}


class _Package(ModuleType):
    """The package as a module, in which the functions ``design`` and ``mechanisms`` are not hidden.

    Subpackages have the same names. When Python first loads a subpackage it binds the name here to it, which
    would hide the function. Imports of subpackages do not need that binding, so it is ignored.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """The public name, from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
