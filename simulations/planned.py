"""The mechanism of a run, and what the run costs; with a budget for the whole run, what meets it.

The budget (``privacy.run_epsilon``, ``privacy.delta``) is for a client's total over all rounds, in the
aggregate view of all clients of a round: it assumes secure aggregation, which changes no number of a run, and
that all of them are honest and stay.
"""

from __future__ import annotations

import json
from functools import lru_cache

from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import design
from fl_privquant.privacy import (
    LOCAL,
    Accountant,
    Norms,
    PrivacyStatement,
    Unit,
    UpdateRelease,
    View,
    Wish,
    plan,
)
from simulations.config import CENTRAL, RunConfig

__all__ = ["TRUSTED", "central_budget", "mechanism_of", "run_statement"]

TRUSTED = "central"
"""The view that a central mechanism protects against: of whoever sees the models, and is not the server."""

# Designed for such a budget as it is: nothing to search.
_FOR_THE_SUM = "optm_aggregate"
# Counted by the norm of an update; others are laws for a coordinate, and are counted by coordinates: a
# certificate by the norm takes minutes for laws of many pieces.
_BY_NORM = (_FOR_THE_SUM, "pbm", "skellam", "discrete_gaussian", "gaussian")


def mechanism_of(config: RunConfig, dimension: int) -> Mechanism:
    """What encodes the updates of a run: as configured, or the design that fits the budget of the run."""
    if config.privacy.run_epsilon is None or config.mechanism["name"] == CENTRAL:
        return config.design()
    return _planned(json.dumps(dict(config.mechanism), sort_keys=True), _wish(config, dimension))


def central_budget(config: RunConfig) -> tuple[float, float, float]:
    """L2 clip of the central baseline, and epsilon and delta of a client's total: the run's, or its own."""
    epsilon = config.privacy.run_epsilon or config.mechanism.get("epsilon")
    if config.codec.l2_clip is None or epsilon is None:
        raise InvalidSpecError(
            f"{CENTRAL}: codec.l2_clip {config.codec.l2_clip}, mechanism.epsilon {epsilon}; set both, as the "
            "noise follows from the norm that bounds a client's update and from the budget"
        )
    return config.codec.l2_clip, float(epsilon), config.privacy.delta


def run_statement(
    config: RunConfig, mechanism: Mechanism, dimension: int, in_sum: bool = True
) -> PrivacyStatement:
    """What a run costs a client that took part in every round; in the sum of all clients, or locally."""
    if config.mechanism["name"] == CENTRAL and in_sum:
        _, epsilon, delta = central_budget(config)
        return PrivacyStatement(
            epsilon,
            delta,
            Unit.TOTAL,
            TRUSTED,
            method="exact",
            assumptions=("a trusted server", "exact real numbers: floats leak"),
            scope=f"{dimension} coordinates, {config.federation.rounds} rounds",
        )
    view = View.aggregate(_participants(config)) if in_sum else LOCAL
    rounds, delta = config.federation.rounds, config.privacy.delta
    return _counted(mechanism.to_bytes(), dimension, view, _norms(config), rounds, delta)


# The seeds of a sweep share it.
@lru_cache(maxsize=256)
def _counted(
    mechanism: bytes, dimension: int, view: View, norms: Norms, rounds: int, delta: float
) -> PrivacyStatement:
    found = Mechanism.from_bytes(mechanism).for_dimension(dimension)
    accountant = Accountant()
    accountant.add(UpdateRelease(found, dimension, view, norms=norms), rounds)
    return accountant.statement(delta)


def _participants(config: RunConfig) -> int:
    return max(1, int(config.federation.num_clients * config.federation.fraction))


def _norms(config: RunConfig) -> Norms:
    codec = config.codec
    if codec.l2_clip is None or config.mechanism["name"] not in _BY_NORM:
        return Norms()
    return Norms(l2=codec.l2_clip / codec.clip)


def _wish(config: RunConfig, dimension: int) -> Wish:
    return Wish(
        num_clients=_participants(config),
        dimension=dimension,
        rounds=config.federation.rounds,
        epsilon=float(config.privacy.run_epsilon or 0.0),
        delta=config.privacy.delta,
        bits=int(config.mechanism.get("bits", 1)),
        norms=_norms(config),
    )


@lru_cache(maxsize=64)
def _planned(parameters: str, wish: Wish) -> Mechanism:
    mechanism = json.loads(parameters)
    name = mechanism["name"]
    if "epsilon" in mechanism:
        raise InvalidSpecError(
            f"mechanism.epsilon: {mechanism['epsilon']}, and privacy.run_epsilon {wish.epsilon} too; set one "
            "of them to null"
        )
    if name == _FOR_THE_SUM:
        return design(
            name,
            bits=wish.bits,
            num_clients=wish.num_clients,
            dimension=wish.dimension,
            rounds=wish.rounds,
            run_epsilon=wish.epsilon,
            run_delta=wish.delta,
            norm_ratio=wish.norms.l2,
        )
    found = plan(wish, [name])
    if not found.designs:
        raise InfeasibleDesignError(
            f"{name}: no design meets privacy.run_epsilon {wish.epsilon}: "
            f"{found.missing.get(name, found.advice)}"
        )
    return found.designs[0].mechanism
