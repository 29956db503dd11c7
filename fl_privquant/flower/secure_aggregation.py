"""The short name of a PrivQuantStrategy whose server learns sums only."""

from __future__ import annotations

from typing import Any

from fl_privquant.accounting.aggregation import SecureSum
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower.strategy import PrivQuantStrategy


class SecureAggregationStrategy(PrivQuantStrategy):
    """A strategy with the settings of another one, under secure aggregation.

    ``SecureAggregationStrategy(private, corrupt_fraction=0.1)`` is a new strategy; ``private`` stays as it
    is, and each has a ledger of its own.

    Parameters
    ----------
    strategy
        The PrivQuantStrategy, around any strategy that needs the mean update only. One that compares
        single updates, such as FedMedian or Krum, is refused.
    settings
        Those of :class:`~fl_privquant.accounting.SecureSum`.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> from flwr.serverapp.strategy import FedAvg
    >>> private = PrivQuantStrategy(FedAvg(), mechanism=pq.design("one_bit", epsilon=1.0), clip=0.1)
    >>> strategy = SecureAggregationStrategy(private)
    """

    def __init__(self, strategy: PrivQuantStrategy, **settings: Any) -> None:
        if not isinstance(strategy, PrivQuantStrategy):
            raise InvalidSpecError(
                f"strategy: {type(strategy).__name__}, expected a PrivQuantStrategy: it makes integers"
            )
        super().__init__(**(strategy.settings() | {"aggregation": SecureSum(**settings)}))
