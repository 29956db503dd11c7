"""Training by gradients in one process, without Flower: the same models, so quickly that more can be trained.

Softmax regression by one full-batch gradient of every client a round. Data, clients, rotations, the noise of
the central Gaussian and the random words of encoders are those of a run through Flower with the same seed, so
that a run here ends with the model of that run, but for the rounding of sums. A test shows this, and one
part of the study, ``gradients-digits``, is trained through Flower.

Besides what the plan encodes (``encoded``) and the central Gaussian (``central``) there are two ways to make
the mean update that show what a clip of coordinates costs. Both draw the very noise of ``central``, so that
chance hardly matters to what they lose: ``clipped`` clips rotated coordinates at a number of standard
deviations, and ``noisier`` divides the noise by the gain that this clip has
(:mod:`fl_privquant.design.spread`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_privquant.accounting import Plan
from fl_privquant.codec.rotate import Rotation
from fl_privquant.design.spread import clipped_moments
from fl_privquant.errors import InvalidSpecError
from fl_privquant.sampling.stream import RandomStream
from simulations.central import noise_of_sum
from simulations.config import CENTRAL, RunConfig
from simulations.data import Examples
from simulations.planned import central_target, plan_of
from simulations.report.statistics import student_interval
from simulations.studies.study import Part, Scale, Tables, Tell
from simulations.studies.sweep import Sweep
from simulations.tasks import TorchTask, task_of

__all__ = ["CLIPS", "MeanOf", "Training", "clip_costs", "training"]

# Updates are single precision, means double.
Numbers: TypeAlias = NDArray[Any]
Clients: TypeAlias = list[tuple[Numbers, Numbers]]
MeanOf: TypeAlias = Callable[[Numbers, int], Numbers]
"""Makes the mean update from (clients, d) updates, in a round."""

CLIPS = (2.0, 3.0)
"""Numbers of standard deviations whose cost is measured."""

# For the cost of clips: not a seed of another table.
_FIRST_SEED = 1000


@dataclass(frozen=True)
class Training:
    """Softmax regression by one full-batch gradient of every client a round, for one seed.

    ``config`` is that of a run through Flower with a plan.
    """

    config: RunConfig

    @cached_property
    def _task(self) -> TorchTask:
        task = task_of(self.config)
        if not isinstance(task, TorchTask):
            raise InvalidSpecError(f"task: {self.config.task_name} has no labelled examples to train on")
        return task

    @property
    def examples(self) -> Examples:
        """The task's examples."""
        return self._task.examples

    @cached_property
    def dimension(self) -> int:
        """Number of weights."""
        return (int(np.prod(self.examples.train_x.shape[1:])) + 1) * self.examples.num_classes

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        plan = plan_of(self.config, self.dimension)
        if plan is None:
            raise InvalidSpecError("privacy.epsilon: give a target, by which the run is planned")
        return plan

    @property
    def spread(self) -> float:
        """The plan's clip of coordinates, in their standard deviations at the norm bound."""
        return self.plan.encoding.clip * math.sqrt(self.dimension) / central_target(self.config)[0]

    @cached_property
    def noise_scale(self) -> float:
        """Standard deviation of the central Gaussian's noise on a coordinate of the mean."""
        federation = self.config.federation
        l2_clip, epsilon, delta = central_target(self.config)
        return noise_of_sum(l2_clip, federation.rounds, epsilon, delta) / federation.num_clients

    def _clients(self) -> Clients:
        """Inputs, with a constant, and labels as unit vectors, of each client."""
        examples = self.examples
        inputs = _with_constant(examples.train_x)
        labels = np.eye(examples.num_classes, dtype=np.float32)[examples.train_y]
        return [(inputs[part], labels[part]) for part in self._task.parts]

    def accuracy(self, mean_of: MeanOf) -> float:
        """Accuracy on the test examples after the last round, with that way to make mean updates."""
        weights, clients = np.zeros(self.dimension, np.float32), self._clients()
        for server_round in range(1, self.config.federation.rounds + 1):
            mean = mean_of(self._updates(clients, weights), server_round)
            weights = (weights + self.config.federation.server_learning_rate * mean).astype(np.float32)
        logits = _with_constant(self.examples.test_x) @ self._matrix(weights).T
        return float((logits.argmax(axis=1) == self.examples.test_y).mean())

    def central(self, updates: Numbers, server_round: int) -> Numbers:
        """The mean with the noise of the central Gaussian."""
        return self.noisier(1.0)(updates, server_round)

    def noisier(self, gain: float) -> MeanOf:
        """The same with the noise divided by a gain."""
        return lambda updates, server_round: updates.mean(axis=0) + self._noise(server_round) / gain

    def clipped(self, spread: float) -> MeanOf:
        """The noise of the central Gaussian; rotated coordinates are clipped at so many deviations."""

        def mean_of(updates: Numbers, server_round: int) -> Numbers:
            rotation, rotated = self._rotated(updates, server_round)
            clip = spread * central_target(self.config)[0] / math.sqrt(self.dimension)
            mean = np.clip(rotated, -clip, clip).mean(axis=0, dtype=np.float64)
            rotation.backward(mean)
            return np.asarray(mean + self._noise(server_round))

        return mean_of

    def encoded(self, updates: Numbers, server_round: int) -> Numbers:
        """What the plan's mechanism makes of the sum of codes."""
        rotation, rotated = self._rotated(updates, server_round)
        mechanism, clip = self.plan.encoding.mechanism, self.plan.encoding.clip
        total = np.zeros(self.dimension, np.int64)
        for client, update in enumerate(rotated):
            stream = RandomStream.seeded(self.config.seed, round=server_round, client=client)
            total += mechanism.to_codes(mechanism.encode(update, clip, stream))
        mean = mechanism.decode_sum(total, len(rotated), clip)
        rotation.backward(mean)
        return mean

    def _matrix(self, weights: Numbers) -> Numbers:
        """Weights of each class, its constant last; a model has all constants after all weights."""
        classes = self.examples.num_classes
        return np.concatenate([weights[:-classes].reshape(classes, -1), weights[-classes:, None]], axis=1)

    def _updates(self, clients: Clients, weights: Numbers) -> Numbers:
        """(clients, d) what each client's gradient changes, clipped to the L2 norm."""
        matrix, rate = self._matrix(weights), np.float32(self.config.federation.learning_rate)
        updates = np.empty((len(clients), self.dimension), np.float32)
        for update, (inputs, labels) in zip(updates, clients, strict=True):
            logits = inputs @ matrix.T
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            change = (labels - shares).T @ inputs * (rate / np.float32(len(labels)))
            update[:] = np.concatenate([change[:, :-1].ravel(), change[:, -1]])
        norms = np.linalg.norm(updates, axis=1, keepdims=True)
        l2_clip = central_target(self.config)[0]
        return np.asarray(updates * np.minimum(1.0, l2_clip / np.maximum(norms, 1e-30)))

    def _noise(self, server_round: int) -> Numbers:
        """The numbers that the central Gaussian's run of this seed draws."""
        rng = np.random.default_rng([self.config.seed, 5, server_round])
        return self.noise_scale * rng.standard_normal(self.dimension)

    def _rotated(self, updates: Numbers, server_round: int) -> tuple[Rotation, Numbers]:
        rotation = Rotation(self.dimension, self.config.seed + (server_round << 31))
        rotated = np.array(updates, dtype=np.float32, order="C")
        for update in rotated:
            rotation.forward(update)
        return rotation, rotated


