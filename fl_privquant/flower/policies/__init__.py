"""Policies: which encoding each round uses."""

from fl_privquant.flower.policies.schedules import Policy, QuantileClip, ScheduledKeep, ScheduledMechanism

__all__ = ["Policy", "QuantileClip", "ScheduledKeep", "ScheduledMechanism"]
