"""How the command ``plan`` chooses bits and kept coordinates together, for an error or for a size."""

from __future__ import annotations

from collections.abc import Callable

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
    """Choose, certify and print plans of a mechanism.

    Returns False if nothing meets the target and neither an error nor a size was given. If one was given,
    that is an InfeasibleDesignError.

    Parameters
    ----------
    wish, rounds
        What is wished for, in the rounds that a client takes part in; and all rounds.
    error, kilobytes
        What plans are chosen by. Without either, an error of 1.1 central Gaussians for the honest clients, or
        all coordinates where no plan errs so little.
    """
    if error is not None and kilobytes is not None:
        raise InvalidSpecError(f"--error {error:g} and --kilobytes {kilobytes:g}: give one of the two")
    with progress(f"planning {name}: estimating") as status:

        def plans(error: float | None, kilobytes: float | None) -> list[Plan]:
            target, aggregation = _run(wish, rounds)
            return target.plans(
                wish.dimension,
                mechanism=name,
                max_bits=wish.bits,
                most_error=error,
                most_kilobytes=kilobytes,
                aggregation=aggregation,
                progress=lambda doing: status.update(f"planning {name}: certifying {doing}"),
            )

        if kilobytes is not None:
            chosen, asked = plans(None, kilobytes), f"at most {kilobytes:g} kB"
        elif error is not None:
            chosen, asked = plans(error, None), f"error ÷ central at most {error:g}"
        else:
            chosen, asked = _usual_plans(wish, rounds, name, plans)
    if chosen:
        print_plans(console, chosen, asked)
    return bool(chosen)


def _usual_plans(
    wish: Wish, rounds: int, name: str, plans: Callable[[float | None, float | None], list[Plan]]
) -> tuple[list[Plan], str]:
    """The plans within the usual error; with all coordinates where there is none; nothing if that fails."""
    usual = _USUAL_ERROR * wish.survivors / wish.view.honest_count
    try:
        return plans(usual, None), f"error ÷ central at most {usual:.4g} (--error)"
    except InfeasibleDesignError:
        pass
    try:
        target, aggregation = _run(wish, rounds)
        plan = target.plan(wish.dimension, mechanism=name, max_bits=wish.bits, aggregation=aggregation)
    except InfeasibleDesignError:
        return [], ""
    return [plan], f"all coordinates, as no plan has an error ÷ central of {usual:.4g}"


def _run(wish: Wish, rounds: int) -> tuple[Target, SecureSum]:
    count, bound = wish.num_clients, None if wish.rounds == rounds else wish.rounds
    target = Target(wish.epsilon, rounds, count, wish.delta, bound)
    return target, SecureSum(wish.corrupt / count, wish.dropped / count)
