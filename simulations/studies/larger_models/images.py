"""Fashion-MNIST divided among non-IID users, for the study's convolutional network.

The Dirichlet partition of flwr-datasets divides each label among all clients, so that of a thousand clients
many get no example. Here each user draws shares of the labels from a Dirichlet distribution, and all users
get the same number of examples (Hsu, Qi, Brown 2019). ``partition=natural`` then draws the clients among
these users.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fl_privquant import _validation
from simulations.tasks import data

if TYPE_CHECKING:
    from torch import nn

__all__ = ["assign_users", "fashion_mnist", "wide_cnn"]


def fashion_mnist(
    data_root: str | None = None, pool: int = 1, num_users: int = 1500, alpha: float = 0.1
) -> data.Examples:
    """The data of :func:`simulations.tasks.data.fashion_mnist`, divided among users.

    Parameters
    ----------
    data_root, pool
        Those of :func:`simulations.tasks.data.fashion_mnist`.
    num_users
        How many users share the training images.
    alpha
        Parameter of the Dirichlet distribution of a user's labels: the smaller, the fewer of them.
    """
    _validation.check_integer("task.num_users", num_users, 1)
    _validation.check_positive("task.alpha", alpha)
    examples = data.fashion_mnist(data_root, pool)
    return dataclasses.replace(examples, users=assign_users(examples.train_y, num_users, alpha))


def assign_users(labels: NDArray[np.int64], num_users: int, alpha: float) -> NDArray[np.int64]:
    """The user of each example, which is a part of the data and the same in every run.

    One user after another draws its examples. Where a label is used up, the user draws from the other labels,
    in proportion to its shares of them.
    """
    rng = np.random.default_rng(0)
    left = [list(rng.permutation(np.flatnonzero(labels == label))) for label in range(int(labels.max()) + 1)]
    users = np.empty(len(labels), np.int64)
    for user, part in enumerate(np.array_split(np.arange(len(labels)), num_users)):
        shares = rng.dirichlet(np.full(len(left), alpha))
        for _ in range(part.size):
            # A tiny share of every label, for users all of whose labels are used up.
            odds = (shares + 1e-9) * [len(examples) > 0 for examples in left]
            label = rng.choice(len(left), p=odds / odds.sum())
            users[left[label].pop()] = user
    return users


def wide_cnn(shape: tuple[int, ...], classes: int, filters: int = 52) -> nn.Module:
    """One layer of many filters of 3 x 3, and a linear one; 102 450 parameters for images of 14 x 14."""
    from torch import nn

    channels, height, width = shape
    _validation.check_integer("task.filters", filters, 1)
    return nn.Sequential(
        nn.Conv2d(channels, filters, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(filters * height * width, classes),
    )
