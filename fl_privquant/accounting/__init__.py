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
    unit_statement,
)
from fl_privquant.accounting.aggregation import Aggregation, PerClient, SecureSum, SimulatedSum, SumOfCodes
from fl_privquant.accounting.audit import EmpiricalBound, bound_of_outputs, empirical_bound
from fl_privquant.accounting.canaries import Canaries, CanaryBound, audit_scores, guessing_bound
from fl_privquant.accounting.ledgers.server_ledger import FederationLedger
from fl_privquant.accounting.ledgers.spending_ledger import SpendingLedger
from fl_privquant.accounting.release import Release
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.statement import LOCAL, PrivacyStatement, Relation, StatedView, Unit, View, ViewKind

__all__ = [
    "LOCAL",
    "Accountant",
    "Aggregation",
    "Budget",
    "Canaries",
    "CanaryBound",
    "EmpiricalBound",
    "FederationLedger",
    "PerClient",
    "PrivacyStatement",
    "Relation",
    "Release",
    "RunRequirements",
    "SecureSum",
    "SimulatedSum",
    "SpendingLedger",
    "StatedView",
    "SumOfCodes",
    "Unit",
    "UpdateNorms",
    "View",
    "ViewKind",
    "audit_scores",
    "bound_of_outputs",
    "coordinate_statement",
    "empirical_bound",
    "guessing_bound",
    "round_statement",
    "statement_levels",
    "unit_statement",
]
