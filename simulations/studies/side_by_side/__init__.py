"""Mechanisms side by side in federated learning: slices through one setting, one thing varied at a time."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.side_by_side.figures import FIGURES
from simulations.studies.side_by_side.numbers import Numbers
from simulations.studies.study import Study
from simulations.studies.sweep import DIGITS_CNN, MNIST, MNIST_CNN, Sweep

__all__ = ["STUDY"]

# The CNN trains slowly: its clips are chosen on one seed.
_CNN_CLIPS = ("encoding.clip=0.04,0.08,0.16,0.64", "seed=100")
_MNIST_CLIPS = ("encoding.clip=0.005,0.01,0.02,0.04,0.16",)
_MNIST_CNN_CLIPS = ("encoding.clip=0.01,0.02,0.04,0.16,0.64", "seed=100")
_NON_IID = ("partition=dirichlet",)
_EPSILON_2 = ("mechanism.epsilon=2.0",)


def _sweep(name: str, title: str, experiment: str, *overrides: tuple[str, ...], mnist: bool = False) -> Sweep:
    return Sweep(
        name=name,
        title=title,
        experiment=experiment,
        overrides=tuple(override for group in overrides for override in group),
        needs="mnist" if mnist else "",
        shown=("mechanism", "clip", "accuracy", "mean_squared_error", "noise_error", "bits_per_coordinate"),
    )


_COST, _CLIP = "mechanisms/cost", "clip/coordinate"
_MNIST_COST = (*MNIST, *_EPSILON_2, "encoding.clip=0.01")

STUDY = Study(
    home=Path(__file__).parent,
    title="Mechanisms side by side in federated learning",
    parts=(
        _sweep("clip-digits", "Which coordinate clip, digits?", _CLIP),
        _sweep("clip-mnist", "Which coordinate clip, MNIST?", _CLIP, MNIST, _MNIST_CLIPS, mnist=True),
        _sweep("clip-digits-cnn", "Which coordinate clip, digits with a CNN?", _CLIP, DIGITS_CNN, _CNN_CLIPS),
        _sweep(
            "clip-mnist-cnn",
            "Which coordinate clip, MNIST with a CNN?",
            _CLIP,
            MNIST_CNN,
            _MNIST_CNN_CLIPS,
            mnist=True,
        ),
        _sweep(
            "mechanisms-digits",
            "Every mechanism for coordinates at the same ε",
            "mechanisms/coordinates",
        ),
        _sweep("vectors-digits", "Mechanisms for whole updates", "mechanisms/updates"),
        _sweep("epsilon-mnist", "Accuracy and error against ε", "mechanisms/epsilon", mnist=True),
        _sweep("bits-mnist", "What do bits buy?", "mechanisms/bits", mnist=True),
        _sweep("partition-digits", "Non-IID clients, digits", _COST, _NON_IID),
        _sweep("partition-mnist", "Non-IID clients, MNIST", _COST, _NON_IID, _MNIST_COST, mnist=True),
        _sweep("cnn-digits", "A CNN, digits", _COST, DIGITS_CNN, ("encoding.clip=0.16",)),
        _sweep(
            "cnn-mnist", "A CNN, MNIST", _COST, MNIST_CNN, _EPSILON_2, ("encoding.clip=0.02",), mnist=True
        ),
        _sweep(
            "secagg-mnist",
            "With and without secure aggregation",
            "mechanisms/secure_aggregation",
            mnist=True,
        ),
    ),
    figures=FIGURES,
    numbers=Numbers,
)
