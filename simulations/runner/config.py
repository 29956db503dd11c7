"""The settings of one run: a key is a field of a dataclass here, with its type, its check and its default.

Hydra composes them: the dataclasses are registered in its ConfigStore, so that unknown keys and wrong types
are refused, and a YAML file in ``conf`` holds only what differs from the defaults. A new key is one field.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import typing
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import fl_privquant as pq
from fl_privquant._validation import check_declared, check_positive, number_between, one_of
from fl_privquant.codec.array_selection import ArrayChoice
from fl_privquant.codec.encoding import check_keep
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.mechanisms.additive.rounded_gaussian import ROUNDED_GAUSSIAN
from fl_privquant.mechanisms.registry import label_of
from fl_privquant.planning import (
    ClientSampling,
    CohortSampling,
    FixedSampling,
    PoissonSampling,
    StrategySampling,
)
from fl_privquant.planning.run_limits import check_target_relation
from fl_privquant.statement import Relation
from simulations.runner.apps.user_app import ROUND_KEYS, UserApp, fuse_app_config, user_app
from simulations.runner.config_errors import explain_refusal
from simulations.runner.mechanism_config import CENTRAL as CENTRAL
from simulations.runner.mechanism_config import check_mechanism, has_levels, has_parameter
from simulations.runner.targets import TARGET, check_options, load_object, options_of, takes_any

# Inside the package where that is installed, beside it in the repository.
_INSTALLED_CONF = Path(__file__).parents[1] / "conf"
CONF = _INSTALLED_CONF if _INSTALLED_CONF.is_dir() else Path(__file__).parents[2] / "conf"
"""The directory of the YAML files."""

_DEFAULT_CLIP = 0.05
_DEFAULT_TARGET_L2_CLIP = 1.0
_DEFAULT_ROUNDS = 30
_DEFAULT_TASK = {"name": "digits", "data": "digits", "model": "softmax"}
# Groups of keys that are checked against the object that they are about, so that Hydra takes any.
_OPEN_GROUPS = (
    *("mechanism", "task", "app_config"),
    *("encoding.clip_scales", "federation.optimizer", "federation.server_strategy"),
)

_at_least_1 = number_between("[1, inf)")
_at_least_0 = number_between("[0, inf)")


@dataclass(unsafe_hash=True)
class PartitionConfig:
    """How examples are dealt to clients."""

    name: Annotated[str, one_of("iid", "dirichlet", "shards", "size_skew", "natural")] = "iid"
    """``iid``, ``dirichlet`` (labels are skewed), ``shards`` (few labels each), ``size_skew``, or
    ``natural`` (a client is a user of the data)."""
    alpha: Annotated[float, check_positive] = 0.3
    """Concentration of the Dirichlet distribution: the smaller, the more labels are skewed."""
    shards_per_client: Annotated[int, _at_least_1] = 2
    """Shards of one label that a client gets, for ``shards``."""


@dataclass
class FederationConfig:
    """Clients and rounds, local SGD, and the server's strategy."""

    num_clients: Annotated[int, _at_least_0] = 20
    """Clients of the federation; with partition=natural, 0 takes all users of the data."""
    rounds: Annotated[int, _at_least_0] = 0
    """Rounds of the run; 0 takes the number in an app's own configuration, and 30 for a task."""
    fraction: Annotated[float, number_between("(0, 1]")] = 1.0
    """Share of the clients that is asked in a round; with sampling=poisson the probability of each
    client."""
    strategy: Annotated[str, one_of("fedavg", "fedavgm", "fedadam", "fedprox", "fedmedian")] = "fedavg"
    """Flower strategy of the server: ``fedavg``, ``fedavgm``, ``fedadam``, ``fedprox`` or ``fedmedian``."""
    server_learning_rate: Annotated[float, check_positive] = 1.0
    """Step of the server, for ``fedavg``, ``fedavgm`` and ``fedadam``."""
    server_momentum: Annotated[float, number_between("[0, 1)")] = 0.9
    """Momentum of the server, for ``fedavgm`` and ``fedadam``."""
    model_average: Annotated[float | None, number_between("[0, 1)")] = None
    """Decay of an exponential average of the models, such as 0.9, which is evaluated beside the last model;
    null for none."""
    server_strategy: dict[str, Any] = field(default_factory=dict)
    """Any other strategy (``_target_``, such as flwr.serverapp.strategy.FedYogi) and its options, in place
    of the three keys above."""
    local_epochs: Annotated[int, _at_least_1] = 1
    """Passes over its examples that a client makes in a round."""
    local_steps: Annotated[int | None, _at_least_1] = None
    """Steps of SGD in a round instead of whole epochs; null for epochs."""
    batch_size: Annotated[int, _at_least_1] = 32
    """Examples of one step of SGD."""
    learning_rate: Annotated[float, check_positive] = 1.0
    """Step of the clients' SGD."""
    momentum: Annotated[float, number_between("[0, 1)")] = 0.0
    """Momentum of the clients' SGD."""
    proximal: Annotated[float, _at_least_0] = 0.0
    """Weight of the pull towards the model of the round (FedProx); 0 for none."""
    optimizer: dict[str, Any] = field(default_factory=dict)
    """Optimizer of torch (``_target_``, such as torch.optim.Adam) and its options, in place of our own SGD,
    which is faster for small models. Its ``lr`` is the learning rate; its state begins anew each round."""

    def __post_init__(self) -> None:
        self.optimizer, self.server_strategy = _drop_nulls(self.optimizer), _drop_nulls(self.server_strategy)
        if self.optimizer:
            target = _check_target_options("federation.optimizer", self.optimizer, ("params", "lr"))
            if self.momentum > 0.0 and "momentum" not in options_of(target):
                problem = f", but {target.__name__} has no momentum"
                raise InvalidSpecError("federation.momentum", self.momentum, problem, "set it to 0")
        if self.server_strategy:
            given = self.drawing(by_strategy=True)
            target = _check_target_options("federation.server_strategy", self.server_strategy, given)
            for key in ("strategy", "server_learning_rate", "server_momentum"):
                if getattr(self, key) != getattr(type(self), key):
                    problem = f", but {target.__name__} takes its options from federation.server_strategy"
                    raise InvalidSpecError(f"federation.{key}", getattr(self, key), problem, "leave it out")

    def drawing(self, by_strategy: bool) -> dict[str, Any]:
        """Arguments of the strategy that say whom it asks: a fraction, or all if the sampling draws."""
        return {
            "fraction_train": self.fraction if by_strategy else 1.0,
            "fraction_evaluate": 0.0,
            "min_train_nodes": 1,
            "min_evaluate_nodes": 1,
            "min_available_nodes": self.num_clients,
        }


