"""The messages between server and clients: the request in a round's config, and the reply to it.

Both travel in ordinary Flower records, so that they work in-process, on Ray and deployed. Clients do not
trust requests, and the server does not trust replies: both are checked field by field here, and whatever does
not fit is refused with a reason.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fl_privquant.accounting.release import Release
from fl_privquant.codec.array_layout import Arrays, Layout
from fl_privquant.codec.array_selection import ALL_ARRAYS, ArrayChoice
from fl_privquant.codec.encoding import Encoding, check_keep
from fl_privquant.codec.metrics import MetricRange, check_metrics
from fl_privquant.codec.record_sampling import RecordSampling
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import (
    MISSING,
    CertificationError,
    InvalidSpecError,
    InvalidUpdateError,
    PrivQuantError,
    explain_other_version,
    one_line,
)
from fl_privquant.flower._flower_internals import receiver_of, unchecked_record, values_of
from fl_privquant.flower._messages.arrays import records_of
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.privacy_loss.update_bounds import UpdateNorms

PROTOCOL_VERSION: Final = 6
"""The version of requests, replies and masks. Messages of other versions are refused."""

CODE_BUDGET_EXHAUSTED: Final = 1001
"""The code of a client's refusal for lack of budget; those of Flower itself are below 100."""

KEY_VERSION: Final = "privquant-version"
KEY_ROUND: Final = "privquant-round"
KEY_MECHANISM: Final = "privquant-mechanism"
KEY_CLIP: Final = "privquant-clip"
KEY_L2_CLIP: Final = "privquant-l2-clip"
KEY_ROTATION: Final = "privquant-rotation-seed"
KEY_KEEP: Final = "privquant-keep"
KEY_RECORDS: Final = "privquant-records"
KEY_INCLUDE: Final = "privquant-include"
KEY_EXCLUDE: Final = "privquant-exclude"
KEY_SCALE_PATTERNS: Final = "privquant-clip-scale-patterns"
KEY_SCALES: Final = "privquant-clip-scales"
KEY_CLIP_QUANTILE: Final = "privquant-clip-quantile"
KEY_METRIC_NAMES: Final = "privquant-private-metrics"
KEY_METRIC_RANGES: Final = "privquant-private-metric-ranges"
KEY_REPORT: Final = "privquant-report-clipping"
KEY_SIMULATED: Final = "privquant-simulated"
KEY_COUNTED: Final = "privquant-counted-releases"
KEY_ALLOWED: Final = "privquant-allowed-metrics"
KEY_DELIVERY: Final = "secagg-delivery"

# Without the prefix of requests, which clients of one process share.
KEY_SEED: Final = "noise-seed"
KEY_RECEIVER: Final = "noise-seed-key"

PER_CLIENT_KEYS: Final = frozenset({KEY_COUNTED, KEY_DELIVERY, KEY_SEED, KEY_RECEIVER})
"""The only entries of a train message that may differ from client to client in a secure aggregation."""

RECORD_PAYLOAD: Final = "privquant-update"
RECORD_REPLY: Final = "privquant-reply"
RECORD_METRICS: Final = "metrics"
RECORD_SECAGG: Final = "secagg"
ARRAY_PAYLOAD: Final = "payload"
METRIC_CLIPPED: Final = "privquant-clipped-share"
METRIC_FAILED: Final = "privquant-failed"
"""The private metric that PrivQuantMod sets itself: 1 if the client had no usable update, else 0."""
METRIC_NORM: Final = "privquant-norm-to-clip"
# Not numpy's format: a payload that reaches a strategy without PrivQuantStrategy must not look like a model.
STYPE_PAYLOAD: Final = "fl_privquant.payload"

_MAX_MECHANISM_BYTES: Final = 1 << 26
_CACHED_MECHANISMS: Final = 16
_CACHED_CODECS: Final = 4
_MAX_INTEGER: Final = (1 << 63) - 1
_INSTALL_THE_SAME: Final = "install the same fl-privquant on clients and server"

_T = TypeVar("_T")


@functools.lru_cache(maxsize=_CACHED_MECHANISMS)
def load_certified(blob: bytes) -> Mechanism:
    """The mechanism in ``blob``, certified here; the same bytes are certified once."""
    return Mechanism.from_bytes(blob)


def is_request(config: ConfigRecord) -> bool:
    """Whether a config holds a request, of whatever version."""
    return KEY_VERSION in config


