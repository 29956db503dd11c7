"""Exact accounting for Flower's own differential privacy wrappers.

Flower's ``DifferentialPrivacy…FixedClipping`` strategies take an accountant. Flower's own one composes by
Rényi divergences, which overstates epsilon. Gaussian releases compose in closed form, so no bound is needed:
releases with noise multipliers z_1, z_2, ... are together as private as one release with the noise multiplier
(sum of 1 / z_t^2)^(-1/2), and the epsilon of that one is known exactly
(:mod:`fl_privquant.privacy_loss.additive.gaussian`). Where Flower's configuration says that clients are drawn
in secret, losses are composed as distributions instead.

Every epsilon here is for whole clients, and for the neighboring relation of Flower's configuration. For
Flower's wrappers that is add-or-remove-one: the clipped sum moves by the clipping norm C. Under
*replace-one*, the default in the rest of this package, it moves by 2C, and
:meth:`GaussianAccountant.replace_one_epsilon` gives that one as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import (
    GaussianPrivacyEvent,
    Grid,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
)

from fl_privquant import _validation
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.flower._flower_internals import PrivacyBudgetExhausted
from fl_privquant.flower.server.strategy_wrapper import Aggregate, StrategyWrapper
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta, gaussian_epsilon
from fl_privquant.privacy_loss.additive.sampled_gaussian import sampled_gaussian_losses
from fl_privquant.privacy_loss.amplification import curve_of, subsampled_loss
from fl_privquant.privacy_loss.closed_forms import NOT_PRIVATE
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss
from fl_privquant.statement import PrivacyStatement, Relation, StatedView, Unit, ViewKind

_EXACT, _COMPOSED = "gaussian-exact", "pld"
_STATE_VERSION = 1
# Points of the curve of a release that is amplified by sampling without replacement.
_CURVE_POINTS = 160
# How exactly a delta is searched where there is no closed form, as a factor, and the least that is searched.
_DELTA_FACTOR, _MIN_DELTA = 1.001, 1e-30

_Releases = list[tuple[GaussianPrivacyEvent, int]]
AdaptiveClipping = (
    DifferentialPrivacyServerSideAdaptiveClipping | DifferentialPrivacyClientSideAdaptiveClipping
)


class GaussianAccountant:
    """Counts Gaussian releases exactly; it implements ``flwr.serverapp.PrivacyAccountant``.

    Parameters
    ----------
    config
        Flower's configuration. The sampling method ``NO_AMPLIFICATION`` holds for every way of sampling
        clients, and Flower's wrappers require it: then figures are exact. With ``POISSON`` or
        ``WITHOUT_REPLACEMENT`` they are upper bounds, by the distribution of the privacy loss, against those
        who do not learn which clients took part.

    Examples
    --------
    >>> from flwr.serverapp import NeighboringRelation, PrivacyConfig, SamplingMethod
    >>> config = PrivacyConfig(
    ...     target_delta=1e-5,
    ...     population_size=100,
    ...     neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    ...     sampling_method=SamplingMethod.NO_AMPLIFICATION,
    ... )
    >>> accountant = GaussianAccountant(config)
    >>> accountant.compose(GaussianPrivacyEvent(2.0, sample_size=10, population_size=100), count=10)
    >>> round(accountant.get_epsilon(1e-5), 2)
    7.51
    """

    def __init__(self, config: PrivacyConfig) -> None:
        self._config = config
        self._releases: list[tuple[GaussianPrivacyEvent, int]] = []

    @property
    def config(self) -> PrivacyConfig:
        """Flower's privacy configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """Number of releases counted so far."""
        return sum(count for _, count in self._releases)

    @property
    def method(self) -> str:
        """How releases are counted: ``gaussian-exact``, or ``pld`` if sampling amplifies."""
        return _COMPOSED if self._amplified else _EXACT

    @property
    def relation(self) -> Relation:
        """The neighboring relation of all figures, unless a method says otherwise."""
        replaces = self._config.neighboring_relation is NeighboringRelation.REPLACE_ONE
        return Relation.REPLACE_ONE if replaces else Relation.ADD_REMOVE

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Count ``count`` releases of one kind."""
        self._check(event, count)
        self._releases.append((event, count))

    def get_epsilon(self, delta: float) -> float:
        """The epsilon of all releases at ``delta``, for the configured relation, rounded up."""
        return self._epsilon(delta, self.relation, self._releases)

    def replace_one_epsilon(self, delta: float) -> float:
        """The epsilon of all releases at ``delta``, for the relation replace-one, rounded up."""
        return self._epsilon(delta, Relation.REPLACE_ONE, self._releases)

    def get_delta(self, epsilon: float) -> float:
        """The delta of all releases at ``epsilon``, for the configured relation, rounded up."""
        _validation.check_in_interval("epsilon", epsilon, "[0, inf)")
        if not self._amplified:
            return min(gaussian_delta(_separation(self._releases), epsilon), 1.0)
        low, high = _MIN_DELTA, 1.0
        while high > _DELTA_FACTOR * low:
            middle = math.sqrt(low * high)
            within = self._epsilon(middle, self.relation, self._releases) <= epsilon
            low, high = (low, middle) if within else (middle, high)
        return high

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """What all releases have cost, at ``delta`` or at the configured one."""
        at = self._config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(at), at, self.num_releases, self.method)

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether further releases would exceed ``max_epsilon``, or the configured limit. Counts nothing."""
        self._check(event, count)
        limit = _validation.check_positive(
            "max_epsilon",
            self._config.max_epsilon if max_epsilon is None else max_epsilon,
            "set it here or in PrivacyConfig(max_epsilon=...)",
        )
        releases = [*self._releases, (event, count)]
        return self._epsilon(self._config.target_delta, self.relation, releases) > limit

    def state_dict(self) -> dict[str, object]:
        """The configuration and all releases, as plain values for JSON."""
        return {
            "version": _STATE_VERSION,
            "method": self.method,
            "config": _config_values(self._config),
            "releases": [
                [event.noise_multiplier, event.sample_size, event.population_size, count]
                for event, count in self._releases
            ],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Replace what was counted by the content of :meth:`state_dict`.

        Raises
        ------
        InvalidSpecError
            If the state is of another accountant, version or configuration, or is damaged. What was counted
            before is then kept.
        """
        for key, expected in (
            ("method", self.method),
            ("version", _STATE_VERSION),
            ("config", _config_values(self._config)),
        ):
            if state.get(key) != expected:
                raise InvalidSpecError(
                    "state", MISSING, f"its {key} {state.get(key)!r} does not match {expected!r}"
                )
        releases: Any = state.get("releases")
        try:
            loaded = [
                (GaussianPrivacyEvent(multiplier, sample_size, population_size), count)
                for multiplier, sample_size, population_size, count in releases
            ]
        except (TypeError, ValueError) as error:
            raise InvalidSpecError("state", MISSING, f"its releases are damaged ({error})") from error
        for event, count in loaded:
            self._check(event, count)
        self._releases = loaded

    @property
    def _amplified(self) -> bool:
        return self._config.sampling_method is not SamplingMethod.NO_AMPLIFICATION

    def _epsilon(self, delta: float, relation: Relation, releases: _Releases) -> float:
        delta = _validation.check_in_interval("delta", delta, "(0, 1)")
        if not self._amplified:
            return gaussian_epsilon(relation.distance * _separation(releases), delta)
        if not releases:
            return 0.0
        poisson = self._config.sampling_method is SamplingMethod.POISSON
        losses = [_sampled_losses(event, relation, poisson) for event, _ in releases]
        counts = [count for _, count in releases]
        orders = [list(map(Part, order, counts)) for order in zip(*losses, strict=True)]
        return max(compose_epsilon(parts, delta).epsilon for parts in orders)

    def _check(self, event: GaussianPrivacyEvent, count: int) -> None:
        if event.population_size != self._config.population_size:
            raise InvalidSpecError(
                "population_size",
                event.population_size,
                f"in the event, but {self._config.population_size} in PrivacyConfig",
            )
        _validation.check_integer("count", count, 1)


class AccountedAdaptiveClipping(StrategyWrapper):
    """Counts what Flower's adaptive clipping releases, which Flower itself does not count.

    A round releases two things: a noisy count of the clipped updates, and the noisy mean. One client changes
    the count by at most 1. The mean was clipped at the old clipping norm, but Flower (1.41) scales its noise
    with the new one, and with the number of clients that it was told, however few of them reply. So its noise
    multiplier is the nominal one times new norm / old norm and replies / clients. Both releases are counted
    with the noise that was really added. A mean that would exceed the budget is not released.

    Parameters
    ----------
    strategy
        Flower's ``DifferentialPrivacyServerSideAdaptiveClipping``, or its client-side twin.
    accountant
        Counts the releases. If its configuration has ``max_epsilon``, the run stops before that is exceeded.

    Raises
    ------
    InvalidSpecError
        If the strategy is another one, or adds no noise.
    """

    strategy: AdaptiveClipping

    def __init__(self, strategy: AdaptiveClipping, accountant: GaussianAccountant) -> None:
        if not isinstance(strategy, AdaptiveClipping):
            raise InvalidSpecError(
                "strategy",
                strategy,
                ", expected Flower's adaptive clipping",
                "its fixed clipping takes the accountant itself",
            )
        if not (strategy.noise_multiplier > 0.0 and strategy.clipped_count_stddev > 0.0):
            raise InvalidSpecError("noise_multiplier", 0, "adds no noise, so no epsilon is finite")
        super().__init__(strategy)
        self.accountant = accountant

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Stop if the budget does not allow for the round's noisy count."""
        self._require_budget(self._event(self.strategy.clipped_count_stddev))
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Aggregate with Flower's strategy, and count what it released."""
        replies = list(replies)
        self._require_equal_weights(replies)
        old_norm = self.strategy.clipping_norm
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        new_norm = self.strategy.clipping_norm
        if new_norm != old_norm:
            self.accountant.compose(self._event(self.strategy.clipped_count_stddev))
        if arrays is not None:
            replied = len(replies) / self.strategy.num_sampled_clients
            mean = self._event(self.strategy.noise_multiplier * new_norm / old_norm * replied)
            self._require_budget(mean)
            self.accountant.compose(mean)
        return arrays, metrics

    def _event(self, noise_multiplier: float) -> GaussianPrivacyEvent:
        return GaussianPrivacyEvent(
            noise_multiplier, self.strategy.num_sampled_clients, self.accountant.config.population_size
        )

    def _require_budget(self, event: GaussianPrivacyEvent) -> None:
        limit = self.accountant.config.max_epsilon
        if limit is not None and self.accountant.would_exceed(event):
            spent = self.accountant.get_privacy_spent()
            statement = PrivacyStatement(
                spent.epsilon,
                spent.delta,
                Unit.TOTAL,
                StatedView(ViewKind.CENTRAL),
                relation=self.accountant.relation,
                method=self.accountant.method,
            )
            raise PrivacyBudgetExhausted(
                f"The next release would exceed max_epsilon = {limit:g}. Spent so far: {statement}."
            )

    def _require_equal_weights(self, replies: list[Message]) -> None:
        """The noise is for a mean with equal weights: a larger weight would move the mean further."""
        weights = {
            record.get(self.weighted_by_key)
            for reply in replies
            if not reply.has_error()
            for record in reply.content.metric_records.values()
        }
        if len(weights) > 1:
            raise InvalidSpecError(
                self.weighted_by_key,
                MISSING,
                "clients have different weights, but Flower's noise is for equal ones",
                "let every client report the same number",
            )


def _separation(releases: _Releases) -> float:
    """Distance, in standard deviations, between the outputs with and without one client."""
    return math.sqrt(math.fsum(count / event.noise_multiplier**2 for event, count in releases))


@lru_cache(maxsize=64)
def _sampled_losses(
    event: GaussianPrivacyEvent, relation: Relation, poisson: bool
) -> tuple[PrivacyLoss, ...]:
    """The loss of a release whose clients are drawn in secret, for each order of the neighbors."""
    separation, rate = 1.0 / event.noise_multiplier, event.sample_size / event.population_size
    if poisson:
        return sampled_gaussian_losses(separation, rate, relation)
    # Of a fixed number of clients one is replaced by another, whatever the configuration says.
    replaced = Relation.REPLACE_ONE.distance * separation
    curve = curve_of(lambda delta: gaussian_epsilon(replaced, delta), math.inf, _CURVE_POINTS)
    return (NOT_PRIVATE if curve is None else subsampled_loss(curve, rate),)


def _config_values(config: PrivacyConfig) -> dict[str, object]:
    return {
        "target_delta": config.target_delta,
        "population_size": config.population_size,
        "neighboring_relation": NeighboringRelation(config.neighboring_relation).value,
        "sampling_method": SamplingMethod(config.sampling_method).value,
        "max_epsilon": config.max_epsilon,
    }
