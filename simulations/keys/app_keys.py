"""The keys of runs of a Flower app: names of its metrics, and what its own run config decides."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fl_privquant.errors import InvalidSpecError
from simulations.apps.user_app import ROUND_KEYS, UserApp, fused, user_app

if TYPE_CHECKING:
    from simulations.config import FederationConfig, RunConfig

FEDERATION_KEYS = ("num_clients", "rounds", "fraction")
"""Keys of the federation that have an effect on an app; the others are for tasks."""

_FRACTION_KEY = "fraction-train"


@dataclass(frozen=True)
class AppMetricsConfig:
    """The names of an app's own metrics that stand for accuracy, loss and weight.

    Parameters
    ----------
    accuracy
        The metric of evaluate replies that is the accuracy; null for the first with "acc" in its name.
    loss
        The same for the loss; null for the first with "loss" in its name.
    weight
        The metric that the app weights replies by; in private rounds it is 1 for every client.
    train
        Metrics of training that clients report without protection in private rounds; no ε counts them.
    """

    accuracy: str | None = None
    loss: str | None = None
    weight: str = "num-examples"
    train: tuple[str, ...] = ()


def settled(run: RunConfig) -> dict[str, Any]:
    """The fields of a run that follow from its app: the whole run config, and the federation.

    Keys that are only for tasks are reset to their defaults, so that they do not tell runs of an app apart.
    """
    app = user_app(str(run.app))
    federation = run.federation
    overrides = dict(run.app_config)
    key = next((key for key in ROUND_KEYS if key in app.config), None)
    if key is not None and federation.rounds:
        app_rounds = overrides.setdefault(key, federation.rounds)
        if app_rounds != federation.rounds:
            raise InvalidSpecError(
                f"federation.rounds: {federation.rounds}, but app_config.{key} is {app_rounds}; set one of "
                "them"
            )
    config = fused(app, overrides)
    rounds = federation.rounds if key is None else config[key]
    if not rounds and run.privacy.epsilon is not None:
        raise InvalidSpecError(
            f"federation.rounds: missing; a target is planned for the rounds of a run, and the app's config "
            f"has no {ROUND_KEYS[0]}"
        )
    return {
        "app": str(app.folder),
        "app_digest": run.app_digest or app.digest,
        "app_config": config,
        "federation": _federation(federation, rounds, config),
        "task": {},
        "partition": type(run.partition)(),
    }


def configured_app(run: RunConfig) -> UserApp:
    """The app of a run, if its files are still those that the run was configured with.

    Results are kept under the digest of the files, so that other files must not make them.
    """
    app = user_app(str(run.app))
    if app.digest != run.app_digest:
        raise InvalidSpecError(
            f"app: the files of {run.app} have changed since the run was configured (digest {app.digest}, "
            f"expected {run.app_digest}); start the run anew"
        )
    return app


def _federation(given: FederationConfig, rounds: int, config: dict[str, Any]) -> FederationConfig:
    """Number of clients, rounds, and the share of clients in a round, for which the app's config decides."""
    fraction = config.get(_FRACTION_KEY, given.fraction)
    if given.fraction not in (1.0, fraction):
        raise InvalidSpecError(
            f"federation.fraction: {given.fraction}, but app_config.{_FRACTION_KEY} is {fraction}; set that"
        )
    usual = type(given)()
    kept = {"num_clients": given.num_clients, "rounds": rounds, "fraction": fraction}
    return dataclasses.replace(usual, **kept)