@dataclass(frozen=True)
class Request:
    """What the server asks of a client in one round.

    Parameters
    ----------
    round
        The number of the round.
    encoding
        The mechanism, which the client certifies again, the clips, and whether updates are rotated.
    rotation_seed, clip_quantile, private_metrics
        As in :class:`~fl_privquant.codec.update.UpdateCodec`.
    arrays
        Which arrays of the model are sent, and on what scale they are clipped; others are neither read nor
        changed.
    report_clipping
        Whether the share of clipped coordinates is asked for; clients may decline.
    counted_releases
        How many releases of this kind the server has counted for the receiver so far, without this one.
        None if the server does not say.
    """

    round: int
    encoding: Encoding
    rotation_seed: int = 0
    report_clipping: bool = False
    clip_quantile: float | None = None
    private_metrics: tuple[MetricRange, ...] = ()
    arrays: ArrayChoice = ALL_ARRAYS
    # Differs from client to client, so that it is not compared: all clients of a round share a codec.
    counted_releases: int | None = field(default=None, compare=False)

    def write(self, config: ConfigRecord) -> None:
        """Put the request into a round's config."""
        config[KEY_VERSION] = PROTOCOL_VERSION
        config[KEY_ROUND] = self.round
        config[KEY_MECHANISM] = self.encoding.mechanism_bytes
        config[KEY_CLIP] = self.encoding.clip
        # A config object may serve several rounds: entries of an earlier round must not stay.
        optional = {
            KEY_L2_CLIP: self.encoding.l2_clip,
            KEY_ROTATION: self.rotation_seed if self.encoding.rotate else None,
            KEY_KEEP: self.encoding.keep,
            KEY_RECORDS: None if self.encoding.records is None else list(astuple(self.encoding.records)),
            KEY_INCLUDE: list(self.arrays.include) or None,
            KEY_EXCLUDE: list(self.arrays.exclude) or None,
            KEY_SCALE_PATTERNS: [pattern for pattern, _ in self.arrays.clip_scales] or None,
            KEY_SCALES: [scale for _, scale in self.arrays.clip_scales] or None,
            KEY_CLIP_QUANTILE: self.clip_quantile,
            KEY_METRIC_NAMES: [metric.name for metric in self.private_metrics] or None,
            KEY_METRIC_RANGES: [end for metric in self.private_metrics for end in metric.ends] or None,
            KEY_COUNTED: self.counted_releases,
        }
        for key, value in optional.items():
            config.pop(key, None)
            if value is not None:
                config[key] = value
        config[KEY_REPORT] = self.report_clipping

    @classmethod
    def read(cls, config: ConfigRecord) -> Request:
        """The request in a config that somebody sent, checked.

        Raises
        ------
        InvalidSpecError
            No request, one of another version, or a field that is missing or out of range.
        """
        if not is_request(config):
            raise InvalidSpecError(
                "config",
                MISSING,
                "the server sent no mechanism",
                "wrap its strategy in PrivQuantStrategy, or remove PrivQuantMod",
            )
        if problem := _explain_version(config[KEY_VERSION]):
            raise InvalidSpecError("protocol", MISSING, problem, _INSTALL_THE_SAME)
        number = _read_field(config, KEY_ROUND, int)
        if number < 0:
            raise InvalidSpecError("round", number, "is below 0")
        return cls(
            round=number,
            encoding=_read_encoding(config),
            rotation_seed=_read_optional(config, KEY_ROTATION, int) or 0,
            report_clipping=_read_optional(config, KEY_REPORT, bool) or False,
            clip_quantile=_read_optional(config, KEY_CLIP_QUANTILE, float),
            private_metrics=_read_metrics(config),
            arrays=_read_arrays(config),
            counted_releases=_read_optional(config, KEY_COUNTED, int),
        )

    def make_codec_and_release(self, model: Arrays) -> tuple[UpdateCodec, Release]:
        """The codec of updates of a model, and what one of them releases."""
        layout = self.layout(model)
        return self.codec(layout), self.release(layout)

    def layout(self, model: Arrays) -> Layout:
        """How those arrays of a model that are sent are laid out in one vector."""
        layout = self.arrays.layout(model)
        if layout.dimension == 0:
            sent = {name: f"{array.dtype} {array.shape}" for name, array in self.arrays.of(model).items()}
            raise InvalidSpecError(
                "arrays",
                MISSING,
                "those that are sent have no floating-point values, so there is nothing to encode: "
                f"{one_line(sent, 200)}",
            )
        return layout

    def release(self, layout: Layout) -> Release:
        """What an update of that layout releases, with its metrics and its vote on the clip."""
        codec = self.codec(layout)
        norms = UpdateNorms(l2=None if codec.l2_bound is None else codec.l2_bound / codec.clip)
        if (records := self.encoding.records) is not None:
            norms = replace(norms, record=records.norm / codec.clip, record_rate=records.rate)
        return _make_release(self.encoding.mechanism, codec.dimension, norms)

    def codec(self, layout: Layout) -> UpdateCodec:
        """The codec of this round's updates; one for all clients of a process."""
        return _make_codec(self, layout)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the mechanism, which replies repeat."""
        return self.encoding.mechanism.fingerprint


@dataclass(frozen=True)
class RelayedSeed:
    """What a request says of handed noise: see :mod:`fl_privquant.flower.client.seed_relay`."""

    sealed: bytes | None = None
    """The seed that a client of the round before handed over, sealed if codes are masked; None without."""
    receiver: bytes | None = None
    """The public key of the client that gets this client's seed; empty if seeds are not sealed. None if this
    seed goes to nobody, as in the last round."""

    @classmethod
    def read(cls, config: ConfigRecord) -> RelayedSeed:
        """What the config of a request says; raises InvalidSpecError where it is malformed."""
        return cls(_read_optional(config, KEY_SEED, bytes), _read_optional(config, KEY_RECEIVER, bytes))

    def write_to(self, content: RecordDict) -> RecordDict:
        """A copy of a message's content that says this to its receiver."""
        for key, value in ((KEY_SEED, self.sealed), (KEY_RECEIVER, self.receiver)):
            if value is not None:
                content = with_entry(content, key, value)
        return content


