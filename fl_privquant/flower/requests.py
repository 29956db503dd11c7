"""What clients are asked in each round: settings that are fixed, or functions of the round."""

from __future__ import annotations

from collections.abc import Callable

from fl_privquant.accounting.aggregation import Aggregation
from fl_privquant.codec.clip import checked_clip
from fl_privquant.codec.metric_range import MetricRange
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower.policies import Policy, QuantileClip
from fl_privquant.flower.protocol import Request
from fl_privquant.mechanisms.base import Mechanism

__all__ = ["Requests"]


class Requests:
    """The part of a strategy that says what clients are asked; its settings can change between rounds."""

    aggregation: Aggregation
    rotate: bool
    rotation_seed: int
    report_clipping: bool
    private_metrics: tuple[MetricRange, ...]

    @property
    def mechanism(self) -> Mechanism | Callable[[int], Mechanism]:
        """What encodes updates, from the next round on."""
        return self._mechanism

    @mechanism.setter
    def mechanism(self, mechanism: Mechanism | Callable[[int], Mechanism]) -> None:
        if not isinstance(mechanism, Mechanism) and not callable(mechanism):
            raise InvalidSpecError(
                f"mechanism: {type(mechanism).__name__}, expected a Mechanism; see fl_privquant.design"
            )
        self._mechanism = mechanism

    @property
    def clip(self) -> float | Callable[[int], float]:
        """The coordinate clip, from the next round on."""
        return self._clip

    @clip.setter
    def clip(self, clip: float | Callable[[int], float]) -> None:
        self._clip = clip if callable(clip) else checked_clip("clip", clip)

    @property
    def l2_clip(self) -> float | Callable[[int], float | None] | None:
        """The L2 clip, from the next round on."""
        return self._l2_clip

    @l2_clip.setter
    def l2_clip(self, clip: float | Callable[[int], float | None] | None) -> None:
        self._l2_clip = clip if clip is None or callable(clip) else checked_clip("l2_clip", clip)

    def request(self, server_round: int) -> Request:
        """What clients are asked in a round."""
        mechanism = self.mechanism if isinstance(self.mechanism, Mechanism) else self.mechanism(server_round)
        if not isinstance(mechanism, Mechanism):
            raise InvalidSpecError(
                f"mechanism: the function gave {type(mechanism).__name__} for round {server_round}"
            )
        mechanism = self.aggregation.adapted(mechanism)
        clip = self.clip(server_round) if callable(self.clip) else self.clip
        l2_clip = self.l2_clip(server_round) if callable(self.l2_clip) else self.l2_clip
        return Request(
            round=server_round,
            mechanism=mechanism.to_bytes(),
            clip=checked_clip("clip", clip),
            l2_clip=None if l2_clip is None else checked_clip("l2_clip", l2_clip),
            rotation_seed=self.rotation_seed + (server_round << 31) if self.rotate else None,
            report_clipping=self.report_clipping,
            clip_quantile=self.clip.coordinate_quantile if isinstance(self.clip, QuantileClip) else None,
            private_metrics=self.private_metrics,
        )

    @property
    def _policies(self) -> dict[str, Policy]:
        given = {"mechanism": self.mechanism, "clip": self.clip}
        return {name: each for name, each in given.items() if isinstance(each, Policy)}

    def _move_clip(self, share: float) -> None:
        # What clients were asked to vote on is the round's; the policy may have been replaced since.
        if isinstance(self.clip, QuantileClip):
            self.clip.observe(share)
