"""The keys of ``conf/engine``: which engine runs a simulation, and what it may use of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError
from simulations.keys.config_checks import Keys, at_least


@dataclass(frozen=True)
class EngineConfig(Keys):
    """The engine that runs the app.

    Parameters
    ----------
    name
        ``inline`` (in this process) or ``ray`` (Flower's simulation engine).
    threads
        Threads that train clients, for ``inline``.
    processes
        Worker processes that train clients, for ``inline``; no more than the machine has cores. Results are
        the same to the last bit for any number.
    address
        host:port of an existing Ray cluster; null starts one for the run.
    client_cpus, client_gpus
        CPUs and GPUs that one client takes, for ``ray``: as many clients run at once as there is room for.
    """

    path: ClassVar[str] = "engine"

    name: Annotated[str, checks.one_of("inline", "ray")] = "inline"
    threads: Annotated[int, at_least(1)] = 1
    processes: Annotated[int, at_least(1)] = 1
    address: str | None = None
    client_cpus: Annotated[float, checks.positive] = 1.0
    client_gpus: Annotated[float, at_least(0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads > 1 and self.processes > 1:
            raise InvalidSpecError(
                f"engine.threads: {self.threads}, together with engine.processes {self.processes}; leave one "
                "of them at 1"
            )

    @property
    def in_one_process(self) -> bool:
        """Whether clients run in the process of the server."""
        return self.name == "inline" and self.processes == 1

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the engine."""
        inline, ray = ("threads", "processes"), ("address", "client_cpus", "client_gpus")
        return {key: getattr(self, key) for key in (ray if self.name == "ray" else inline)}