def with_entry(content: RecordDict, key: str, value: int | bytes) -> RecordDict:
    """A copy of a message's content with one more entry in its request; an app's own configs stay."""
    changed = RecordDict(dict(content))
    for name, config in records_of(content, ConfigRecord):
        if is_request(config):
            changed[name] = ConfigRecord({**config, key: value})
    return changed


def with_counts(messages: Iterable[Message], count_of: Callable[[int], int]) -> list[Message]:
    """The messages, each with the number of releases that the server has counted for its receiver.

    Messages may share one content object: receivers with the same number still do.
    """
    contents: dict[tuple[int, int], RecordDict] = {}
    counted_contents = []
    for message in messages:
        count = count_of(receiver_of(message))
        key = (id(message.content), count)
        if key not in contents:
            contents[key] = with_entry(message.content, KEY_COUNTED, count)
        counted_contents.append((message, contents[key]))
    for message, content in counted_contents:
        message.content = content
    return [message for message, _ in counted_contents]


def with_deliveries(messages: Iterable[Message], deliveries: Mapping[int, bytes]) -> list[Message]:
    """The messages to nodes that something is delivered to, each with what is for its receiver."""
    delivered = [message for message in messages if message.metadata.dst_node_id in deliveries]
    for message in delivered:
        delivery = deliveries[message.metadata.dst_node_id]
        message.content = with_entry(message.content, KEY_DELIVERY, delivery)
    return delivered


def message_digest(message: Message) -> bytes:
    """SHA-256 of a train message: its type, its group and every record, except :data:`PER_CLIENT_KEYS`.

    The masks of secure aggregation are derived from it: those of clients that were sent different models,
    mechanisms, clips, rounds or configurations of the app do not cancel. So a server that asks one client for
    something other than it asks of the others learns nothing from the sum.
    """
    state = hashlib.sha256(b"fl_privquant train message\0")

    def add(*parts: bytes | str) -> None:
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            state.update(len(data).to_bytes(8, "little"))
            state.update(data)

    add(message.metadata.message_type, message.metadata.group_id)
    for name, record in sorted(values_of(message.content).items()):
        entries = {
            key: value
            for key, value in record.items()
            if not (key in PER_CLIENT_KEYS and isinstance(record, ConfigRecord) and is_request(record))
        }
        is_model = isinstance(record, ArrayRecord)
        add(type(record).__name__, name, str(len(entries)))
        # Arrays stand in the order in which they are laid out.
        for key, value in entries.items() if is_model else sorted(entries.items()):
            if is_model:
                add(key, repr((value.dtype, tuple(value.shape), value.stype)), value.data)
            else:
                add(key, type(value).__name__, value if isinstance(value, bytes) else repr(value))
    return state.digest()


