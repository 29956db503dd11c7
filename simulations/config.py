"""What a run is, as frozen dataclasses: the schema that YAML files and overrides are checked against.

A config key is a field here, and a column of the results. Hydra composes; ``RunConfig.from_mapping``
checks, and names the nearest valid word for one that it does not know.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

import fl_privquant as pq
from fl_privquant import checks
from fl_privquant.accounting import ClientSampling
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.registry import label_of
from simulations.apps.user_app import user_app
from simulations.keys.app_keys import AppMetricsConfig, settled
from simulations.keys.config_checks import Keys, at_least
from simulations.keys.encodings import EncodingConfig
from simulations.keys.engine_keys import EngineConfig
from simulations.keys.mechanism_keys import (
    CENTRAL,
    checked_mechanism,
    has_levels,
    has_parameter,
)
from simulations.keys.participation import SamplingConfig
from simulations.keys.resolvers import register_resolvers
from simulations.keys.schema import build
from simulations.targets import TARGET, checked, located, options_of

__all__ = ["CENTRAL"]

_USUAL_CLIP = 0.05
_TARGET_L2_CLIP = 1.0

# Keys that task files have in common; a user's class in place of ours need not take them.
_COMMON_OF_TASKS = (
    *("name", "data", "model", "hidden", "max_examples", "max_test_examples", "validation_examples"),
    "device",
)
# Keys that were added later count in a run's name only where they are set, so that older names stay.
_LATER_KEYS = (
    ("encoding", "keep"),
    ("encoding", "clip_scales"),
    ("federation", "optimizer"),
    ("federation", "server_strategy"),
    ("engine", "client_gpus"),
)
_DIGITS = {TARGET: "simulations.tasks.TorchTask", "name": "digits", "data": "digits", "model": "softmax"}

register_resolvers()


@dataclass(frozen=True)
class PartitionConfig(Keys):
    """How examples are dealt to clients.

    Parameters
    ----------
    name
        ``iid``, ``dirichlet`` (labels are skewed), ``shards`` (few labels each), ``size_skew``, or
        ``natural`` (a client is a user of the data).
    alpha
        Concentration of the Dirichlet distribution: the smaller, the more labels are skewed.
    shards_per_client
        Shards of one label that a client gets, for ``shards``.
    """

    path: ClassVar[str] = "partition"

    name: Annotated[str, checks.one_of("iid", "dirichlet", "shards", "size_skew", "natural")] = "iid"
    alpha: Annotated[float, checks.positive] = 0.3
    shards_per_client: Annotated[int, at_least(1)] = 2


@dataclass(frozen=True)
class FederationConfig(Keys):
    """Clients and rounds, local SGD, and the server's strategy.

    Parameters
    ----------
    num_clients
        Clients of the federation.
    rounds
        Rounds of the run. With an app, 0 stands for the number in the app's own configuration.
    fraction
        Share of the clients that is asked in a round; with sampling=poisson the probability of each client.
    strategy
        Flower strategy of the server: ``fedavg``, ``fedavgm``, ``fedadam``, ``fedprox`` or ``fedmedian``.
    server_learning_rate
        Step of the server, for ``fedavg``, ``fedavgm`` and ``fedadam``.
    server_momentum
        Momentum of the server, for ``fedavgm`` and ``fedadam``.
    server_strategy
        Any other strategy (``_target_``, such as flwr.serverapp.strategy.FedYogi) and its options, in place
        of the three keys above.
    local_epochs
        Passes over its examples that a client makes in a round.
    local_steps
        Steps of SGD in a round instead of whole epochs; null for epochs.
    batch_size
        Examples of one step of SGD.
    learning_rate
        Step of the clients' SGD.
    momentum
        Momentum of the clients' SGD.
    proximal
        Weight of the pull towards the model of the round (FedProx); 0 for none.
    optimizer
        Optimizer of torch (``_target_``, such as torch.optim.Adam) and its options, in place of our own SGD,
        which is faster for small models. Its ``lr`` is the learning rate; its state begins anew each round.
    """

    path: ClassVar[str] = "federation"

    num_clients: Annotated[int, at_least(1)] = 20
    rounds: Annotated[int, at_least(0)] = 30
    fraction: Annotated[float, checks.number_in("(0, 1]")] = 1.0
    strategy: Annotated[str, checks.one_of("fedavg", "fedavgm", "fedadam", "fedprox", "fedmedian")] = "fedavg"
    server_learning_rate: Annotated[float, checks.positive] = 1.0
    server_momentum: Annotated[float, checks.number_in("[0, 1)")] = 0.9
    server_strategy: Mapping[str, Any] = field(default_factory=dict)
    local_epochs: Annotated[int, at_least(1)] = 1
    local_steps: Annotated[int | None, at_least(1)] = None
    batch_size: Annotated[int, at_least(1)] = 32
    learning_rate: Annotated[float, checks.positive] = 1.0
    momentum: Annotated[float, checks.number_in("[0, 1)")] = 0.0
    proximal: Annotated[float, at_least(0)] = 0.0
    optimizer: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "optimizer", self._checked_optimizer())
        object.__setattr__(self, "server_strategy", self._checked_server_strategy())

    def drawing(self, by_strategy: bool) -> dict[str, Any]:
        """Arguments of the strategy that say whom it asks: a fraction, or all if the sampling draws."""
        return {
            "fraction_train": self.fraction if by_strategy else 1.0,
            "fraction_evaluate": 0.0,
            "min_train_nodes": 1,
            "min_evaluate_nodes": 1,
            "min_available_nodes": self.num_clients,
        }

    def _checked_optimizer(self) -> dict[str, Any]:
        """The optimizer and its options, if it takes them; nothing for our own SGD."""
        group = "federation.optimizer"
        options = _without_nulls(self.optimizer)
        if not options:
            return {}
        checked(group, options, given=("params", "lr"))
        if self.momentum > 0.0 and "momentum" not in options_of(located(group, options[TARGET])):
            raise InvalidSpecError(
                f"federation.momentum: {self.momentum}, but {options[TARGET]} has no momentum; set it to 0"
            )
        return options

    def _checked_server_strategy(self) -> dict[str, Any]:
        """The strategy and its options, if it takes them; nothing if ``strategy`` names one of ours."""
        options = _without_nulls(self.server_strategy)
        if not options:
            return {}
        checked("federation.server_strategy", options, given=tuple(self.drawing(True)))
        for key in ("strategy", "server_learning_rate", "server_momentum"):
            if getattr(self, key) != getattr(type(self), key):
                raise InvalidSpecError(
                    f"federation.{key}: {getattr(self, key)}, but federation.server_strategy is "
                    f"{options[TARGET]}, which takes its options from there; leave federation.{key} out"
                )
        return options


def _without_nulls(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


@dataclass(frozen=True)
class PrivacyConfig(Keys):
    """Randomness, the target of the whole run, and limits that clients set.

    Parameters
    ----------
    randomness
        ``seeded`` (reproducible, and privacy is simulated) or ``secure`` (the operating system's).
    delta
        The δ at which totals are stated.
    epsilon
        Target for a client's total over all rounds: in the aggregate view with secure aggregation, else in
        the local one. Mechanism, clips and rotation follow from it, and the run never spends more.
    max_epsilon
        Largest ε of one coordinate and release that clients accept; null for any.
    budget
        Total ε at which a run stops, with the encoding that is configured; null for none.
    """

    path: ClassVar[str] = "privacy"

    randomness: Annotated[str, checks.one_of("seeded", "secure")] = "seeded"
    delta: Annotated[float, checks.number_in("(0, 1)")] = 1e-5
    epsilon: Annotated[float | None, checks.positive] = None
    max_epsilon: Annotated[float | None, checks.positive] = None
    budget: Annotated[float | None, checks.positive] = None


@dataclass(frozen=True)
class SecaggConfig(Keys):
    """Whether secure aggregation is used, and what is assumed of clients.

    Parameters
    ----------
    enabled
        Whether the server sees sums of codes only.
    corrupt_fraction
        Share of the clients of a round that may collude with the server.
    dropout_fraction
        Share of the clients of a round that may be lost.
    masked
        Whether codes are masked. If not, they are added up in the open and counted as if only their sum were
        seen. The model and the figures are the same, and nobody is protected: this is for studies.
    exact_sums
        Whether sums are wide enough for any codes, or only for those of honest clients, which takes fewer
        bits (:class:`~fl_privquant.accounting.SecureSum`).
    """

    path: ClassVar[str] = "secagg"

    enabled: bool = False
    corrupt_fraction: Annotated[float, checks.number_in("[0, 1)")] = 0.1
    dropout_fraction: Annotated[float, checks.number_in("[0, 1)")] = 0.1
    masked: bool = True
    exact_sums: bool = False


@dataclass(frozen=True)
class TrackerConfig(Keys):
    """An experiment tracker that results are sent to, in addition to the files.

    Parameters
    ----------
    name
        ``none``, ``tensorboard`` or ``mlflow``.
    uri
        Server or folder of MLflow; null for a file in the run's directory.
    """

    path: ClassVar[str] = "tracker"

    name: Annotated[str, checks.one_of("none", "tensorboard", "mlflow")] = "none"
    uri: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """One run: everything that its numbers depend on, and where they go.

    Parameters
    ----------
    mechanism
        Name and parameters of the mechanism that encodes updates.
    task
        Import path of a task's class (``_target_``), and its arguments.
    encoding, partition, federation, sampling, engine, privacy, secagg, tracker
        The groups of keys.
    app
        Folder of a Flower app that is run in place of a task, unchanged; null for none.
    app_config
        Values for keys of the app's own run config.
    app_metrics
        Which of the app's metrics stand for accuracy, loss and weight.
    app_digest
        Hash of the app's files, which is computed: a changed app is another run.
    study
        Results go to ``<output>/<study>/<run>``.
    panel
        The question that these runs answer, where a study asks several: each one has its own panel of the
        report. null: the settings that differ tell runs apart.
    seed
        Every source of randomness is derived from it.
    output
        Directory of all results.
    """

    mechanism: Mapping[str, Any]
    encoding: EncodingConfig = field(default_factory=EncodingConfig)
    task: Mapping[str, Any] = field(default_factory=lambda: dict(_DIGITS))
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    secagg: SecaggConfig = field(default_factory=SecaggConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    app: str | None = None
    app_config: Mapping[str, Any] = field(default_factory=dict)
    app_metrics: AppMetricsConfig = field(default_factory=AppMetricsConfig)
    app_digest: str | None = None
    study: str = "default"
    panel: str | None = None
    seed: Annotated[int, at_least(0)] = 0
    output: str = "outputs"

    def __post_init__(self) -> None:
        checks.check_declared(self)
        if not self.study or "/" in self.study or self.study.startswith("."):
            raise InvalidSpecError(f"study: {self.study!r} is not a plain directory name")
        if not self.output:
            raise InvalidSpecError("output: '' is not a directory; set output=DIRECTORY, or leave it out")
        object.__setattr__(self, "mechanism", checked_mechanism(self.mechanism))
        if self.app is None:
            at_least(1)("federation.rounds", self.federation.rounds)
            task = checked("task", self.task, given=("run",), common=_COMMON_OF_TASKS)
            object.__setattr__(self, "task", task)
        else:
            if self.sampling != SamplingConfig():
                raise InvalidSpecError(
                    f"sampling: {self.sampling.name}, but an app draws its clients itself; leave sampling out"
                )
            for key, value in settled(self).items():
                object.__setattr__(self, key, value)
        if self.mechanism["name"] == CENTRAL:
            # Its server is trusted with single updates, so secure aggregation would hide nothing.
            object.__setattr__(self, "secagg", SecaggConfig())
        # An invalid sampling is refused before anything starts.
        self.sampling.built(self.federation.fraction, None)
        if not self.secagg.masked and self.privacy.randomness != "seeded":
            raise InvalidSpecError(
                f"secagg.masked: false, which only simulates privacy, but privacy.randomness is "
                f"{self.privacy.randomness!r}; use secagg=on, or privacy.randomness=seeded"
            )
        if self.privacy.epsilon is None:
            self._check_without_target()
        else:
            self._check_target()
        if self.encoding.bits_policy.name != "constant" and not has_levels(str(self.mechanism["name"])):
            raise InvalidSpecError(
                f"encoding.bits_policy.name: {self.mechanism['name']!r} has a fixed number of levels; choose "
                f"another mechanism, or constant"
            )

    def _check_without_target(self) -> None:
        name = str(self.mechanism["name"])
        if name == CENTRAL:
            raise InvalidSpecError(
                f"mechanism: {name!r} is designed for a target of the whole run; set it, for example with "
                "privacy.epsilon=8"
            )
        if self.encoding.keep_policy.name == "adaptive":
            raise InvalidSpecError(
                "encoding.keep_policy.name: adaptive keeps to a target of the whole run; set privacy.epsilon "
                "and secagg=on, or use encoding.keep_policy.name=schedule"
            )
        if self.encoding.clip_policy.name == "pilot":
            raise InvalidSpecError(
                "encoding.clip_policy.name: pilot finds the L2 clip of a plan; set privacy.epsilon too"
            )
        if self.encoding.clip is None:
            object.__setattr__(self, "encoding", dataclasses.replace(self.encoding, clip=_USUAL_CLIP))

    def _check_target(self) -> None:
        """Refuse what contradicts a target, from which everything else follows."""
        name = str(self.mechanism["name"])
        target = "privacy.epsilon is a target for the whole run"
        if "epsilon" in self.mechanism:
            raise InvalidSpecError(
                f"mechanism.epsilon: {self.mechanism['epsilon']}, but {target}, from which it follows; set "
                "only one of them"
            )
        if name != CENTRAL and not has_parameter(name, "epsilon"):
            raise InvalidSpecError(f"mechanism: {name!r} protects nothing, but {target}; choose another")
        if self.privacy.budget is not None:
            raise InvalidSpecError(f"privacy.budget: {self.privacy.budget:g}, but {target}; set one of them")
        if self.encoding.rotate is False:
            raise InvalidSpecError(
                f"encoding.rotate: false, but {target}, which rotates updates; leave it out"
            )
        if self.encoding.clip_policy.name == "pilot" and (self.encoding.l2_clip or self.app):
            reason = "encoding.l2_clip is given too; leave one out"
            if self.app:
                reason = "it is for tasks; run 'fl-privquant clip APP' and set encoding.l2_clip"
            raise InvalidSpecError(f"encoding.clip_policy.name: pilot, but {reason}")
        for key, policy in self.encoding.changes.items():
            if policy == "pilot" or (policy in ("adaptive", "quantile") and name != CENTRAL):
                # A pilot comes before the plan. Adaptive policies have plans of their own: for every number
                # of coordinates, or with a vote.
                continue
            raise InvalidSpecError(
                f"{key}: {policy}, but {target}, which plans one encoding for all rounds; use {key}=constant"
            )

    @property
    def client_sampling(self) -> ClientSampling:
        """Who is asked in a round."""
        seed = self.seed if self.privacy.randomness == "seeded" else None
        return self.sampling.built(self.federation.fraction, seed)

    @property
    def counted_rounds(self) -> int:
        """The most rounds that a client takes part in."""
        return self.client_sampling.most_rounds(self.federation.rounds)

    @property
    def l2_clip(self) -> float | None:
        """Largest L2 norm of an update: as configured, or the default of runs with a target; None for any."""
        if self.encoding.l2_clip is None and self.privacy.epsilon is not None:
            return _TARGET_L2_CLIP
        return self.encoding.l2_clip

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """The checked config of a composed mapping."""
        return typing.cast(RunConfig, build(cls, values))

    def to_mapping(self) -> dict[str, Any]:
        """The config as plain values."""
        return typing.cast(
            dict[str, Any],
            dataclasses.asdict(self) | {"mechanism": dict(self.mechanism), "task": dict(self.task)},
        )

    @property
    def task_name(self) -> str:
        """The name of the task in tables: its own, or that of its class, or that of the app."""
        if self.app is not None:
            return user_app(self.app).name
        return str(self.task.get("name") or self.task[TARGET].rpartition(".")[2])

    @property
    def label(self) -> str:
        """The mechanism and its variant: what has one colour in every picture."""
        name = str(self.mechanism["name"])
        return name if name == CENTRAL else label_of(name, self.mechanism)

    @cached_property
    def run_name(self) -> str:
        """The run's directory: its mechanism, and a hash of everything that its numbers depend on."""
        values = self.to_mapping()
        for key in ("study", "panel", "output", "tracker"):
            del values[key]
        if self.app is None:
            for key in ("app", "app_config", "app_metrics", "app_digest"):
                del values[key]
        else:
            # The digest says what the app does; where it lies makes no difference.
            del values["app"]
        # The order of scales matters, and hashes of mappings sort their keys.
        values["encoding"]["clip_scales"] = list((values["encoding"]["clip_scales"] or {}).items())
        # Runs that do not use a key that was added later keep the name that they had before.
        for group, key in _LATER_KEYS:
            if not values[group][key]:
                del values[group][key]
        if self.engine.processes == 1:
            del values["engine"]["processes"]
        if self.sampling == SamplingConfig():
            del values["sampling"]
        return f"{self.label.replace(' ', '-')}-{hash_of(values)}"

    def design(self, levels: int | None = None) -> Any:
        """The mechanism of the clients, certified; with another number of levels, if one is given."""
        parameters = dict(self.mechanism)
        if parameters["name"] == CENTRAL:
            return pq.design("none")
        if levels is not None:
            parameters.pop("bits", None)
            parameters["levels"] = levels
        return pq.design(parameters.pop("name"), **parameters)


def hash_of(configuration: Mapping[str, Any]) -> str:
    """The key by which results are kept and found again: a hash of everything that they depend on."""
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:12]
