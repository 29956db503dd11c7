"""How much privacy is spent: releases as events, how their losses add up, and statements with unit and view.

>>> import fl_privquant as pq
>>> from fl_privquant.accounting import Accountant, Release, View
>>> accountant = Accountant()
>>> accountant.add(Release(pq.design("one_bit", epsilon=1.0), 650, View.aggregate(20)), count=30)
>>> print(accountant.statement(delta=1e-5).figures)
ε = 715.3, δ = 1e-05
"""

from fl_privquant.accounting.accountant import (
    Accountant,
    Budget,
    coordinate_statement,
    round_statement,
    statement_levels,
)
from fl_privquant.accounting.aggregation import Aggregation, PerClient, SecureSum, SimulatedSum, SumOfCodes
from fl_privquant.accounting.audit import EmpiricalBound, empirical_bound
from fl_privquant.accounting.client_sampling import (
    ClientSampling,
    CohortSampling,
    FixedSampling,
    PoissonSampling,
    StrategySampling,
)
from fl_privquant.accounting.federation import FederationLedger
from fl_privquant.accounting.planner import PlannedDesigns, plan, run_statement
from fl_privquant.accounting.release import Release
from fl_privquant.accounting.spending import SpendingLedger
from fl_privquant.accounting.target import Plan, Target
from fl_privquant.loss.norms import Norms
from fl_privquant.mechanisms.wish import Wish
from fl_privquant.statement import LOCAL, PrivacyStatement, StatedView, Unit, View, ViewKind

__all__ = [
    "LOCAL",
    "Accountant",
    "Aggregation",
    "Budget",
    "ClientSampling",
    "CohortSampling",
    "EmpiricalBound",
    "FederationLedger",
    "FixedSampling",
    "Norms",
    "PerClient",
    "Plan",
    "PlannedDesigns",
    "PoissonSampling",
    "PrivacyStatement",
    "Release",
    "SecureSum",
    "SimulatedSum",
    "SpendingLedger",
    "StatedView",
    "StrategySampling",
    "SumOfCodes",
    "Target",
    "Unit",
    "View",
    "ViewKind",
    "Wish",
    "coordinate_statement",
    "empirical_bound",
    "plan",
    "round_statement",
    "run_statement",
    "statement_levels",
]