def common_digest(messages: Sequence[Message]) -> bytes:
    """The digest of the train message that all clients of a round are sent.

    Raises InvalidSpecError if they are sent different ones, as their masks would not cancel.
    """
    first = messages[0]
    common = _common_records(first)
    for message in messages[1:]:
        # Most messages have the very same records, which are not compared again.
        if message.content is not first.content and _common_records(message) != common:
            raise InvalidSpecError(
                "messages",
                MISSING,
                f"node {message.metadata.dst_node_id} is sent another configuration or model than "
                f"node {first.metadata.dst_node_id}, but in a secure aggregation all clients of a "
                "round must be asked for the same",
                "let clients read what differs from their own node_config",
            )
    return message_digest(first)


def _common_records(message: Message) -> dict[str, dict[str, Any]]:
    """The records of a message, without what may differ from client to client."""
    return {
        name: {key: value for key, value in record.items() if key not in PER_CLIENT_KEYS}
        for name, record in message.content.items()
    }


@functools.lru_cache(maxsize=_CACHED_CODECS)
def _make_codec(request: Request, layout: Layout) -> UpdateCodec:
    try:
        return UpdateCodec(
            layout, request.encoding, request.rotation_seed, request.clip_quantile, request.private_metrics
        )
    except PrivQuantError:
        raise
    except Exception as error:  # whatever a forged mechanism provokes is a refusal, never a crash
        reason = one_line(f"{type(error).__name__}: {error}")
        raise CertificationError(f"mechanism: malformed ({reason})") from error


@functools.lru_cache(maxsize=_CACHED_MECHANISMS)
def _make_release(mechanism: Mechanism, dimension: int, norms: UpdateNorms) -> Release:
    """The release, as one object for all clients of a process."""
    return Release(mechanism, dimension, norms=norms)


@dataclass(frozen=True)
class Reply:
    """What a client sends back in one round: the encoded update, and how it was made."""

    round: int
    mechanism: str
    """Fingerprint of the mechanism."""
    payload: bytes
    metrics: Mapping[str, Any]
    """Those of the app's metrics that the client lets pass."""
    simulated: bool
    """Whether the client's randomness was seeded, so that privacy is simulated only."""
    allowed: tuple[str, ...] = ()
    """Names of all metrics that the client lets pass in clear, in replies to whatever message."""
    handed: bytes = b""
    """The seed of handed noise for a client of the next round, sealed if codes are masked; empty without."""

    def to_content(self) -> RecordDict:
        """The content of the reply message."""
        payload = Array("uint8", (len(self.payload),), STYPE_PAYLOAD, self.payload)
        info: dict[str, Any] = {
            KEY_VERSION: PROTOCOL_VERSION,
            KEY_ROUND: self.round,
            KEY_MECHANISM: self.mechanism,
            KEY_SIMULATED: self.simulated,
        }
        if self.allowed:
            info[KEY_ALLOWED] = list(self.allowed)
        if self.handed:
            info[KEY_SEED] = self.handed
        content = {
            RECORD_PAYLOAD: unchecked_record(ArrayRecord, {ARRAY_PAYLOAD: payload}),
            RECORD_REPLY: unchecked_record(ConfigRecord, info),
        }
        if self.metrics:
            # These are the app's own values, which Flower checks.
            content[RECORD_METRICS] = MetricRecord(dict(self.metrics))
        return unchecked_record(RecordDict, content)

    @classmethod
    def from_content(cls, content: RecordDict) -> Reply:
        """The reply in the content of a message, checked; the payload is not looked into.

        Raises
        ------
        InvalidUpdateError
            Not a reply of this version.
        """
        records = values_of(content)
        info, arrays = records.get(RECORD_REPLY), records.get(RECORD_PAYLOAD)
        if (
            not isinstance(info, ConfigRecord)
            or not isinstance(arrays, ArrayRecord)
            or list(arrays) != [ARRAY_PAYLOAD]
        ):
            raise InvalidUpdateError(
                "reply: holds no encoded update; add PrivQuantMod to the client's ClientApp(mods=[...])"
            )
        if problem := _explain_version(info.get(KEY_VERSION)):
            raise InvalidUpdateError(f"reply: protocol: {problem}; {_INSTALL_THE_SAME}")
        metrics, fields = records.get(RECORD_METRICS), values_of(info)
        reported = metrics.items() if isinstance(metrics, MetricRecord) else ()
        try:
            return cls(
                round=_read_field(fields, KEY_ROUND, int),
                mechanism=_read_field(fields, KEY_MECHANISM, str),
                payload=arrays[ARRAY_PAYLOAD].data,
                metrics={name: value for name, value in reported if _is_number(value)},
                simulated=_read_field(fields, KEY_SIMULATED, bool),
                allowed=tuple(map(str, _read_optional(fields, KEY_ALLOWED, list) or ())),
                handed=_read_optional(fields, KEY_SEED, bytes) or b"",
            )
        except InvalidSpecError as error:
            raise InvalidUpdateError(f"reply: {error}") from error


