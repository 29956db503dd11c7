"""The command ``plan`` for secure sums: it plans a run for an error or a size, and prints how to run it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rich.console import Console

from fl_privquant.accounting import Relation, RunRequirements, SecureSum
from fl_privquant.cli.layout import print_sentence, progress
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.registry import get_entry
from fl_privquant.planning import Plan, Target
from fl_privquant.secagg.client_policy import ClientPolicy
from fl_privquant.secagg.graph.parameters import choose_parameters
from fl_privquant.secagg.message_sizes import handshake_bytes

# Coordinates and training examples of the task that simulations run by default, task=digits.
_DIGITS_COORDINATES, _DIGITS_EXAMPLES = 650, 1438
# The default bound on the error, over that of a central Gaussian among the honest clients.
_USUAL_ERROR = 1.1


def plan_and_print(
    console: Console,
    requirements: RunRequirements,
    summed: SecureSum,
    rounds: int,
    error: float | None,
    kilobytes: float | None,
    name: str,
    force: bool,
) -> bool:
    """Choose, certify and print a plan with a mechanism, for a run of ``rounds`` with secure sums.

    It is chosen by an error or a size. Without either, the bound is 1.1 times the error of a central
    Gaussian for the honest clients. If no plan has so little error, the one that sends all coordinates is
    printed, and False is returned if that does not meet the target either. If a bound was given that cannot
    be met, InfeasibleDesignError is raised.
    """
    if error is not None and kilobytes is not None:
        raise InvalidSpecError(
            "--error, --kilobytes", (error, kilobytes), "are both given", "give one of the two"
        )
    count, bound = requirements.num_clients, None if requirements.rounds == rounds else requirements.rounds
    target = Target(
        requirements.epsilon, rounds, count, requirements.delta, bound, relation=requirements.relation
    )
    usual = _USUAL_ERROR * requirements.survivors / requirements.view.honest_count

    def make_plan(**bounds: Any) -> Plan:
        bounds |= {"max_bits": requirements.bits, "aggregation": summed, "force": force}
        return target.plan(requirements.dimension, mechanism=name, **bounds)

    with progress(f"planning {name}"):
        if kilobytes is not None:
            plan = make_plan(max_kilobytes=kilobytes)
            chosen = f"It has the least error within {kilobytes:g} kB (--kilobytes)."
        elif error is not None:
            plan, chosen = make_plan(max_error=error), f"It sends the fewest bytes within {_limit(error)}."
        else:
            default = f"{_limit(usual)}{_explain_default(requirements)}"
            try:
                plan, chosen = make_plan(max_error=usual), f"It sends the fewest bytes within {default}."
            except InfeasibleDesignError:
                try:
                    plan, chosen = make_plan(), f"It sends all coordinates, as no plan is within {default}."
                except InfeasibleDesignError:
                    return False
    _print_plan(console, plan, chosen)
    return True


def _limit(error: float) -> str:
    return f"{error:.4g} times a trusted server's error (--error)"


def _explain_default(requirements: RunRequirements) -> str:
    """Where the default bound on the error comes from."""
    stay, honest = requirements.survivors, requirements.view.honest_count
    if stay == honest:
        return ""
    return (
        f", by default {_USUAL_ERROR:g} × {stay}/{honest}: {stay} clients stay, and only the noise of the "
        f"{honest} honest ones among them counts"
    )


def _print_plan(console: Console, plan: Plan, chosen: str) -> None:
    """Print a plan, by which bound it was chosen, and how to run it."""
    for line in (*str(plan).splitlines(), *_describe_handshake(plan), chosen):
        print_sentence(console, line)
    _print_simulation(console, plan)
    print_sentence(console, "Run it in a Flower server app:")
    _print_for_copying(console, _server_code_lines(plan))
    print_sentence(console, "and in its client app:")
    _print_for_copying(console, _client_code_lines(plan))


def _describe_handshake(plan: Plan) -> list[str]:
    try:
        graph = choose_parameters(plan.target.num_clients, **_fractions(plan))
    except InvalidSpecError:
        # So few clients cannot aggregate securely, which a run says.
        return []
    return [
        f"Keys of secure aggregation take about {handshake_bytes(graph) / 1000.0:.3g} kB more per client and "
        "round, in both directions, if no client is lost."
    ]


def _print_for_copying(console: Console, lines: Iterable[str]) -> None:
    """Print lines of code as they are, apart from the sentences around them."""
    for line in ("", *lines, ""):
        print_sentence(console, line, copied=True)


def _print_simulation(console: Console, plan: Plan) -> None:
    """Print the command of a simulation, and in what it differs from the plan."""
    size, asked = plan.dimension, plan.target.num_clients * _participation_interval(plan.target)
    task: dict[str, Any] = {"task": "digits"}
    if asked > _DIGITS_EXAMPLES:
        task = {"task": "mean", "task.dimension": size}
        words = f"Simulate it on task=mean, synthetic vectors of as many coordinates (for {asked} clients"
        print_sentence(console, f"{words} task=digits has too few examples):")
    elif size == _DIGITS_COORDINATES:
        print_sentence(console, f"Simulate it on task=digits, whose model has {size} coordinates too:")
    else:
        kept = ", and the same share of them is kept" if plan.encoding.count_kept(size) < size else ""
        print_sentence(
            console,
            f"Simulate a run with this target on task=digits, whose model has {_DIGITS_COORDINATES} "
            f"coordinates and not {size}: it is planned anew{kept}.",
        )
    _print_for_copying(console, [_simulation_command(plan, task)])


def _fractions(plan: Plan) -> dict[str, float]:
    """Corrupt and lost clients, as shares of those asked."""
    return {name: getattr(plan.aggregation, name) for name in ("corrupt_fraction", "dropout_fraction")}


def _unusual_fractions(plan: Plan) -> dict[str, float]:
    """Those of the shares that are not the defaults of plans and runs, and have to be said."""
    usual = SecureSum()
    return {name: value for name, value in _fractions(plan).items() if value != getattr(usual, name)}


def _target_arguments(plan: Plan) -> dict[str, str]:
    """The target's epsilon and delta as a program reads them."""
    return {name: format(getattr(plan.target, name), "g") for name in ("epsilon", "delta")}


