"""The server's side: a strategy that wraps any other, and hands it ordinary arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from logging import ERROR, INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from fl_privquant.accounting.accountant import Budget, coordinate_statement
from fl_privquant.accounting.aggregation import Aggregation
from fl_privquant.accounting.client_sampling import ClientSampling
from fl_privquant.accounting.federation import FederationLedger
from fl_privquant.codec.array_choice import ArrayChoice
from fl_privquant.codec.metric_range import MetricRange
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import (
    BudgetExhaustedError,
    InvalidSpecError,
    PrivQuantError,
    SecureAggregationError,
)
from fl_privquant.flower.arguments import Arguments, GivenEncoding, single_clip
from fl_privquant.flower.arrays import read_arrays, records_of
from fl_privquant.flower.exchange import Opened, check_wrapped, exchange_of
from fl_privquant.flower.participants import drawn_messages, published_view, sampling_for
from fl_privquant.flower.protocol import Reply, is_request, with_counts
from fl_privquant.flower.remarks import failure_lines, kept_words, metric_lines, randomness_lines
from fl_privquant.flower.requests import Requests
from fl_privquant.flower.round_record import OnRound, RoundRecord
from fl_privquant.flower.round_state import (
    RoundState,
    bytes_of,
    reported_share_clipped,
)
from fl_privquant.flower.wrapping import StrategyWrapper
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import PrivacyStatement, View

_MOST_NAMES = 100
_NAME_LENGTH = 64


class NoUsableReplyError(PrivQuantError):
    """Rounds ended without a single reply that could be aggregated."""


class PrivQuantStrategy(Requests, StrategyWrapper):
    """Wraps any Flower strategy: clients send encoded updates, the wrapped strategy sees arrays.

    Every reply is checked (node, round, version, mechanism, length, range of codes); a bad one is
    dropped and logged by its node. Clients' weights are uniform: the example count that the wrapped
    strategy weighs by is replaced by 1, because weights would change the sensitivity and leak the counts.

    Guarantee: with :class:`~fl_privquant.flower.PrivQuantMod` on the clients, what the server sees of a
    client's update has the mechanism's certified privacy, for each coordinate and release (local view).
    :attr:`ledger` counts every client that was asked, whether or not it answered; each request says so, and
    clients that count more refuse it. :meth:`statements` gives what all releases cost together.
    With a ``sampling`` of ours, they also say what the run costs in the view of whoever sees only the models.

    Parameters
    ----------
    strategy
        The strategy that aggregates: FedAvg, FedAvgM, FedAdam, FedProx, FedMedian, Krum, ...
    encoding
        How updates are encoded: a :class:`~fl_privquant.accounting.Plan`, which brings its aggregation and
        the target as a budget, so that the run cannot spend more; or an
        :class:`~fl_privquant.encoding.Encoding`; or a function of the round that gives one, such as a policy
        of :mod:`fl_privquant.flower.policies`, which may keep to a plan. Or the mechanism itself.
    mechanism, clip, l2_clip, rotate, keep
        The short form: fields of an :class:`~fl_privquant.encoding.Encoding`.
    include, exclude
        Patterns on the names of the model's arrays, such as ``["head.*"]``: only those that match one of
        ``include`` (all without it) and none of ``exclude`` are sent. The others stay as they are.
    clip_scales
        Factors of both clips by pattern, such as ``{"head.*": 1.0, "*": 0.1}``, or a dict of clips in place
        of ``clip``: :mod:`fl_privquant.codec.array_choice`. The update is certified as one.
    rotation_seed
        Public; each round's rotation follows from it and the round.
    report_clipping
        Whether to ask clients for the share of clipped coordinates, if they allow it. Not private.
    private_metrics
        Metrics that clients release through the mechanism, as coordinates that follow the update: the range
        of each by name, such as ``{"loss": (0.0, 4.0)}``. A client's value is clipped to it. They are counted
        like all coordinates, and the wrapped strategy gets unbiased estimates under the same names.
    max_failed_rounds
        How many rounds in a row may end without a usable reply before the run is stopped.
    aggregation
        What the server sees of a round: :class:`~fl_privquant.accounting.PerClient` (the default),
        :class:`~fl_privquant.accounting.SumOfCodes` or :class:`~fl_privquant.accounting.SecureSum`. Sums are
        not for strategies that compare single updates (FedMedian, Krum): these are refused.
    sampling
        Who is asked (:mod:`fl_privquant.accounting.client_sampling`): ``FixedSampling``, ``PoissonSampling``
        or ``CohortSampling`` draw from those that the wrapped strategy would ask, so give that
        ``fraction_train=1.0``. By default the wrapped strategy draws. A plan's ``participations`` are held.
    budget
        What any client may be asked to spend over the run, in the view of the aggregation. The round that
        would exceed it is not begun, and ``start`` returns the model so far as a
        :class:`~fl_privquant.flower.StoppedResult`; before the first round it is an error
        (:class:`~fl_privquant.errors.BudgetExhaustedError`).
    delta
        The δ of statements.
    simulated
        Whether clients are known to draw from seeded streams: every privacy statement then says that
        privacy is simulated. Clients that say so of themselves are in :attr:`simulated_nodes` and named.
    on_round
        Called with the :class:`~fl_privquant.flower.RoundRecord` of each round in which anybody was asked,
        also of one that failed, before a checkpoint is written.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> from flwr.serverapp.strategy import FedAvg
    >>> mechanism = pq.design("optm", epsilon=1.0, bits=2)
    >>> strategy = PrivQuantStrategy(FedAvg(), mechanism=mechanism, clip=0.1)
    """

    def __init__(
        self,
        strategy: Strategy,
        encoding: GivenEncoding = None,
        clip: float | Mapping[str, float] | None = None,
        *,
        mechanism: Mechanism | None = None,
        l2_clip: float | None = None,
        rotate: bool | None = None,
        keep: int | float | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        clip_scales: Mapping[str, float] | None = None,
        rotation_seed: int = 0,
        report_clipping: bool = False,
        private_metrics: Mapping[str, tuple[float, float]] | None = None,
        max_failed_rounds: int = 0,
        aggregation: Aggregation | None = None,
        sampling: ClientSampling | None = None,
        budget: Budget | None = None,
        delta: float | None = None,
        simulated: bool = False,
        on_round: OnRound | None = None,
    ) -> None:
        super().__init__(strategy)
        if max_failed_rounds < 0:
            raise InvalidSpecError(f"max_failed_rounds: {max_failed_rounds} is below 0")
        if not 0 <= rotation_seed < 1 << 31:
            raise InvalidSpecError(f"rotation_seed: {rotation_seed} is outside 0..2^31 - 1")
        clip, scales = single_clip(clip, clip_scales)
        turned = rotate or None
        short = {"mechanism": mechanism, "clip": clip, "l2_clip": l2_clip, "rotate": turned, "keep": keep}
        arguments = Arguments.of(encoding, short, aggregation, budget, delta)
        self.plan = arguments.plan
        self.encoding = arguments.encoding
        self.arrays = ArrayChoice(include, exclude, scales)
        self.rotation_seed = rotation_seed
        self.report_clipping = report_clipping
        self.private_metrics = self._ranges(private_metrics or {})
        # Names of what clients send beside their updates, outside of all accounting.
        self.uncounted_metrics: set[str] = set()
        self.max_failed_rounds = max_failed_rounds
        self.aggregation = arguments.aggregation
        self.sampling = sampling_for(sampling, self.aggregation, self.plan, simulated)
        self.budget = arguments.budget
        self.delta = arguments.delta
        self.ledger = FederationLedger()
        self.failed_rounds = 0
        self.survivors: dict[int, int] = {}
        self.simulated = simulated
        self.on_round = on_round
        self.simulated_nodes: set[int] = set()
        self._round: RoundState | None = None
        self._rate: float | None = None
        self._exchange = exchange_of(self.aggregation)
        check_wrapped(strategy, self.aggregation, simulated)

    def _ranges(self, private_metrics: Mapping[str, tuple[float, float]]) -> tuple[MetricRange, ...]:
        if self.plan is not None and private_metrics:
            raise InvalidSpecError("private_metrics: given, but a plan counts the update alone; leave it out")
        if self.weighted_by_key in private_metrics:
            raise InvalidSpecError(
                f"private_metrics: {self.weighted_by_key!r} is what the wrapped strategy weighs by, and "
                f"always 1; give the metric another name in the client's app"
            )
        return tuple(MetricRange(name, *map(float, ends)) for name, ends in private_metrics.items())

    def settings(self) -> dict[str, Any]:
        """What this strategy was made with, to make another one like it."""
        planned = self._unplanned()
        if self.plan is not None:
            # Of a policy that keeps to a plan the policy is what was given.
            planned = {"encoding": self.encoding if callable(self.encoding) else self.plan}
        return planned | {
            "strategy": self.strategy,
            "sampling": self.sampling,
            "include": self.arrays.include,
            "exclude": self.arrays.exclude,
            "clip_scales": dict(self.arrays.clip_scales),
            "rotation_seed": self.rotation_seed,
            "report_clipping": self.report_clipping,
            "private_metrics": {metric.name: (metric.low, metric.high) for metric in self.private_metrics},
            "max_failed_rounds": self.max_failed_rounds,
            "simulated": self.simulated,
            "on_round": self.on_round,
        }

    def _unplanned(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("encoding", "aggregation", "budget", "delta")}

    def summary(self) -> None:
        """Log the settings, the privacy statement, and the settings of the wrapped strategy."""
        encoding = self.request(1).encoding
        mechanism = encoding.mechanism
        changing = "changes with the round; round 1: " if callable(self.encoding) else ""
        lines = [
            f"Mechanism: {changing}{mechanism!r}",
            f"Bits per coordinate: {mechanism.bits_per_coordinate:g} (float32: 32)",
            f"Clip: coordinates {encoding.clip:g}, L2 norm {encoding.l2_clip or 'any'}"
            + "".join(f"; {pattern}: times {scale:g}" for pattern, scale in self.arrays.clip_scales),
            f"Rotation: {'randomized Hadamard, a new one each round' if encoding.rotate else 'none'}",
            f"Coordinates sent: {kept_words(encoding.keep)}",
            f"Aggregation: {self.aggregation!r}",
            f"Sampling of clients: {self.sampling!r}",
            f"Client weights: uniform ('{self.weighted_by_key}' is replaced by 1)",
            "Metrics of clients: only those that their PrivQuantMod lists; they are not private",
            *(f"Privacy: {line}" for line in self.privacy_statement()),
        ]
        log(INFO, "\t├──> PrivQuant settings:")
        for line in lines[:-1]:
            log(INFO, "\t│\t├── %s", line)
        log(INFO, "\t│\t└── %s", lines[-1])
        log(INFO, "\t├──> Wrapped strategy: %s", type(self.strategy).__name__)
        self.strategy.summary()

    def statements(self, refine: bool = True) -> list[PrivacyStatement]:
        """What an epsilon means in this run, at each level: a coordinate, a round, all rounds so far.

        Rounds in the local view, and in the aggregate one where secure aggregation wraps this strategy; all
        rounds for the client that was asked most, at last for whoever sees only the models, where that is
        known (:attr:`sampling`). Without ``refine`` by quick bounds, for every round.
        """
        # From the ledger alone: it knows of rounds that were run before this process began.
        last = self.ledger.last_release
        mechanism = self.request(1).encoding.mechanism if last is None else last.mechanism
        statements = [coordinate_statement(mechanism)]
        if last is None or math.isinf(mechanism.epsilon):
            return statements
        views = [False] if self.ledger.last_view.is_local else [False, True]
        statements += [self.ledger.last_statement(self.delta, in_sum, refine) for in_sum in views]
        statements += [self.ledger.statement(self.delta, in_sum, refine) for in_sum in views]
        if self.ledger.counts_models:
            statements.append(self.ledger.models_statement(self.delta, refine))
        return statements

    def privacy_statement(self, refine: bool = True) -> list[str]:
        """What is promised, at each level, a line each; never a bare epsilon."""
        lines = [str(statement) for statement in self.statements(refine)]
        last = self.ledger.last_release
        voted = self.policy.clip_quantile
        if last is not None and voted is not None and math.isfinite(last.mechanism.epsilon):
            lines.append(
                f"one of the {last.dimension} coordinates is the client's vote on the clip: if "
                f"it holds {voted:g} of its update"
            )
        lines += metric_lines(self.private_metrics, self.uncounted_metrics)
        lines += [f"privacy is simulated: {reason}" for reason in [self.aggregation.simulated] if reason]
        return lines + randomness_lines(self.simulated, self.simulated_nodes)

    def log_spent(self) -> None:
        """Log what the run has cost its clients so far."""
        for line in self.privacy_statement():
            log(INFO, "PrivQuant: %s", line)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the round by the wrapped strategy, with the request in its config."""
        request = self.request(server_round)
        model = read_arrays(arrays)
        codec = request.codec(request.layout(model))
        if codec.layout.dimension == 0:
            shapes = {name: f"{array.dtype} {array.shape}" for name, array in model.items()}
            raise InvalidSpecError(f"the model has no floating-point values, nothing to encode: {shapes}")
        self._check_plan(codec)
        # A copy: the caller's config must not carry this round's request to other uses of it.
        config = ConfigRecord(dict(config))
        request.write(config)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        population = len(messages)
        messages = drawn_messages(self.sampling, self.ledger, server_round, messages, self.delta)
        for message in messages:
            if not any(is_request(config) for _, config in records_of(message.content, ConfigRecord)):
                raise InvalidSpecError(
                    f"{type(self.strategy).__name__} does not pass the round's config on to clients, "
                    f"so that they cannot be told the mechanism"
                )
        asked = {message.metadata.dst_node_id for message in messages}
        self._round = RoundState(
            request, arrays, model, codec, asked, bytes_of(config), self.weighted_by_key, self.arrayrecord_key
        )
        if not messages:
            return messages
        release = request.release(codec.layout)
        view = self.aggregation.view(len(asked))
        if self.budget is not None:
            self.ledger.check(server_round, release.seen(view), asked, self.budget)
        messages = with_counts(messages, lambda node: self.ledger.count(node, release))
        # Before anything is sent: what clients release is counted even if no reply ever arrives.
        self._rate = self.sampling.rate(len(asked), population, self.aggregation)
        # Until it is known what the model shows: of a secure sum what may be opened, else everything.
        models = View(view.num_honest, 1.0 if view.is_local else self._rate)
        self.ledger.ask(server_round, release, asked, None if self._rate is None else models)
        if not view.is_local:
            self.ledger.summed(view.num_honest or 1)
        try:
            return self._exchange.begin(server_round, messages, codec, grid)
        except SecureAggregationError as error:
            log(ERROR, "Secure aggregation: round %d, %s", server_round, error)
            self.ledger.cancel()
            return []

    def _check_plan(self, codec: UpdateCodec) -> None:
        if self.plan is not None and codec.layout.dimension != self.plan.dimension:
            raise InvalidSpecError(
                f"the plan is for {self.plan.dimension} coordinates, the model has {codec.layout.dimension}; "
                f"plan anew with dimension={codec.layout.dimension}"
            )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the usable replies, aggregate them by the wrapped strategy, and tell the listener."""
        current = self._current()
        if server_round != current.request.round:
            raise InvalidSpecError(
                f"round {server_round} was not configured; the last was {current.request.round}"
            )
        received = self._checked(current, replies)
        if not current.asked:
            return super().aggregate_train(server_round, [])
        opened = self._open(current, {node: reply for node, (_, reply) in received.items()})
        opened_at = time.perf_counter()
        usable = [received[node][1] for node in opened.nodes]
        self.survivors[server_round] = len(usable)
        aggregated: tuple[ArrayRecord | None, MetricRecord | None] = (None, None)
        if usable:
            self.failed_rounds = 0
            if current.codec.votes:
                self.policy.observe_votes(current.clip_vote(opened, usable))
            if opened.total is not None:
                self.policy.observe_sum(current.codec, opened.total, len(usable))
            plain = current.plain_replies(opened, received)
            # What is decoded now need not be held as codes too.
            opened = replace(opened, total=None)
            arrays, metrics = super().aggregate_train(server_round, plain)
            aggregated = None if arrays is None else current.with_own_types(arrays), metrics
        self._tell(current, usable, opened.wrapped, opened_at)
        if not usable:
            self._fail(current)
        return aggregated

    def _checked(self, current: RoundState, replies: Iterable[Message]) -> dict[int, tuple[Message, Reply]]:
        """The replies of nodes that were asked, with their messages; others are logged."""
        replies_by_node: dict[int, tuple[Message, Reply]] = {}
        for message in replies:
            node = message.metadata.src_node_id
            try:
                replies_by_node[node] = (message, current.checked(message))
                self._note(node, replies_by_node[node][1])
            except PrivQuantError as error:
                current.failed.setdefault(str(error), []).append(node)
        return replies_by_node

    def _open(self, current: RoundState, replies: Mapping[int, Reply]) -> Opened:
        """What the replies come to; nothing, where no sum may be opened."""
        server_round, num_asked = current.request.round, len(current.asked)
        try:
            opened = self._exchange.open(replies, current.codec, current.model)
            if not self.aggregation.view(num_asked).is_local:
                # As many honest clients as stayed, which are no fewer than the view counts on.
                self.ledger.summed(len(opened.nodes) - self.aggregation.corrupt(num_asked))
            if self._rate is not None:
                is_sum, summed = opened.total is not None, len(opened.nodes)
                self.ledger.published(published_view(self._rate, num_asked, summed, is_sum, self.aggregation))
            self._exchange.check(opened, current.codec)
        except SecureAggregationError as error:
            log(ERROR, "Secure aggregation: round %d, %s; nothing was applied", server_round, error)
            opened = Opened()
        for node, reason in opened.failures.items():
            current.failed.setdefault(reason, []).append(node)
        for line in failure_lines(current.failed):
            log(WARNING, "PrivQuant: round %d, %s", server_round, line)
        if current.num_silent:
            log(WARNING, "PrivQuant: round %d, %d nodes did not reply", server_round, current.num_silent)
        if opened.wrapped:
            log(WARNING, "PrivQuant: round %d, %d sums wrapped", server_round, opened.wrapped)
        usable = len(opened.nodes)
        failed = num_asked - usable
        log(INFO, "PrivQuant: round %d, %d usable updates, %d failed", server_round, usable, failed)
        return opened

    def _tell(self, current: RoundState, replies: list[Reply], wrapped: int | None, opened_at: float) -> None:
        """Hand the record of the round to the listener, if there is one."""
        if self.on_round is None:
            return
        view, survivors, asked = self.ledger.last_view, len(replies), len(current.asked)
        record = RoundRecord(
            round=current.request.round,
            codec=current.codec,
            asked=asked,
            survivors=survivors,
            bytes_up=survivors * self._exchange.update_bytes(current.codec, asked),
            bytes_down=asked * current.bytes_sent,
            bytes_handshake=self._exchange.handshake_bytes(),
            view=view,
            statements=tuple(self.statements(refine=False)),
            spent=self._spent(not view.is_local),
            share_clipped=reported_share_clipped([reply.metrics for reply in replies]),
            wrapped_sums=wrapped,
            seconds_clients=opened_at - current.asked_at,
            seconds_aggregate=time.perf_counter() - opened_at,
        )
        self.on_round(record)

    def _spent(self, in_sum: bool) -> PrivacyStatement:
        """A quick upper bound of what a client has spent, or the budget where that is smaller."""
        spent = self.ledger.statement(self.delta, in_sum, refine=False)
        limit = self.budget
        if limit is None or limit.delta > self.delta or spent.epsilon <= limit.epsilon:
            return spent
        # The ledger has counted in full where a quick bound exceeds the budget, and let the round begin.
        return replace(spent, epsilon=limit.epsilon, delta=limit.delta)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegate to the wrapped strategy; a policy that depends on the loss is told."""
        metrics = super().aggregate_evaluate(server_round, replies)
        self.policy.observe_metrics(server_round, metrics)
        return metrics

    def checkpoint_state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the ledger, so that nothing spent is forgotten; what policies learnt."""
        return {
            "policy": self.policy.checkpoint_state(),
            "ledger": self.ledger.to_dict(),
            "failed_rounds": self.failed_rounds,
            "survivors": {str(number): count for number, count in self.survivors.items()},
            "simulated_nodes": sorted(self.simulated_nodes),
            "uncounted_metrics": sorted(self.uncounted_metrics),
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`checkpoint_state` gave."""
        self.ledger = FederationLedger.from_dict(state["ledger"])
        self.failed_rounds = int(state["failed_rounds"])
        self.survivors = {int(number): int(count) for number, count in state["survivors"].items()}
        self.simulated_nodes = set(state["simulated_nodes"])
        self.uncounted_metrics = set(map(str, state["uncounted_metrics"]))
        self.policy.restore_state(state["policy"])

    def _current(self) -> RoundState:
        if self._round is None:
            raise InvalidSpecError("no round is under way: configure_train comes first")
        return self._round

    def _fail(self, current: RoundState) -> None:
        """Note a round without a usable reply; too many in a row, or a refusal by all, end the run."""
        self.failed_rounds += 1
        server_round, silent = current.request.round, current.num_silent
        if current.exhausted == len(current.asked):
            spent = self.ledger.statement(self.delta)
            raise BudgetExhaustedError(
                f"round {server_round}: every client refuses, its own budget does not allow one more "
                f"release. Asked for so far: {spent}",
                spent,
            )
        text = (
            f"round {server_round} has no usable reply ({len(current.asked) - silent} failed, {silent} "
            f"silent): round {self.failed_rounds} in a row without one"
        )
        if self.failed_rounds > self.max_failed_rounds:
            reason = max(current.failed, key=lambda reason: len(current.failed[reason]), default="")
            raise NoUsableReplyError(
                f"{text}, more than max_failed_rounds={self.max_failed_rounds}"
                + (f"; most nodes {reason}" if reason else "")
            )
        log(ERROR, "PrivQuant: %s; the model stays as it is", text)

    def _note(self, node: int, reply: Reply) -> None:
        """Keep what a client says of itself, for statements."""
        if reply.simulated:
            if not self.simulated and node not in self.simulated_nodes:
                log(WARNING, "PrivQuant: node %d says that it draws from a seeded stream", node)
            self.simulated_nodes.add(node)
        # A hostile client may send any number of names, of any length.
        self.uncounted_metrics |= {name[:_NAME_LENGTH] for name in list(reply.metrics)[:_MOST_NAMES]}
