"""What runs of tasks and of Flower apps have in common: how they are private, and where their results go."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.app import Array, Context
from flwr.serverapp.strategy import Strategy

from fl_privquant.accounting import Aggregation, Budget, Plan, PrivacyStatement
from fl_privquant.accounting.accountant import coordinate_statement
from fl_privquant.encoding import Encoding
from fl_privquant.errors import counted
from fl_privquant.flower.policies import Policy, as_policy
from fl_privquant.flower.remarks import clip_remark
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.secagg import ClientPolicy
from simulations import progress, trackers
from simulations.central import CentralGaussianStrategy, noise_of_sum
from simulations.config import CENTRAL, RunConfig
from simulations.planned import aggregation_of, central_statement, central_target, plan_of, run_statement
from simulations.probe import Probe
from simulations.recording import Row
from simulations.results import RunDirectory, provenance

PILOT_CLIENTS = 20
"""The most clients that a pilot trains."""


def config_of(source: Context | str) -> RunConfig:
    """The configuration of a run, from a context of Flower or from its JSON text."""
    return _parsed(source if isinstance(source, str) else str(source.run_config["config"]))


@lru_cache(maxsize=8)
def _parsed(text: str) -> RunConfig:
    return RunConfig.from_mapping(json.loads(text))


def probe_of(config: RunConfig) -> Probe:
    """Where clients of a run leave what they trained."""
    return _probe(RunDirectory.of(config).probe, config.engine.in_one_process)


@lru_cache(maxsize=4)
def _probe(directory: Path, same_process: bool) -> Probe:
    """One object for a run: it has a file open."""
    return Probe(directory, same_process)


def seed_of(context: Context) -> int | None:
    """The seed of clients' draws, if they are simulated."""
    config = config_of(context)
    return config.seed if config.privacy.randomness == "seeded" else None


def policy_of(context: Context) -> ClientPolicy:
    """What clients of a simulation demand of secure aggregation: the fractions that are configured."""
    config = config_of(context)
    return ClientPolicy(
        min_clients=min(3, config.federation.num_clients),
        corrupt_fraction=config.secagg.corrupt_fraction,
        dropout_fraction=config.secagg.dropout_fraction,
    )


@dataclass(frozen=True)
class PrivateSetup:
    """How the updates of a run are encoded and aggregated, for a model of ``dimension`` coordinates."""

    config: RunConfig
    dimension: int
    aggregation: Aggregation
    encoding: Encoding | Policy | Plan
    l2_clip: float | None

    @classmethod
    def of(cls, config: RunConfig, dimension: int, usual_norm: float | None = None) -> PrivateSetup:
        """The setup as planned for the run's target or, without a target, as configured.

        The ``usual_norm`` that a pilot found is the L2 clip.
        """
        l2_clip = usual_norm or config.l2_clip
        plan = plan_of(config, dimension, l2_clip)
        encoding: Encoding | Policy | Plan = (
            config.encoding.built(config.design(), l2_clip, config.design)
            if plan is None
            else config.encoding.followed(plan)
        )
        return cls(config, dimension, aggregation_of(config), encoding, l2_clip)

    @cached_property
    def policy(self) -> Policy:
        """The encoding of each round."""
        return as_policy(self.encoding.encoding if isinstance(self.encoding, Plan) else self.encoding)

    @cached_property
    def mechanism(self) -> Mechanism:
        """The mechanism that encodes and is recorded: under secure aggregation floats become fixed point."""
        return self.aggregation.adapted(self.policy(1).mechanism)

    def settings(self) -> dict[str, Any]:
        """Arguments of PrivQuantStrategy, and of PrivateGrid."""
        config = self.config
        settings: dict[str, Any] = {
            "encoding": self.encoding,
            "include": config.encoding.include,
            "exclude": config.encoding.exclude,
            "clip_scales": config.encoding.clip_scales,
            "rotation_seed": config.seed,
            "sampling": config.client_sampling,
            "simulated": config.privacy.randomness == "seeded",
        }
        # A plan, or a policy that keeps to one, brings its aggregation and the target as a budget.
        if not isinstance(self.encoding, Plan) and self.policy.plan is None:
            limit, delta = config.privacy.budget, config.privacy.delta
            budget = None if limit is None else Budget(limit, delta)
            settings |= {"aggregation": self.aggregation, "budget": budget, "delta": delta}
        return settings

    def trusted(self, strategy: Strategy, seed: int | None) -> Strategy:
        """The strategy, with the noise of a trusted server around it in the central baseline."""
        if self.config.mechanism["name"] != CENTRAL:
            return strategy
        l2_clip, epsilon, delta = central_target(self.config)
        scale = noise_of_sum(self.l2_clip or l2_clip, self.config.counted_rounds, epsilon, delta)
        rounds, arrays = self.config.federation.rounds, self.config.encoding.arrays
        return CentralGaussianStrategy(strategy, scale, seed, rounds, arrays)

    def constants(self) -> Row:
        """Columns that are the same in every row of a run."""
        config = self.config
        return {
            "study": config.study,
            "run": config.run_name,
            "label": config.label,
            "mechanism": config.mechanism["name"],
            "epsilon": float(config.mechanism.get("epsilon", math.nan)),
            "bits": float(self.mechanism.bits_per_coordinate),
            "seed": config.seed,
            "num_clients": config.federation.num_clients,
            "epsilon_coordinate": self.mechanism.epsilon,
        }


