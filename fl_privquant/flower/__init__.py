"""Flower plug-ins: the mod for clients, the strategy for the server, checkpoints and engines.

A user adds two lines to an ordinary Flower app:

* on the client ``app = ClientApp(mods=[PrivQuantMod(max_epsilon=1.0)])``
* on the server ``strategy = PrivQuantStrategy(FedAvg(...), mechanism=mechanism, clip=0.1)``
"""

from fl_privquant.accounting.aggregation import PerClient, SecureSum, SimulatedSum, SumOfCodes
from fl_privquant.flower.adaptive_keep import AdaptiveKeep
from fl_privquant.flower.checkpoint import CheckpointStrategy
from fl_privquant.flower.mod import PrivQuantMod
from fl_privquant.flower.policies import DoublingMechanism, QuantileClip, ScheduledKeep, ScheduledMechanism
from fl_privquant.flower.private_grid import PrivateGrid
from fl_privquant.flower.round_record import RoundRecord
from fl_privquant.flower.secure_mod import SecureAggregationMod
from fl_privquant.flower.strategy import NoUsableReplyError, PrivQuantStrategy
from fl_privquant.flower.wrapping import StoppedResult, StrategyWrapper

__all__ = [
    "AdaptiveKeep",
    "CheckpointStrategy",
    "DoublingMechanism",
    "NoUsableReplyError",
    "PerClient",
    "PrivQuantMod",
    "PrivQuantStrategy",
    "PrivateGrid",
    "QuantileClip",
    "RoundRecord",
    "ScheduledKeep",
    "ScheduledMechanism",
    "SecureAggregationMod",
    "SecureSum",
    "SimulatedSum",
    "StoppedResult",
    "StrategyWrapper",
    "SumOfCodes",
]
