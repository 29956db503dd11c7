"""What runs of tasks and of Flower apps have in common: how they are private, and where their results go."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from flwr.app import Array, Context
from flwr.serverapp.strategy import Strategy

from fl_privquant.accounting import Aggregation, Budget, PrivacyStatement
from fl_privquant.accounting.accountant import coordinate_statement
from fl_privquant.accounting.ledgers.server_ledger import FederationLedger
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import pluralize
from fl_privquant.flower import PrivQuantStrategy
from fl_privquant.flower.policies.schedules import Policy, as_policy
from fl_privquant.flower.server.log_lines import advise_clip
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.planning import Plan
from fl_privquant.privacy_loss.correlated_noise import LagNoise
from fl_privquant.secagg import ClientPolicy
from fl_privquant.statement import Relation
from simulations.runner import progress, trackers
from simulations.runner.central import CentralGaussianStrategy, calibrate_sum_noise
from simulations.runner.config import CENTRAL, RunConfig
from simulations.runner.encodings import follow_plan, make_encoding
from simulations.runner.planned import (
    central_beside,
    central_correlation,
    central_schedule,
    central_statement,
    make_aggregation,
    plan_run,
)
from simulations.runner.probe import Probe
from simulations.runner.recording import Row
from simulations.runner.results import RunDirectory, provenance

PILOT_CLIENTS = 20
"""The most clients that a pilot trains."""


def load_config(context: Context) -> RunConfig:
    """The configuration of a run."""
    return RunConfig.from_json(str(context.run_config["config"]))


def get_probe(config: RunConfig) -> Probe:
    """Where clients of a run leave what they trained."""
    return Probe(RunDirectory.of(config).probe, config.engine.name == "inline")


def get_seed(context: Context) -> int | None:
    """The seed of clients' draws, if they are simulated."""
    config = load_config(context)
    return config.seed if config.privacy.randomness == "seeded" else None


