"""Mechanisms at an equal budget for a client's whole run, seen through secure aggregation.

Their exact errors in the secure sum, and training with them, beside a central Gaussian with a trusted server.
"""

from __future__ import annotations

from pathlib import Path

from simulations.studies.equal_budget.figures import FIGURES
from simulations.studies.equal_budget.numbers import Numbers
from simulations.studies.equal_budget.secure_sum import SECURE_SUM
from simulations.studies.study import Study
from simulations.studies.sweep import MNIST, Sweep

__all__ = ["STUDY"]

_MNIST_GRADIENTS = ("task=mnist", "federation.server_learning_rate=1.0")


def _sweep(name: str, title: str, experiment: str, *overrides: str) -> Sweep:
    needs = next((word.removeprefix("task=") for word in overrides if word.startswith("task=")), "")
    return Sweep(
        name=name,
        title=title,
        experiment=experiment,
        overrides=overrides,
        needs=needs,
        shown=("run_epsilon", "mechanism", "l2_clip", "accuracy", "mean_squared_error", "bits_in_secure_sum"),
        note="run epsilon: client total, aggregate view of all clients, δ = 1e-5",
    )


STUDY = Study(
    home=Path(__file__).parent,
    title="Mechanisms at an equal budget for the whole run",
    parts=(
        SECURE_SUM,
        _sweep("norm-digits", "Which L2 clip, digits?", "clip/norm"),
        _sweep(
            "norm-mnist",
            "Which L2 clip, MNIST?",
            "clip/norm",
            *MNIST,
            "encoding.l2_clip=0.1,0.2,0.4,0.8,3.2",
        ),
        _sweep("equal-budget-digits", "Local training, digits", "equal_budget/local_training"),
        _sweep(
            "equal-budget-mnist",
            "Local training, MNIST",
            "equal_budget/local_training",
            *MNIST,
            "encoding.l2_clip=0.4",
        ),
        _sweep("gradients-digits", "One gradient a round, digits", "equal_budget/gradients"),
        _sweep(
            "gradients-mnist",
            "One gradient a round, MNIST, 100 clients",
            "equal_budget/gradients",
            *_MNIST_GRADIENTS,
            "encoding.l2_clip=0.3",
        ),
        _sweep(
            "gradients-fashion",
            "One gradient a round, Fashion-MNIST, 100 clients",
            "equal_budget/gradients",
            "task=fashion_mnist",
            "federation.server_learning_rate=1.0",
            "encoding.l2_clip=0.3",
        ),
        _sweep(
            "gradients-mnist-1000",
            "One gradient a round, MNIST, 1000 clients",
            "equal_budget/gradients",
            *_MNIST_GRADIENTS,
            "encoding.l2_clip=0.4",
            "federation.num_clients=1000",
            "privacy.epsilon=8",
        ),
    ),
    figures=FIGURES,
    numbers=Numbers,
)
