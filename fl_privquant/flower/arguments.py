"""The arguments of a strategy: checked, and reduced to one form where there are several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fl_privquant import checks
from fl_privquant.accounting.accountant import Budget
from fl_privquant.accounting.aggregation import Aggregation, PerClient
from fl_privquant.accounting.client_sampling import ClientSampling, StrategySampling
from fl_privquant.accounting.target import Plan
from fl_privquant.codec.array_choice import scaled_clips
from fl_privquant.codec.metric_range import MetricRange
from fl_privquant.encoding import Encoding
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower.policies import Policy
from fl_privquant.mechanisms.base import Mechanism

_USUAL_DELTA = 1e-5

GivenEncoding = Plan | Encoding | Callable[[int], Encoding] | Mechanism | None
"""The forms in which a user can say how updates are encoded."""


def single_clip(
    clip: float | Mapping[str, float] | None, scales: Mapping[str, float] | None
) -> tuple[float | None, tuple[tuple[str, float], ...]]:
    """One clip and its factors by pattern, even if the user gave a clip for each pattern."""
    if scales is not None and not isinstance(scales, Mapping):
        raise InvalidSpecError(
            f"clip_scales: {scales!r}, expected factors by pattern, as in {{'head.*': 0.1}}"
        )
    if isinstance(clip, Mapping):
        if scales:
            raise InvalidSpecError("clip_scales: given, but clip has a value for each pattern; leave one out")
        clip, scales = scaled_clips(clip)
    return clip, tuple((scales or {}).items())


@dataclass(frozen=True)
class Arguments:
    """How updates are encoded, what the server sees of them, and what may be spent in that view."""

    encoding: Encoding | Callable[[int], Encoding]
    aggregation: Aggregation
    budget: Budget | None
    delta: float
    plan: Plan | None = None

    @classmethod
    def of(
        cls,
        given: GivenEncoding,
        short_form: Mapping[str, Any],
        aggregation: Aggregation | None,
        budget: Budget | None,
        delta: float | None,
    ) -> Arguments:
        """The arguments in one form; what is given twice is refused.

        ``short_form`` holds fields of :class:`~fl_privquant.encoding.Encoding`, None where they are left out.
        """
        encoding = _encoding(given, short_form)
        plan = given if isinstance(given, Plan) else given.plan if isinstance(given, Policy) else None
        if plan is not None:
            _refuse("a plan sets it", {"aggregation": aggregation}, "say target.plan(..., aggregation=...)")
            _refuse(
                "a plan sets it", {"budget": budget, "delta": delta}, "say it in the plan's pq.Target(...)"
            )
            return cls(encoding, plan.aggregation, plan.budget, plan.target.delta, plan)
        stated_delta = _USUAL_DELTA if delta is None else checks.inside("delta", delta, "[0, 1)")
        return cls(encoding, aggregation or PerClient(), budget, stated_delta)


def _encoding(given: GivenEncoding, short_form: Mapping[str, Any]) -> Encoding | Callable[[int], Encoding]:
    fields = dict(short_form)
    if isinstance(given, Mechanism):
        _refuse("the second argument is already a mechanism", {"mechanism": fields["mechanism"]})
        fields["mechanism"] = given
    elif given is not None:
        _refuse("the encoding sets it", fields)
        return given.encoding if isinstance(given, Plan) else given
    if fields["mechanism"] is None or fields["clip"] is None:
        raise InvalidSpecError("encoding: missing; give a plan or an encoding, or mechanism=... and clip=...")
    return Encoding(**{name: value for name, value in fields.items() if value is not None})


def sampling_of(
    sampling: ClientSampling | None, aggregation: Aggregation, plan: Plan | None, simulated: bool
) -> ClientSampling:
    """The sampling that was given, else that of the wrapped strategy; refused if the plan does not fit it."""
    if sampling is None:
        sampling = StrategySampling(participations=None if plan is None else plan.target.participations)
    if sampling.seed is not None and not simulated:
        raise InvalidSpecError(
            f"sampling: whoever knows the seed {sampling.seed} knows who is asked; leave it out, or say "
            "simulated=True"
        )
    sampling.check(aggregation, plan)
    return sampling


def metric_ranges(
    given: Mapping[str, tuple[float, float]] | None, plan: Plan | None, weighted_by_key: str
) -> tuple[MetricRange, ...]:
    """The metrics that clients release through the mechanism, each with its range."""
    ranges = given or {}
    if plan is not None:
        _refuse("a plan sets it", {"private_metrics": given}, "say target.plan(..., private_metrics=...)")
        ranges = plan.private_metrics
    if weighted_by_key in ranges:
        raise InvalidSpecError(
            f"private_metrics: {weighted_by_key!r} is what the wrapped strategy weighs clients by, and is "
            f"always 1; give the metric another name in the client's app"
        )
    return tuple(MetricRange(name, *map(float, ends)) for name, ends in ranges.items())


def _refuse(reason: str, given: Mapping[str, Any], remedy: str = "leave it out") -> None:
    """Refuse arguments that another one decides."""
    for name, value in given.items():
        if value is not None:
            raise InvalidSpecError(f"{name}: given, but {reason}; {remedy}")
