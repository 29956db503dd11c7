"""Softmax regression with private gradients, many runs at once: what the paper calls DP-SGD.

Two procedures, with the same models, batches and optimizer (Adam, one epoch):

**logits**, the paper's. With z = W x + b the logits of an example and g the gradient of its loss by z, each
coordinate of g is clipped and quantized; the gradient by W is then made of the *raw* features, as q(g) x.
The epsilon is that of one coordinate of g. Features are not protected: q(g) x is a multiple of x.

**whole**. The whole gradient of an example, (g x, g), is clipped and quantized coordinate by coordinate, and
nothing else of the example is used. An example is seen once in an epoch, so its cost is that of one release,
which composition over its coordinates gives. (Somebody who holds one example is like a client of a federation
that sends one update.)

Gradients are those of the mean loss over a batch, as in the code that the paper links to
(github.com/osu-srml/DP_Linprog): g = (softmax(z) - onehot(y)) / batch size, before the clip. Accuracy is the
running one: of all examples so far in the epoch, each predicted before the model learns from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import fl_privquant as pq
from fl_privquant.mechanisms.base import TableMechanism

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

PROCEDURES = ("logits", "whole")
"""What is quantized of an example: the gradient of its logits, as in the paper, or its whole gradient."""

_LEARNING_RATE, _FIRST_DECAY, _SECOND_DECAY, _SMALL = 1e-3, 0.9, 0.999, 1e-7
_INITIAL_DEVIATION = 0.05


@dataclass(frozen=True)
class Problem:
    """Examples, and which of them each run learns from, in which order.

    Parameters
    ----------
    x, y
        (M, F) features and (M,) labels of all examples that any run uses.
    order, held_out
        (R, N) and (R, T) numbers of the examples that run r learns from, in order, and is tested on.
    num_classes, batch_size, clip
        Sizes of the procedure.
    """

    x: Floats
    y: Indices
    order: Indices
    held_out: Indices
    num_classes: int
    batch_size: int
    clip: float

    @property
    def num_runs(self) -> int:
        """Number R of runs."""
        return int(self.order.shape[0])

    @property
    def dimension(self) -> int:
        """Number of parameters: what an example's whole gradient has as coordinates."""
        return int(self.x.shape[1] + 1) * self.num_classes


@dataclass(frozen=True)
class Curves:
    """(R, steps) running accuracy after each batch, and (R,) accuracy on held-out examples at the end."""

    accuracy: NDArray[np.float64]
    held_out: NDArray[np.float64]

    @property
    def final(self) -> NDArray[np.float64]:
        """(R,) accuracy over the epoch."""
        return self.accuracy[:, -1]


def train(problem: Problem, mechanism: TableMechanism | None, procedure: str, seed: int) -> Curves:
    """The accuracies of all runs; ``mechanism=None`` clips only.

    Runs with the same seed start alike and see the same batches and random words, whatever the mechanism.
    """
    runs, count = problem.order.shape
    generator = np.random.default_rng([seed, 1])
    shape = (runs, problem.x.shape[1], problem.num_classes)
    model = _Adam(
        [
            generator.normal(0.0, _INITIAL_DEVIATION, shape).astype(np.float32),
            np.zeros((runs, 1, problem.num_classes), np.float32),
        ]
    )
    quantize, quantize_sum = _make_quantizers(mechanism, problem.clip, seed)
    correct = np.zeros(runs)
    starts = range(0, count, problem.batch_size)
    accuracy = np.empty((runs, len(starts)))
    for step, start in enumerate(starts):
        batch = problem.order[:, start : start + problem.batch_size]
        x, y = problem.x[batch], problem.y[batch]
        gradient, predicted = example_gradients(x, y, *model.parameters)
        correct += (predicted == y).sum(axis=1)
        accuracy[:, step] = correct / (start + batch.shape[1])
        if procedure == "logits":
            private = quantize(gradient)
            model.step([x.transpose(0, 2, 1) @ private, private.sum(axis=1, keepdims=True)])
        else:
            # The bias is a feature that is always 1.
            ones = np.ones((*x.shape[:2], 1), np.float32)
            features = np.concatenate([x, ones], axis=2)
            total = quantize_sum(gradient[..., None] * features[:, :, None, :]).transpose(0, 2, 1)
            model.step([total[:, :-1], total[:, -1:]])
    return Curves(accuracy, _held_out_accuracy(problem, model.parameters))


def example_gradients(x: Floats, y: Indices, weights: Floats, bias: Floats) -> tuple[Floats, Indices]:
    """(R, B, C) gradients of the mean loss by the logits of each example, and (R, B) predictions before.

    ``x`` is (R, B, F), ``y`` (R, B), ``weights`` (R, F, C), ``bias`` (R, 1, C).
    """
    logits = x @ weights + bias
    chances = np.exp(logits - logits.max(axis=2, keepdims=True))
    chances /= chances.sum(axis=2, keepdims=True)
    np.put_along_axis(chances, y[..., None], np.take_along_axis(chances, y[..., None], axis=2) - 1.0, axis=2)
    return chances / np.float32(x.shape[1]), logits.argmax(axis=2)


def _make_quantizers(
    mechanism: TableMechanism | None, clip: float, seed: int
) -> tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]:
    """Two functions: one quantizes an array, one quantizes it and sums over its second axis, the batch."""
    if mechanism is None:
        return (
            lambda gradient: np.clip(gradient, -clip, clip),
            lambda gradient: np.clip(gradient, -clip, clip).sum(axis=1),
        )
    values = (mechanism.values * clip).astype(np.float32)
    stream = pq.RandomStream.seeded(seed, purpose="paper training")

    def quantize_sum(gradient: Floats) -> Floats:
        indices = mechanism.encode(gradient, clip, stream)
        # Counting each of a few values is several times as fast as looking up every coordinate's.
        counts = ((indices == level).sum(axis=1, dtype=np.uint16) for level in range(values.size))
        return sum(
            (value * count.astype(np.float32) for value, count in zip(values, counts, strict=True)),
            np.zeros((), np.float32),
        )

    return lambda gradient: values[mechanism.encode(gradient, clip, stream)], quantize_sum


def _held_out_accuracy(problem: Problem, parameters: list[Floats]) -> NDArray[np.float64]:
    weights, bias = parameters
    accuracies = np.empty(problem.num_runs)
    for run, examples in enumerate(problem.held_out):
        predicted = (problem.x[examples] @ weights[run] + bias[run]).argmax(axis=1)
        accuracies[run] = (predicted == problem.y[examples]).mean()
    return accuracies


class _Adam:
    """Adam with its usual constants, over parameters of all runs at once."""

    def __init__(self, parameters: list[Floats]) -> None:
        self.parameters = parameters
        self._first = [np.zeros_like(parameter) for parameter in parameters]
        self._second = [np.zeros_like(parameter) for parameter in parameters]
        self._steps = 0

    def step(self, gradients: list[Floats]) -> None:
        """Move the parameters, in place."""
        self._steps += 1
        correction = np.sqrt(1.0 - _SECOND_DECAY**self._steps) / (1.0 - _FIRST_DECAY**self._steps)
        rate = np.float32(_LEARNING_RATE * correction)
        for parameter, first, second, gradient in zip(
            self.parameters, self._first, self._second, gradients, strict=True
        ):
            first += np.float32(1.0 - _FIRST_DECAY) * (gradient - first)
            second += np.float32(1.0 - _SECOND_DECAY) * (gradient * gradient - second)
            parameter -= rate * first / (np.sqrt(second) + np.float32(_SMALL))
