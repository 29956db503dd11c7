"""What privacy is spent: releases as events, how they are counted, and statements that cannot be misread.

>>> import fl_privquant as pq
>>> from fl_privquant.privacy import Accountant, UpdateRelease, View
>>> accountant = Accountant()
>>> accountant.add(UpdateRelease(pq.design("one_bit", epsilon=1.0), 650, View.aggregate(20)), count=30)
>>> print(accountant.statement(delta=1e-5).figures)
ε = 715.3, δ = 1e-05
"""

from fl_privquant.privacy import noise_norm
from fl_privquant.privacy.accountant import (
    Accountant,
    coordinate_statement,
    round_statement,
    statement_levels,
)
from fl_privquant.privacy.aggregation import Aggregation, PerClient, SecureSum, SumOfCodes
from fl_privquant.privacy.attack import EmpiricalBound, empirical_bound
from fl_privquant.privacy.events import Sampling, UpdateRelease, releases_of
from fl_privquant.privacy.federation import FederationLedger
from fl_privquant.privacy.ledger import Budget
from fl_privquant.privacy.norm import Norms
from fl_privquant.privacy.planner import PlannedDesigns, Wish, plan
from fl_privquant.privacy.spending import SpendingLedger
from fl_privquant.privacy.statement import LOCAL, PrivacyStatement, Unit, View
from fl_privquant.privacy.target import Plan, Target

__all__ = [
    "LOCAL",
    "Accountant",
    "Aggregation",
    "Budget",
    "EmpiricalBound",
    "FederationLedger",
    "Norms",
    "PerClient",
    "Plan",
    "PlannedDesigns",
    "PrivacyStatement",
    "Sampling",
    "SecureSum",
    "SpendingLedger",
    "SumOfCodes",
    "Target",
    "Unit",
    "UpdateRelease",
    "View",
    "Wish",
    "coordinate_statement",
    "empirical_bound",
    "noise_norm",
    "plan",
    "releases_of",
    "round_statement",
    "statement_levels",
]