def _with_constant(images: Numbers) -> Numbers:
    flat = images.reshape(len(images), -1)
    return np.concatenate([flat, np.ones((len(flat), 1), flat.dtype)], axis=1)


def _lost(name: str, lost: Numbers) -> dict[str, float]:
    """The mean of paired differences and its standard error."""
    error = float(lost.std(ddof=1) / math.sqrt(lost.size)) if lost.size > 1 else math.nan
    return {name: float(lost.mean()), f"{name}_error": error}


def _setting(config: RunConfig, seeds: int) -> dict[str, Any]:
    return {
        "task": config.task_name,
        "rounds": config.federation.rounds,
        "num_clients": config.federation.num_clients,
        "l2_clip": config.l2_clip,
        "run_epsilon": config.privacy.epsilon,
        "seeds": seeds,
    }


def _mechanism_row(trainings: Sequence[Training], accuracies: Numbers, central: Numbers) -> dict[str, Any]:
    """Accuracies of one mechanism in one setting, beside the central Gaussian's of the same seeds."""
    first = trainings[0]
    mean, low, high, _ = student_interval(accuracies.tolist())
    planned = first.config.mechanism["name"] != CENTRAL
    return {
        **_setting(first.config, len(trainings)),
        "mechanism": first.config.label,
        "bits": first.config.mechanism["bits"] if planned else math.nan,
        "spread": first.spread if planned else math.nan,
        "ratio_to_central": first.plan.ratio_to_central if planned else 1.0,
        "accuracy": mean,
        "accuracy_low": low,
        "accuracy_high": high,
        **_lost("accuracy_lost", central - accuracies),
        "epsilon_total_aggregate": first.plan.statement.epsilon if planned else first.config.privacy.epsilon,
    }


