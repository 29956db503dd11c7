"""Room for integer rounding: a law designed a hair inside its budget, so that its table stays within."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fl_privquant.errors import CertificationError
from fl_privquant.law.law import Law
from fl_privquant.statement import PrivacyStatement, Unit

# Most designs need no room beyond what their own constraints leave.
_SLACKS = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)

CertifiedT = TypeVar("CertifiedT")


def design_with_slack(
    law_of: Callable[[float], Law], certify: Callable[[Law], CertifiedT], epsilon: float
) -> CertifiedT:
    """The first certified law, as ``certify`` returns it, of laws designed ever further below ``epsilon``.

    Parameters
    ----------
    law_of
        The law with at most the given privacy loss.
    certify
        Rounds a law to integers and certifies them at ``epsilon`` itself, or raises CertificationError.
    epsilon
        The privacy loss to stay within.
    """
    failure: CertificationError | None = None
    for slack in _SLACKS:
        law = law_of(epsilon * (1.0 - slack))
        try:
            return certify(law)
        except CertificationError as error:
            failure = error
    asked = PrivacyStatement(epsilon, 0.0, Unit.COORDINATE)
    raise CertificationError(f"no integer table inside {asked.brief} was found: {failure}")