def _explain_version(version: object) -> str | None:
    """Why a message of another version is refused; None for this version."""
    if version == PROTOCOL_VERSION and not isinstance(version, bool):
        return None
    return explain_other_version(version, PROTOCOL_VERSION)


def _read_field(config: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    value = config.get(key)
    if type(value) is kind and kind is not int:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        # Flower sends integers of at most this width; within a process they could be of any size.
        if not -_MAX_INTEGER <= value <= _MAX_INTEGER:
            raise InvalidSpecError(
                key, MISSING, f"an integer of {value.bit_length()} bits, expected at most 63"
            )
        value = float(value) if kind is float else value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidSpecError(key, value, f", expected {kind.__name__}")
    return value


def _read_optional(config: Mapping[str, Any], key: str, kind: type[_T]) -> _T | None:
    return _read_field(config, key, kind) if key in config else None


def _read_encoding(config: Mapping[str, Any]) -> Encoding:
    blob = _read_field(config, KEY_MECHANISM, bytes)
    if len(blob) > _MAX_MECHANISM_BYTES:
        raise InvalidSpecError("mechanism", MISSING, f"{len(blob)} bytes, more than {_MAX_MECHANISM_BYTES}")
    clip, l2_clip = _read_field(config, KEY_CLIP, float), _read_optional(config, KEY_L2_CLIP, float)
    keep = check_keep(config[KEY_KEEP]) if KEY_KEEP in config else None
    records = _read_records(config)
    rotate = KEY_ROTATION in config
    return Encoding(load_certified(blob), clip, l2_clip, rotate, keep, records)


def _read_records(config: Mapping[str, Any]) -> RecordSampling | None:
    values = _read_optional(config, KEY_RECORDS, list)
    if values is None:
        return None
    if len(values) != len(fields(RecordSampling)) or not all(isinstance(value, float) for value in values):
        raise InvalidSpecError(KEY_RECORDS, values, "is not a clip, a rate and a divisor")
    return RecordSampling(*values)


def _read_arrays(config: Mapping[str, Any]) -> ArrayChoice:
    keys = (KEY_INCLUDE, KEY_EXCLUDE, KEY_SCALE_PATTERNS, KEY_SCALES)
    include, exclude, patterns, scales = (_read_optional(config, key, list) or [] for key in keys)
    if len(patterns) != len(scales):
        raise InvalidSpecError(
            KEY_SCALES, MISSING, f"{len(scales)} factors for {len(patterns)} patterns, expected one for each"
        )
    return ArrayChoice(include, exclude, list(zip(patterns, scales, strict=True)))


def _read_metrics(config: Mapping[str, Any]) -> tuple[MetricRange, ...]:
    names = _read_optional(config, KEY_METRIC_NAMES, list) or []
    ends = _read_optional(config, KEY_METRIC_RANGES, list) or []
    if len(ends) != 2 * len(names) or not all(isinstance(name, str) for name in names):
        raise InvalidSpecError(
            KEY_METRIC_NAMES,
            MISSING,
            f"{len(names)} names and {len(ends)} ends of ranges, expected two for each",
        )
    if not all(isinstance(end, float) for end in ends):
        raise InvalidSpecError(KEY_METRIC_RANGES, MISSING, "not all ends are floats")
    pairs = zip(ends[::2], ends[1::2], strict=True)
    metrics = tuple(MetricRange(name, low, high) for name, (low, high) in zip(names, pairs, strict=True))
    check_metrics(metrics)
    return metrics


def _is_number(value: Any) -> bool:
    """Whether a metric is a finite number of the size that Flower sends, or a list of them."""
    values = value if isinstance(value, list) else [value]
    return all(
        math.isfinite(value) if isinstance(value, float) else abs(value) <= _MAX_INTEGER for value in values
    )
