"""Flower plug-ins: the mod for clients, the strategy for the server, checkpoints and engines.

A user adds two lines to an ordinary Flower app:

* on the client ``app = ClientApp(mods=[PrivQuantMod(max_epsilon=1.0)])``
* on the server ``strategy = PrivQuantStrategy(FedAvg(...), Encoding(mechanism, clip=0.1))``
"""

from fl_privquant.flower.client import PrivQuantMod, linear_record_update
from fl_privquant.flower.policies import QuantileClip, ScheduledKeep, ScheduledMechanism
from fl_privquant.flower.server import (
    AccountedAdaptiveClipping,
    CheckpointStrategy,
    ClientMetrics,
    GaussianAccountant,
    ModelAverageStrategy,
    NoUsableReplyError,
    PrivateGrid,
    PrivQuantStrategy,
    RoundRecord,
    StoppedResult,
    StrategyWrapper,
)

__all__ = [
    "AccountedAdaptiveClipping",
    "CheckpointStrategy",
    "ClientMetrics",
    "GaussianAccountant",
    "ModelAverageStrategy",
    "NoUsableReplyError",
    "PrivQuantMod",
    "PrivQuantStrategy",
    "PrivateGrid",
    "QuantileClip",
    "RoundRecord",
    "ScheduledKeep",
    "ScheduledMechanism",
    "StoppedResult",
    "StrategyWrapper",
    "linear_record_update",
]