def _drop_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _check_target_options(group: str, values: Mapping[str, Any], given: typing.Iterable[str]) -> Any:
    """The object that a group's ``_target_`` names, if it takes the other keys as options."""
    if not isinstance(values.get(TARGET), str):
        problem = f"missing; choose a file with {group}=NAME, or give a class"
        raise InvalidSpecError(f"{group}.{TARGET}", MISSING, problem)
    target = load_object(f"{group}.{TARGET}", values[TARGET])
    check_options(group, {key: value for key, value in values.items() if key != TARGET}, [target], given)
    return target


@dataclass
class SamplingConfig:
    """How the clients of a round are drawn."""

    name: Annotated[str, one_of("flower", "fixed", "poisson", "cohorts")] = "flower"
    """``flower`` (the strategy draws ``federation.fraction`` of the clients), ``fixed`` (as many, drawn
    anew and in secret), ``poisson`` (each with that probability) or ``cohorts`` (each at most once in
    ``rounds_apart`` rounds)."""
    rounds_apart: Annotated[int | None, _at_least_1] = None
    """A client takes part in at most one of this many consecutive rounds, for ``cohorts``."""
    min_clients: Annotated[int | None, _at_least_1] = None
    """Rounds with fewer clients are not run, for ``poisson``; needed with secure sums."""
    participations: Annotated[int | None, _at_least_1] = None
    """Largest number of rounds that a client takes part in; its cost is counted for this number. null for
    no bound. With a bound, sampling does not amplify privacy against those who see only the models."""

    def __post_init__(self) -> None:
        for key, name in (("rounds_apart", "cohorts"), ("min_clients", "poisson")):
            value = getattr(self, key)
            if value is not None and self.name != name:
                remedy = f"use sampling={name}, or leave it out"
                raise InvalidSpecError(f"sampling.{key}", value, f", but sampling is {self.name}", remedy)
        if self.name == "cohorts" and self.rounds_apart is None:
            raise InvalidSpecError("sampling.rounds_apart", MISSING, "missing; cohorts need it, such as 5")

    def sample(self, fraction: float, seed: int | None) -> ClientSampling:
        """The sampling, of a share of the clients; reproducible with a seed."""
        if self.name == "fixed":
            return FixedSampling(fraction, participations=self.participations, seed=seed)
        if self.name == "poisson":
            return PoissonSampling(fraction, self.min_clients, participations=self.participations, seed=seed)
        if self.name == "cohorts":
            if fraction != 1.0:
                problem = ", but cohorts are as large as they can be"
                remedy = "leave it at 1, and raise sampling.rounds_apart for smaller ones"
                raise InvalidSpecError("federation.fraction", fraction, problem, remedy)
            return CohortSampling(self.rounds_apart or 1, participations=self.participations, seed=seed)
        return StrategySampling(participations=self.participations)


