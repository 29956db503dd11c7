"""The client side of a Flower app: mods, the ledger of the client, and its identity."""

from fl_privquant.flower.client.cohort import CohortApp, CohortMod
from fl_privquant.flower.client.mod import PrivQuantMod
from fl_privquant.flower.client.record_update import linear_record_update

__all__ = ["CohortApp", "CohortMod", "PrivQuantMod", "linear_record_update"]
