"""The arguments of a strategy: checked, and completed by the plan if there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fl_privquant import _validation
from fl_privquant.accounting.accountant import Budget
from fl_privquant.accounting.aggregation import Aggregation, PerClient
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.flower.policies.schedules import Policy, as_policy
from fl_privquant.planning.client_sampling import ClientSampling, StrategySampling
from fl_privquant.planning.target import Plan

_DEFAULT_DELTA = 1e-5

EncodingArgument = Plan | Encoding | Callable[[int], Encoding]
"""The forms in which a user can say how updates are encoded."""


@dataclass(frozen=True)
class StrategyArguments:
    """How updates are encoded, what the server sees of them, and what may be spent in that view."""

    policy: Policy
    aggregation: Aggregation
    budget: Budget | None
    delta: float
    plan: Plan | None = None

    @classmethod
    def of(
        cls,
        encoding: EncodingArgument,
        aggregation: Aggregation | None,
        budget: Budget | None,
        delta: float | None,
    ) -> StrategyArguments:
        """The arguments; what a plan sets is refused if it is given besides."""
        policy = as_policy(encoding.encoding if isinstance(encoding, Plan) else encoding)
        plan = encoding if isinstance(encoding, Plan) else policy.plan
        if plan is not None:
            refuse_set_by_plan({"aggregation": aggregation}, "say target.plan(..., aggregation=...)")
            refuse_set_by_plan({"budget": budget, "delta": delta}, "say it in the plan's pq.Target(...)")
            return cls(policy, plan.aggregation, plan.budget, plan.target.delta, plan)
        stated_delta = (
            _DEFAULT_DELTA if delta is None else _validation.check_in_interval("delta", delta, "[0, 1)")
        )
        return cls(policy, aggregation or PerClient(), budget, stated_delta)


def resolve_sampling(
    sampling: ClientSampling | None, aggregation: Aggregation, plan: Plan | None, simulated: bool
) -> ClientSampling:
    """The sampling that was given, else that of the wrapped strategy; refused if the plan does not fit it."""
    if sampling is None:
        sampling = StrategySampling(participations=None if plan is None else plan.target.participations)
    if sampling.seed is not None and not simulated:
        raise InvalidSpecError(
            "sampling",
            MISSING,
            f"whoever knows the seed {sampling.seed} knows who is asked",
            "leave it out, or say simulated=True",
        )
    sampling.check(aggregation, plan)
    return sampling


def refuse_set_by_plan(given: Mapping[str, Any], remedy: str) -> None:
    """Refuse arguments that the plan decides; None stands for an argument that was left out."""
    for name, value in given.items():
        if value is not None:
            raise InvalidSpecError(name, MISSING, "given, but a plan sets it", remedy)
