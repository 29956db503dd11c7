"""Mechanisms at an equal budget for a client's whole run, seen through secure aggregation.

Their exact errors in the secure sum, and training with them, beside a central Gaussian with a trusted server.
"""

from __future__ import annotations

from pathlib import Path

from simulations.studies.equal_budget.figures import FIGURES
from simulations.studies.equal_budget.numbers import Numbers
from simulations.studies.equal_budget.paired_sweep import PairedSweep
from simulations.studies.equal_budget.planned_errors import BY_ROUNDS, SECURE_SUM
from simulations.studies.study import Study
from simulations.studies.sweep import MNIST, Sweep

__all__ = ["STUDY"]

_NOTE = "run epsilon: client total, aggregate view of all clients, δ = 1e-5"
_MNIST_GRADIENTS = ("task=mnist", "task.max_examples=10000", "encoding.l2_clip=0.3")
_FASHION_GRADIENTS = ("task=fashion_mnist", "task.max_examples=10000", "encoding.l2_clip=0.3")
_LONG = "federation.rounds=50"
# The experiment has two bits.
_MORE_BITS = tuple(("mechanism=optm_aggregate", f"mechanism.bits={bits}") for bits in (1, 3, 4, 5))


def _task_of(overrides: tuple[str, ...]) -> str:
    """The task whose files runs need, if any."""
    return next((word.removeprefix("task=") for word in overrides if word.startswith("task=")), "")


def _sweep(name: str, title: str, experiment: str, *overrides: str) -> Sweep:
    return Sweep(
        name=name,
        title=title,
        experiment=experiment,
        overrides=overrides,
        needs=_task_of(overrides),
        shown=("run_epsilon", "mechanism", "l2_clip", "accuracy", "mean_squared_error", "bits_in_secure_sum"),
        note=_NOTE,
    )


def _training(name: str, title: str, rate: float, *overrides: str) -> PairedSweep:
    """One gradient of each client a round, with 1 to 5 bits, at all budgets."""
    return PairedSweep(
        name=f"training-{name}",
        title=f"One gradient a round, {title}",
        experiment="equal_budget/gradients",
        overrides=(f"federation.server_learning_rate={rate}", *overrides),
        variants=_MORE_BITS,
        needs=_task_of(overrides),
        note=_NOTE,
    )


STUDY = Study(
    home=Path(__file__).parent,
    title="Mechanisms at an equal budget for the whole run",
    parts=(
        SECURE_SUM,
        BY_ROUNDS,
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
        _training("digits", "digits, 10 rounds", 4.0),
        _training("mnist", "MNIST, 10 rounds", 2.0, *_MNIST_GRADIENTS),
        _training("fashion", "Fashion-MNIST, 10 rounds", 1.0, *_FASHION_GRADIENTS),
        _training("digits-50", "digits, 50 rounds", 3.0, _LONG),
        _training("mnist-50", "MNIST, 50 rounds", 1.0, *_MNIST_GRADIENTS, _LONG),
        _training("fashion-50", "Fashion-MNIST, 50 rounds", 0.5, *_FASHION_GRADIENTS, _LONG),
    ),
    figures=FIGURES,
    numbers=Numbers,
)
