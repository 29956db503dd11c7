"""The client's side: a Flower mod that lets only the encoded update leave the client."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Final

from flwr.app import Array, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fl_privquant import _validation
from fl_privquant.accounting.accountant import Budget
from fl_privquant.accounting.ledgers.spending_ledger import SpendingLedger
from fl_privquant.accounting.records import record_statement
from fl_privquant.accounting.release import Release
from fl_privquant.codec.array_layout import Arrays
from fl_privquant.codec.update import EncodedUpdate, UpdateCodec
from fl_privquant.errors import (
    MISSING,
    CertificationError,
    InvalidSpecError,
    InvalidUpdateError,
    PrivQuantError,
    one_line,
)
from fl_privquant.flower._flower_internals import log, make_reply
from fl_privquant.flower._messages.arrays import read_arrays, records_of
from fl_privquant.flower._messages.clear_replies import check_names, is_training, read_metrics
from fl_privquant.flower._messages.protocol import METRIC_CLIPPED, METRIC_FAILED, METRIC_NORM, Reply
from fl_privquant.flower._messages.stages import protocol_record
from fl_privquant.flower.client.ledger import ClientLedger, ParticipationLimit, resolve_ledger_path
from fl_privquant.flower.client.masking import Policy, Seal, UpdateMasking, read_delivery
from fl_privquant.flower.client.node import node_encodes, on_supernode
from fl_privquant.flower.client.record_update import (
    NotFromRecordsError,
    UnfitForRecordsError,
    read_record_sum,
)
from fl_privquant.flower.client.refusals import make_refusal
from fl_privquant.flower.client.request import ClientRequest, require_array_record
from fl_privquant.flower.client.seed_relay import prepare_codec
from fl_privquant.sampling.stream import RandomStream
from fl_privquant.secagg import ClientPolicy
from fl_privquant.statement import LOCAL

NODE_MAX_EPSILON = "privquant-max-epsilon"
NODE_MAX_DELTA = "privquant-max-delta"
NODE_BUDGET = "privquant-budget"
NODE_BUDGET_DELTA = "privquant-budget-delta"
NODE_MAX_PARTICIPATIONS = "privquant-max-participations"
NODE_SIMULATED = "privquant-simulated"

NODE_LIMITS: Final = frozenset(
    {NODE_MAX_EPSILON, NODE_MAX_DELTA, NODE_BUDGET, NODE_BUDGET_DELTA, NODE_MAX_PARTICIPATIONS}
)

_IN_CLEAR: Final = (
    "it would leave the client in clear; let single metrics pass with PrivQuantMod(metrics=[...]), or ask "
    "for private metrics of training"
)


@dataclass(frozen=True, eq=False)
class AcceptedTask:
    """A request that the client has accepted: its release is in the ledger."""

    client_request: ClientRequest
    rng: RandomStream | None
    ledger: ClientLedger
    seal: Seal
    codec: UpdateCodec
    """The codec of the request, with the seeds of handed noise where noise is correlated."""
    handed: bytes = b""
    """The seed of this client's noise for the next round."""

    @property
    def is_plain(self) -> bool:
        """Whether codes are sent as they are, without masks and without noise from other rounds."""
        return self.seal is EncodedUpdate.pack and self.codec.mechanism.handed is None


