"""The model and the data: replace these five functions by your own."""

from __future__ import annotations

import numpy as np

FEATURES = 10


def initial_model() -> dict[str, np.ndarray]:
    """The arrays of the model before the first round, by name."""
    return {"weight": np.zeros(FEATURES, np.float32), "bias": np.zeros(1, np.float32)}


def load_data(partition: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of one client; here points on both sides of a plane."""
    rng = np.random.default_rng(partition)
    inputs = rng.normal(size=(200, FEATURES)).astype(np.float32)
    return inputs, (inputs.sum(axis=1) > 0.0).astype(np.float32)


def load_test_data() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels that the server evaluates on."""
    return load_data(10**6)


def train(model: dict[str, np.ndarray], data: tuple[np.ndarray, np.ndarray], learning_rate: float) -> None:
    """Train in place: ten steps of logistic regression."""
    inputs, labels = data
    for _ in range(10):
        residual = predict(model, inputs) - labels
        model["weight"] -= learning_rate * inputs.T @ residual / len(labels)
        model["bias"] -= learning_rate * residual.mean()


def predict(model: dict[str, np.ndarray], inputs: np.ndarray) -> np.ndarray:
    """The probability of label 1 for each input."""
    return np.asarray(1.0 / (1.0 + np.exp(-(inputs @ model["weight"] + model["bias"]))))
