"""The metrics that a server asks clients for: through the mechanism, or in clear."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from logging import WARNING

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fl_privquant import _validation
from fl_privquant.codec.metrics import MetricRange
from fl_privquant.errors import InvalidSpecError, one_line
from fl_privquant.flower._flower_internals import log
from fl_privquant.flower._messages.arrays import records_of
from fl_privquant.flower._messages.clear_replies import check_names
from fl_privquant.flower.server.run_account import refuse_set_by_plan
from fl_privquant.flower.server.strategy_wrapper import strategy_stack
from fl_privquant.planning.target import Plan

MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
"""Aggregates the metrics of replies, given the name of the metric that clients are weighed by."""


@_validation.check_argument_names
@dataclass(frozen=True)
class ClientMetrics:
    """What a server asks clients for besides their updates.

    Parameters
    ----------
    private
        Metrics that clients release through the mechanism, as coordinates that follow the update: the range
        of each by name, such as ``{"loss": (0.0, 4.0)}``. A client's value is clipped to it. They are counted
        like all coordinates, and the wrapped strategy gets unbiased estimates under the same names. With a
        plan, give them to :meth:`~fl_privquant.planning.Target.plan`, which counts them. The metric
        ``privquant-failed``, from 0 to 1, is the share of clients whose training failed.
    clear
        Names of metrics that clients send in clear when they evaluate. Without names, which is the default,
        clients are not asked to evaluate, whatever the wrapped strategy says. Clients have to allow them
        (``metrics`` of :class:`~fl_privquant.flower.PrivQuantMod`), and every statement names them.
    clipping
        Whether to ask clients for the share of clipped coordinates and for the norm of their update over the
        L2 clip, if they allow it. Both are sent in clear. A usual norm that is far from the L2 clip is
        logged.

    >>> ClientMetrics(private={"loss": (0.0, 4.0)}, clear=["accuracy"]).clear
    ('accuracy',)
    """

    private: Mapping[str, tuple[float, float]] | None = None
    clear: Collection[str] = ()
    clipping: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "clear", check_names("metrics.clear", self.clear))

    def private_ranges(self, plan: Plan | None, weighted_by_key: str) -> tuple[MetricRange, ...]:
        """The private metrics, each with its range; with a plan, those of the plan."""
        ranges = self.private or {}
        if plan is not None:
            refuse_set_by_plan({"metrics.private": self.private}, "say target.plan(..., private_metrics=...)")
            ranges = plan.private_metrics
        if weighted_by_key in ranges:
            raise InvalidSpecError(
                "metrics.private",
                weighted_by_key,
                "is what the wrapped strategy weighs clients by, and is always 1",
                "give the metric another name in the client's app",
            )
        return tuple(MetricRange(name, *map(float, ends)) for name, ends in ranges.items())


NO_CLIENT_METRICS = ClientMetrics()
"""Clients are asked for their updates only."""


def allow_missing_metrics(strategy: Strategy) -> None:
    """Have a strategy go on without metrics of training if its own function asks for one that is not sent.

    Functions given as ``train_metrics_aggr_fn`` are written for replies with all metrics of the app. Their
    KeyError would end a run whose model is fine, after the round was paid for.
    """
    for wrapped in strategy_stack(strategy):
        given = vars(wrapped).get("train_metrics_aggr_fn")
        if given is not None and getattr(given, "func", None) is not _aggregate_metrics_or_none:
            vars(wrapped)["train_metrics_aggr_fn"] = partial(_aggregate_metrics_or_none, given)


def _aggregate_metrics_or_none(aggregate: MetricsFn, contents: list[RecordDict], weight: str) -> MetricRecord:
    try:
        return aggregate(contents, weight)
    except KeyError as error:
        sent = {
            name for content in contents for _, record in records_of(content, MetricRecord) for name in record
        }
        log(
            WARNING,
            "PrivQuant: train_metrics_aggr_fn asks for %s, which is not among the metrics of private replies "
            "(%s); this round has no metrics of training. Ask clients for it through the mechanism "
            "(ClientMetrics(private=...)), or have them send it in clear (PrivQuantMod(metrics=[...]))",
            one_line(error),
            ", ".join(map(repr, sorted(sent))),
        )
        return MetricRecord()
