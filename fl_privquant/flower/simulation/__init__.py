"""Engines that run one Flower app: in this process, and in the workers of Ray.

One interface: ``run(server_app, client_app, federation) -> RunResult``.
"""

from fl_privquant.flower.simulation._nodes import BATCH
from fl_privquant.flower.simulation.engine import Engine, Federation, RunResult
from fl_privquant.flower.simulation.inline import InlineEngine
from fl_privquant.flower.simulation.ray import RayEngine

__all__ = ["BATCH", "Engine", "Federation", "InlineEngine", "RayEngine", "RunResult"]
