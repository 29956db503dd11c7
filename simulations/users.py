"""One client for each user of the data, if the configuration leaves the number of clients to the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_privquant.errors import InvalidSpecError
from simulations.config import RunConfig
from simulations.targets import TARGET, located


def with_users(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a run, in which a null ``federation.num_clients`` is replaced by the number of users."""
    federation = values.get("federation")
    if not isinstance(federation, Mapping) or federation.get("num_clients", 1) is not None:
        return values
    # Everything but the number is checked first: it is known only once the data are read.
    config = RunConfig.from_mapping({**values, "federation": {**federation, "num_clients": 1}})
    if config.partition.name != "natural":
        raise InvalidSpecError(
            "federation.num_clients: null stands for all users of the data, but partition is "
            f"{config.partition.name}; use partition=natural, or give a number"
        )
    count = getattr(located(f"task.{TARGET}", config.task[TARGET]), "num_users", None)
    if count is None:
        raise InvalidSpecError(
            f"federation.num_clients: null, but {config.task[TARGET]} has no num_users(); give a number"
        )
    number = count(**{key: value for key, value in config.task.items() if key != TARGET})
    return {**values, "federation": {**federation, "num_clients": number}}