class Outputs(contextlib.ExitStack):
    """Where the rows of a run go while it lasts: its directory, the display, a tracker."""

    def __init__(self, config: RunConfig, directory: RunDirectory, setup: PrivateSetup) -> None:
        super().__init__()
        self._config, self._directory, self._setup = config, directory, setup
        self._shown = progress.rounds(config)
        self._tracker = trackers.tracker(config, directory)
        self._unsaved: tuple[list[Row], PrivacyStatement | None] | None = None

    def __enter__(self) -> Self:
        self.enter_context(self._shown)
        self.enter_context(contextlib.closing(self._tracker))
        return super().__enter__()

    def resumes(self, finished: int) -> None:
        """Say after which round a run goes on that was interrupted."""
        self._shown.resumes(finished)

    def on_row(self, rows: list[Row], spent: PrivacyStatement | None) -> None:
        """Take the rows so far, of which the last is new, and what a client has spent by then.

        The row of a round is written and shown once its checkpoint is saved (:meth:`on_saved`): a run that
        is killed before that repeats the round. The loop of an app has no checkpoints.
        """
        number = rows[-1]["round"]
        self._setup.policy.observe_metrics(number, rows[-1])
        self._tracker.log(rows[-1])
        self._unsaved = rows, spent
        if number == 0 or self._config.app is not None:
            self.on_saved(number)

    def on_saved(self, server_round: int) -> None:
        """Write the rows up to a round, and show the last, unless the round made no row."""
        if self._unsaved is None:
            return
        (rows, spent), self._unsaved = self._unsaved, None
        self._directory.write_rows(rows)
        # The central baseline protects the models, and not the updates.
        central = self._config.mechanism["name"] == CENTRAL
        self._shown.update(rows[-1], central_statement(self._config) if spent and central else spent)

    def statements(self) -> list[PrivacyStatement]:
        """The statement of a run in which nothing is encoded."""
        return [coordinate_statement(self._setup.mechanism)]

    def finish(
        self,
        rows: list[Row],
        statements: list[PrivacyStatement],
        lines: list[str],
        arrays: Mapping[str, Array],
    ) -> None:
        """Write the final rows, the mechanism, and the provenance with the privacy statements."""
        config, mechanism, dimension = self._config, self._setup.mechanism, self._setup.dimension
        l2_clip, changes = self._setup.l2_clip, config.encoding.clip_policy.name
        ratios = [row["norm_to_clip"] for row in rows if math.isfinite(row["norm_to_clip"])]
        if ratios and changes != "quantile" and (remark := clip_remark(float(np.median(ratios)), l2_clip)):
            self._shown.remark(remark)
        if changes == "pilot":
            pilots = min(config.federation.num_clients, PILOT_CLIENTS)
            lines = [
                *lines,
                f"not counted in any figure: the L2 clip of {l2_clip:g} is the median norm of the first "
                f"updates of {counted(pilots, 'client')}, measured by a pilot without protection",
            ]
        self._directory.write_rows(rows, final=True)
        self._directory.write_bytes("mechanism.pqm", mechanism.to_bytes())
        if config.mechanism["name"] == CENTRAL:
            statements = [*statements, run_statement(config, mechanism, dimension)]
            lines = [*lines, str(statements[-1])]
        model = {name: array.numpy() for name, array in arrays.items()}
        origin = provenance(config, mechanism, dimension, statements, lines, model)
        self._directory.write_json("provenance.json", origin)