@dataclass
class EngineConfig:
    """The engine that runs the app."""

    name: Annotated[str, one_of("inline", "ray")] = "inline"
    """``inline`` (in this process) or ``ray`` (in Ray's worker processes)."""
    address: str | None = None
    """host:port of an existing Ray cluster; null starts one for the run."""
    client_cpus: Annotated[float, check_positive] = 1.0
    """CPUs that one client takes, for ``ray``: as many clients run at once as there is room for."""
    client_gpus: Annotated[float, _at_least_0] = 0.0
    """GPUs that one client takes, for ``ray``."""
    batch: Annotated[int, _at_least_1] = 256
    """The most clients that are trained and encoded at once, where the task can do that; 1 for one by one.
    Results are the same to the last bit for any number."""

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the engine."""
        ray = ("address", "client_cpus", "client_gpus", "batch")
        return {key: getattr(self, key) for key in (ray if self.name == "ray" else ("batch",))}


@dataclass
class ClipPolicyConfig:
    """The clip of each round; see :class:`fl_privquant.flower.QuantileClip`."""

    name: Annotated[str, one_of("constant", "quantile", "pilot")] = "constant"
    """``constant`` (encoding.clip and encoding.l2_clip); ``quantile`` (these at first, then a private
    quantile); or, with a target, ``pilot``: the L2 clip is the median norm of the first updates of some
    clients, which are measured without protection."""
    coordinate_quantile: Annotated[float, number_between("(0, 1)")] = 0.99
    """Share of a client's coordinates that should lie within the clip."""
    client_quantile: Annotated[float, number_between("(0, 1)")] = 0.5
    """Share of the clients for which the clip should be wide enough; 0.5 follows the median client."""
    rate: Annotated[float, check_positive] = 0.2
    """How fast the clip follows the quantile."""


@dataclass
class BitsPolicyConfig:
    """The number of levels of each round; see :class:`fl_privquant.flower.ScheduledMechanism`."""

    name: Annotated[str, one_of("constant", "schedule")] = "constant"
    """``constant`` (the mechanism's own) or ``schedule`` (by round)."""
    rounds: list[int] = field(default_factory=lambda: [1, 11, 21])
    """The round from which each entry of ``bits`` counts, for ``schedule``."""
    bits: list[int] = field(default_factory=lambda: [2, 3, 4])
    """2^bits levels from each of these rounds on, for ``schedule``."""

    def __post_init__(self) -> None:
        _check_schedule("encoding.bits_policy", self.rounds, self.bits)
        for bits in self.bits:
            _at_least_1("encoding.bits_policy.bits", bits)


@dataclass
class KeepPolicyConfig:
    """How many rotated coordinates each round sends; see :mod:`fl_privquant.flower.policies.schedules`."""

    name: Annotated[str, one_of("constant", "schedule")] = "constant"
    """``constant`` (encoding.keep) or ``schedule`` (by round)."""
    rounds: list[int] = field(default_factory=lambda: [1, 11, 21])
    """The round from which each entry of ``keep`` counts, for ``schedule``."""
    keep: list[float] = field(default_factory=lambda: [0.5, 0.2, 0.1])
    """Shares of the coordinates that are sent from each of these rounds on, for ``schedule``."""

    def __post_init__(self) -> None:
        _check_schedule("encoding.keep_policy", self.rounds, self.keep)
        for share in self.keep:
            check_keep(share)


def _check_schedule(path: str, rounds: list[int], entries: list[Any]) -> None:
    """Refuse a schedule whose first rounds do not increase from 1, one for each entry."""
    if len(rounds) != len(entries) or rounds[:1] != [1] or rounds != sorted(set(rounds)):
        problem = f"do not increase from round 1 on, one for each of {entries}"
        raise InvalidSpecError(f"{path}.rounds", rounds, problem)