@_validation.check_argument_names
class PrivQuantMod:
    """Encodes what the client trained, within limits that the client sets itself.

    Guarantee: whatever the server sends, the replies of this client that pass through the mod are
    releases of mechanisms certified here, none with a loss above ``max_epsilon`` (and ``max_delta``)
    for a coordinate, and all together within ``budget``: whole updates, local view, counted by the
    accountant from the distributions of the mechanisms themselves. A release is in the ledger before the app
    is called, and only if the server has counted at least as many as this client.

    From then on the answer is that release, whatever happens. If a coordinate of the update is not finite,
    or the app raises, replies with an error or with other arrays than it received, zeros are encoded, and the
    reason is written to the client's log only. So neither a failure nor its text tells anything about the
    data. Refusals depend on the request, the client's limits and its ledger, never on its data, and all come
    before the app is called.

    For the whole app, ``ClientApp(mods=[PrivQuantMod(...)])``, it also covers evaluate, query and custom
    messages: of the replies to them only ``metrics`` leave the client, and without such names these messages
    are refused before the app is called. A mod of the training function alone, ``@app.train(mods=[...])``,
    does not see them.

    Assumes: secure randomness, that is no ``seed``; and that the ledger is kept. Without a file it is in the
    client's state, which Flower keeps for one run in simulation, and until a restart on a SuperNode. Several
    processes then do not share a budget. A ``ledger_file`` holds a budget over runs, restarts and processes;
    on a SuperNode there is one by default (:mod:`fl_privquant.flower.client.ledger`).

    Not covered: ``metrics`` that may pass and ``report_clipping``, which are not counted (statements of the
    run name them; private metrics of the strategy are counted); what the app logs, writes or sends itself;
    and how long the answer takes.

    Parameters
    ----------
    max_epsilon
        Largest loss that a mechanism may have for its unit: one coordinate in one release or, for mechanisms
        that encode whole updates, the client's update in one round; where a plan protects records, one record
        in one round, with the client's own noise alone. ``math.inf`` also allows mechanisms that
        protect nothing, such as ``none``.
    budget
        What may be spent over all rounds, local view: a :class:`Budget`, its epsilon alone (at delta 0), or
        None for no bound. Secure aggregation does not reduce what is counted here, as only the server says
        how many clients are in a sum: beside a plan for secure sums leave it out, or give what the plan costs
        in the local view, not its target. The budget holds whatever the server asks for. At a delta above 0,
        a server that chooses further kinds of releases by the client's answers can reach 1.01 times that
        delta (:class:`~fl_privquant.accounting.Accountant`). Several kinds are counted more cautiously than
        one, so that a budget may end earlier than the server's figures say.
    max_participations, rounds_apart
        The most rounds that the client takes part in: of all runs, where a file keeps its ledger, and
        otherwise of one run; and it takes part in at most one of ``rounds_apart`` rounds of a run in a row,
        by the server's round numbers. A plan with ``participations`` then holds even if the server lies, as
        long as the ledger is kept, as for a budget. For another run, name another file or raise the number.
    max_delta
        Largest delta for that unit; 0 allows only mechanisms of pure differential privacy.
    metrics
        Names of the app's metrics that leave the client in clear, such as "num-examples": with its updates,
        and in replies to other messages, in records that the app names. They are not private and not counted:
        none by default. The strategy's private metrics need no permission.
    report_clipping
        Whether to report the share of clipped coordinates, and the norm of the update over the L2 clip, to a
        server that asks. They depend on the data and are not private: off by default.
    seed
        Makes the codes reproducible, and privacy simulated: whoever knows the seed knows the noise.
        A number, or a function of the context that gives one or None. None: secure randomness. A seed is
        for simulations: it is refused on a SuperNode, and on a node whose configuration sets a limit, unless
        that configuration says ``privquant-simulated=true``. Do not read it from the run's configuration,
        which the server writes.
    ledger_file
        File that keeps the ledger of one client over runs, restarts and concurrent messages. With None it is,
        on a SuperNode with a budget or a number of rounds, a file in Flower's home, and elsewhere the
        client's state.
    secure_aggregation
        Whether updates leave the client masked, so that the server can open their sum only
        (:mod:`fl_privquant.secagg` has the guarantee). A train message that is not part of a secure
        aggregation is then refused, so that a server cannot turn it off. A :class:`ClientPolicy` says what
        the client insists on: the fewest clients, the fractions of them that may be corrupt or lost, and
        identity keys; a function of the context may return one; True stands for ``ClientPolicy()``. A
        SuperNode's own configuration can name the files of identity keys
        (:mod:`fl_privquant.flower.client.identity`), and takes precedence.

    Notes
    -----
    If the server delivers the app (``flwr run``), the server also chooses the limits above. The
    configuration that the node's owner writes can tighten them, and never loosen them: ``--node-config
    "privquant-max-epsilon=1.0 privquant-max-delta=1e-6 privquant-budget=500.0 privquant-budget-delta=1e-5
    privquant-max-participations=10"``. It can also name the ledger's file, whatever the app says:
    ``privquant-ledger-file='/var/lib/ledger.jsonl'``.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[PrivQuantMod(max_epsilon=1.0, budget=100_000.0)])
    >>> @app.train()
    ... def train(message, context):
    ...     ...
    """

    def __init__(
        self,
        max_epsilon: float,
        budget: Budget | float | None = None,
        *,
        max_participations: int | None = None,
        rounds_apart: int = 1,
        max_delta: float = 0.0,
        metrics: Collection[str] = (),
        report_clipping: bool = False,
        seed: int | Callable[[Context], int | None] | None = None,
        ledger_file: str | Path | None = None,
        secure_aggregation: bool | Policy = False,
    ) -> None:
        self.max_epsilon = _validation.check_in_interval("max_epsilon", max_epsilon, "(0, inf]")
        self.max_delta = _validation.check_in_interval("max_delta", max_delta, "[0, 1)")
        self.budget = budget if budget is None or isinstance(budget, Budget) else Budget(budget)
        most = (
            math.inf
            if max_participations is None
            else _validation.check_integer("max_participations", max_participations, 1)
        )
        self.participation_limit = ParticipationLimit(
            most, _validation.check_integer("rounds_apart", rounds_apart, 1)
        )
        self.metrics = check_names("metrics", metrics)
        self.report_clipping = report_clipping
        # A seed that no stream takes is refused now, and not with the first message.
        _ = None if seed is None or callable(seed) else RandomStream.seeded(seed)
        self.seed = seed
        self.ledger_file = None if ledger_file is None else Path(ledger_file)
        policy = ClientPolicy() if secure_aggregation is True else secure_aggregation
        self._masking = None if policy is False else UpdateMasking(policy)
        self._spending: dict[Path, SpendingLedger] = {}

    @property
    def masks_updates(self) -> bool:
        """Whether updates leave the client masked only, as secure aggregation needs."""
        return self._masking is not None

    def __call__(self, msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        """Refuse, or train by ``call_next`` and reply with the encoded difference."""
        if node_encodes(msg, ctxt):
            return call_next(msg, ctxt)
        if not is_training(msg):
            return self._answer(msg, lambda: call_next(msg, ctxt))
        task = self._begin(msg, ctxt)
        if isinstance(task, Message):
            return task
        return self._release(msg, task, lambda: call_next(msg, ctxt))

    def _begin(
        self, msg: Message, ctxt: Context, read: Callable[[Message], ClientRequest] = ClientRequest.read
    ) -> AcceptedTask | Message:
        """Accept a train message and count its release, or reply to one that asks for no update."""
        try:
            if self._masking is not None and (stage := protocol_record(msg)) is not None:
                return Message(self._masking.answer_stage(stage, ctxt), reply_to=msg)
            try:
                delivery = None if self._masking is None else read_delivery(msg)
                client_request = read(msg)
            except PrivQuantError as error:
                return make_refusal(msg, error, self, by_message=True)
            seal: Seal = EncodedUpdate.pack
            if self._masking is not None and delivery is not None:
                seal = self._masking.prepare(msg, delivery, client_request.codec, ctxt)
            return self._accept(client_request, seal, ctxt)
        except PrivQuantError as error:
            return make_refusal(msg, error, self)
        except Exception:
            log(WARNING, "PrivQuantMod: %s", traceback.format_exc())
            return make_refusal(msg, InvalidSpecError("request", MISSING, "it could not be handled"), self)

    def _release(self, msg: Message, task: AcceptedTask, train: Callable[[], Message]) -> Message:
        """Reply with the release that was counted, whatever happens while the app trains."""
        # From here on the app sees the data, and the answer must be the release that was just counted.
        try:
            try:
                payload, metrics = self._train_and_encode(task, train)
            except KeyboardInterrupt:
                raise
            except (NotFromRecordsError, UnfitForRecordsError) as error:
                # It is a mistake of the app, whatever the data.
                told = NotFromRecordsError(f"{error}. No update was sent, and the round is counted")
                return make_refusal(msg, told, self, by_message=True)
            except BaseException:  # a panic of an extension, or a canceled task, may depend on the data too
                log(WARNING, "PrivQuantMod: no usable update, zeros are released: %s", traceback.format_exc())
                # Whoever asks how many clients fail learns it as all else: through the mechanism.
                failed = {METRIC_FAILED: 1.0}
                nothing = task.codec.encode_zeros(task.client_request.arrays, task.rng, failed)
                payload, metrics = task.seal(nothing), {}
        except KeyboardInterrupt:
            raise
        except BaseException:
            # Encoding zeros fails only for lack of memory; then this constant text is all that leaves.
            log(WARNING, "PrivQuantMod: %s", traceback.format_exc())
            return make_refusal(msg, InvalidUpdateError("nothing could be encoded"), self)
        return self._reply(msg, task, payload, metrics)

    def _reply(self, msg: Message, task: AcceptedTask, payload: bytes, metrics: Mapping[str, Any]) -> Message:
        return make_reply(msg, self._make_reply(task, payload, metrics).to_content())

    def _make_reply(self, task: AcceptedTask, payload: bytes, metrics: Mapping[str, Any]) -> Reply:
        request = task.client_request.request
        seeded = task.rng is not None
        told = (request.round, request.fingerprint, payload, metrics, seeded, self.metrics, task.handed)
        return Reply(*told)

    def _answer(self, msg: Message, answer: Callable[[], Message]) -> Message:
        """Reply to a message that is not for training: with the metrics that may pass, and nothing else."""
        if not self.metrics:
            kind = one_line(msg.metadata.message_type, 40)
            blocked = PrivQuantError(f"no reply to {kind!r} messages: {_IN_CLEAR}")
            return make_refusal(msg, blocked, self, by_message=True)
        try:
            out = answer()
            if out.has_error():
                raise InvalidUpdateError(f"the app replied with error {out.error.code}: {out.error.reason}")
            # Of a record without such metrics not even its name leaves the client.
            records = {
                key: MetricRecord({name: value for name, value in record.items() if name in self.metrics})
                for key, record in records_of(out.content, MetricRecord)
                if not record.keys().isdisjoint(self.metrics)
            }
        except KeyboardInterrupt:
            raise
        except BaseException:
            # The app has seen the data, so that its reason must not leave the client.
            log(WARNING, "PrivQuantMod: %s", traceback.format_exc())
            failed = InvalidUpdateError("the app failed; the client's log says why")
            return make_refusal(msg, failed, self, by_message=True)
        return Message(RecordDict(dict(records)), reply_to=msg)

    def _accept(self, client_request: ClientRequest, seal: Seal, ctxt: Context) -> AcceptedTask:
        """Hold a request to the client's limits, and count its release; a refusal is raised as an error."""
        request, codec, release = client_request.request, client_request.codec, client_request.release
        self._check_limits(release, ctxt)
        rng = self._stream(ctxt, request.round)
        budgets = self._collect_budgets(ctxt)
        limit = self._participation_limit(ctxt)
        ledger = ClientLedger(ctxt, self._open_file(ctxt, bool(budgets) or limit != ParticipationLimit()))
        if terms := codec.mechanism.handed:
            limit = replace(limit, rounds_apart=max(limit.rounds_apart, terms.rounds_apart))
        masked = seal is not EncodedUpdate.pack
        relayed = client_request.relayed
        own_codec, handed = prepare_codec(codec, relayed, masked, request.round, ctxt, rng)
        ledger.spend(request.round, release, budgets, request.counted_releases, limit)
        return AcceptedTask(client_request, rng, ledger, seal, own_codec, handed)

    def _train_and_encode(
        self, task: AcceptedTask, train: Callable[[], Message]
    ) -> tuple[bytes, dict[str, Any]]:
        """The payload of what the app trains, and the metrics that may pass; raises if there is no update."""
        try:
            out = train()
        finally:
            # An app may have replaced the client's state.
            task.ledger.keep()
        if out.has_error():
            raise InvalidUpdateError(f"the app replied with error {out.error.code}: {out.error.reason}")
        client_request, codec = task.client_request, task.codec
        trained = _read_trained_arrays(out, client_request.received)
        measured = read_metrics(out)
        passed = {name: measured[name] for name in self.metrics if name in measured}
        measured[METRIC_FAILED] = 0.0
        if client_request.request.report_clipping and self.report_clipping:
            passed[METRIC_CLIPPED] = codec.clipped_fraction(trained, client_request.arrays)
            if (ratio := codec.norm_to_clip(trained, client_request.arrays)) is not None:
                passed[METRIC_NORM] = ratio
        if codec.encoding.records is None:
            update = codec.encode_difference(trained, client_request.arrays, task.rng, measured)
        else:
            record, simulated = require_array_record(out, "the app"), task.rng is not None
            record_sum = read_record_sum(record, codec.encoding.records, simulated)
            update = codec.encode_record_sum(record_sum, task.rng)
        # The last step, so that nothing can fail after it: an update must be sealed only once.
        return task.seal(update), passed

    def _check_limits(self, release: Release, ctxt: Context) -> None:
        """Hold a release to the client's limits: a coordinate's loss, or a record's in one round."""
        mechanism = release.mechanism
        bound = min(self.max_epsilon, read_node_limit(ctxt.node_config, NODE_MAX_EPSILON))
        max_delta = min(self.max_delta, read_node_limit(ctxt.node_config, NODE_MAX_DELTA))
        stated = mechanism.statement
        if release.norms.record is not None:
            stated = record_statement({release.with_view(LOCAL): 1}, max_delta)
        if not stated.epsilon <= bound:
            exceeded = f"max_epsilon {bound:g}"
        elif not stated.delta <= max_delta:
            exceeded = f"max_delta {max_delta:g}"
        else:
            return
        raise CertificationError(
            f"mechanism {mechanism.name!r} has {stated.brief}, above this client's {exceeded}"
        )

    def _collect_budgets(self, ctxt: Context) -> list[Budget]:
        """The budgets of the app and of the node's own configuration; each of them holds."""
        budgets = [] if self.budget is None else [self.budget]
        of_node = read_node_budget(ctxt.node_config)
        return budgets if of_node is None else [*budgets, of_node]

    def _participation_limit(self, ctxt: Context) -> ParticipationLimit:
        """How often the client takes part: the lower bound of the app's and the node's configuration."""
        node_limit = read_node_limit(ctxt.node_config, NODE_MAX_PARTICIPATIONS)
        most = min(self.participation_limit.max_rounds, node_limit)
        return replace(self.participation_limit, max_rounds=most)

    def _open_file(self, ctxt: Context, limited: bool) -> SpendingLedger | None:
        by_node = any(key in ctxt.node_config for key in (NODE_BUDGET, NODE_MAX_PARTICIPATIONS))
        path = resolve_ledger_path(ctxt, self.ledger_file, limited, by_node)
        if path is None:
            return None
        if path not in self._spending:
            self._spending[path] = SpendingLedger(path)
            log(INFO, "PrivQuantMod: releases are counted over all runs in %s", path)
        return self._spending[path]

    def _stream(self, ctxt: Context, number: int) -> RandomStream | None:
        seed = self.seed(ctxt) if callable(self.seed) else self.seed
        if seed is None:
            return None
        if ctxt.node_config.get(NODE_SIMULATED) is not True and (
            on_supernode() or not NODE_LIMITS.isdisjoint(ctxt.node_config)
        ):
            raise InvalidSpecError(
                "seed",
                MISSING,
                "whoever knows it knows this client's noise, so it is refused on a SuperNode and "
                "beside limits of a node",
                f"leave it out, or say {NODE_SIMULATED}=true in the configuration of a node that is "
                "simulated",
            )
        # Unlike node ids, partitions are the same on all engines and in all runs.
        client = int(ctxt.node_config.get("partition-id", ctxt.node_id))
        return RandomStream.seeded(seed, round=number, client=client)


def _read_trained_arrays(out: Message, received: Mapping[str, Array]) -> Arrays:
    record = require_array_record(out, "the app")
    if list(record) != list(received):
        missing, extra = set(received) - set(record), set(record) - set(received)
        what = (
            f"{sorted(missing)} missing, {sorted(extra)} not known"
            if missing or extra
            else "in another order"
        )
        raise InvalidUpdateError(f"update: the app's arrays are not those it received: {what}")
    return read_arrays(record)


def read_node_limit(node_config: Mapping[str, Any], key: str, default: float = math.inf) -> float:
    """A limit of the node's own configuration."""
    value = node_config.get(key)
    if value is None:
        return default
    try:
        limit = math.nan if isinstance(value, bool) else float(value)
    except ValueError:
        limit = math.nan
    if math.isnan(limit) or limit < 0.0:
        raise InvalidSpecError(key, value, "is not a number >= 0, in the node's configuration")
    return limit


def read_node_budget(node_config: Mapping[str, Any]) -> Budget | None:
    """The budget that the node's own configuration sets, if any."""
    epsilon = read_node_limit(node_config, NODE_BUDGET)
    delta = read_node_limit(node_config, NODE_BUDGET_DELTA, 0.0)
    return None if math.isinf(epsilon) else Budget(epsilon, delta)