def _is_usual(plan: Plan) -> bool:
    """Whether the target has the relation that targets have by default."""
    return plan.statement.relation is Relation.REPLACE_ONE


def _chooses_width(plan: Plan) -> bool:
    """Whether the width of codes follows from the target, whatever ``max_bits`` is."""
    return bool(get_entry(plan.encoding.mechanism.name).spec.chooses_width)


def _simulation_command(plan: Plan, task: dict[str, Any]) -> str:
    """The command that simulates a task; it keeps a share if the model has another size."""
    target = plan.target
    keys = {
        **task,
        "mechanism": plan.encoding.mechanism.name,
        **({} if _chooses_width(plan) else {"mechanism.bits": plan.max_bits}),
        **{f"privacy.{name}": value for name, value in _target_arguments(plan).items()},
        **({} if _is_usual(plan) else {"privacy.relation": plan.statement.relation}),
        "federation.num_clients": target.num_clients * _participation_interval(target),
        "federation.rounds": target.rounds,
        "secagg": "on",
        **{f"secagg.{name}": f"{value:.15g}" for name, value in _unusual_fractions(plan).items()},
    }
    if _participation_interval(target) > 1:
        keys |= {"sampling": "cohorts", "sampling.rounds_apart": _participation_interval(target)}
    kept = plan.encoding.count_kept(plan.dimension)
    if kept < plan.dimension:
        same = plan.dimension in (task.get("task.dimension"), _DIGITS_COORDINATES)
        keys["encoding.keep"] = kept if same else f"{kept / plan.dimension:.4g}"
    return " ".join(["python -m simulations.run", *(f"{key}={value}" for key, value in keys.items())])


def _participation_interval(target: Target) -> int:
    """Of how many rounds in a row a client may take part in one, to stay within what is counted."""
    return math.ceil(target.rounds / target.counted_rounds)


def _server_code_lines(plan: Plan) -> list[str]:
    """Python that makes the same plan, and a strategy that runs it."""
    target = plan.target
    cost = ", ".join(f"{name}={value}" for name, value in _target_arguments(plan).items())
    kept = plan.encoding.count_kept(plan.dimension)
    keep = f", keep={kept}" if kept < plan.dimension else ""
    unusual = ", ".join(f"{name}={value:.15g}" for name, value in _unusual_fractions(plan).items())
    summed = f", aggregation=pq.SecureSum({unusual})" if unusual else ""
    forced = ", force=True" if plan.learns_nothing else ""
    name = plan.encoding.mechanism.name
    bits = "" if _chooses_width(plan) else f", max_bits={plan.max_bits}"
    mechanism = f"l2_clip=1.0, mechanism={name!r}{bits}{forced}"
    sizes = f"rounds={target.rounds}, num_clients={target.num_clients}"
    relation = "" if _is_usual(plan) else f', relation="{plan.statement.relation}"'
    bound = "" if target.participations is None else f", participations={target.participations}"
    apart = _participation_interval(target)
    sampling = f", sampling=pq.CohortSampling({apart})" if apart > 1 else ""
    waiting = f"FedAvg(min_available_nodes={target.num_clients * apart})"
    return [
        "import fl_privquant as pq",
        "from flwr.serverapp.strategy import FedAvg",
        "from fl_privquant.flower import PrivQuantStrategy",
        f"target = pq.Target({cost}, {sizes}{bound}{relation})",
        f"plan = target.plan({plan.dimension}, {mechanism}{keep}{summed})",
        f"strategy = PrivQuantStrategy({waiting}, plan{sampling})",
    ]


def _client_code_lines(plan: Plan) -> list[str]:
    """Python of the client: a mod that masks, and that allows the plan's mechanism but no costlier one."""
    # A client accepts the usual shares of corrupt and lost clients, in rounds of three or more.
    demands = {name: f"{value:.15g}" for name, value in _unusual_fractions(plan).items()}
    if plan.target.num_clients < ClientPolicy.min_clients:
        demands = {"min_clients": str(plan.target.num_clients)} | demands
    demanded = ", ".join(f"{name}={value}" for name, value in demands.items())
    policy = f"ClientPolicy({demanded})" if demands else "True"
    return [
        "from flwr.clientapp import ClientApp",
        "from fl_privquant.flower import PrivQuantMod",
        *(["from fl_privquant.secagg import ClientPolicy"] if demands else []),
        f"app = ClientApp(mods=[PrivQuantMod({plan.client_limits_as_code}, secure_aggregation={policy})])",
        "@app.train()",
        "def train(message, context): ...  # your code",
    ]