@dataclass
class EncodingConfig:
    """How updates are encoded: the coordinate clip, an L2 clip, the rotation, and what changes over rounds.

    Keys that are null have these defaults: without a target the clip is 0.05, and there is no L2 clip and no
    rotation; with a target (``privacy.epsilon``) updates are clipped to an L2 norm of 1 and rotated, and the
    plan chooses the clip: in sums the one with the least error for the mechanism, in the local view three
    standard deviations of a rotated coordinate.
    """

    clip: Annotated[float | None, check_positive] = None
    """Bound of each coordinate."""
    l2_clip: Annotated[float | None, check_positive] = None
    """Largest L2 norm of an update; null for any, or for 1 with a target."""
    rotate: bool | None = None
    """Whether updates are rotated at random before coordinates are clipped."""
    keep: int | float | None = None
    """How many coordinates of the rotated update are sent, as a number or a share; null for all."""
    include: list[str] = field(default_factory=list)
    """Patterns on names of the model's arrays, as in [head.*]: only what matches is sent; empty for all."""
    exclude: list[str] = field(default_factory=list)
    """Patterns on names of arrays that are not sent."""
    clip_scales: dict[str, float] = field(default_factory=dict)
    """Factors of both clips by pattern, as in {head.*: 1, "*": 0.1}; the first match of an array counts.
    Empty: 1 for all."""
    clip_policy: ClipPolicyConfig = field(default_factory=ClipPolicyConfig)
    bits_policy: BitsPolicyConfig = field(default_factory=BitsPolicyConfig)
    keep_policy: KeepPolicyConfig = field(default_factory=KeepPolicyConfig)

    def __post_init__(self) -> None:
        if self.keep is not None:
            check_keep(self.keep)
        _ = self.arrays

    @property
    def arrays(self) -> ArrayChoice:
        """Which arrays of a model are sent, and on what scale they are clipped."""
        return ArrayChoice(tuple(self.include), tuple(self.exclude), tuple(self.clip_scales.items()))

    @property
    def changes(self) -> dict[str, str]:
        """What changes from round to round, by key, and how."""
        policies = ("clip_policy", "bits_policy", "keep_policy")
        names = {policy: getattr(self, policy).name for policy in policies}
        return {f"encoding.{key}.name": name for key, name in names.items() if name != "constant"}


@dataclass
class PrivacyConfig:
    """Randomness, the target of the whole run, and limits that clients set."""

    randomness: Annotated[str, one_of("seeded", "secure")] = "seeded"
    """``seeded`` (reproducible, and privacy is simulated) or ``secure`` (the operating system's)."""
    delta: Annotated[float, number_between("(0, 1)")] = 1e-5
    """The δ at which totals are stated."""
    epsilon: Annotated[float | None, check_positive] = None
    """Target for a client's total over all rounds: in the aggregate view with secure aggregation, else in
    the local one. Mechanism, clips and rotation follow from it, and the run never spends more."""
    unit: Annotated[str, one_of("client", "record")] = "client"
    """What the target protects: a ``client`` with all that it has, or each ``record`` of its own. For
    records, clients send a clipped gradient in each round, so that the learning rate is the server's."""
    records: Annotated[int, _at_least_0] = 0
    """About how many records all clients have together, for ``unit=record``."""
    sampling_rate: Annotated[float, number_between("[0, 1]")] = 0.0
    """Probability with which each record is drawn in a round, for ``unit=record``."""
    relation: str = ""
    """The neighboring relation of the target and of the budget: ``replace-one``, or ``zero-out`` as most of
    the field counts; also ``add-remove``, for records. Empty for the default: ``replace-one`` for clients,
    ``add-remove`` for records."""
    max_epsilon: Annotated[float | None, check_positive] = None
    """Largest ε of one coordinate and release that clients accept; null for any."""
    budget: Annotated[float | None, check_positive] = None
    """Total ε at which a run stops, with the encoding that is configured; null for none."""
    correlation: str | None = None
    """Share of a round's noise that the next round takes off, such as 0.75, or ``auto`` for the one with the
    least error of models; null for fresh noise. It is for rounded_gaussian in secure sums and for the central
    Gaussian, with epsilon and sampling=cohorts."""

    def __post_init__(self) -> None:
        _ = self.wanted_relation

    @property
    def wanted_relation(self) -> Relation:
        """The neighboring relation, by default the usual one of the unit."""
        return check_target_relation(self.relation, self.unit == "record")

    @property
    def wanted_correlation(self) -> float | str | None:
        """The correlation as plans take it."""
        if self.correlation is None or self.correlation == "auto":
            return self.correlation
        try:
            return float(self.correlation)
        except ValueError:
            problem, remedy = "is neither auto nor a number", "use privacy.correlation=auto"
            raise InvalidSpecError("privacy.correlation", self.correlation, problem, remedy) from None


