"""How the command ``plan`` chooses bits and kept coordinates together, for an error or for a size."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from fl_privquant.accounting import Plan, SecureSum, Target, Wish
from fl_privquant.cli.layout import progress
from fl_privquant.cli.plan_table import print_plans
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError

# The default bound on the error, over that of a central Gaussian among the honest clients.
_USUAL_ERROR = 1.1


def plan_and_print(
    console: Console, wish: Wish, rounds: int, error: float | None, kilobytes: float | None, name: str
) -> bool:
    """Choose, certify and print plans of a mechanism, for a run of ``rounds``.

    They are chosen by an error or a size. Without either, the bound is 1.1 times the error of a central
    Gaussian for the honest clients, or all coordinates are sent where no plan errs so little; False is
    returned if that does not meet the target either. If a bound was given, that is an InfeasibleDesignError.
    """
    if error is not None and kilobytes is not None:
        raise InvalidSpecError(f"--error {error:g} and --kilobytes {kilobytes:g}: give one of the two")
    count, bound = wish.num_clients, None if wish.rounds == rounds else wish.rounds
    target = Target(wish.epsilon, rounds, count, wish.delta, bound)
    usual = _USUAL_ERROR * wish.survivors / wish.view.honest_count
    settings: dict[str, Any] = {
        "mechanism": name,
        "max_bits": wish.bits,
        "aggregation": SecureSum(wish.corrupt / count, wish.dropped / count),
    }
    with progress(f"planning {name}: estimating") as status:

        def plans(**bounds: Any) -> list[Plan]:
            return target.plans(
                wish.dimension,
                progress=lambda doing: status.update(f"planning {name}: certifying {doing}"),
                **bounds,
                **settings,
            )

        if kilobytes is not None:
            chosen, asked = plans(most_kilobytes=kilobytes), f"at most {kilobytes:g} kB"
        elif error is not None:
            chosen, asked = plans(most_error=error), f"error ÷ central at most {error:g}"
        else:
            try:
                chosen, asked = plans(most_error=usual), f"error ÷ central at most {usual:.4g} (--error)"
            except InfeasibleDesignError:
                asked = f"all coordinates, as no plan has an error ÷ central of {usual:.4g}"
                try:
                    chosen = [target.plan(wish.dimension, **settings)]
                except InfeasibleDesignError:
                    return False
    print_plans(console, chosen, asked)
    return True
