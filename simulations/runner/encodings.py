"""From the settings of a run to the encoding of each round: an encoding, a plan, or a policy."""

from __future__ import annotations

from typing import TypeVar

from fl_privquant.codec.encoding import Encoding
from fl_privquant.flower import QuantileClip, ScheduledKeep, ScheduledMechanism
from fl_privquant.flower.policies import Policy
from fl_privquant.planning import Plan
from simulations.runner.config import ClipPolicyConfig, RunConfig

_Encoded = TypeVar("_Encoded", "Encoding | Policy", "Plan | Policy")


def make_encoding(config: RunConfig, l2_clip: float | None) -> Encoding | Policy:
    """The encoding of each round of a run without a plan.

    Parameters
    ----------
    config
        The settings of the run.
    l2_clip
        The L2 clip that the run has.
    """
    # The central baseline clips the norm alone: no coordinate exceeds that.
    clip = config.encoding.clip or l2_clip or 1.0
    rotate = bool(config.encoding.rotate)
    plain = Encoding(config.design(), clip, l2_clip, rotate, config.encoding.keep)
    encoding = _change_bits(plain, config)
    keep = config.encoding.keep_policy
    if keep.name == "schedule":
        encoding = ScheduledKeep(encoding, dict(zip(keep.rounds, keep.keep, strict=True)))
    return _change_clip(encoding, config.encoding.clip_policy)


def follow_plan(config: RunConfig, plan: Plan) -> Plan | Policy:
    """The plan of a run with a target, or the policy that begins with it."""
    return _change_clip(plan, config.encoding.clip_policy)


def _change_bits(encoding: Encoding, config: RunConfig) -> Encoding | Policy:
    policy = config.encoding.bits_policy
    if policy.name == "schedule":
        bits = dict(zip(policy.rounds, policy.bits, strict=True))
        return ScheduledMechanism(
            encoding, {start: config.design(2**number) for start, number in bits.items()}
        )
    return encoding


def _change_clip(encoding: _Encoded, policy: ClipPolicyConfig) -> _Encoded | Policy:
    if policy.name != "quantile":
        return encoding
    return QuantileClip(
        encoding,
        coordinate_quantile=policy.coordinate_quantile,
        client_quantile=policy.client_quantile,
        rate=policy.rate,
    )