@dataclass(frozen=True, kw_only=True)
class _Trained(Part):
    """The runs of a sweep, trained in this process: a row for each budget, mechanism and number of bits."""

    sweep: Sweep

    @property
    def tables(self) -> tuple[str, ...]:
        """Means over seeds, and what each seed loses."""
        return self.name, f"{self.name}-by-seed"

    def configuration(self, scale: Scale) -> Mapping[str, Any]:
        """That of its runs."""
        return {"in_process": dict(self.sweep.configuration(scale))}

    def compute(self, scale: Scale, tell: Tell) -> Tables:
        """Both tables."""
        settings: dict[tuple[Any, ...], list[Training]] = {}
        for config in self.sweep.runs(scale):
            planned = config.mechanism["name"] != CENTRAL
            key = config.privacy.epsilon, config.mechanism["bits"] if planned else 0
            settings.setdefault(key, []).append(Training(config))
        rows, by_seed, central = [], [], np.empty(0)
        # The central Gaussian is first in each budget.
        for place, ((_, bits), trainings) in enumerate(sorted(settings.items(), key=lambda item: item[0])):
            tell(place / len(settings), trainings[0].config.label)
            accuracies = np.array(
                [each.accuracy(each.encoded if bits else each.central) for each in trainings]
            )
            central = central if bits else accuracies
            rows.append(_mechanism_row(trainings, accuracies, central))
            by_seed += [
                {
                    "run_epsilon": each.config.privacy.epsilon,
                    "mechanism": each.config.label,
                    "bits": bits or math.nan,
                    "seed": each.config.seed,
                    "accuracy": accuracy,
                    "accuracy_lost": lost,
                }
                for each, accuracy, lost in zip(trainings, accuracies, central - accuracies, strict=True)
            ]
        first, second = self.tables
        return {first: pd.DataFrame(rows), second: pd.DataFrame(by_seed)}


def training(name: str, sweep: Sweep) -> Part:
    """The part that trains the runs of a sweep in this process."""
    return _Trained(name=name, title=sweep.title, needs=sweep.needs, note=sweep.note, sweep=sweep)


@dataclass(frozen=True, kw_only=True)
class _ClipCosts(Part):
    """What a clip of coordinates loses, and noise that is divided by its gain, in the setting of a sweep."""

    sweep: Sweep
    seeds: int

    def configuration(self, scale: Scale) -> Mapping[str, Any]:
        """The setting, and the seeds."""
        return {"setting": self._config(scale).run_name, "seeds": [_FIRST_SEED, self.seeds], "clips": CLIPS}

    def _config(self, scale: Scale) -> RunConfig:
        runs = self.sweep.runs(scale)
        return replace(next(run for run in runs if run.mechanism["name"] == CENTRAL), seed=_FIRST_SEED)

    def compute(self, scale: Scale, tell: Tell) -> Tables:
        """Its only table, with a row for each clip."""
        first = self._config(scale)
        trainings = [Training(replace(first, seed=_FIRST_SEED + seed)) for seed in range(self.seeds)]
        central = np.array([each.accuracy(each.central) for each in trainings])
        rows = []
        for place, spread in enumerate(CLIPS, start=1):
            tell(place / (len(CLIPS) + 1), f"clip at {spread:g} standard deviations")
            gain = clipped_moments(spread)[1]
            clipped = np.array([each.accuracy(each.clipped(spread)) for each in trainings])
            noisier = np.array([each.accuracy(each.noisier(gain)) for each in trainings])
            rows.append(
                {
                    **_setting(first, self.seeds),
                    "spread": spread,
                    "gain": gain,
                    "accuracy": float(central.mean()),
                    **_lost("lost_by_clip", central - clipped),
                    **_lost("lost_by_noise", central - noisier),
                }
            )
        return {self.name: pd.DataFrame(rows)}


def clip_costs(name: str, sweep: Sweep, seeds: int) -> Part:
    """The part that tells what clips cost in the setting of a sweep, with so many seeds."""
    title = f"What a clip of coordinates costs: {sweep.title}"
    return _ClipCosts(name=name, title=title, needs=sweep.needs, note=sweep.note, sweep=sweep, seeds=seeds)
