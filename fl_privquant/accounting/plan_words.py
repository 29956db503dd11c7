"""A plan in words: what it does, what it costs, what its error assumes, and what its noise means."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fl_privquant.cohort import assumption
from fl_privquant.encoding import metric_repeats
from fl_privquant.errors import counted

if TYPE_CHECKING:
    from fl_privquant.accounting.target import Plan

LEAST_SIGNAL = 2.0
"""A run that moves a model by fewer standard deviations of its noise than this cannot be told from noise."""

# What softmax regression on MNIST reached, by Plan.signal_to_noise (docs/pages/plan.md has the commands).
_MEASURED = "MNIST, measured: 80 % accuracy at 71, 53 % at 21, 18 % at 6, chance at 1.7"


def described(plan: Plan) -> str:
    """The encoding, its privacy loss, its size, its error, and what that means, each in a line."""
    target, encoding = plan.target, plan.encoding
    kept = encoding.kept(plan.dimension)
    keeping = "" if kept == plan.dimension else f"keeping {kept} of {plan.dimension} coordinates, "
    rotating = f", rotating, {keeping}and clipping coordinates to {encoding.clip:.3g}"
    lines = [
        f"Target: {target.statement(plan.statement.view).brief}, {target.rounds_in_words} of "
        f"{counted(target.num_clients, 'client')}.",
        f"Encode with {encoding.mechanism.name} after clipping to L2 norm {encoding.l2_clip:g}"
        f"{rotating if encoding.rotate else ''}.",
        f"A client spends {plan.statement.brief}, if every round loses the clients that it may lose.",
        f"Each client must allow {plan.client_limits_in_words}: PrivQuantMod({plan.client_limits_as_code}).",
        f"It sends {counted(plan.bytes_per_round, 'byte')} per round; the mean update's coordinates "
        f"have a standard error of {math.sqrt(plan.mean_squared_error):.3g}.",
        *_metrics(plan),
        influence(plan),
        error(plan),
        verdict(plan),
        f"All this is for updates whose norm is at the L2 clip of {encoding.l2_clip:g}; 'fl-privquant clip "
        "APP' measures the norms of an app's updates.",
    ]
    return "\n".join(filter(None, lines))


def _metrics(plan: Plan) -> Iterator[str]:
    """How well a round tells the mean of each metric that clients release through the mechanism."""
    asked = plan.target.num_clients
    values = (asked - plan.aggregation.lost(asked)) * metric_repeats(plan.encoding.kept(plan.dimension))
    for name, (low, high) in plan.private_metrics.items():
        deviation = 0.5 * (high - low) * math.sqrt(plan.sent_mechanism.mse() / values)
        yield (
            f"Clients also release {name!r}, clipped to [{low:g}, {high:g}], through the mechanism; a "
            f"round's mean has a standard error of {deviation:.3g}."
        )


def influence(plan: Plan) -> str:
    """How far one hostile client can move the mean; empty if the server sees each client's codes."""
    if plan.largest_shift is None:
        return ""
    clips = plan.largest_shift / (plan.encoding.l2_clip or 1.0)
    return (
        f"One hostile client can move the mean update of a round by up to {clips:.3g} times the L2 clip "
        "before the server refuses the sum."
    )


def verdict(plan: Plan) -> str:
    """What the noise means for training, in sentences."""
    noise = (
        f"In each round, the noise in the mean update has {plan.noise_to_signal:.3g} times the energy of an "
        f"update at the L2 clip. Over {counted(plan.target.rounds, 'round')}, updates that point the same "
        f"way move the model by {plan.signal_to_noise:.3g} standard deviations of the noise in that direction"
    )
    if not plan.learns_nothing:
        return f"{noise} ({_MEASURED})."
    more = "more clients" if plan.central_error is not None else "more clients, a secure sum"
    return f"{noise}, fewer than {LEAST_SIGNAL:g}: nothing will be learned. Take {more} or a larger epsilon."


def error(plan: Plan) -> str:
    """The error over that of a trusted server, with what it assumes; empty in the local view."""
    if plan.ratio_to_central is None:
        return ""
    asked, aggregation, honest = plan.target.num_clients, plan.aggregation, plan.if_all_honest
    words = (
        f"The plan's squared error is {plan.ratio_to_central:.3f} times that of a trusted server that adds "
        f"Gaussian noise, {assumption(aggregation.corrupt(asked), aggregation.lost(asked), asked)}"
    )
    if honest is not plan:
        words += f"; planned for nobody corrupt or lost, it would be {honest.ratio_to_central:.3f} times"
    return f"{words}."
