"""The server's side: a strategy that wraps any other, and hands it ordinary arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from logging import ERROR, INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from numpy.typing import ArrayLike, NDArray

from fl_privquant.codec.clip import checked_clip
from fl_privquant.codec.layout import Layout
from fl_privquant.codec.metric_range import MetricRange
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError, InvalidUpdateError, PrivQuantError
from fl_privquant.flower.arrays import DecodedArray, read_arrays, records_of
from fl_privquant.flower.policies import DoublingMechanism, Policy, QuantileClip
from fl_privquant.flower.protocol import RECORD_METRICS, Reply, Request, certified, is_request, with_counts
from fl_privquant.flower.target import RunTarget
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.privacy.accountant import Accountant, coordinate_statement
from fl_privquant.privacy.events import release_event
from fl_privquant.privacy.federation import FederationLedger
from fl_privquant.privacy.ledger import Budget
from fl_privquant.privacy.statement import LOCAL, PrivacyStatement, Unit, View

__all__ = ["NoUsableReplyError", "PrivQuantStrategy", "mean_metrics"]

_DEFAULT_WEIGHT_KEY = "num-examples"
_DEFAULT_ARRAYS_KEY = "arrays"
_MOST_NAMES = 100
_NAME_LENGTH = 64


# How to compute each array that a client trained.
_Decoded = Mapping[str, Callable[[], NDArray[Any]]]


class NoUsableReplyError(PrivQuantError):
    """Rounds ended without a single reply that could be aggregated."""


@dataclass
class _Round:
    """What is known of the round that is under way."""

    request: Request
    arrays: ArrayRecord
    model: dict[str, NDArray[Any]]
    codec: UpdateCodec
    asked: set[int]
    template: Message | None
    heard: set[int] = field(default_factory=set)
    exhausted: int = 0


class PrivQuantStrategy(Strategy):
    """Wraps any Flower strategy: clients send encoded updates, the wrapped strategy sees arrays.

    Every reply is checked (node, round, version, mechanism, length, range of codes); a bad one is
    dropped and logged by its node. Clients' weights are uniform: the example count that the wrapped
    strategy weighs by is replaced by 1, because weights would change the sensitivity and leak the counts.

    Guarantee: with :class:`~fl_privquant.flower.PrivQuantMod` on the clients, what the server sees of a
    client's update has the mechanism's certified privacy, for each coordinate and release (local view).
    :attr:`ledger` counts every client that was asked, whether or not it answered; each request says so, and
    clients that count more refuse it. :meth:`statements` is what all that comes to.
    :attr:`survivors` is how many clients are in each round's aggregate.
    No amplification by client sampling is counted: Flower's strategies draw a sample of fixed size, but the
    server knows who is in it, and so do all who see its messages.

    Parameters
    ----------
    strategy
        The strategy that aggregates: FedAvg, FedAvgM, FedAdam, FedProx, FedMedian, Krum, ...
    mechanism
        What encodes updates; or a function of the round that gives it, such as a policy of
        :mod:`fl_privquant.flower.policies`.
    clip
        Coordinates of updates are clipped to [-clip, clip]; or a function of the round; or a
        :class:`~fl_privquant.flower.QuantileClip`, which clients vote on.
    l2_clip
        Largest L2 norm of an update, None for any; or a function of the round.
    rotate
        Whether updates are rotated before they are clipped, so that no coordinate stands out.
    rotation_seed
        Public; each round's rotation follows from it and the round.
    report_clipping
        Whether to ask clients for the share of clipped coordinates, which they report only if
        they allow it. Not private.
    private_metrics
        Metrics that clients release through the mechanism, as coordinates that follow the update: the range
        of each by name, such as ``{"loss": (0.0, 4.0)}``. A client's value is clipped to it. They are counted
        like all coordinates, and the wrapped strategy gets unbiased estimates under the same names.
    max_failed_rounds
        How many rounds in a row may end without a usable reply before the run is stopped.
    sum_codes
        Whether to aggregate by the exact sum of the integer codes, as secure aggregation does: the
        wrapped strategy sees one reply, the mean update, and the model is the same to the last bit
        with secure aggregation and without, whatever the order of replies. Metrics are averaged
        too. It is faster, and takes the memory of one update. Not for strategies that compare single
        updates (FedMedian, Krum); mechanisms whose codes cannot be added up are aggregated as usual.
    budget
        What any client may be asked to spend over the run; for the aggregate view if secure aggregation
        wraps this strategy, else for the local one. The round that would exceed it is not begun:
        :class:`~fl_privquant.errors.BudgetExhaustedError`, with what was spent.
    delta
        At which statements are made.
    simulated
        Whether clients are known to draw from seeded streams, so that the summary says from the start
        that privacy is simulated. Otherwise it is noticed, and logged, with the first such reply.

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
        mechanism: Mechanism | Callable[[int], Mechanism],
        clip: float | Callable[[int], float],
        *,
        l2_clip: float | Callable[[int], float | None] | None = None,
        rotate: bool = False,
        rotation_seed: int = 0,
        report_clipping: bool = False,
        private_metrics: Mapping[str, tuple[float, float]] | None = None,
        max_failed_rounds: int = 0,
        sum_codes: bool = False,
        budget: Budget | None = None,
        delta: float = 1e-5,
        simulated: bool = False,
    ) -> None:
        if not 0.0 <= delta < 1.0:
            raise InvalidSpecError(f"delta: {delta} is outside [0, 1)")
        if not isinstance(strategy, Strategy):
            raise InvalidSpecError(f"strategy: {type(strategy).__name__}, expected a flwr.serverapp Strategy")
        if max_failed_rounds < 0:
            raise InvalidSpecError(f"max_failed_rounds: {max_failed_rounds} is below 0")
        if not 0 <= rotation_seed < 1 << 31:
            raise InvalidSpecError(f"rotation_seed: {rotation_seed} is outside 0..2^31 - 1")
        self.strategy = strategy
        self.mechanism = mechanism
        self.clip = clip
        self.l2_clip = l2_clip
        self.rotate = rotate
        self.rotation_seed = rotation_seed
        self.report_clipping = report_clipping
        self.private_metrics = tuple(
            MetricRange(name, *map(float, ends)) for name, ends in (private_metrics or {}).items()
        )
        if any(each.name == self.weight_key for each in self.private_metrics):
            raise InvalidSpecError(
                f"private_metrics: {self.weight_key!r} is what the wrapped strategy weighs by, and always 1; "
                f"give the metric another name in the client's app"
            )
        # Names of what clients send beside their updates, outside of all accounting.
        self.uncounted_metrics: set[str] = set()
        self.max_failed_rounds = max_failed_rounds
        self.sum_codes = sum_codes
        self.budget = budget
        self.delta = delta
        self.ledger = FederationLedger()
        self.planned_view: Callable[[int], View] = lambda num_clients: LOCAL
        # Set by who hides single updates from this strategy: mechanisms then encode for sums.
        self.only_sums = False
        self.failed_rounds = 0
        self.survivors: dict[int, int] = {}
        self.simulated = simulated
        self._round: _Round | None = None

    @classmethod
    def for_target(
        cls, strategy: Strategy, target: RunTarget, arrays: ArrayRecord, **settings: Any
    ) -> PrivQuantStrategy:
        """The strategy whose whole run meets a target, for a model of these arrays, in the secure sum.

        :meth:`SecureAggregationStrategy.for_target` does both.
        """
        dimension = Layout.of(read_arrays(arrays)).dimension
        return cls(
            strategy,
            target.mechanism(dimension),
            target.clip(dimension),
            l2_clip=target.l2_clip,
            rotate=True,
            sum_codes=True,
            budget=target.budget,
            delta=target.delta,
            **settings,
        )

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

    @property
    def codec(self) -> UpdateCodec:
        """The codec of the round that is under way."""
        return self._current().codec

    @property
    def num_updates(self) -> int:
        """How many clients are in the last round's aggregate; 0 if it failed, or before the first."""
        return next(reversed(self.survivors.values()), 0)

    @property
    def weight_key(self) -> str:
        """The metric that the wrapped strategy weighs clients by."""
        return str(getattr(self.strategy, "weighted_by_key", _DEFAULT_WEIGHT_KEY))

    def request(self, server_round: int) -> Request:
        """What clients are asked in a round."""
        mechanism = self.mechanism if isinstance(self.mechanism, Mechanism) else self.mechanism(server_round)
        if not isinstance(mechanism, Mechanism):
            raise InvalidSpecError(
                f"mechanism: the function gave {type(mechanism).__name__} for round {server_round}"
            )
        if self.only_sums:
            mechanism = mechanism.for_sums()
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

    def summary(self) -> None:
        """Log the settings, the privacy statement, and the settings of the wrapped strategy."""
        request = self.request(1)
        mechanism = certified(request.mechanism)
        per_round = (
            "changes with the round; round 1: " if callable(self.mechanism) or callable(self.clip) else ""
        )
        lines = [
            f"Mechanism: {per_round}{mechanism!r}",
            f"Bits per coordinate: {mechanism.bits_per_coordinate:g} (float32: 32)",
            f"Clip: coordinates {request.clip:g}, L2 norm {request.l2_clip or 'any'}",
            f"Rotation: {'randomized Hadamard, a new one each round' if self.rotate else 'none'}",
            f"Client weights: uniform ('{self.weight_key}' is replaced by 1)",
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
        rounds for the client that was asked most. Without ``refine`` by quick bounds, for every round.
        """
        request = self._round.request if self._round else self.request(1)
        mechanism = certified(request.mechanism)
        found = [coordinate_statement(mechanism)]
        if self._round is None or math.isinf(mechanism.epsilon):
            return found
        release = request.release(self._round.codec.layout)
        views = [LOCAL] if self.ledger.last_view.is_local else [LOCAL, self.ledger.last_view]
        for view in views:
            single = Accountant([release_event(release, self._round.codec.mechanism, view)])
            found.append(single.statement(self.delta, Unit.ROUND, refine))
        if len(self.ledger):
            found += [self.ledger.statement(self.delta, not view.is_local, refine) for view in views]
        return found

    def privacy_statement(self, refine: bool = True) -> list[str]:
        """What is promised, at each level, a line each; never a bare epsilon."""
        lines = [str(each) for each in self.statements(refine)]
        if self._round is not None and self._round.codec.votes:
            lines.append(
                f"one of the {self._round.codec.dimension} coordinates is the client's vote on the clip: if "
                f"it holds {self._round.request.clip_quantile:g} of its update"
            )
        if self.private_metrics:
            ranges = ", ".join(
                f"{each.name!r} in [{each.low:g}, {each.high:g}]" for each in self.private_metrics
            )
            lines.append(f"among the coordinates are metrics of the client, clipped to a range: {ranges}")
        if self.uncounted_metrics:
            names = ", ".join(repr(name) for name in sorted(self.uncounted_metrics))
            lines.append(
                f"not counted in any figure: clients also send {names} without protection; remove them from "
                f"PrivQuantMod's metrics and report_clipping, or ask for private_metrics"
            )
        if self.simulated:
            lines.append(
                "privacy is simulated: clients draw from seeded streams, whoever knows the seed knows all"
            )
        return lines

    def start(self, *args: Any, **keywords: Any) -> Result:
        """Run the rounds, and say what they have cost."""
        result = super().start(*args, **keywords)
        self.log_spent()
        return result

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
        codec = request.codec(Layout.of(model))
        if codec.layout.dimension == 0:
            shapes = {name: f"{each.dtype} {each.shape}" for name, each in model.items()}
            raise InvalidSpecError(f"the model has no floating-point values, nothing to encode: {shapes}")
        # A copy: the caller's config must not carry this round's request to other uses of it.
        config = ConfigRecord(dict(config))
        request.write(config)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        for message in messages:
            if not any(is_request(each) for _, each in records_of(message.content, ConfigRecord)):
                raise InvalidSpecError(
                    f"{type(self.strategy).__name__} does not pass the round's config on to clients, "
                    f"so that they cannot be told the mechanism"
                )
        asked = {message.metadata.dst_node_id for message in messages}
        template = messages[0] if messages else None
        if messages:
            release = request.release(codec.layout)
            if self.budget is not None:
                view = self.planned_view(len(asked))
                self.ledger.check(release, request.mechanism, asked, self.budget, view)
            messages = with_counts(messages, lambda node: self.ledger.count(node, release))
            # Before anything is sent: what clients release is counted even if no reply ever arrives.
            self.ledger.ask(release, request.mechanism, asked)
        self._round = _Round(request, arrays, model, codec, asked, template)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the usable replies, and aggregate them by the wrapped strategy."""
        current = self._current()
        if server_round != current.request.round:
            raise InvalidSpecError(
                f"round {server_round} was not configured; the last was {current.request.round}"
            )
        codec = current.codec
        summing = self.sum_codes and codec.mechanism.summable
        total = np.zeros(codec.dimension if summing else 0, dtype=np.int64)
        usable: list[tuple[Message, Reply, _Decoded]] = []
        failures = 0
        for message in replies:
            try:
                reply = self.checked_reply(message)
                arrays: _Decoded = {}
                if summing:
                    codec.add_codes(reply.payload, total)
                else:
                    arrays = codec.apply_on_demand(reply.payload, current.model)
                usable.append((message, reply, arrays))
            except PrivQuantError as error:
                failures += 1
                log(
                    WARNING,
                    "PrivQuant: round %d, node %d: %s",
                    server_round,
                    message.metadata.src_node_id,
                    error,
                )
        if not current.asked:
            return self.strategy.aggregate_train(server_round, [])
        silent = len(current.asked) - len(current.heard)
        if silent:
            log(WARNING, "PrivQuant: round %d, %d nodes did not reply", server_round, silent)
        log(
            INFO,
            "PrivQuant: round %d, %d usable updates, %d failed",
            server_round,
            len(usable),
            failures + silent,
        )
        if not usable:
            return self._fail(server_round, failures, silent)
        self.failed_rounds = 0
        self.survivors[server_round] = len(usable)
        if summing:
            bits = codec.mechanism.sum_bits(len(usable))
            means = mean_metrics([reply.metrics for _, reply, _ in usable])
            return self.aggregate_sum(server_round, total & ((1 << bits) - 1), len(usable), means)
        if codec.votes:
            self._move_clip(float(np.mean([codec.clip_vote(reply.payload) for _, reply, _ in usable])))
        metrics: list[Mapping[str, Any]] = [
            {**reply.metrics, **codec.metrics_of(reply.payload)} for _, reply, _ in usable
        ]
        shared = _shared_metrics(metrics)
        decoded = [
            self._as_plain_reply(message, current, arrays, {name: measured[name] for name in shared})
            for (message, _, arrays), measured in zip(usable, metrics, strict=True)
        ]
        return self._aggregate(server_round, current, decoded)

    def aggregate_sum(
        self,
        server_round: int,
        total: ArrayLike,
        num_clients: int,
        metrics: Mapping[str, Any] | None = None,
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate a *sum* of the codes of ``num_clients`` clients, as secure aggregation hands it over.

        The wrapped strategy sees one reply: the mean update. Strategies that compare clients with
        one another, such as FedMedian and Krum, cannot work on sums.
        """
        current = self._current()
        if server_round != current.request.round:
            raise InvalidSpecError(
                f"round {server_round} was not configured; the last was {current.request.round}"
            )
        if current.template is None or num_clients < 1:
            heard = len(current.heard)
            return self._fail(server_round, heard, len(current.asked) - heard)
        self.failed_rounds = 0
        self.survivors[server_round] = num_clients
        mean = current.codec.apply_sum(total, num_clients, current.model)
        if current.codec.votes:
            self._move_clip(current.codec.clip_vote_share(total, num_clients))
        arrays: _Decoded = {name: partial(np.array, each) for name, each in mean.items()}
        reply = Message(RecordDict(), reply_to=current.template)
        measured = {**(metrics or {}), **current.codec.metric_means(total, num_clients)}
        plain = self._as_plain_reply(reply, current, arrays, measured)
        return self._aggregate(server_round, current, [plain])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the wrapped strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegate to the wrapped strategy; a mechanism that depends on the loss is told."""
        metrics = self.strategy.aggregate_evaluate(server_round, replies)
        if isinstance(self.mechanism, DoublingMechanism):
            self.mechanism.observe_metrics(server_round, metrics)
        return metrics

    def checkpoint_state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the ledger, so that nothing spent is forgotten; what policies learnt."""
        return {
            "policies": {name: each.checkpoint_state() for name, each in self._policies.items()},
            "ledger": self.ledger.to_dict(),
            "failed_rounds": self.failed_rounds,
            "survivors": {str(number): count for number, count in self.survivors.items()},
            "simulated": self.simulated,
            "uncounted_metrics": sorted(self.uncounted_metrics),
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`checkpoint_state` gave."""
        self.ledger = FederationLedger.from_dict(state["ledger"])
        self.failed_rounds = int(state["failed_rounds"])
        self.survivors = {int(number): int(count) for number, count in state["survivors"].items()}
        self.simulated = bool(state["simulated"])
        self.uncounted_metrics = set(map(str, state["uncounted_metrics"]))
        for name, each in self._policies.items():
            if name not in state["policies"]:
                raise InvalidSpecError(f"{name}: the checkpoint knows nothing of its policy; begin anew")
            each.restore_state(state["policies"][name])

    @property
    def _policies(self) -> dict[str, Policy]:
        given = {"mechanism": self.mechanism, "clip": self.clip}
        return {name: each for name, each in given.items() if isinstance(each, Policy)}

    def _move_clip(self, share: float) -> None:
        # What clients were asked to vote on is the round's; the policy may have been replaced since.
        if isinstance(self.clip, QuantileClip):
            self.clip.observe(share)

    def _current(self) -> _Round:
        if self._round is None:
            raise InvalidSpecError("no round is under way: configure_train comes first")
        return self._round

    def checked_reply(self, message: Message) -> Reply:
        """The reply of a node that was asked, once, in this round; its payload is not looked into."""
        current = self._current()
        node = message.metadata.src_node_id
        if node not in current.asked:
            raise InvalidUpdateError("dropped: this node was not asked")
        if node in current.heard:
            raise InvalidUpdateError("dropped: this node has already replied")
        current.heard.add(node)
        if message.has_error():
            current.exhausted += BudgetExhaustedError.__name__ in (message.error.reason or "")
            raise InvalidUpdateError(f"replied with error {message.error.code}: {message.error.reason}")
        reply = Reply.from_content(message.content)
        if reply.round != current.request.round:
            # The reply to this round may still follow.
            current.heard.discard(node)
            raise InvalidUpdateError(f"dropped: reply to round {reply.round}, not {current.request.round}")
        if reply.mechanism != current.request.fingerprint:
            raise InvalidUpdateError(
                f"dropped: encoded by mechanism {reply.mechanism[:64]!r}, another than was asked"
            )
        self._note_simulated([reply])
        # A hostile client may send any number of names, of any length.
        self.uncounted_metrics |= {name[:_NAME_LENGTH] for name in list(reply.metrics)[:_MOST_NAMES]}
        return reply

    def _as_plain_reply(
        self,
        message: Message,
        current: _Round,
        arrays: _Decoded,
        metrics: Mapping[str, Any],
    ) -> Message:
        """The message that the wrapped strategy would have received without PrivQuant."""
        record = ArrayRecord()
        for name, each in current.arrays.items():
            # Buffers that are no floats are not sent: they keep the server's value.
            decode = arrays.get(name)
            before = current.model[name]
            record[name] = each if decode is None else DecodedArray(decode, before.dtype, before.shape)
        key = str(getattr(self.strategy, "arrayrecord_key", _DEFAULT_ARRAYS_KEY))
        weighed = MetricRecord({**metrics, self.weight_key: 1})
        message.content = RecordDict({key: record, RECORD_METRICS: weighed})
        return message

    def _aggregate(
        self, server_round: int, current: _Round, replies: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        if arrays is None:
            return arrays, metrics
        # Strategies average counters to fractions, some turn float32 to float64: the model keeps its types.
        kept = ArrayRecord()
        for name, each in arrays.items():
            before = current.arrays.get(name)
            if before is None or before.dtype == each.dtype:
                kept[name] = each
            elif name in current.codec.layout.names:
                kept[name] = Array(np.asarray(each.numpy().astype(current.model[name].dtype)))
            else:
                kept[name] = before
        return kept, metrics

    def _fail(self, server_round: int, failures: int, silent: int) -> tuple[None, None]:
        self.failed_rounds += 1
        self.survivors[server_round] = 0
        if self._current().exhausted == len(self._current().asked):
            spent = self.ledger.statement(self.delta)
            raise BudgetExhaustedError(
                f"round {server_round}: every client refuses, its own budget does not allow one more "
                f"release. Asked for so far: {spent}",
                spent,
            )
        text = (
            f"round {server_round} has no usable reply ({failures} failed, {silent} silent): round "
            f"{self.failed_rounds} in a row without one"
        )
        if self.failed_rounds > self.max_failed_rounds:
            raise NoUsableReplyError(
                f"{text}, more than max_failed_rounds={self.max_failed_rounds}; the log has the reasons"
            )
        log(ERROR, "PrivQuant: %s; the model stays as it is", text)
        return None, None

    def _note_simulated(self, replies: Iterable[Reply]) -> None:
        if not self.simulated and any(reply.simulated for reply in replies):
            self.simulated = True
            log(WARNING, "PrivQuant: privacy is simulated: clients draw from seeded streams")


def mean_metrics(metrics: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of the metrics that all clients report."""
    return {name: _mean([each[name] for each in metrics]) for name in _shared_metrics(metrics)}


def _shared_metrics(metrics: list[Mapping[str, Any]]) -> list[str]:
    """Names of the metrics that every client reports in the same form; strategies average no others."""
    first = metrics[0]
    return [
        name
        for name in first
        if all(name in each and _form(each[name]) == _form(first[name]) for each in metrics)
    ]


def _mean(values: list[Any]) -> float | list[float]:
    """The mean of metrics that clients report: of numbers, or of lists of them."""
    mean = np.mean(values, axis=0)
    return [float(each) for each in mean] if isinstance(values[0], list) else float(mean)


def _form(value: Any) -> int:
    return len(value) if isinstance(value, list) else -1
