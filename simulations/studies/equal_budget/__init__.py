"""Mechanisms at an equal budget for a client's whole run, seen through secure aggregation.

Their exact errors in the secure sum, and training with them, beside a central Gaussian with a trusted server.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simulations.studies.equal_budget.figures import FIGURES
from simulations.studies.equal_budget.numbers import Numbers
from simulations.studies.equal_budget.secure_sum import BY_ROUNDS, SECURE_SUM
from simulations.studies.equal_budget.training import clip_costs, training
from simulations.studies.study import Study
from simulations.studies.sweep import MNIST, Sweep

__all__ = ["STUDY"]

_MNIST_GRADIENTS = ("task=mnist", "task.max_examples=10000", "encoding.l2_clip=0.3")
_FASHION_GRADIENTS = ("task=fashion_mnist", "task.max_examples=10000", "encoding.l2_clip=0.3")
_LONG, _BUDGETS = "federation.rounds=50", "privacy.epsilon=1,4,10"
_ONE_BIT = ("mechanism=optm_aggregate", "mechanism.bits=1")
_MORE_BITS = tuple(("mechanism=optm_aggregate", f"mechanism.bits={bits}") for bits in (3, 4, 5))
_SEEDS = f"seed={','.join(map(str, range(20)))}"


def _sweep(
    name: str, title: str, experiment: str, *overrides: str, variants: tuple[tuple[str, ...], ...] = ()
) -> Sweep:
    needs = next((word.removeprefix("task=") for word in overrides if word.startswith("task=")), "")
    return Sweep(
        name=name,
        title=title,
        experiment=experiment,
        overrides=overrides,
        variants=variants,
        needs=needs,
        shown=("run_epsilon", "mechanism", "l2_clip", "accuracy", "mean_squared_error", "bits_in_secure_sum"),
        note="run epsilon: client total, aggregate view of all clients, δ = 1e-5",
    )


def _gradients(name: str, title: str, rate: float, *overrides: str) -> Sweep:
    """Two bits of every mechanism, and one bit of ours."""
    return _sweep(
        f"gradients-{name}",
        f"One gradient a round, {title}",
        "equal_budget/gradients",
        f"federation.server_learning_rate={rate}",
        *overrides,
        variants=(_ONE_BIT,),
    )


# Learning rates and settings; of Fashion-MNIST and MNIST with 10,000 examples.
_SETTINGS = {
    "digits": _gradients("digits", "digits, 10 rounds", 4.0),
    "mnist": _gradients("mnist", "MNIST, 10 rounds", 2.0, *_MNIST_GRADIENTS),
    "fashion": _gradients("fashion", "Fashion-MNIST, 10 rounds", 1.0, *_FASHION_GRADIENTS),
    "digits-50": _gradients("digits-50", "digits, 50 rounds", 3.0, _LONG),
    "mnist-50": _gradients("mnist-50", "MNIST, 50 rounds", 1.0, *_MNIST_GRADIENTS, _LONG),
    "fashion-50": _gradients("fashion-50", "Fashion-MNIST, 50 rounds", 0.5, *_FASHION_GRADIENTS, _LONG),
}


def _at_all_budgets(sweep: Sweep) -> Sweep:
    """The same part with more bits, more seeds and all budgets."""
    overrides = (*sweep.overrides, _BUDGETS, _SEEDS)
    return replace(sweep, overrides=overrides, variants=(*sweep.variants, *_MORE_BITS))


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
        _SETTINGS["digits"],
        *(training(f"training-{name}", _at_all_budgets(sweep)) for name, sweep in _SETTINGS.items()),
        clip_costs("clip-costs-digits", _SETTINGS["digits"], seeds=30),
        clip_costs("clip-costs-mnist-50", _SETTINGS["mnist-50"], seeds=5),
    ),
    figures=FIGURES,
    numbers=Numbers,
)
