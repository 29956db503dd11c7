"""From a run's configuration to its encoding, its aggregation, and what it costs.

A target (``privacy.epsilon``, ``privacy.delta``) is for a client's total over all rounds, in the view that
the run has: of the secure sum with ``secagg=on``, else the local one. Everything else follows from it
(:class:`fl_privquant.planning.Target`), and the run's ledger holds it as a budget.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

from fl_privquant.accounting import (
    Aggregation,
    PerClient,
    PrivacyStatement,
    SecureSum,
    SimulatedSum,
    StatedView,
    SumOfCodes,
    Unit,
    ViewKind,
)
from fl_privquant.flower.server.strategy_wrapper import needs_single_updates
from fl_privquant.planning import Plan, Target
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon, gaussian_separation
from fl_privquant.privacy_loss.correlated_noise import LagNoise, RoundSchedule, find_correlation
from simulations.runner.config import CENTRAL, FederationConfig, RunConfig
from simulations.runner.targets import TARGET, load_object


def make_aggregation(config: RunConfig) -> Aggregation:
    """What the server of a run sees of its clients' codes."""
    secagg = config.secagg
    if secagg.enabled:
        summed = SecureSum if secagg.masked else SimulatedSum
        return summed(secagg.corrupt_fraction, secagg.dropout_fraction, secagg.exact_sums)
    # An app is handed one reply for each client, as in plain Flower.
    single = config.app is not None or _compares_updates(config.federation)
    return PerClient() if single else SumOfCodes()


def _compares_updates(federation: FederationConfig) -> bool:
    """Whether the strategy compares single updates, which a sum of codes does not give."""
    if not federation.server_strategy:
        return federation.strategy == "fedmedian"
    kind = load_object(f"federation.server_strategy.{TARGET}", federation.server_strategy[TARGET])
    return isinstance(kind, type) and needs_single_updates(kind)


def make_target(config: RunConfig) -> Target | None:
    """The target of a run, in the rounds that its sampling lets a client take part in; None without one."""
    epsilon = config.privacy.epsilon
    if epsilon is None or config.mechanism["name"] == CENTRAL:
        return None
    rounds, counted = config.federation.rounds, config.counted_rounds
    bound = None if counted == rounds else counted
    clients, relation = _count_participants(config), config.privacy.wanted_relation
    apart = 1 if config.privacy.correlation is None else config.client_sampling.min_rounds_apart
    privacy = config.privacy
    return Target(
        epsilon,
        rounds,
        clients,
        privacy.delta,
        bound,
        unit=privacy.unit,
        records=privacy.records,
        sampling_rate=privacy.sampling_rate,
        rounds_apart=apart,
        relation=relation,
    )


def plan_run(config: RunConfig, dimension: int, l2_clip: float | None = None) -> Plan | None:
    """The plan of a run with a target, for a model of ``dimension`` coordinates; None for one without.

    It is for the given L2 clip or, without one, for that of the config.
    """
    target = make_target(config)
    if target is None:
        return None
    parameters = json.dumps(dict(config.mechanism), sort_keys=True)
    return _cached_plan(
        target,
        dimension,
        l2_clip or config.l2_clip or 1.0,
        config.encoding.clip,
        config.encoding.keep,
        make_aggregation(config),
        parameters,
        config.privacy.wanted_correlation,
    )


def central_correlation(config: RunConfig) -> LagNoise:
    """The noise of the central baseline over rounds."""
    schedule, wanted = central_schedule(config), config.privacy.wanted_correlation
    return LagNoise(find_correlation(schedule) if wanted == "auto" else float(wanted or 0.0))


def central_schedule(config: RunConfig) -> RoundSchedule:
    """The rounds of a run, and how far apart a client's are."""
    return RoundSchedule(config.federation.rounds, config.client_sampling.min_rounds_apart)


def central_statement(config: RunConfig, scope: str = "") -> PrivacyStatement:
    """What a run with the central baseline costs a client at most, for an adversary who sees the models."""
    assert config.privacy.epsilon is not None
    return PrivacyStatement(
        config.privacy.epsilon,
        config.privacy.delta,
        Unit.TOTAL,
        StatedView(ViewKind.CENTRAL),
        config.privacy.wanted_relation,
        "exact",
        ("a trusted server", "exact real numbers: floats leak"),
        scope,
    )


def central_beside(stated: PrivacyStatement) -> PrivacyStatement:
    """The same cost of the central baseline for the other neighboring relation."""
    other = stated.relation.beside
    moved = other.distance / stated.relation.distance
    separation = moved * gaussian_separation(stated.epsilon, stated.delta)
    return replace(stated, epsilon=gaussian_epsilon(separation, stated.delta), relation=other)


def _count_participants(config: RunConfig) -> int:
    """Clients that are asked in a round, in the smallest that is run."""
    sampling, population = config.client_sampling, config.federation.num_clients
    if config.sampling.name == "flower":
        # The number that Flower's strategies draw.
        return max(1, int(population * config.federation.fraction))
    return sampling.num_planned_clients(population, make_aggregation(config))


# By type too: a keep of 1 is one coordinate, and one of 1.0 all of them.
@lru_cache(maxsize=64, typed=True)
def _cached_plan(
    target: Target,
    dimension: int,
    l2_clip: float,
    clip: float | None,
    keep: int | float | None,
    aggregation: Aggregation,
    parameters: str,
    correlation: float | str | None = None,
) -> Plan:
    if target.protects_records:
        return target.plan(dimension, l2_clip, aggregation=aggregation)
    mechanism = json.loads(parameters)
    name, bits = mechanism.pop("name"), mechanism.pop("bits", None)
    mechanism.pop(TARGET, None)
    # As many as take part in a round, whatever the file of the mechanism says.
    mechanism.pop("num_clients", None)
    return target.plan(
        dimension,
        l2_clip,
        mechanism=name,
        max_bits=1 if bits is None else int(bits),
        clip=clip,
        keep=keep,
        aggregation=aggregation,
        correlation=correlation,
        # A simulation measures what is learned, and logs how little that will be.
        force=True,
        **mechanism,
    )
