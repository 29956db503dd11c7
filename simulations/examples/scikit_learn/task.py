"""The model and the data: nothing here knows of federated learning or privacy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

_TEST_EVERY = 5
_CLASSES = np.arange(10)

Weights = dict[str, NDArray[Any]]


def make_model(learning_rate: float = 0.01) -> SGDClassifier:
    """Logistic regression, trained by stochastic gradient descent."""
    return SGDClassifier(loss="log_loss", learning_rate="constant", eta0=learning_rate, random_state=0)


def set_weights(model: SGDClassifier, weights: Weights) -> None:
    """Give the model these weights, as if it had been trained to them."""
    model.classes_ = _CLASSES
    model.coef_ = np.array(weights["coef"], dtype=np.float64)
    model.intercept_ = np.array(weights["intercept"], dtype=np.float64)


def train_model(
    weights: Weights, data: tuple[NDArray[Any], NDArray[Any]], epochs: int, rate: float
) -> Weights:
    """The weights after some passes over the data."""
    model = make_model(rate)
    set_weights(model, weights)
    for _ in range(epochs):
        model.partial_fit(*data, classes=_CLASSES)
    return {"coef": np.array(model.coef_), "intercept": np.array(model.intercept_)}


@lru_cache(maxsize=1)
def _load_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    images, labels = load_digits(return_X_y=True)
    return images / 16.0, labels


def load_data(partition: int, num_partitions: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels of one client."""
    images, labels = _load_digits()
    chosen = np.arange(len(labels)) % _TEST_EVERY != 0
    return images[chosen][partition::num_partitions], labels[chosen][partition::num_partitions]


def load_test_data() -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels to test with."""
    images, labels = _load_digits()
    return images[::_TEST_EVERY], labels[::_TEST_EVERY]
