"""Policies: which encoding each round uses."""

from fl_privquant.flower.policies.adaptive_keep import AdaptiveKeep
from fl_privquant.flower.policies.schedules import (
    DoublingMechanism,
    Policy,
    QuantileClip,
    ScheduledKeep,
    ScheduledMechanism,
)

__all__ = [
    "AdaptiveKeep",
    "DoublingMechanism",
    "Policy",
    "QuantileClip",
    "ScheduledKeep",
    "ScheduledMechanism",
]
