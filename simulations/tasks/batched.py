"""Local training of many perceptrons at once, by products of stacked matrices.

Each client takes the same steps as alone, with the same batches. numpy multiplies stacked matrices one by
one, by the same routine that multiplies two, so that models are the same to the last bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simulations.runner.config import FederationConfig

Matrices = list[NDArray[Any]]

# Parameters of so many coordinates, and their gradients, stay in a core's cache.
_CACHED = 1 << 18


def train_perceptrons(
    start: Sequence[NDArray[Any]],
    x: NDArray[Any],
    y: NDArray[Any],
    parts: Sequence[NDArray[np.int64]],
    seed_of: Callable[[int], int],
    config: FederationConfig,
) -> Matrices:
    """Train linear layers with rectifiers between them, by SGD on the cross entropy.

    Parameters
    ----------
    start
        The weights and biases of the layers, with which every client starts.
    x, y
        The examples and their labels.
    parts
        For each client the indices of its examples.
    seed_of
        The seed of a client's order of examples, by its place; it is asked only for those with several.
    config
        Epochs or steps, size of batches and rates.

    Returns
    -------
    list of arrays
        The weights and biases, each with the clients as first axis.
    """
    sizes = np.array([part.size for part in parts])
    # Clients with as many examples take steps with batches of the same shape.
    order = np.argsort(sizes, kind="stable")
    trained = [np.empty((len(parts), *parameter.shape), np.float32) for parameter in start]
    rows = x.reshape(len(y), -1)
    together = max(1, _CACHED // sum(parameter.size for parameter in start))
    bounds = np.append(np.flatnonzero(np.diff(sizes[order], prepend=-1)), len(parts)).tolist()
    for begin, end in itertools.pairwise(bounds):
        for first in range(begin, end, together):
            places = slice(first, min(first + together, end))
            clients = order[places].tolist()
            examples = np.stack([parts[client] for client in clients])
            seeds = [seed_of(client) for client in clients] if examples.shape[1] > 1 else []
            _train_alike(start, rows, y, examples, seeds, config, [matrix[places] for matrix in trained])
    if (np.diff(order) == 1).all():
        return trained
    back = np.argsort(order)
    return [matrix[back] for matrix in trained]


def _train_alike(
    start: Sequence[NDArray[Any]],
    x: NDArray[Any],
    y: NDArray[Any],
    examples: NDArray[np.int64],
    seeds: Sequence[int],
    config: FederationConfig,
    trained: Matrices,
) -> None:
    """Train clients with as many examples; their weights and biases are written to ``trained``."""
    rate, momentum, proximal = map(np.float32, (config.learning_rate, config.momentum, config.proximal))
    # Until the first step has been taken, one copy stands for all clients.
    parameters = [parameter[None] for parameter in start]
    velocity = [np.zeros_like(parameter) for parameter in parameters] if config.momentum > 0.0 else []
    count, size = examples.shape[1], config.batch_size
    steps_left = math.inf if config.local_steps is None else config.local_steps
    epochs = config.local_epochs
    if config.local_steps is not None:
        epochs = -(-config.local_steps // -(-count // size))
    if count == 0:
        for matrix, parameter in zip(trained, start, strict=True):
            matrix[:] = parameter
    orders = _draw_orders(seeds, epochs, count)
    for epoch in range(epochs):
        ordered = np.take_along_axis(examples, orders[:, epoch], axis=1) if seeds else examples
        for first in range(0, count, size):
            batch = ordered[:, first : first + size]
            slopes = _gradients(parameters, x[batch], y[batch])
            for place, (parameter, slope) in enumerate(zip(parameters, slopes, strict=True)):
                if config.proximal > 0.0:
                    slope += proximal * (parameter - start[place])
                if velocity:
                    slope += momentum * velocity[place]
                    velocity[place] = slope.copy()
                slope *= rate
                parameters[place] = np.subtract(parameter, slope, out=trained[place])
            steps_left -= 1
            if steps_left == 0:
                return


def _draw_orders(seeds: Sequence[int], epochs: int, count: int) -> NDArray[np.int64]:
    """(clients, epochs, count) the orders of each client's examples."""
    orders = np.empty((len(seeds), epochs, count), np.int64)
    # To seed a generator again is faster than to make one.
    generator = torch.Generator()
    for client, seed in enumerate(seeds):
        generator.manual_seed(seed)
        for epoch in range(epochs):
            orders[client, epoch] = torch.randperm(count, generator=generator).numpy()
    return orders


def _gradients(parameters: Matrices, x: NDArray[Any], columns: NDArray[Any]) -> Matrices:
    """The gradients of the mean losses: of each client, with its own batch."""
    inputs = [x]
    for place in range(0, len(parameters) - 2, 2):
        hidden = inputs[-1] @ parameters[place].transpose(0, 2, 1)
        hidden += parameters[place + 1][:, None]
        inputs.append(np.maximum(hidden, 0.0, out=hidden))
    residual = inputs[-1] @ parameters[-2].transpose(0, 2, 1)
    residual += parameters[-1][:, None]
    residual -= residual.max(axis=2, keepdims=True)
    np.exp(residual, out=residual)
    residual /= residual.sum(axis=2, keepdims=True)
    clients, rows = np.indices(columns.shape)
    residual[clients, rows, columns] -= 1.0
    residual /= columns.shape[1]
    slopes: Matrices = []
    for place in range(len(parameters) - 2, -1, -2):
        slopes[:0] = [residual.transpose(0, 2, 1) @ inputs[place // 2], residual.sum(axis=1)]
        if place:
            residual = residual @ parameters[place]
            residual *= inputs[place // 2] > 0.0
    return slopes
