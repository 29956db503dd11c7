"""Softmax regression by many clients at once: real codecs and sums of codes, without messages between.

What a Flower run sends is what is computed here: each client's update goes through
:class:`~fl_privquant.codec.update.UpdateCodec`, codes are added up, and the mean is decoded from the sum.
Secure aggregation would change no number of it. A thousand clients then take a second a round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import fl_privquant as pq
from fl_privquant.codec.clip import clip_l2
from fl_privquant.codec.layout import Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.encoding import Encoding
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.optm_aggregate import usual_norm_ratio
from simulations.data import Examples

__all__ = ["Federation", "TrainingResult", "deal"]

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TrainingResult:
    """Test accuracy, squared error of a coordinate of the mean update, and the share that was clipped."""

    accuracy: float
    mean_squared_error: float
    share_clipped: float


@dataclass(frozen=True)
class Federation:
    """Clients with as many examples each: (clients, examples, features) and their labels."""

    x: Floats
    y: NDArray[np.int64]
    test_x: Floats
    test_y: NDArray[np.int64]
    num_classes: int

    @property
    def dimension(self) -> int:
        """Number of coordinates of the model."""
        return (self.x.shape[2] + 1) * self.num_classes

    def train(
        self,
        mechanism: Mechanism | float,
        rounds: int,
        l2_clip: float,
        learning_rate: float,
        seed: int,
    ) -> TrainingResult:
        """The model after some rounds.

        Parameters
        ----------
        mechanism
            What encodes updates; or the standard deviation of the noise that a trusted server adds to their
            sum.
        l2_clip
            Largest norm of a client's gradient.
        learning_rate
            Of the server, on the mean of clipped gradients.
        """
        clients, _, features = self.x.shape
        model = {
            "weight": np.zeros((features, self.num_classes), np.float32),
            "bias": np.zeros(self.num_classes, np.float32),
        }
        layout = Layout.of(model)
        clip = l2_clip / usual_norm_ratio(layout.dimension)
        noise = np.random.default_rng([seed, 7])
        errors, clipped = [], []
        for number in range(1, rounds + 1):
            gradients = self._gradients(model)
            vectors = [layout.flatten(each) for each in gradients]
            for vector in vectors:
                clip_l2(vector, l2_clip)
            exact = np.mean(vectors, axis=0, dtype=np.float64)
            if isinstance(mechanism, Mechanism):
                encoding = Encoding(mechanism, clip, l2_clip, rotate=True)
                codec = UpdateCodec(layout, encoding, rotation_seed=(number << 31) + seed)
                total = np.zeros(layout.dimension, np.int64)
                for client, each in enumerate(gradients):
                    stream = pq.RandomStream.seeded(seed, round=number, client=client)
                    codec.add_codes(codec.encode(each, stream), total)
                total &= (1 << codec.mechanism.sum_bits(clients)) - 1
                mean = layout.flatten(codec.decode_sum(total, clients)).astype(np.float64)
                zero = {name: np.zeros_like(each) for name, each in model.items()}
                clipped.append(codec.clipped_share(gradients[0], zero))
            else:
                mean = exact + mechanism / clients * noise.standard_normal(exact.size)
            errors.append(float(np.mean((mean - exact) ** 2)))
            step = layout.unflatten((-learning_rate * mean).astype(np.float32))
            model = {name: model[name] + step[name] for name in model}
        scores = self.test_x @ model["weight"] + model["bias"]
        accuracy = float(np.mean(scores.argmax(axis=1) == self.test_y))
        return TrainingResult(accuracy, float(np.mean(errors)), float(np.mean(clipped or [math.nan])))

    def _gradients(self, model: dict[str, Floats]) -> list[dict[str, Floats]]:
        scores = self.x @ model["weight"] + model["bias"]
        scores -= scores.max(axis=2, keepdims=True)
        shares = np.exp(scores)
        shares /= shares.sum(axis=2, keepdims=True)
        np.put_along_axis(shares, self.y[..., None], np.take_along_axis(shares, self.y[..., None], 2) - 1, 2)
        shares /= self.x.shape[1]
        weights = np.matmul(self.x.transpose(0, 2, 1), shares)
        biases = shares.sum(axis=1)
        return [{"weight": weight, "bias": bias} for weight, bias in zip(weights, biases, strict=True)]


def deal(examples: Examples, clients: int, seed: int) -> Federation:
    """The training examples, dealt out at random to as many clients."""
    order = np.random.default_rng([seed, 11]).permutation(len(examples.train_y))
    each = len(order) // clients
    chosen = order[: each * clients]
    x = examples.train_x.reshape(len(examples.train_x), -1)[chosen]
    return Federation(
        x.reshape(clients, each, -1),
        examples.train_y[chosen].reshape(clients, each),
        examples.test_x.reshape(len(examples.test_x), -1),
        examples.test_y,
        examples.num_classes,
    )
