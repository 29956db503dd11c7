"""Planning a whole run: a target for its privacy becomes an encoding, with the error that it predicts."""

from fl_privquant.planning.client_sampling import (
    ClientSampling,
    CohortSampling,
    FixedSampling,
    PoissonSampling,
    StrategySampling,
)
from fl_privquant.planning.planner import PlannedDesigns, plan, run_statement
from fl_privquant.planning.target import Plan, Target
from fl_privquant.privacy_loss.correlated_noise import Workload

__all__ = [
    "ClientSampling",
    "CohortSampling",
    "FixedSampling",
    "Plan",
    "PlannedDesigns",
    "PoissonSampling",
    "StrategySampling",
    "Target",
    "Workload",
    "plan",
    "run_statement",
]
