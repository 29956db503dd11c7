"""A plan in words: what it does, what it costs, what its error assumes, and what its noise means."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fl_privquant.accounting.aggregation import SecureSum
from fl_privquant.codec.encoding import metric_repeats
from fl_privquant.cohort import describe_assumption
from fl_privquant.errors import pluralize
from fl_privquant.statement import Relation

if TYPE_CHECKING:
    from fl_privquant.planning.target import Plan

MIN_SIGNAL = 2.0
"""A run that moves a model by fewer standard deviations of its noise than this cannot be told from noise."""

_CONVENTION = {
    Relation.ZERO_OUT: ", as most libraries and papers count",
    Relation.REPLACE_ONE: ", if a client's update may be replaced by any other",
}
# By Plan.signal_to_noise; docs/pages/plan.md has the commands.
_MEASURED_ACCURACY = (
    "For comparison: softmax regression on MNIST reached 80 % accuracy at 71 of them, 53 % at 21, 18 % at 6, "
    "and only guessed at 1.7"
)


def describe_plan(plan: Plan) -> str:
    """The encoding, its privacy loss, its size, its error, and what that means, each in a line."""
    target, encoding = plan.target, plan.encoding
    kept = encoding.count_kept(plan.dimension)
    keeping = "" if kept == plan.dimension else f"keeping {kept} of {plan.dimension} coordinates, "
    rotating = f", rotating, {keeping}and clipping coordinates to {encoding.clip:.3g}"
    lines = [
        f"Target: {target.statement(plan.statement.view).brief}, {target.rounds_in_words} of "
        f"{pluralize(target.num_clients, 'client')}.",
        f"Encode with {encoding.mechanism.name} after clipping to L2 norm {encoding.l2_clip:g}"
        f"{rotating if encoding.rotate else ''}.",
        f"A client spends {plan.statement.brief}, if every round loses as many clients as the plan allows.",
        f"That is {plan.other_statement.brief}{_CONVENTION[plan.other_statement.relation]}.",
        describe_limits(plan),
        f"It sends {pluralize(plan.bytes_per_round, 'byte')} per round. Each coordinate of the mean update "
        f"has a standard error of {math.sqrt(plan.mean_squared_error):.3g}.",
        *_describe_metrics(plan),
        describe_influence(plan),
        describe_correlation(plan),
        describe_error(plan),
        describe_verdict(plan),
        f"All this is for updates whose norm is at the L2 clip of {encoding.l2_clip:g}; 'fl-privquant clip "
        "APP' measures the norms of an app's updates.",
    ]
    return "\n".join(filter(None, lines))


def describe_limits(plan: Plan) -> str:
    """What a client must allow, and the argument of its app that does; it checks its own codes alone."""
    own, summed, sums = "", "", plan.aggregation
    if isinstance(sums, SecureSum):
        own = ", which counts on its own noise alone"
        # With True, a client assumes the usual shares of corrupt and lost clients, which three cannot bear.
        usual = SecureSum()
        if (
            sums.corrupt_fraction == usual.corrupt_fraction
            and sums.dropout_fraction in (0.0, usual.dropout_fraction)
            and usual.view(plan.target.num_clients).honest_count > 1
        ):
            policy = "True"
        else:
            shares = f"{sums.corrupt_fraction:.15g}, dropout_fraction={sums.dropout_fraction:.15g}"
            policy = f"ClientPolicy(corrupt_fraction={shares})"
        summed = f", secure_aggregation={policy}"
    return (
        f"Each client must allow {plan.client_limits_in_words}{own}: "
        f"PrivQuantMod({plan.client_limits_as_code}{summed})."
    )


def _describe_metrics(plan: Plan) -> Iterator[str]:
    """How well a round tells the mean of each metric that clients release through the mechanism."""
    asked = plan.target.num_clients
    values = (asked - plan.aggregation.num_lost(asked)) * metric_repeats(
        plan.encoding.count_kept(plan.dimension)
    )
    for name, (low, high) in plan.private_metrics.items():
        deviation = 0.5 * (high - low) * math.sqrt(plan.sent_mechanism.mse() / values)
        yield (
            f"Clients also release {name!r}, clipped to [{low:g}, {high:g}], through the mechanism; a "
            f"round's mean has a standard error of {deviation:.3g}."
        )


def describe_influence(plan: Plan) -> str:
    """How far one hostile client can move the mean; empty if the server sees each client's codes."""
    if plan.largest_shift is None:
        return ""
    clips = plan.largest_shift / (plan.encoding.l2_clip or 1.0)
    return (
        f"One hostile client can move the mean update of a round by up to {clips:.3g} times the L2 clip "
        "before the server refuses the sum."
    )


def describe_verdict(plan: Plan) -> str:
    """What the noise means for training, in sentences."""
    scope = "In each round" if plan.correlation == 0.0 else "In each round, by what stays of it in models"
    noise = (
        f"{scope}, the squared norm of the noise in the mean update is {plan.noise_to_signal:.3g} times that "
        f"of an update at the L2 clip. Over {pluralize(plan.target.rounds, 'round')}, updates that point the "
        f"same way move the model by {plan.signal_to_noise:.3g} standard deviations of the noise in that "
        "direction"
    )
    if not plan.learns_nothing:
        return f"{noise}. {_MEASURED_ACCURACY}."
    more = "more clients" if plan.central_error is not None else "more clients, a secure sum"
    return f"{noise}, fewer than {MIN_SIGNAL:g}: nothing will be learned. Take {more} or a larger epsilon."


def describe_correlation(plan: Plan) -> str:
    """What one round takes off of the noise of the last; empty if nobody asked for it."""
    if plan.wanted_correlation is None:
        return ""
    if plan.correlation == 0.0:
        apart = plan.target.rounds_apart
        if apart > 1 and plan.wanted_correlation == "auto":
            return (
                "Noise is fresh in each round (correlation 0): correlated noise gains nothing in "
                f"{pluralize(plan.target.rounds, 'round')} of which a client takes part in at most one of "
                f"{apart} in a row."
            )
        return (
            "Noise is fresh in each round (correlation 0): a client may take part in every round, and then "
            "correlated noise gains nothing. Give rounds_apart to the target, and sample cohorts."
        )
    return (
        f"Noise is correlated over rounds: each round takes off {plan.correlation:g} of the noise of the "
        "last one, which a client hands over to one of the next round. A client takes part in at most one of "
        f"{plan.target.rounds_apart} rounds in a row. Later rounds tell of its update, too, which is counted "
        f"as an update of {plan.sensitivity:.3g} times the norm. A single round has "
        f"{plan.ratio_to_central or math.nan:.3g} times the squared error of fresh noise."
    )


def describe_error(plan: Plan) -> str:
    """The error over that of a trusted server, with what it assumes; empty in the local view."""
    if plan.ratio_to_central is None:
        return ""
    asked, aggregation, honest = plan.target.num_clients, plan.aggregation, plan.if_all_honest
    assumed = describe_assumption(aggregation.num_corrupt(asked), aggregation.num_lost(asked), asked)
    what = "squared error" if plan.correlation == 0.0 else "squared error of models (sums of updates)"
    fresh = "" if plan.correlation == 0.0 else " afresh in each round"
    words = (
        f"The plan's {what} is {plan.prefix_error:.3f} times that of a trusted server that adds "
        f"Gaussian noise{fresh}, {assumed}"
    )
    if honest is not plan:
        words += f"; planned for nobody corrupt or lost, it would be {honest.prefix_error:.3f} times"
    return f"{words}."
