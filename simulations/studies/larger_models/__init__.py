"""Networks on non-IID clients, at an equal budget for a client's whole run through a secure sum."""

from __future__ import annotations

from pathlib import Path

from simulations.studies.larger_models.figures import FIGURES
from simulations.studies.larger_models.numbers import BUDGETS, FASHION, SHAKESPEARE, Numbers
from simulations.studies.study import Study
from simulations.studies.sweep import Sweep

__all__ = ["STUDY"]

# Beside a central Gaussian and Skellam noise: no privacy at all, and ours with and without keep.
_NO_PRIVACY = ("mechanism=none", "privacy.epsilon=null", "secagg=off", "encoding.l2_clip=null")
_OURS = ("mechanism=optm_aggregate", "mechanism.bits=2,1", "encoding.keep=null,0.5")


def _sweeps(setting: str, title: str, needs: str) -> tuple[Sweep, ...]:
    """A part for each budget, the largest first; that one has the run without privacy."""
    return tuple(
        Sweep(
            name=f"{setting}-{budget}",
            title=f"{title}, at a budget of {budget}",
            experiment=f"larger_models/{setting.replace('-', '_')}",
            # One seed: the experiment has three, which take three times as long.
            overrides=("=".join(("privacy.epsilon", str(budget))), "seed=0"),
            variants=(_NO_PRIVACY, _OURS) if budget == max(BUDGETS) else (_OURS,),
            needs=needs,
            shown=("run_epsilon", "mechanism", "bits", "keep", "accuracy", "mean_squared_error"),
            note="run epsilon: client total, aggregate view of all clients, δ = 1e-5",
        )
        for budget in BUDGETS
    )


STUDY = Study(
    home=Path(__file__).parent,
    parts=(
        *_sweeps(FASHION, "A convolutional network on Fashion-MNIST, Dirichlet 0.1", "fashion_mnist"),
        *_sweeps(SHAKESPEARE, "A recurrent network on Shakespeare, natural users", "shakespeare"),
    ),
    figures=FIGURES,
    numbers=Numbers,
)