def make_policy(context: Context) -> ClientPolicy:
    """What clients of a simulation demand of secure aggregation: the fractions that are configured."""
    config = load_config(context)
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

        The ``estimate_update_norm`` that a pilot found is the L2 clip.
        """
        l2_clip = usual_norm or config.l2_clip
        plan = plan_run(config, dimension, l2_clip)
        encoding: Encoding | Policy | Plan = (
            make_encoding(config, l2_clip) if plan is None else follow_plan(config, plan)
        )
        return cls(config, dimension, make_aggregation(config), encoding, l2_clip)

    @cached_property
    def policy(self) -> Policy:
        """The encoding of each round."""
        return as_policy(self.encoding.encoding if isinstance(self.encoding, Plan) else self.encoding)

    @cached_property
    def mechanism(self) -> Mechanism:
        """The mechanism that encodes and is recorded: under secure aggregation floats become fixed point."""
        return self.aggregation.adapt_mechanism(self.policy(1).mechanism)

    @property
    def client_relation(self) -> Relation:
        """The neighboring relation in which rounds and totals of clients are stated."""
        privacy = self.config.privacy
        return privacy.wanted_relation if privacy.unit == "client" else Relation.REPLACE_ONE

    def settings(self) -> dict[str, Any]:
        """Arguments of PrivQuantStrategy, and of PrivateGrid."""
        config = self.config
        settings: dict[str, Any] = {
            "encoding": self.encoding,
            "arrays": config.encoding.arrays,
            "rotation_seed": config.seed,
            "sampling": config.client_sampling,
            "simulated": config.privacy.randomness == "seeded",
        }
        # A plan, or a policy that keeps to one, brings its aggregation and the target as a budget.
        if not isinstance(self.encoding, Plan) and self.policy.plan is None:
            limit, delta = config.privacy.budget, config.privacy.delta
            # Without a limit, the budget says in which relation a client's total is stated.
            budget = Budget(math.inf if limit is None else limit, delta, relation=self.client_relation)
            settings |= {"aggregation": self.aggregation, "budget": budget, "delta": delta}
        return settings

    def add_server_noise(self, strategy: Strategy, seed: int | None) -> Strategy:
        """The strategy, with the noise of a trusted server around it in the central baseline."""
        if self.config.mechanism["name"] != CENTRAL:
            return strategy
        scale = self.server_noise["deviation"]
        rounds, arrays = self.config.federation.rounds, self.config.encoding.arrays
        return CentralGaussianStrategy(strategy, scale, seed, rounds, arrays, self._central_noise.correlation)

    @cached_property
    def _central_noise(self) -> LagNoise:
        if self.config.privacy.correlation is None:
            return LagNoise(0.0)
        return central_correlation(self.config)

    @cached_property
    def server_noise(self) -> dict[str, float]:
        """The L2 clip of the central baseline, and the deviation of the noise on the sum."""
        clip, privacy, cost = self.l2_clip, self.config.privacy, 1.0
        assert clip is not None
        assert privacy.epsilon is not None
        if self._central_noise.correlation:
            cost = self._central_noise.participation_cost(central_schedule(self.config))
        deviation = calibrate_sum_noise(
            clip, self.config.counted_rounds, privacy.epsilon, privacy.delta, cost, privacy.wanted_relation
        )
        return {"l2_clip": clip, "deviation": deviation}

    def constants(self) -> Row:
        """Columns that are the same in every row of a run."""
        config = self.config
        of_records = config.privacy.unit == "record"
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
            "relation_client_total": str(self.client_relation),
            **({"relation_record_total": str(config.privacy.wanted_relation)} if of_records else {}),
        }


class Outputs(contextlib.ExitStack):
    """Where the rows of a run go while it lasts: its directory, the display, a tracker."""

    def __init__(self, config: RunConfig, directory: RunDirectory, setup: PrivateSetup) -> None:
        super().__init__()
        self._config, self._directory, self._setup = config, directory, setup
        self._shown = progress.make_rounds_display(config)
        self._tracker = trackers.make_tracker(config, directory)
        self._rows: list[Row] = []

    def __enter__(self) -> Self:
        self.enter_context(self._shown)
        self.enter_context(contextlib.closing(self._tracker))
        return super().__enter__()

    def report_resume(self, finished: int) -> None:
        """Say after which round a run goes on that was interrupted."""
        self._shown.report_resume(finished)

    def on_row(self, rows: list[Row], spent: PrivacyStatement | None) -> None:
        """Take the rows so far, of which the last is new, and what a client has spent by then."""
        self._rows, number = rows, rows[-1]["round"]
        self._tracker.log(rows[-1])
        if self._config.app is not None:
            # The loop of an app has no checkpoints: rows say that it has begun.
            self.on_saved(number)
        # The central baseline protects the models, and not the updates.
        central = self._config.mechanism["name"] == CENTRAL
        self._shown.update(rows[-1], central_statement(self._config) if spent and central else spent)

    def on_saved(self, server_round: int) -> None:
        """Write the rows so far: those of a run that is killed are as far as its checkpoint."""
        self._directory.write_rows(self._rows)

    def statements(self) -> list[PrivacyStatement]:
        """The statement of a run in which nothing is encoded."""
        return [coordinate_statement(self._setup.mechanism)]

    def finish(
        self,
        rows: list[Row],
        statements: list[PrivacyStatement],
        lines: list[str],
        arrays: Mapping[str, Array],
        private: PrivQuantStrategy | None,
    ) -> None:
        """Write the final rows, the mechanism, the ledger, and the provenance with the privacy statements."""
        config, mechanism, dimension = self._config, self._setup.mechanism, self._setup.dimension
        l2_clip, changes = self._setup.l2_clip, config.encoding.clip_policy.name
        ratios = [row["norm_to_clip"] for row in rows if math.isfinite(row["norm_to_clip"])]
        if ratios and changes != "quantile" and (remark := advise_clip(float(np.median(ratios)), l2_clip)):
            self._shown.print_message(remark)
        if changes == "pilot":
            pilots = min(config.federation.num_clients, PILOT_CLIENTS)
            lines = [
                *lines,
                f"not counted in any figure: the L2 clip of {l2_clip:g} is the median norm of the first "
                f"updates of {pluralize(pilots, 'client')}, measured by a pilot without protection",
            ]
        self._directory.write_rows(rows, final=True)
        self._directory.write_bytes("mechanism.pqm", mechanism.to_bytes())
        if config.mechanism["name"] == CENTRAL:
            scope = f"{dimension} coordinates, {config.counted_rounds} rounds"
            statements = [*statements, central_statement(config, scope)]
            lines = [*lines, str(statements[-1])]
            beside: PrivacyStatement | None = central_beside(statements[-1])
        else:
            beside = None if private is None else private.statement_beside()
        ledger = FederationLedger() if private is None else private.ledger
        self._directory.write_json("ledger.json", self._ledger_content(ledger))
        model = {name: array.numpy() for name, array in arrays.items()}
        origin = provenance(config, mechanism, dimension, l2_clip, statements, lines, model)
        # What the whole run costs for the neighboring relation that is not the target's.
        origin["beside"] = [] if beside is None else [beside.to_dict()]
        self._directory.write_json("provenance.json", origin)

    def _ledger_content(self, ledger: FederationLedger) -> dict[str, Any]:
        """The ledger as JSON: with it, a run's privacy can be derived again from its directory alone."""
        content = ledger.to_dict()
        content["mechanisms"] = {name: blob.hex() for name, blob in content["mechanisms"].items()}
        if self._config.mechanism["name"] == CENTRAL:
            content["central"] = self._setup.server_noise
        return content
