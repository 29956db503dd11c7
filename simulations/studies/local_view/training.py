"""Federated training in the local view: the parts of the study, each the same experiment on other data.

Images of 28 x 28 pixels are averaged to 14 x 14 before training, which looks at no data: the error of a
private mean grows with the number of coordinates, and softmax regression loses little by it. Steps and
clips are larger for images with less ink.
"""

from __future__ import annotations

from simulations.studies.sweep import Sweep

__all__ = ["EPSILONS", "MECHANISMS", "PARTS", "TASKS"]

EPSILONS = (2.0, 4.0, 8.0)
"""Of a client's update in one round, local view."""

MECHANISMS = ("shared_codebook", "cldp_l2")
"""The private mechanisms that are compared."""

TASKS = {"local-view-digits": "digits", "local-view-mnist": "MNIST", "local-view-fashion": "Fashion-MNIST"}
"""Parts, which are tables, and what their data are called."""


def _images(learning_rate: float, clip: float) -> tuple[str, ...]:
    return (
        "task.pool=2",
        f"federation.learning_rate={learning_rate:g}",
        f"encoding.clip={clip:g}",
        f"encoding.l2_clip={clip:g}",
    )


def _sweep(name: str, *overrides: str, needs: str = "") -> Sweep:
    return Sweep(
        name=name,
        title=f"What can be learnt under local privacy, {TASKS[name]}, 1000 clients?",
        experiment="local_view/training",
        overrides=overrides,
        needs=needs,
        shown=("mechanism", "epsilon", "accuracy", "mean_squared_error", "epsilon_total_local"),
        note="epsilon: one update, one round, local view; total: all rounds, local view, δ = 1e-5",
    )


PARTS = (
    _sweep("local-view-digits"),
    _sweep("local-view-mnist", "task=mnist", *_images(4.0, 1.0), needs="mnist"),
    _sweep("local-view-fashion", "task=fashion_mnist", *_images(1.0, 0.25), needs="fashion_mnist"),
)
