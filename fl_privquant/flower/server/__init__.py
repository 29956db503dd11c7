"""The server side of a Flower app: the strategy, rounds, aggregation, checkpoints and the grid."""

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
    "CheckpointStrategy",
    "ClientMetrics",
    "GaussianAccountant",
    "ModelAverageStrategy",
    "NoUsableReplyError",
    "PrivQuantStrategy",
    "PrivateGrid",
    "RoundRecord",
    "StoppedResult",
    "StrategyWrapper",
]
