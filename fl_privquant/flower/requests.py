"""The requests to clients in each round."""

from __future__ import annotations

from collections.abc import Callable

from fl_privquant.accounting.aggregation import Aggregation
from fl_privquant.codec.array_choice import ArrayChoice
from fl_privquant.codec.metric_range import MetricRange
from fl_privquant.encoding import Encoding
from fl_privquant.flower.policies import Policy, as_policy
from fl_privquant.flower.protocol import Request


class Requests:
    """The part of a strategy that says what clients are asked; the encoding can change between rounds."""

    aggregation: Aggregation
    rotation_seed: int
    report_clipping: bool
    private_metrics: tuple[MetricRange, ...]
    arrays: ArrayChoice
    policy: Policy

    @property
    def encoding(self) -> Encoding | Callable[[int], Encoding]:
        """How updates are encoded from the next round on: always alike, or by a function of the round."""
        return self._encoding

    @encoding.setter
    def encoding(self, encoding: Encoding | Callable[[int], Encoding]) -> None:
        self._encoding = encoding
        self.policy = as_policy(encoding)

    def request(self, server_round: int) -> Request:
        """The request to clients in a round."""
        encoding = self.policy(server_round)
        return Request(
            round=server_round,
            encoding=encoding.with_mechanism(self.aggregation.adapted(encoding.mechanism)),
            rotation_seed=self.rotation_seed + (server_round << 31),
            report_clipping=self.report_clipping,
            clip_quantile=self.policy.clip_quantile,
            private_metrics=self.private_metrics,
            arrays=self.arrays,
        )