@dataclass
class SecaggConfig:
    """Whether secure aggregation is used, and what is assumed of clients."""

    enabled: bool = False
    """Whether the server sees sums of codes only."""
    corrupt_fraction: Annotated[float, number_between("[0, 1)")] = 0.1
    """Share of the clients of a round that may collude with the server."""
    dropout_fraction: Annotated[float, number_between("[0, 1)")] = 0.1
    """Share of the clients of a round that may be lost."""
    masked: bool = True
    """Whether codes are masked. If not, they are added up in the open and counted as if only their sum were
    seen. The model and the figures are the same, and nobody is protected: this is for studies."""
    exact_sums: bool = False
    """Whether sums are wide enough for any codes, or only for those of honest clients, which takes fewer
    bits (:class:`~fl_privquant.accounting.SecureSum`)."""


@dataclass
class AuditConfig:
    """Whether an attack measures what a run reveals (:mod:`fl_privquant.accounting.canaries`)."""

    canaries: Annotated[int, _at_least_0] = 0
    """How many clients are canaries, which send updates of the largest norm in place of what they train; with
    ``privacy.unit=record``, how many records the silos have, all of them canaries."""


@dataclass
class TrackerConfig:
    """An experiment tracker that results are sent to, in addition to the files."""

    name: Annotated[str, one_of("none", "tensorboard", "mlflow", "wandb")] = "none"
    """``none``, ``tensorboard``, ``mlflow`` or ``wandb``."""
    uri: str | None = None
    """Server or folder of MLflow; null for a file in the run's directory."""


@dataclass
class AppMetricsConfig:
    """The names of an app's own metrics that stand for accuracy, loss and weight."""

    accuracy: str | None = None
    """The metric of evaluate replies that is the accuracy; null for the first with "acc" in its name."""
    loss: str | None = None
    """The same for the loss; null for the first with "loss" in its name."""
    weight: str = "num-examples"
    """The metric that the app weights replies by; in private rounds it is 1 for every client."""
    train: list[str] = field(default_factory=list)
    """Metrics of training that clients report without protection in private rounds; no ε counts them."""


