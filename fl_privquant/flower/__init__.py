"""Flower plug-ins: the mod for clients, the strategy for the server, checkpoints and engines.

A user adds two lines to an ordinary Flower app:

* on the client ``app = ClientApp(mods=[PrivQuantMod(max_epsilon=1.0)])``
* on the server ``strategy = PrivQuantStrategy(FedAvg(...), Encoding(mechanism, clip=0.1))``
"""

from fl_privquant.accounting.aggregation import PerClient, SecureSum, SimulatedSum, SumOfCodes
from fl_privquant.flower.client.mod import PrivQuantMod
from fl_privquant.flower.client.record_update import linear_record_update
from fl_privquant.flower.policies.adaptive_keep import AdaptiveKeep
from fl_privquant.flower.policies.schedules import (
    DoublingMechanism,
    QuantileClip,
    ScheduledKeep,
    ScheduledMechanism,
)
from fl_privquant.flower.server.accountant import AccountedAdaptiveClipping, GaussianAccountant
from fl_privquant.flower.server.checkpoint import CheckpointStrategy
from fl_privquant.flower.server.client_metrics import ClientMetrics
from fl_privquant.flower.server.grid import PrivateGrid
from fl_privquant.flower.server.model_average import ModelAverageStrategy
from fl_privquant.flower.server.round_record import RoundRecord
from fl_privquant.flower.server.strategy import NoUsableReplyError, PrivQuantStrategy
from fl_privquant.flower.server.strategy_wrapper import StoppedResult, StrategyWrapper

__all__ = [
    "AccountedAdaptiveClipping",
    "AdaptiveKeep",
    "CheckpointStrategy",
    "ClientMetrics",
    "DoublingMechanism",
    "GaussianAccountant",
    "ModelAverageStrategy",
    "NoUsableReplyError",
    "PerClient",
    "PrivQuantMod",
    "PrivQuantStrategy",
    "PrivateGrid",
    "QuantileClip",
    "RoundRecord",
    "ScheduledKeep",
    "ScheduledMechanism",
    "SecureSum",
    "SimulatedSum",
    "StoppedResult",
    "StrategyWrapper",
    "SumOfCodes",
    "linear_record_update",
]
