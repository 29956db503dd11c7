"""The server's side: a strategy around any other one, which has clients encode what they send to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import ERROR, INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_privquant import _validation
from fl_privquant.accounting.accountant import Budget
from fl_privquant.accounting.aggregation import AggregateResult, Aggregation, RoundReplies
from fl_privquant.accounting.ledgers.server_ledger import FederationLedger
from fl_privquant.codec.array_selection import ALL_ARRAYS, ArrayChoice
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.sum_check import RunningSum
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import (
    MISSING,
    CulpritError,
    InvalidSpecError,
    PrivQuantError,
    SecureAggregationError,
    pluralize,
)
from fl_privquant.flower._flower_internals import log, receiver_of
from fl_privquant.flower._messages.arrays import read_arrays, records_of
from fl_privquant.flower._messages.clear_replies import (
    HOW_TO_EVALUATE,
    RecordingGrid,
    add_names,
    add_weights,
    list_clear_names,
    quote_names,
)
from fl_privquant.flower._messages.cohort_replies import as_cohort_reply, source_of
from fl_privquant.flower._messages.protocol import Reply, Request, is_request, with_deliveries
from fl_privquant.flower.policies.schedules import Policy
from fl_privquant.flower.server.client_metrics import NO_CLIENT_METRICS, ClientMetrics, allow_missing_metrics
from fl_privquant.flower.server.log_lines import (
    advise_clip,
    describe_keep,
    failure_lines,
    list_names,
    metric_lines,
    randomness_lines,
)
from fl_privquant.flower.server.round_record import OnRound, RoundRecord
from fl_privquant.flower.server.round_state import (
    FailedTrainingEstimate,
    RoundState,
    count_config_bytes,
    summarize_clipping,
)
from fl_privquant.flower.server.run_account import EncodingArgument, RunAccount
from fl_privquant.flower.server.secure_aggregation import SecureRounds
from fl_privquant.flower.server.seed_relay import SeedRelay, check_round
from fl_privquant.flower.server.strategy_wrapper import (
    Aggregate,
    StrategyWrapper,
    check_strategy,
    strategy_stack,
)
from fl_privquant.planning.client_sampling import ClientSampling
from fl_privquant.statement import PrivacyStatement


class NoUsableReplyError(PrivQuantError):
    """More rounds in a row than allowed ended without any reply that could be aggregated."""


@_validation.check_argument_names
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
        How updates are encoded: a :class:`~fl_privquant.planning.Plan`, which brings its aggregation and
        the target as a budget, so that the run cannot spend more; or an
        :class:`~fl_privquant.codec.encoding.Encoding`; or a function of the round that gives one, such as a
        policy of :mod:`fl_privquant.flower.policies.schedules`, which may keep to a plan.
    arrays
        Which arrays of the model are sent, and on what scale each is clipped; all by default. The others stay
        as they are (:class:`~fl_privquant.codec.array_selection.ArrayChoice`).
    metrics
        What clients are asked for besides updates (:class:`~fl_privquant.flower.ClientMetrics`); nothing by
        default.
    rotation_seed
        A public seed, from which the rotation of each round is derived.
    max_failed_rounds
        How many rounds in a row may end without a usable reply before the run is stopped. Rounds of a secure
        aggregation that name a client whose secret did not open are not counted.
    aggregation
        What the server sees of a round: :class:`~fl_privquant.accounting.PerClient` (the default),
        :class:`~fl_privquant.accounting.SumOfCodes` or :class:`~fl_privquant.accounting.SecureSum`. Sums are
        not for strategies that compare single updates (FedMedian, Krum): these are refused.
    sampling
        Who is asked (:mod:`fl_privquant.planning.client_sampling`): ``FixedSampling``, ``PoissonSampling``
        or ``CohortSampling`` draw from the clients that the wrapped strategy would ask, so wrap one with
        ``fraction_train=1.0``. By default the wrapped strategy draws. No client takes part in more rounds
        than a plan's ``participations``.
    budget
        What any client may be asked to spend over the run, in the view of the aggregation. The round that
        would exceed it is not begun, and ``start`` returns the model so far as a
        :class:`~fl_privquant.flower.StoppedResult`; before the first round it is an error
        (:class:`~fl_privquant.errors.BudgetExhaustedError`). Statements have its relation; for another one
        without a limit, give ``Budget(math.inf, relation=Relation.ZERO_OUT)``.
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
    >>> strategy = PrivQuantStrategy(FedAvg(), pq.Encoding(mechanism, clip=0.1))
    """

    def __init__(
        self,
        strategy: Strategy,
        encoding: EncodingArgument,
        *,
        arrays: ArrayChoice = ALL_ARRAYS,
        metrics: ClientMetrics = NO_CLIENT_METRICS,
        rotation_seed: int = 0,
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
            raise InvalidSpecError(
                "strategy", MISSING, "it wraps a PrivQuantStrategy already", "updates are encoded once"
            )
        self._account = RunAccount(encoding, aggregation, sampling, budget, delta, simulated)
        self.plan, self.policy = self._account.plan, self._account.policy
        self.aggregation, self.sampling = self._account.aggregation, self._account.sampling
        self.budget, self.delta = self._account.budget, self._account.delta
        self.arrays = arrays
        self.rotation_seed = _validation.check_integer("rotation_seed", rotation_seed, 0, (1 << 31) - 1)
        self.report_clipping = metrics.clipping
        self.private_metrics = metrics.private_ranges(self.plan, self.weighted_by_key)
        self.clear_metrics = metrics.clear
        # What clients send in clear, outside of all accounting, in words.
        self.uncounted = quote_names(self.clear_metrics)
        allow_missing_metrics(strategy)
        self.max_failed_rounds = _validation.check_integer("max_failed_rounds", max_failed_rounds, 0)
        self.failed_rounds = 0
        self.survivors: dict[int, int] = {}
        self.simulated = simulated
        self.on_round = on_round
        self._failed_training = FailedTrainingEstimate()
        self.simulated_nodes: set[int] = set()
        self._round: RoundState | None = None
        self._masks = SecureRounds()
        # The mean updates of secure sums that were applied to the model so far.
        self._applied = RunningSum()
        self._relay = SeedRelay(self.aggregation, self.rotation_seed)
        check_strategy(strategy, self.aggregation, simulated)

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
        # Noise is taken off coordinate by coordinate, so that all rounds must have the same coordinates.
        rotated_in = server_round if encoding.mechanism.handed is None else 0
        return Request(
            round=server_round,
            encoding=encoding.with_mechanism(self.aggregation.adapt_mechanism(encoding.mechanism)),
            rotation_seed=self.rotation_seed + (rotated_in << 31),
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
            f"Rotation: {self._describe_rotation(encoding)}",
            f"Coordinates sent: {describe_keep(encoding.keep)}",
            f"Aggregation: {self.aggregation!r}",
            f"Sampling of clients: {self.sampling!r}",
            f"Client weights: uniform ('{self.weighted_by_key}' is replaced by 1)",
            "Metrics of clients: only those that their PrivQuantMod lists; they are not private",
            f"Evaluation by clients: {', '.join(self.clear_metrics) or f'none, {HOW_TO_EVALUATE}'}",
            *(f"Privacy: {line}" for line in self.privacy_statement()),
        ]
        if self.budget is not None and not self.budget.unlimited:
            unit = self.budget.unit
            total = PrivacyStatement(self.budget.epsilon, self.budget.delta, unit)
            lines.append(
                f"Privacy: all rounds together cost at most {total.figures} ({unit}, view of the aggregation "
                f"above, {self.budget.relation}); the run stops before"
            )
        log(INFO, "\t├──> PrivQuant settings:")
        for line in lines[:-1]:
            log(INFO, "\t│\t├── %s", line)
        log(INFO, "\t│\t└── %s", lines[-1])
        log(INFO, "\t├──> Wrapped strategy: %s", type(self.strategy).__name__)
        self.strategy.summary()

    @staticmethod
    def _describe_rotation(encoding: Encoding) -> str:
        if not encoding.rotate:
            return "none"
        often = "a new one each round" if encoding.mechanism.handed is None else "the same in all rounds"
        return f"randomized Hadamard, {often}"

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
        return self._with_assumptions(self._account.statements(mechanism, refine))

    def statement_beside(self) -> PrivacyStatement | None:
        """What all rounds so far cost a client for the neighboring relation that :meth:`statements` lack.

        It is None before the first round, and where nothing finite is certified.
        """
        beside = self._account.statement_beside()
        return None if beside is None else self._with_assumptions([beside])[0]

    def _with_assumptions(self, statements: list[PrivacyStatement]) -> list[PrivacyStatement]:
        """The statements, which assume besides that what clients send in clear tells nothing."""
        if not self.uncounted:
            return statements
        silent = f"that {list_names(self.uncounted)}, sent by clients in clear, tell nothing"
        return [replace(stated, assumptions=(*stated.assumptions, silent)) for stated in statements]

    def privacy_statement(self) -> list[str]:
        """The statements as lines, and what they do not cover; every epsilon is given with its unit."""
        lines = [str(statement) for statement in self.statements()]
        if (beside := self.statement_beside()) is not None:
            lines.append(f"all rounds, for {beside.relation} ({beside.relation.words}): {beside.brief}")
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
        codec, release = request.make_codec_and_release(model)
        self._check_plan(codec)
        # A copy, because the caller may use its config again, without this round's request.
        config = ConfigRecord(dict(config))
        request.write(config)
        # The wrapped strategy may ask clients by itself.
        grid = RecordingGrid(grid, self.note_replies)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        population = len(messages)
        all_nodes = [receiver_of(message) for message in messages]
        drawn = self._relay.drawn_nodes(server_round)
        messages = self._account.draw_clients(server_round, messages, drawn)
        self._check_requests(messages)
        nodes = {receiver_of(message) for message in messages}
        handed = codec.mechanism.handed
        if nodes and handed:
            check_round(handed, len(nodes), self.aggregation, self.sampling)
            # Rounds that a killed run asked for again are more than were planned, too.
            if server_round > handed.rounds or len(self.ledger) >= handed.rounds:
                raise self._account.make_end_of_noise(server_round, handed.rounds)
        self._round = RoundState(
            request=request,
            arrays=arrays,
            model=model,
            codec=codec,
            asked=nodes,
            request_bytes=count_config_bytes(config),
            weight_key=self.weighted_by_key,
            arrays_key=self.arrayrecord_key,
        )
        if not messages:
            return messages
        # Before anything is sent: what clients release is counted even if no reply ever arrives.
        messages = self._account.ask(server_round, release, messages, population)
        if handed:
            # The last round hands nothing over.
            last = server_round == handed.rounds
            next_nodes = [] if last else self._account.draw_next(server_round + 1, all_nodes)
            if next_nodes:
                # Before seeds are sealed to them: too many may be corrupt.
                check_round(handed, len(next_nodes), self.aggregation, self.sampling)
            self._relay.pair(server_round, release, sorted(nodes), next_nodes, grid)
        try:
            messages = self._agree_on_masks(server_round, messages, codec, grid)
        except SecureAggregationError as error:
            log(ERROR, "Secure aggregation: round %d, %s", server_round, error)
            self._round.refuse(str(error))
            self.ledger.cancel()
            return []
        if handed:
            self._relay.deliver(messages)
        return messages

    def _agree_on_masks(
        self, server_round: int, messages: list[Message], codec: UpdateCodec, grid: Grid
    ) -> list[Message]:
        """The messages to clients that take part, with what each is told of the masks."""
        self._masks.begin_round(server_round, messages, grid)
        nodes = [receiver_of(message) for message in messages]
        deliveries = self.aggregation.agree_on_masks(self._masks, codec, nodes)
        return messages if deliveries is None else with_deliveries(messages, deliveries)

    def _check_requests(self, messages: Iterable[Message]) -> None:
        # Messages often share one content object.
        for content in {id(message.content): message.content for message in messages}.values():
            if not any(is_request(config) for _, config in records_of(content, ConfigRecord)):
                raise InvalidSpecError(
                    "strategy",
                    self.strategy,
                    "does not pass the round's config on to clients, so that these cannot be told the "
                    "mechanism",
                )

    def _check_plan(self, codec: UpdateCodec) -> None:
        if self.plan is not None and codec.layout.dimension != self.plan.dimension:
            raise InvalidSpecError(
                "plan",
                MISSING,
                f"it is for {pluralize(self.plan.dimension, 'coordinate')}, the model has "
                f"{codec.layout.dimension}",
                f"plan anew with dimension={codec.layout.dimension}",
            )

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Decode the usable replies, aggregate them by the wrapped strategy, and tell the listener."""
        current = self._round
        if current is None:
            raise InvalidSpecError(
                "server_round", server_round, "is not under way: configure_train comes first"
            )
        if server_round != current.request.round:
            raise InvalidSpecError(
                "server_round", server_round, f"was not configured; the last was {current.request.round}"
            )
        received = self._check_replies(current, replies)
        if not current.asked:
            return super().aggregate_train(server_round, [])
        # Without masks that were agreed on, no client was asked to train.
        opened = AggregateResult() if current.refused else self._open(current, received)
        opened_at = time.perf_counter()
        opened = self._relay_seeds(current, opened, {node: reply for node, (_, reply) in received.items()})
        usable = [received[node][1] for node in opened.nodes]
        self.survivors[server_round] = len(usable)
        aggregated: Aggregate = (None, None)
        if usable:
            self.failed_rounds = 0
            if current.codec.votes:
                self.policy.observe_votes(current.clip_vote(opened, usable))
            plain = current.plain_replies(opened, received)
            self._failed_training.log(current, plain, len(usable))
            # The sum was decoded: its codes need not stay in memory.
            opened = replace(opened, total=None, mean=None)
            arrays, metrics = super().aggregate_train(server_round, plain)
            aggregated = None if arrays is None else current.restore_types(arrays), metrics
        self._report_round(current, usable, opened.overflowed, opened_at)
        if not usable:
            self._fail(current)
        return aggregated

    def _check_replies(
        self, current: RoundState, replies: Iterable[Message]
    ) -> dict[int, tuple[Message, Reply]]:
        """The valid replies with their messages, by node; why others are not valid is noted."""
        replies_by_node: dict[int, tuple[Message, Reply]] = {}
        for message in self.note_replies(replies):
            node = source_of(message)
            try:
                reply = current.check_reply(message)
            except PrivQuantError as error:
                current.fail(node, str(error))
            else:
                replies_by_node[node] = (message, reply)
        for allowed in {reply.allowed for _, reply in replies_by_node.values()}:
            add_names(self.uncounted, quote_names(allowed))
        self._note(current, {node: reply for node, (_, reply) in replies_by_node.items()})
        return replies_by_node

    def _open(self, current: RoundState, replies: Mapping[int, tuple[Message, Reply]]) -> AggregateResult:
        """The opened replies; empty if no sum may be opened, or if the sum must not be applied."""
        server_round, num_asked = current.request.round, len(current.asked)
        try:
            payloads = {
                node: reply.payload if (of_cohort := as_cohort_reply(message)) is None else of_cohort.update
                for node, (message, reply) in replies.items()
            }
            received = RoundReplies(payloads, current.codec, current.model, num_asked, self._masks)
            opened = self.aggregation.open(received)
            self._account.record_opened(opened, num_asked)
            opened = self.aggregation.check_sum(opened, current.codec, self._applied)
        except SecureAggregationError as error:
            log(ERROR, "Secure aggregation: round %d, %s; nothing was applied", server_round, error)
            current.refuse(str(error))
            current.names_culprit = isinstance(error, CulpritError)
            opened = AggregateResult()
        for node, reason in opened.failures.items():
            current.fail(node, reason)
        for line in failure_lines(current.failed):
            log(WARNING, "PrivQuant: round %d, %s", server_round, line)
        if current.num_silent:
            silent = pluralize(current.num_silent, "node")
            log(WARNING, "PrivQuant: round %d, %s did not reply", server_round, silent)
        if opened.overflowed:
            wrong = "so that as many coordinates of the update are wrong"
            sums = pluralize(opened.overflowed, "sum")
            log(WARNING, "PrivQuant: round %d, %s wrapped, %s", server_round, sums, wrong)
        usable = pluralize(len(opened.nodes), "usable update")
        failed = num_asked - len(opened.nodes)
        log(INFO, "PrivQuant: round %d, %s, %d failed", server_round, usable, failed)
        return opened

    def _relay_seeds(
        self, current: RoundState, opened: AggregateResult, replies: Mapping[int, Reply]
    ) -> AggregateResult:
        """Keep the seeds of handed noise for the next round, and take off the noise of lost receivers."""
        mechanism = current.codec.mechanism
        if mechanism.handed is None:
            return opened
        self._relay.keep(replies, opened.nodes)
        seeds = self._relay.open_lost(mechanism.handed, opened.nodes)
        if not seeds or opened.total is None:
            return opened
        return replace(opened, total=mechanism.take_off(opened.total, seeds), mean=None)

    def _report_round(
        self, current: RoundState, replies: list[Reply], overflowed: int | None, opened_at: float
    ) -> None:
        """Hand the record of the round to the listener, if there is one; warn of a clip that is far off."""
        share_clipped, norm_to_clip = summarize_clipping([reply.metrics for reply in replies])
        if remark := advise_clip(norm_to_clip, current.codec.encoding.l2_clip):
            log(WARNING, "PrivQuant: round %d, %s", current.request.round, remark)
        if self.on_round is None:
            return
        survivors, num_asked = len(replies), len(current.asked)
        record = RoundRecord(
            round=current.request.round,
            codec=current.codec,
            asked=num_asked,
            survivors=survivors,
            bytes_up=survivors * self.aggregation.update_bytes(current.codec, num_asked),
            bytes_down=num_asked * current.bytes_sent,
            bytes_handshake=self.aggregation.handshake_bytes(num_asked, self._masks) + self._relay.num_bytes,
            view=self.ledger.last_view,
            statements=tuple(self.statements(refine=False)),
            spent=self._account.spent(),
            share_clipped=share_clipped,
            norm_to_clip=norm_to_clip,
            overflowed_sums=overflowed,
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
        return super().configure_evaluate(
            server_round, arrays, config, RecordingGrid(grid, self.note_replies)
        )

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegate to the wrapped strategy, which weighs all clients alike."""
        weighted = add_weights(self.note_replies(replies), self.weighted_by_key)
        return super().aggregate_evaluate(server_round, weighted)

    def note_replies(self, replies: Iterable[Message]) -> list[Message]:
        """The replies of clients; what they hold in clear is named in statements from now on."""
        received = list(replies)
        for reply in received:
            if names := list_clear_names(reply):
                add_names(self.uncounted, names)
        return received

    def checkpoint_state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the ledger, what policies have learned, and what clients said."""
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
        if current.num_exhausted == len(current.asked):
            raise self._account.make_client_refusal(server_round)
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
