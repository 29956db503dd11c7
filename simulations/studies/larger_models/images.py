"""Fashion-MNIST dealt to users whose labels are unlike, for the study's convolutional network.

The partition by labels of flwr-datasets divides each label among all clients, so that of a thousand clients
many get nothing at all. Here each user draws shares of the labels from a Dirichlet distribution, and gets as
many examples as every other one (Hsu, Qi, Brown 2019). ``partition=natural`` then draws clients of them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fl_privquant import checks
from simulations import data

if TYPE_CHECKING:
    from torch import nn

__all__ = ["dealt", "fashion_mnist", "wide_cnn"]


def fashion_mnist(
    data_root: str | None = None, pool: int = 1, num_users: int = 1500, alpha: float = 0.1
) -> data.Examples:
    """What :func:`simulations.data.fashion_mnist` gives, dealt to users.

    Parameters
    ----------
    data_root, pool
        As there.
    num_users
        How many users share the training images.
    alpha
        Parameter of the Dirichlet distribution of a user's labels: the smaller, the fewer of them.
    """
    checks.whole("task.num_users", num_users, 1)
    checks.positive("task.alpha", alpha)
    examples = data.fashion_mnist(data_root, pool)
    return dataclasses.replace(examples, users=dealt(examples.train_y, num_users, alpha))


def dealt(labels: NDArray[np.int64], num_users: int, alpha: float) -> NDArray[np.int64]:
    """For each example its user; the same whatever the run, as it is a part of the data.

    Users choose in turn. Where one wants more of a label than is left, it takes of others, by its shares.
    """
    rng = np.random.default_rng(0)
    left = [list(rng.permutation(np.flatnonzero(labels == label))) for label in range(int(labels.max()) + 1)]
    users = np.empty(len(labels), np.int64)
    for user, part in enumerate(np.array_split(np.arange(len(labels)), num_users)):
        shares = rng.dirichlet(np.full(len(left), alpha))
        for _ in range(part.size):
            # A tiny share of each keeps a user whose labels are used up supplied.
            odds = (shares + 1e-9) * [len(examples) > 0 for examples in left]
            label = rng.choice(len(left), p=odds / odds.sum())
            users[left[label].pop()] = user
    return users


def wide_cnn(shape: tuple[int, ...], classes: int, filters: int = 52) -> nn.Module:
    """One layer of many filters of 3 x 3, and a linear one; 102 450 parameters for images of 14 x 14."""
    from torch import nn

    channels, height, width = shape
    checks.whole("task.filters", filters, 1)
    return nn.Sequential(
        nn.Conv2d(channels, filters, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(filters * height * width, classes),
    )