@dataclass
class RunConfig:
    """One run: everything that its numbers depend on, and where they go."""

    mechanism: dict[str, Any] = field(default_factory=dict)
    """Name of the mechanism that encodes updates, or the import path of its spec (``_target_``), and its
    parameters."""
    encoding: EncodingConfig = field(default_factory=EncodingConfig)
    task: dict[str, Any] = field(default_factory=dict)
    """Import path of a task's class (``_target_``), and its arguments."""
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    secagg: SecaggConfig = field(default_factory=SecaggConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    app: str | None = None
    """Folder of a Flower app that is run in place of a task, unchanged; null for none."""
    app_config: dict[str, Any] = field(default_factory=dict)
    """Values for keys of the app's own run config."""
    app_metrics: AppMetricsConfig = field(default_factory=AppMetricsConfig)
    """Which of the app's metrics stand for accuracy, loss and weight."""
    app_digest: str | None = None
    """Hash of the app's files, which is computed: a changed app is another run."""
    study: str = "default"
    """Results go to ``<output>/<study>/<run>``."""
    panel: str | None = None
    """The question that these runs answer, where a study asks several: each one has its own panel of the
    report. null: the settings that differ tell runs apart."""
    seed: Annotated[int, _at_least_0] = 0
    """Every source of randomness is derived from it."""
    checkpoint_seconds: Annotated[float, _at_least_0] = 10.0
    """How often a run is saved, which goes on after the last round that was, if it is interrupted; 0 saves
    every release, as runs with privacy.randomness=secure do."""
    output: str = "outputs"
    """Directory of all results."""

    def __post_init__(self) -> None:
        _check_fields(self)
        if not self.study or "/" in self.study or self.study.startswith("."):
            raise InvalidSpecError("study", self.study, "is not a plain directory name")
        if not self.output:
            remedy = "set output=DIRECTORY, or leave it out"
            raise InvalidSpecError("output", self.output, "is not a directory", remedy)
        if self.app is None:
            self._settle_task()
        else:
            self._settle_app(user_app(self.app))
        self.mechanism = check_mechanism(
            self.mechanism, self.federation.num_clients, has_target=self.privacy.epsilon is not None
        )
        if self.mechanism["name"] == CENTRAL:
            # Its server is trusted with single updates, so secure aggregation would hide nothing.
            self.secagg = SecaggConfig()
        # An invalid sampling is refused before anything starts.
        self.sampling.sample(self.federation.fraction, None)
        if not self.secagg.masked and self.privacy.randomness != "seeded":
            problem = f", which only simulates privacy, but privacy.randomness is {self.privacy.randomness!r}"
            remedy = "use secagg=on, or privacy.randomness=seeded"
            raise InvalidSpecError("secagg.masked", False, problem, remedy)
        if self.privacy.epsilon is None:
            self._check_without_target()
        else:
            self._check_target()
        if self.encoding.bits_policy.name != "constant" and not has_levels(str(self.mechanism["name"])):
            problem = f"{self.mechanism['name']!r} has a fixed number of levels"
            remedy = "choose another mechanism, or constant"
            raise InvalidSpecError("encoding.bits_policy.name", MISSING, problem, remedy=remedy)

    def _settle_task(self) -> None:
        """Check the task's class and arguments, and fill in what is left to the data or to tasks."""
        values = _drop_nulls(dict(sorted(self.task.items())))
        if not values:
            values = {TARGET: "simulations.tasks.task.TorchTask", **_DEFAULT_TASK}
        if isinstance(values.get(TARGET), str):
            # The default task's own keys are not for another class, unless it takes them.
            target = load_object(f"task.{TARGET}", values[TARGET])
            own = {TARGET, *options_of(target)}
            values = {
                key: value
                for key, value in values.items()
                if key in own or key not in _DEFAULT_TASK or takes_any(target)
            }
        target = _check_target_options("task", values, ("run",))
        self.task = values
        options = {key: value for key, value in values.items() if key != TARGET}
        if hasattr(target, "check"):
            target.check(**options)
        if not self.federation.rounds:
            self.federation = dataclasses.replace(self.federation, rounds=_DEFAULT_ROUNDS)
        if not self.federation.num_clients:
            number = self._count_users(target, options)
            self.federation = dataclasses.replace(self.federation, num_clients=number)

    def _count_users(self, target: Any, options: Mapping[str, Any]) -> int:
        """How many users the data have; the data are read for it."""
        key = "federation.num_clients"
        if self.partition.name != "natural":
            problem = f"stands for all users of the data, but partition is {self.partition.name}"
            raise InvalidSpecError(key, 0, problem, "use partition=natural, or give a number")
        if not hasattr(target, "num_users"):
            raise InvalidSpecError(key, 0, f", but {target.__name__} has no num_users()", "give a number")
        return int(target.num_users(**options))

    def _settle_app(self, app: UserApp) -> None:
        """Fill in what follows from the app: its whole run config, its digest, and the rounds.

        Keys that are only for tasks are reset to their defaults, so that they do not tell runs apart.
        """
        if self.sampling != SamplingConfig():
            problem = ", but an app draws its clients itself"
            raise InvalidSpecError("sampling", self.sampling.name, problem, "leave sampling out")
        overrides = dict(self.app_config)
        rounds, fraction = self.federation.rounds, self.federation.fraction
        key = next((key for key in ROUND_KEYS if key in app.config), None)
        if key is not None and rounds and overrides.setdefault(key, rounds) != rounds:
            problem = f", but app_config.{key} is {overrides[key]}"
            raise InvalidSpecError("federation.rounds", rounds, problem, "set one of them")
        self.app, self.app_digest = str(app.folder), self.app_digest or app.digest
        self.app_config = fuse_app_config(app, overrides)
        rounds = rounds if key is None else self.app_config[key]
        if not rounds and self.privacy.epsilon is not None:
            problem = "missing; a target is planned for the rounds of a run, and the app's config has no "
            raise InvalidSpecError("federation.rounds", MISSING, problem + ROUND_KEYS[0])
        own_fraction = self.app_config.get("fraction-train", fraction)
        if fraction not in (1.0, own_fraction):
            problem = f", but app_config.fraction-train is {own_fraction}"
            raise InvalidSpecError("federation.fraction", fraction, problem, "set that")
        self.federation = FederationConfig(self.federation.num_clients, rounds, own_fraction)
        self.task, self.partition = {}, PartitionConfig()

    def _check_without_target(self) -> None:
        name, needed = str(self.mechanism["name"]), "a target of the whole run"
        if name == CENTRAL:
            remedy = "set it, for example with privacy.epsilon=8"
            raise InvalidSpecError("mechanism", name, f"is designed for {needed}", remedy)
        if self.privacy.unit == "record":
            problem, remedy = "is protected by a plan, which takes a target", "set privacy.epsilon too"
            raise InvalidSpecError("privacy.unit", self.privacy.unit, problem, remedy)
        if self.encoding.clip_policy.name == "pilot":
            problem, remedy = "finds the L2 clip of a plan", "set privacy.epsilon too"
            raise InvalidSpecError("encoding.clip_policy.name", "pilot", problem, remedy)
        if self.encoding.clip is None:
            self.encoding = dataclasses.replace(self.encoding, clip=_DEFAULT_CLIP)

    def _check_target(self) -> None:
        """Refuse what contradicts a target, from which everything else follows."""
        name, encoding = str(self.mechanism["name"]), self.encoding
        target = ", but privacy.epsilon is a target for the whole run"
        if "epsilon" in self.mechanism:
            problem = f"{target}, from which it follows"
            raise InvalidSpecError(
                "mechanism.epsilon", self.mechanism["epsilon"], problem, "set only one of them"
            )
        if name != CENTRAL and not has_parameter(name, "epsilon"):
            raise InvalidSpecError("mechanism", name, f"protects nothing{target}", "choose another")
        if self.privacy.budget is not None:
            raise InvalidSpecError("privacy.budget", self.privacy.budget, target, "set one of them")
        if self.privacy.unit == "record":
            self._check_record_target()
        if name == CENTRAL and encoding.keep is not None:
            problem = f", but {CENTRAL} is for whole updates: a part, restored, is longer than the L2 clip"
            raise InvalidSpecError("encoding.keep", encoding.keep, problem, "leave it out")
        if encoding.rotate is False:
            raise InvalidSpecError(
                "encoding.rotate", False, f"{target}, which rotates updates", "leave it out"
            )
        if encoding.clip_policy.name == "pilot" and (encoding.l2_clip or self.app):
            problem, remedy = ", but encoding.l2_clip is given too", "leave one out"
            if self.app:
                problem, remedy = ", which is for tasks", "run 'fl-privquant clip APP', set encoding.l2_clip"
            raise InvalidSpecError("encoding.clip_policy.name", "pilot", problem, remedy)
        for key, policy in encoding.changes.items():
            # A pilot comes before the plan. Adaptive policies have plans of their own: for every number of
            # coordinates, or with a vote.
            if policy != "pilot" and (policy not in ("adaptive", "quantile") or name == CENTRAL):
                problem = f"{target}, which plans one encoding for all rounds"
                raise InvalidSpecError(key, policy, problem, f"use {key}=constant")

    def _check_record_target(self) -> None:
        """Refuse what a plan for records does not have."""
        name, encoding = str(self.mechanism["name"]), self.encoding
        if name != ROUNDED_GAUSSIAN:
            remedy = f"use mechanism={ROUNDED_GAUSSIAN}"
            raise InvalidSpecError("mechanism", name, "does not protect records", remedy)
        fixed = {"encoding.clip": encoding.clip, "encoding.keep": encoding.keep, "app": self.app}
        if not self.app and not hasattr(load_object(f"task.{TARGET}", self.task[TARGET]), "train_on_records"):
            problem = "has no train_on_records()"
            raise InvalidSpecError(f"task.{TARGET}", self.task[TARGET], problem, "choose a task with records")
        for key, value in {**fixed, **encoding.changes}.items():
            if value is not None:
                problem = ", but plans for records have one form, for tasks"
                raise InvalidSpecError(key, value, problem, "leave it out")

    @property
    def client_sampling(self) -> ClientSampling:
        """Who is asked in a round."""
        seed = self.seed if self.privacy.randomness == "seeded" else None
        return self.sampling.sample(self.federation.fraction, seed)

    @property
    def counted_rounds(self) -> int:
        """The most rounds that a client takes part in."""
        return self.client_sampling.max_rounds(self.federation.rounds)

    @property
    def l2_clip(self) -> float | None:
        """Largest L2 norm of an update: as configured, or the default of runs with a target; None for any."""
        if self.encoding.l2_clip is None and self.privacy.epsilon is not None:
            return _DEFAULT_TARGET_L2_CLIP
        return self.encoding.l2_clip

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """The checked settings of a composed mapping.

        Raises
        ------
        InvalidSpecError
            A key is unknown, or a value is of another type, out of range, or contradicts another one.
        """
        try:
            return typing.cast(RunConfig, OmegaConf.to_object(OmegaConf.unsafe_merge(_schema(), values)))
        except OmegaConfBaseException as error:
            raise explain_refusal(error) from error

    def to_mapping(self) -> dict[str, Any]:
        """The settings as plain values."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """The settings as text, as both sides of a run have them; see :meth:`from_json`."""
        text = json.dumps(self.to_mapping(), sort_keys=True)
        _read_here[text] = self
        return text

    @staticmethod
    def from_json(text: str) -> RunConfig:
        """The settings that a text is of; in the process that wrote it, the same object."""
        return _read_here.get(text) or _parse(text)

    @property
    def task_name(self) -> str:
        """The name of the task in tables: its own, or that of its class, or that of the app."""
        if self.app is not None:
            return user_app(self.app).name
        return str(self.task.get("name") or self.task[TARGET].rpartition(".")[2])

    @property
    def label(self) -> str:
        """The mechanism and its variant: what has one color in every picture."""
        name = str(self.mechanism["name"])
        if self.privacy.unit == "record" and not self.secagg.enabled:
            return f"{name} in each silo"
        return name if name == CENTRAL else label_of(name, self.mechanism)

    @cached_property
    def run_name(self) -> str:
        """The run's directory: its mechanism, and a hash of everything that its numbers depend on."""
        values = self.to_mapping()
        # The digest says what an app does; where it lies makes no difference.
        for key in ("study", "panel", "output", "tracker", "app", "checkpoint_seconds"):
            del values[key]
        # The order of scales matters, and hashes of mappings sort their keys.
        values["encoding"]["clip_scales"] = list(self.encoding.clip_scales.items())
        # It changes nothing but the time that a run takes.
        values["engine"].pop("batch", None)
        if not self.audit.canaries:
            del values["audit"]
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        return f"{self.label.replace(' ', '-')}-{digest[:12]}"

    def design(self, levels: int | None = None) -> Any:
        """The mechanism of the clients, certified; with another number of levels, if one is given."""
        parameters = {key: value for key, value in self.mechanism.items() if key != TARGET}
        if parameters["name"] == CENTRAL:
            return pq.design("none")
        if levels is not None:
            parameters.pop("bits", None)
            parameters["levels"] = levels
        return pq.design(parameters.pop("name"), **parameters)


# Reading the settings of a run takes a hundredth of a second, which is much in a sweep of small runs.
_read_here: weakref.WeakValueDictionary[str, RunConfig] = weakref.WeakValueDictionary()


@lru_cache(maxsize=8)
def _parse(text: str) -> RunConfig:
    return RunConfig.from_mapping(json.loads(text))


def _check_fields(group: Any, path: str = "") -> None:
    """Make the checks that the keys of a group and of its own groups are declared with."""
    check_declared(group, path)
    for key in dataclasses.fields(group):
        if dataclasses.is_dataclass(value := getattr(group, key.name)):
            _check_fields(value, f"{path}{key.name}.")


def _schema() -> DictConfig:
    """The settings as Hydra knows them: unknown keys are refused, except in groups that are open."""
    return typing.cast(DictConfig, pickle.loads(_pickled_schema()))


@cache
def _pickled_schema() -> bytes:
    # A pickle is read in a fortieth of the time that OmegaConf takes for the dataclasses.
    schema: DictConfig = OmegaConf.structured(RunConfig)
    for group in _OPEN_GROUPS:
        OmegaConf.set_struct(OmegaConf.select(schema, group), False)
    return pickle.dumps(schema)


ConfigStore.instance().store(name="run_schema", node=_schema())


def compose_run(*overrides: str) -> RunConfig:
    """The settings of the run that ``python -m simulations.run`` would start with these overrides.

    Raises
    ------
    InvalidSpecError
        Hydra cannot compose them, or the settings are invalid.
    """
    try:
        with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
            composed = compose("config", overrides=list(overrides))
        return typing.cast(RunConfig, OmegaConf.to_object(composed))
    except (HydraException, OmegaConfBaseException) as error:
        raise explain_refusal(error) from error


def configured_app(run: RunConfig) -> UserApp:
    """The app of a run, if its files are still those that the run was configured with.

    Results are kept under the digest of the files, so that other files must not make them.
    """
    app = user_app(str(run.app))
    if app.digest != run.app_digest:
        problem = (
            f"the files of {run.app} have changed since the run was configured (digest {app.digest}, "
            f"expected {run.app_digest})"
        )
        raise InvalidSpecError("app", MISSING, problem, remedy="start the run anew")
    return app
