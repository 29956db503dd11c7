"""The server's side: a strategy around any other one, which has clients encode what they send to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import ERROR, INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from fl_privquant import checks
from fl_privquant.accounting.accountant import Budget
from fl_privquant.accounting.aggregation import Aggregation
from fl_privquant.accounting.client_sampling import ClientSampling
from fl_privquant.accounting.federation import FederationLedger
from fl_privquant.codec.array_choice import ArrayChoice
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.encoding import Encoding
from fl_privquant.errors import (
    CulpritError,
    InvalidSpecError,
    PrivQuantError,
    SecureAggregationError,
    counted,
)
from fl_privquant.flower.arguments import Arguments, GivenEncoding, metric_ranges, sampling_of, single_clip
from fl_privquant.flower.arrays import read_arrays, records_of
from fl_privquant.flower.clear_replies import (
    HOW_TO_EVALUATE,
    NotingGrid,
    add_names,
    add_weights,
    allow_missing_metrics,
    check_names,
    clear_names,
    quote_names,
)
from fl_privquant.flower.exchange import Opened, check_wrapped, exchange_of
from fl_privquant.flower.policies import Policy, as_policy
from fl_privquant.flower.protocol import Reply, Request, is_request
from fl_privquant.flower.remarks import (
    clip_remark,
    failure_lines,
    kept_words,
    list_names,
    metric_lines,
    randomness_lines,
)
from fl_privquant.flower.round_record import OnRound, RoundRecord
from fl_privquant.flower.round_state import FailedTraining, RoundState, bytes_of, reported_clipping
from fl_privquant.flower.run_account import RunAccount
from fl_privquant.flower.wrapping import Aggregate, StrategyWrapper, strategy_stack
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import PrivacyStatement, Unit


class NoUsableReplyError(PrivQuantError):
    """More rounds in a row than allowed ended without any reply that could be aggregated."""


@checks.naming_arguments
class PrivQuantStrategy(StrategyWrapper):
    """Wraps any Flower strategy: clients send encoded updates, and the wrapped strategy sees ordinary arrays.

    Every reply is checked (node, round, version, mechanism, length, range of codes). A bad reply is dropped,
    and logged with the id of its node. All clients have the same weight: the number of examples that the
    wrapped strategy weighs by is replaced by 1, because weights would change the sensitivity, and would
    reveal how many examples a client has.

    Guarantee: with :class:`~fl_privquant.flower.PrivQuantMod` on the clients, what the server sees of a
    client's update has the mechanism's certified privacy, for each coordinate and release (local view).
    :attr:`ledger` counts a release for every client that was asked, whether or not it answered. Each request
    states this count, and a client that has counted more refuses it. :meth:`statements` says what all
    releases cost together and, if a ``sampling`` draws the clients, what they cost in the view of whoever
    sees only the models.

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
        A public seed, from which the rotation of each round is derived.
    report_clipping
        Whether to ask clients for the share of clipped coordinates and for the norm of their update over the
        L2 clip, if they allow it. Not private. A usual norm that is far from the L2 clip is logged.
    private_metrics
        Metrics that clients release through the mechanism, as coordinates that follow the update: the range
        of each by name, such as ``{"loss": (0.0, 4.0)}``. A client's value is clipped to it. They are counted
        like all coordinates, and the wrapped strategy gets unbiased estimates under the same names. With a
        plan, give them to :meth:`~fl_privquant.accounting.Target.plan`, which counts them. The metric
        ``privquant-failed``, from 0 to 1, is the share of clients whose training failed.
    clear_metrics
        Names of metrics that clients send in clear when they evaluate. Without names, which is the default,
        clients are not asked to evaluate, whatever the wrapped strategy says. Clients have to allow them
        (``metrics`` of :class:`~fl_privquant.flower.PrivQuantMod`), and every statement names them.
    max_failed_rounds
        How many rounds in a row may end without a usable reply before the run is stopped. Rounds of a secure
        aggregation that name a client whose secret did not open are not counted.
    aggregation
        What the server sees of a round: :class:`~fl_privquant.accounting.PerClient` (the default),
        :class:`~fl_privquant.accounting.SumOfCodes` or :class:`~fl_privquant.accounting.SecureSum`. Sums are
        not for strategies that compare single updates (FedMedian, Krum): these are refused.
    sampling
        Who is asked (:mod:`fl_privquant.accounting.client_sampling`): ``FixedSampling``, ``PoissonSampling``
        or ``CohortSampling`` draw from the clients that the wrapped strategy would ask, so wrap one with
        ``fraction_train=1.0``. By default the wrapped strategy draws. No client takes part in more rounds
        than a plan's ``participations``.
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
        clear_metrics: Collection[str] = (),
        max_failed_rounds: int = 0,
        aggregation: Aggregation | None = None,
        sampling: ClientSampling | None = None,
        budget: Budget | None = None,
        delta: float | None = None,
        simulated: bool = False,
        on_round: OnRound | None = None,
    ) -> None:
        super().__init__(strategy)
        if any(isinstance(wrapped, PrivQuantStrategy) for wrapped in strategy_stack(strategy)):
            raise InvalidSpecError("strategy: it wraps a PrivQuantStrategy already; updates are encoded once")
        clip, scales = single_clip(clip, clip_scales)
        fields = {"mechanism": mechanism, "clip": clip, "l2_clip": l2_clip, "keep": keep}
        # rotate=False is the default, and contradicts no other argument.
        arguments = Arguments.of(encoding, fields | {"rotate": rotate or None}, aggregation, budget, delta)
        self.plan = arguments.plan
        self.policy = as_policy(arguments.encoding)
        self.arrays = ArrayChoice(include, exclude, scales)
        self.rotation_seed = checks.whole("rotation_seed", rotation_seed, 0, (1 << 31) - 1)
        self.report_clipping = report_clipping
        self.private_metrics = metric_ranges(private_metrics, self.plan, self.weighted_by_key)
        self.clear_metrics = check_names("clear_metrics", clear_metrics)
        # What clients send in clear, outside of all accounting, in words.
        self.uncounted = quote_names(self.clear_metrics)
        allow_missing_metrics(strategy)
        self.max_failed_rounds = checks.whole("max_failed_rounds", max_failed_rounds, 0)
        self.aggregation = arguments.aggregation
        self.sampling = sampling_of(sampling, self.aggregation, self.plan, simulated)
        self.budget = arguments.budget
        self.delta = arguments.delta
        self._account = RunAccount(arguments, self.sampling)
        self.failed_rounds = 0
        self.survivors: dict[int, int] = {}
        self.simulated = simulated
        self.on_round = on_round
        self._failed_training = FailedTraining()
        self.simulated_nodes: set[int] = set()
        self._round: RoundState | None = None
        self._exchange = exchange_of(self.aggregation)
        check_wrapped(strategy, self.aggregation, simulated)

    @property
    def ledger(self) -> FederationLedger:
        """Every request of the run, and what these have cost its clients."""
        return self._account.ledger

    @property
    def encoding(self) -> Encoding | Callable[[int], Encoding]:
        """The encoding of all rounds, or the policy that gives that of each round."""
        return self.policy.base if type(self.policy) is Policy else self.policy

    def request(self, server_round: int) -> Request:
        """What clients are asked in a round."""
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
            f"Evaluation by clients: {', '.join(self.clear_metrics) or f'none, {HOW_TO_EVALUATE}'}",
            *(f"Privacy: {line}" for line in self.privacy_statement()),
        ]
        if self.budget is not None and not self.budget.unlimited:
            total = PrivacyStatement(self.budget.epsilon, self.budget.delta, Unit.TOTAL)
            lines.append(
                f"Privacy: all rounds of a client together cost at most {total.figures} (client total, view "
                "of the aggregation above); the run stops before"
            )
        log(INFO, "\t├──> PrivQuant settings:")
        for line in lines[:-1]:
            log(INFO, "\t│\t├── %s", line)
        log(INFO, "\t│\t└── %s", lines[-1])
        log(INFO, "\t├──> Wrapped strategy: %s", type(self.strategy).__name__)
        self.strategy.summary()

    def statements(self, refine: bool = True) -> list[PrivacyStatement]:
        """What the run costs a client, for each unit: a coordinate, the last round, and all rounds so far.

        Rounds are stated in the local view and, for secure sums, in the aggregate view. All rounds together
        are stated for the client that was asked most. The last statement is for whoever sees only the models,
        where the sampling allows one. Without ``refine``, these are quick upper bounds, for use after every
        round.
        """
        # From the ledger alone: it knows of rounds that were run before this process began.
        last = self.ledger.last_release
        mechanism = self.request(1).encoding.mechanism if last is None else last.mechanism
        statements = self._account.statements(mechanism, refine)
        if not self.uncounted:
            return statements
        silent = f"that {list_names(self.uncounted)}, sent by clients in clear, tell nothing"
        return [replace(stated, assumptions=(*stated.assumptions, silent)) for stated in statements]

    def privacy_statement(self, refine: bool = True) -> list[str]:
        """The statements as lines, and what they do not cover; every epsilon is given with its unit."""
        lines = [str(statement) for statement in self.statements(refine)]
        last = self.ledger.last_release
        quantile = self.policy.clip_quantile
        if last is not None and quantile is not None and math.isfinite(last.mechanism.epsilon):
            of_norm = "the norm of its update" if last.norms.l2 is not None else ""
            within = of_norm or f"a share of {quantile:g} of its update's coordinates"
            lines.append(
                f"one of the {last.dimension} coordinates is the client's vote on the clip: whether {within} "
                "lies within the clip"
            )
        lines += metric_lines(self.private_metrics, self.uncounted)
        lines += [f"privacy is simulated: {reason}" for reason in [self.aggregation.simulated] if reason]
        return lines + randomness_lines(self.simulated, self.simulated_nodes)

    def log_spent(self) -> None:
        """Log what the run has cost its clients so far."""
        for line in self.privacy_statement():
            log(INFO, "PrivQuant: %s", line)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have the wrapped strategy configure the round, draw clients, and count what they are asked for."""
        request = self.request(server_round)
        model = read_arrays(arrays)
        codec, release = request.of_model(model)
        self._check_plan(codec)
        # A copy, because the caller may use its config again, without this round's request.
        config = ConfigRecord(dict(config))
        request.write(config)
        # The wrapped strategy may ask clients by itself.
        grid = NotingGrid(grid, self.note_replies)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        population = len(messages)
        messages = self._account.drawn(server_round, messages)
        # Messages often share one content object.
        for content in {id(message.content): message.content for message in messages}.values():
            if not any(is_request(config) for _, config in records_of(content, ConfigRecord)):
                raise InvalidSpecError(
                    f"{type(self.strategy).__name__} does not pass the round's config on to clients, "
                    f"so that they cannot be told the mechanism"
                )
        nodes = {message.metadata.dst_node_id for message in messages}
        self._round = RoundState(
            request=request,
            arrays=arrays,
            model=model,
            codec=codec,
            asked=nodes,
            request_bytes=bytes_of(config),
            weight_key=self.weighted_by_key,
            arrays_key=self.arrayrecord_key,
        )
        if not messages:
            return messages
        # Before anything is sent: what clients release is counted even if no reply ever arrives.
        messages = self._account.ask(server_round, release, messages, population)
        try:
            return self._exchange.begin(server_round, messages, codec, grid)
        except SecureAggregationError as error:
            log(ERROR, "Secure aggregation: round %d, %s", server_round, error)
            self._round.refuse(str(error))
            self.ledger.cancel()
            return []

    def _check_plan(self, codec: UpdateCodec) -> None:
        if self.plan is not None and codec.layout.dimension != self.plan.dimension:
            raise InvalidSpecError(
                f"the plan is for {counted(self.plan.dimension, 'coordinate')}, the model has "
                f"{codec.layout.dimension}; plan anew with dimension={codec.layout.dimension}"
            )

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Decode the usable replies, aggregate them by the wrapped strategy, and tell the listener."""
        current = self._round
        if current is None:
            raise InvalidSpecError("no round is under way: configure_train comes first")
        if server_round != current.request.round:
            raise InvalidSpecError(
                f"round {server_round} was not configured; the last was {current.request.round}"
            )
        received = self._checked(current, replies)
        if not current.asked:
            return super().aggregate_train(server_round, [])
        if current.refused:
            # No masks were agreed on, so that no client was asked to train.
            opened = Opened()
        else:
            opened = self._open(current, {node: reply for node, (_, reply) in received.items()})
        opened_at = time.perf_counter()
        usable = [received[node][1] for node in opened.nodes]
        self.survivors[server_round] = len(usable)
        aggregated: Aggregate = (None, None)
        if usable:
            self.failed_rounds = 0
            if current.codec.votes:
                self.policy.observe_votes(current.clip_vote(opened, usable))
            if opened.total is not None:
                self.policy.observe_sum(current.codec, opened.total, len(usable))
            plain = current.plain_replies(opened, received)
            self._failed_training.log(current, plain, len(usable))
            # The sum was decoded: its codes need not stay in memory.
            opened = replace(opened, total=None, mean=None)
            arrays, metrics = super().aggregate_train(server_round, plain)
            aggregated = None if arrays is None else current.with_own_types(arrays), metrics
        self._tell(current, usable, opened.wrapped, opened_at)
        if not usable:
            self._fail(current)
        return aggregated

    def _checked(self, current: RoundState, replies: Iterable[Message]) -> dict[int, tuple[Message, Reply]]:
        """The valid replies with their messages, by node; why others are not valid is noted."""
        replies_by_node: dict[int, tuple[Message, Reply]] = {}
        for message in self.note_replies(replies):
            node = message.metadata.src_node_id
            try:
                reply = current.checked(message)
            except PrivQuantError as error:
                current.fail(node, str(error))
            else:
                replies_by_node[node] = (message, reply)
        for _, reply in replies_by_node.values():
            add_names(self.uncounted, quote_names(reply.allowed))
        self._note(current, {node: reply for node, (_, reply) in replies_by_node.items()})
        return replies_by_node

    def _open(self, current: RoundState, replies: Mapping[int, Reply]) -> Opened:
        """The opened replies; empty if no sum may be opened, or if the sum must not be applied."""
        server_round, num_asked = current.request.round, len(current.asked)
        try:
            opened = self._exchange.open(replies, current.codec, current.model)
            self._account.opened(opened, num_asked)
            opened = self._exchange.check(opened, current.codec)
        except SecureAggregationError as error:
            log(ERROR, "Secure aggregation: round %d, %s; nothing was applied", server_round, error)
            current.refuse(str(error))
            current.names_culprit = isinstance(error, CulpritError)
            opened = Opened()
        for node, reason in opened.failures.items():
            current.fail(node, reason)
        for line in failure_lines(current.failed):
            log(WARNING, "PrivQuant: round %d, %s", server_round, line)
        if current.num_silent:
            silent = counted(current.num_silent, "node")
            log(WARNING, "PrivQuant: round %d, %s did not reply", server_round, silent)
        if opened.wrapped:
            wrong = "so that as many coordinates of the update are wrong"
            sums = counted(opened.wrapped, "sum")
            log(WARNING, "PrivQuant: round %d, %s wrapped, %s", server_round, sums, wrong)
        usable = counted(len(opened.nodes), "usable update")
        failed = num_asked - len(opened.nodes)
        log(INFO, "PrivQuant: round %d, %s, %d failed", server_round, usable, failed)
        return opened

    def _tell(self, current: RoundState, replies: list[Reply], wrapped: int | None, opened_at: float) -> None:
        """Hand the record of the round to the listener, if there is one; warn of a clip that is far off."""
        share_clipped, norm_to_clip = reported_clipping([reply.metrics for reply in replies])
        if remark := clip_remark(norm_to_clip, current.codec.encoding.l2_clip):
            log(WARNING, "PrivQuant: round %d, %s", current.request.round, remark)
        if self.on_round is None:
            return
        survivors, num_asked = len(replies), len(current.asked)
        record = RoundRecord(
            round=current.request.round,
            codec=current.codec,
            asked=num_asked,
            survivors=survivors,
            bytes_up=survivors * self._exchange.update_bytes(current.codec, num_asked),
            bytes_down=num_asked * current.bytes_sent,
            bytes_handshake=self._exchange.handshake_bytes(),
            view=self.ledger.last_view,
            statements=tuple(self.statements(refine=False)),
            spent=self._account.spent(),
            share_clipped=share_clipped,
            norm_to_clip=norm_to_clip,
            wrapped_sums=wrapped,
            seconds_clients=opened_at - current.asked_at,
            seconds_aggregate=time.perf_counter() - opened_at,
        )
        self.on_round(record)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask clients to evaluate only if there are metrics that they may send in clear."""
        if not self.clear_metrics:
            return []
        return super().configure_evaluate(server_round, arrays, config, NotingGrid(grid, self.note_replies))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegate to the wrapped strategy; a policy that depends on the loss is told."""
        weighted = add_weights(self.note_replies(replies), self.weighted_by_key)
        metrics = super().aggregate_evaluate(server_round, weighted)
        self.policy.observe_metrics(server_round, metrics)
        return metrics

    def note_replies(self, replies: Iterable[Message]) -> list[Message]:
        """The replies of clients; what they hold in clear is named in statements from now on."""
        received = list(replies)
        for reply in received:
            add_names(self.uncounted, clear_names(reply))
        return received

    def checkpoint_state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the ledger, what policies have learnt, and what clients said."""
        return {
            "policy": self.policy.checkpoint_state(),
            "ledger": self.ledger.to_dict(),
            "failed_rounds": self.failed_rounds,
            "survivors": {str(number): count for number, count in self.survivors.items()},
            "simulated_nodes": sorted(self.simulated_nodes),
            "uncounted": sorted(self.uncounted),
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`checkpoint_state` gave."""
        self._account.ledger = FederationLedger.from_dict(state["ledger"])
        self.failed_rounds = int(state["failed_rounds"])
        self.survivors = {int(number): int(count) for number, count in state["survivors"].items()}
        self.simulated_nodes = set(state["simulated_nodes"])
        self.uncounted |= set(map(str, state["uncounted"]))
        self.policy.restore_state(state["policy"])

    def _fail(self, current: RoundState) -> None:
        """Note a round without a usable reply; too many in a row, or a refusal by all, end the run."""
        server_round, silent = current.request.round, current.num_silent
        if current.names_culprit:
            text = "has no sum because of a client that is named above, and does not count as failed"
            log(ERROR, "PrivQuant: round %d %s; the model stays as it is", server_round, text)
            return
        self.failed_rounds += 1
        if current.exhausted == len(current.asked):
            raise self._account.client_refusal(server_round)
        text = (
            f"round {server_round} has no usable reply ({current.num_failed} failed, {silent} silent): round "
            f"{self.failed_rounds} in a row without one"
        )
        if self.failed_rounds > self.max_failed_rounds:
            limit = f"{text}, more than max_failed_rounds={self.max_failed_rounds}"
            raise NoUsableReplyError("; ".join(filter(None, [limit, current.reason])))
        log(ERROR, "PrivQuant: %s; the model stays as it is", text)

    def _note(self, current: RoundState, replies: Mapping[int, Reply]) -> None:
        """Keep what clients say about their randomness, for statements."""
        seeded = [node for node in replies if replies[node].simulated and node not in self.simulated_nodes]
        self.simulated_nodes.update(seeded)
        if seeded and not self.simulated:
            (line,) = failure_lines({"reports that it draws from a seeded stream": seeded})
            log(WARNING, "PrivQuant: round %d, %s", current.request.round, line)
