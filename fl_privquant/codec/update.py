"""The codec of whole updates: named arrays to one payload, and payloads or their sums back to arrays.

The steps on the client, which the server reverses: flatten (each array on its scale, if it has one), clip the
L2 norm (optional), rotate (optional), keep some coordinates and clip their norm (optional), clip each
coordinate, encode, and pack (:mod:`fl_privquant.packing.wire_format`) or mask (:mod:`fl_privquant.secagg`).

**Lossless.** Mechanism ``none`` changes nothing, but taking a difference does: in floating point ``(new -
old) + old`` is not ``new``. So where nothing else would be lost (``none``, no L2 clip, no rotation) the
payload carries the trained arrays themselves, each in its own type: :attr:`UpdateCodec.carries_difference` is
False, and the mean of decoded updates is the mean that plain federated averaging computes, bit for bit.

**The vote.** With ``clip_quantile`` q one more coordinate follows those of the update: +clip if the clip
is wide enough, else -clip. It is wide enough if the norm of the update is within the L2 clip or, where there
is no L2 clip, if a share q of the coordinates is within the clip. The vote is one more release of the same
certified loss. It decodes without bias to the share of clients for which the clip is wide enough, by which
the server adapts the clip.

**Private metrics.** In the same way each of ``private_metrics`` is one more coordinate, before the vote: the
client's value, clipped to a range and scaled to [-clip, clip]. In large updates it is several coordinates
(:func:`~fl_privquant.codec.encoding.metric_repeats`), of which the mean is taken.

**Nothing to send.** A client without a usable update (it is not finite, or the app failed) encodes a vector
of zeros, vote included, with the metrics that are known: :meth:`UpdateCodec.encode_zeros`. The payload has
the same form and the same privacy as any other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from fl_privquant._array_types import Array, ArrayLike, Ints
from fl_privquant.codec._clip import check_clips, clip_l2, clipped_fraction
from fl_privquant.codec._coordinate_subset import Subset
from fl_privquant.codec._rotation import Rotation
from fl_privquant.codec.array_layout import Arrays, Layout
from fl_privquant.codec.encoding import Encoding, metric_repeats
from fl_privquant.codec.metrics import NO_METRICS, MetricRange, check_metrics
from fl_privquant.codec.record_sampling import RecordSum
from fl_privquant.errors import MISSING, InvalidSpecError, InvalidUpdateError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.modular_sum import SumRing
from fl_privquant.packing.wire_format import WireFormat, check_finite
from fl_privquant.privacy_loss.composition.compose import UpdateNorm
from fl_privquant.sampling.chunks import LazyVector, check_finite_inputs
from fl_privquant.sampling.row_stream import RowStream
from fl_privquant.sampling.stream import Randomness, RandomStream

_Vector = Array | LazyVector

# An update of this many times the norm bound is scaled down before it is rotated.
_FAR_OUTSIDE: Final = 16.0
# Updates of so many coordinates together stay in a core's cache while they are prepared.
_CACHED: Final = 1 << 17


@dataclass(frozen=True, eq=False)
class EncodedUpdate:
    """An update after the mechanism: private, and not yet packed or masked.

    ``drawn`` is the output of the mechanism, or the trained arrays themselves where nothing is encoded.
    """

    codec: UpdateCodec
    drawn: Array | Arrays

    def pack(self) -> bytes:
        """The payload, of :attr:`UpdateCodec.num_bytes` bytes."""
        if isinstance(self.drawn, np.ndarray):
            return self.codec.wire.pack(self.drawn)
        return self.codec.layout.pack(self.drawn)

    def codes(self) -> Ints:
        """The integers that can be added up over clients, as secure aggregation needs."""
        self.codec.check_summable()
        return self.codec.wire.codes(np.asarray(self.drawn))

    def add_codes(self, total: Ints) -> None:
        """Add the :meth:`codes` to a vector, in place."""
        self.codec.check_summable()
        self.codec.wire.add_drawn(np.asarray(self.drawn), total)


@dataclass(frozen=True)
class UpdateCodec:
    """Turns the update of one client into a payload, and payloads or sums of codes into updates.

    >>> import fl_privquant as pq
    >>> update = {"weight": np.array([[0.3, -0.2]], dtype=np.float32), "bias": np.array(0.1)}
    >>> encoding = Encoding(pq.design("one_bit", epsilon=2.0), clip=0.5)
    >>> codec = UpdateCodec(Layout.of(update), encoding)
    >>> payload = codec.encode(update, pq.RandomStream.seeded(1))
    >>> len(payload), {name: array.shape for name, array in codec.decode(payload).items()}
    (17, {'weight': (1, 2), 'bias': ()})
    """

    layout: Layout
    """Names, shapes and types of the arrays of an update."""
    encoding: Encoding
    """The mechanism, whose guarantee each coordinate has, the clips, the rotation, and how much is kept."""
    rotation_seed: int = 0
    """Public seed of this round's rotation, if there is one, and of which coordinates are kept."""
    clip_quantile: float | None = None
    """The share of coordinates that should lie within the clip, on which clients vote; with an L2 clip they
    vote on the norm instead. None: no vote."""
    private_metrics: tuple[MetricRange, ...] = ()
    """Metrics that follow the update, each with the range that it is clipped to."""

    def __post_init__(self) -> None:
        if self.clip_quantile is not None and not 0.0 < self.clip_quantile <= 1.0:
            raise InvalidSpecError("clip_quantile", self.clip_quantile, "is outside (0, 1]")
        check_clips(self.clip, self.encoding.l2_clip, self.layout.dimension, self.layout.dtype)
        for scale in set(self.layout.scales):
            check_clips(self.clip * scale, None, self.layout.dimension, self.layout.dtype)
        check_metrics(self.private_metrics)
        if self.encoding.records is not None and (self.num_extra or self.layout.scales):
            raise InvalidSpecError(
                "private_metrics, clip_quantile, arrays",
                MISSING,
                problem="given, but a plan for records protects nothing that is not a sum of clipped records",
                remedy="leave out private metrics, votes on the clip, and scales of single arrays",
            )
        # Mechanisms for whole updates are made for one number of coordinates, that of the layout.
        bound = self.encoding.with_mechanism(self.mechanism.for_dimension(self.dimension))
        object.__setattr__(self, "encoding", bound)
        if self.num_extra and self.mechanism.encodes_whole_updates:
            key = "clip_quantile" if self.votes else "private_metrics"
            raise InvalidSpecError(
                key,
                self.mechanism.name,
                "spends one epsilon on a whole update, so that a single coordinate is mostly noise",
                "use a mechanism for single coordinates, or leave it out",
            )
        whole = self.mechanism.encodes_whole_updates
        if self.encoding.keep is not None and whole and self.mechanism.norm is not UpdateNorm.L2:
            raise InvalidSpecError(
                "keep",
                self.encoding.keep,
                f", but {self.mechanism.name} encodes whole updates of bounded coordinates",
                "leave it out, or use a mechanism for single coordinates or for L2 norms",
            )
        # The wire format is made now, so that an impossible one is refused here, not with the first update.
        _ = self.wire

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that encodes updates of this layout."""
        return self.encoding.mechanism

    @property
    def clip(self) -> float:
        """Coordinates are clipped to [-clip, clip], or whole updates to that norm."""
        # A mechanism for L2 norms that encodes a part of an update need not allow for the norm of all of it.
        clip, bound = self.encoding.clip, self.encoding.l2_bound(self.layout.dimension)
        whole = self.encoding.keep is not None and self.mechanism.norm is UpdateNorm.L2
        return clip if bound is None or not whole else min(clip, bound)

    @cached_property
    def wire(self) -> WireFormat:
        """How the mechanism's outputs are written."""
        return self.mechanism.wire_format(self.dimension, self.clip, self.layout.dtype)

    @property
    def dimension(self) -> int:
        """Number of coordinates that are encoded, with metrics and vote: each is one release."""
        return self.kept + self.num_extra

    @cached_property
    def kept(self) -> int:
        """Number of coordinates of the update that are encoded: all of them, or those that are kept."""
        return self.encoding.count_kept(self.layout.dimension)

    @property
    def num_extra(self) -> int:
        """Number of coordinates that follow the update: private metrics, then the vote."""
        return len(self.private_metrics) * self._repeats + self.votes

    @cached_property
    def _repeats(self) -> int:
        return metric_repeats(self.kept)

    @cached_property
    def votes(self) -> bool:
        """Whether a vote on the clip follows the update; where nothing is clipped there is none."""
        return self.clip_quantile is not None and self.carries_difference

    @property
    def l2_bound(self) -> float | None:
        """Largest L2 norm of the coordinates that are encoded, with metrics and vote; None if unbounded."""
        bound = self.encoding.l2_bound(self.layout.dimension)
        if bound is None or not self.num_extra:
            return bound
        return math.hypot(bound, math.sqrt(self.num_extra) * self.clip)

    @cached_property
    def carries_difference(self) -> bool:
        """Whether payloads hold the difference to the model, or the trained arrays themselves."""
        # The mechanism's name does not count, because the sender chose it: a forged name would make clients
        # send plain updates.
        plain = self.encoding.l2_clip is None and not self.encoding.rotate and not self.private_metrics
        return not (self.mechanism.lossless and plain)

    @cached_property
    def num_bytes(self) -> int:
        """Size of every payload: it depends on the layout and the mechanism, never on the data."""
        return self.wire.num_bytes if self.carries_difference else self.layout.payload_bytes

    def encode(
        self,
        update: Arrays,
        rng: Randomness = None,
        metrics: Mapping[str, Any] = NO_METRICS,
    ) -> bytes:
        """The payload of an update given as arrays; ``rng=None`` draws secure randomness.

        The ``metrics`` that :attr:`private_metrics` names are encoded with it; one that is missing, or is not
        a number, counts as the middle of its range.
        """
        if not self.carries_difference:
            return self.layout.pack(self._check_arrays(update))
        return self._encode_vector(self.layout.flatten(update), rng, metrics).pack()

    def encode_difference(
        self,
        new: Arrays,
        old: Arrays,
        rng: Randomness = None,
        metrics: Mapping[str, Any] = NO_METRICS,
    ) -> EncodedUpdate:
        """The step from ``old`` to ``new`` arrays, encoded; otherwise as :meth:`encode`."""
        if not self.carries_difference:
            return EncodedUpdate(self, self._check_arrays(new))
        return self._encode_vector(self.layout.difference(new, old), rng, metrics)

    def encode_record_sum(self, update: RecordSum, rng: Randomness = None) -> EncodedUpdate:
        """An update that was made from single records, encoded; otherwise as :meth:`encode`.

        It is rotated in double precision, so that what rounding does to it is nothing next to the part of a
        record (:data:`~fl_privquant.privacy_loss.sums.gaussian_bound.NORM_ROUNDING` allows for much more).
        """
        self.layout.check(update.arrays)
        parts = [np.asarray(update.arrays[name], dtype=np.float64).ravel() for name in self.layout.names]
        return self._encode_vector(np.concatenate(parts), rng, NO_METRICS)

    def encode_differences(
        self, new: Arrays, old: Arrays, rngs: Sequence[Randomness]
    ) -> list[EncodedUpdate] | None:
        """The steps of several clients from ``old`` arrays, each as :meth:`encode_difference` encodes it.

        Parameters
        ----------
        new
            The arrays of all clients by name, each with the clients as its first axis.
        old
            The arrays that the clients started from.
        rngs
            The random stream of each client.

        Returns
        -------
        list of EncodedUpdate or None
            None where updates have to be encoded one by one: with metrics or a vote, for updates made from
            single records, or if one of the updates is not finite.
        """
        if not self.carries_difference or self.num_extra or self.encoding.records is not None:
            return None
        if any(len(new[name]) != len(rngs) for name in self.layout.names):
            raise InvalidUpdateError(f"updates: not of {len(rngs)} clients, as many as random streams")
        parts = []
        together = max(1, _CACHED // max(self.layout.dimension, 1))
        for first in range(0, len(rngs), together):
            chosen = {name: new[name][first : first + together] for name in self.layout.names}
            steps = self.layout.stacked_differences(chosen, old)
            if not np.isfinite(steps).all():
                return None
            parts.append(self._transform(steps))
        prepared = np.concatenate(parts)
        if not self.mechanism.encodes_coordinates_alone or len(prepared) == 1:
            return [self._draw_output(row, rng) for row, rng in zip(prepared, rngs, strict=True)]
        streams = [RandomStream.secure() if rng is None else rng for rng in rngs]
        drawn = self.mechanism.encode(prepared, clip=self.clip, rng=RowStream(streams, self.dimension))
        return [EncodedUpdate(self, codes) for codes in drawn]

    def encode_zeros(
        self,
        old: Arrays,
        rng: Randomness = None,
        metrics: Mapping[str, Any] = NO_METRICS,
    ) -> EncodedUpdate:
        """The encoded zeros that a client without a usable update sends, with metrics and vote."""
        if not self.carries_difference:
            return EncodedUpdate(self, old)
        vector = np.zeros(self.dimension, dtype=self.layout.dtype)
        vector[self._metric_places] = self._metric_positions(metrics)
        return self._draw_output(vector, rng)

    def prepare(self, update: Arrays) -> Array:
        """The input of the mechanism for an update, without metrics and vote. It is data, and not private."""
        return np.asarray(self._prepare(self.layout.flatten(update)))

    def clipped_fraction(self, new: Arrays, old: Arrays) -> float:
        """The share of coordinates that the coordinate clip changes. It depends on the data: not private."""
        return clipped_fraction(np.asarray(self._prepare(self.layout.difference(new, old))), self.clip)

    def norm_to_clip(self, new: Arrays, old: Arrays) -> float | None:
        """The L2 norm of the step over the L2 clip, None without one. It depends on the data: not private."""
        if self.encoding.l2_clip is None:
            return None
        step = np.asarray(self.layout.difference(new, old))
        return float(np.linalg.norm(step)) / self.encoding.l2_clip

    def decode(self, payload: bytes) -> dict[str, Array]:
        """The estimated update in a payload, as arrays; see :attr:`carries_difference`."""
        if not self.carries_difference:
            return self.layout.unpack(payload)
        return self._restore(self.wire.estimate(payload))

    def clip_vote(self, payload: bytes) -> float:
        """The vote in a payload: on average 1 if the clip is wide enough for the client, and else 0."""
        self._check_votes()
        return 0.5 + 0.5 * float(self.wire.estimate(payload)[-1]) / self.clip

    def clip_vote_fraction(self, total: ArrayLike, num_clients: int) -> float:
        """The share of clients that voted for the clip, unbiased, from the sum of their :meth:`codes`."""
        self._check_votes()
        last = np.asarray(total)[-1:]
        return 0.5 + 0.5 * float(self.mechanism.decode_sum(last, num_clients, self.clip)[0]) / self.clip

    def decode_metrics(self, payload: bytes) -> dict[str, float]:
        """One client's private metrics from its payload, unbiased within their ranges."""
        if not self.private_metrics:
            return {}
        return self._metric_values(self.wire.estimate(payload)[self._metric_places] / self.clip)

    def decode_metric_means(self, total: ArrayLike, num_clients: int) -> dict[str, float]:
        """The means of private metrics over clients, unbiased, from the sum of their :meth:`codes`."""
        if not self.private_metrics:
            return {}
        sums = np.asarray(total)[self._metric_places]
        return self._metric_values(self.mechanism.decode_sum(sums, num_clients, self.clip) / self.clip)

    @property
    def _metric_places(self) -> slice:
        first = self.kept
        return slice(first, first + len(self.private_metrics) * self._repeats)

    def metric_error(self, metric: MetricRange, num_clients: int) -> float:
        """The standard error of a metric's mean over clients, on average over the values in its range."""
        variance = self.mechanism.mse() / (num_clients * self._repeats)
        return 0.5 * (metric.high - metric.low) * math.sqrt(variance)

    def _metric_positions(self, metrics: Mapping[str, Any]) -> Array:
        positions = [metric.position(metrics.get(metric.name)) for metric in self.private_metrics]
        return self.clip * np.repeat(positions, self._repeats)

    def _metric_values(self, positions: Array) -> dict[str, float]:
        means = positions.reshape(-1, self._repeats).mean(axis=1)
        return {
            metric.name: metric.value(float(mean))
            for metric, mean in zip(self.private_metrics, means, strict=True)
        }

    def _check_votes(self) -> None:
        if not self.votes:
            raise InvalidSpecError("clip_quantile", None, ", so that clients did not vote on the clip")

    def apply(self, payload: bytes, old: Arrays) -> dict[str, Array]:
        """The estimated new arrays, ``old`` plus the update, in their own types."""
        decoded = self.decode(payload)
        if not self.carries_difference:
            return decoded
        return self.add_update(decoded, old)

    def apply_on_demand(self, payload: bytes, old: Arrays) -> dict[str, Callable[[], Array]]:
        """The arrays of :meth:`apply`, each computed whenever it is read.

        The payload is checked now. Until it is read it takes less memory than its arrays.
        """
        add = self.wire.on_demand(payload) if self._can_add_directly else None
        if add is None:
            arrays = self.apply(payload, old)
            return {name: functools.partial(np.array, array) for name, array in arrays.items()}
        return {
            name: functools.partial(add, place, old[name])
            for name, place in zip(self.layout.names, self.layout.places, strict=True)
        }

    @cached_property
    def _can_add_directly(self) -> bool:
        """Whether decoded values are what is added to the model, in its own type and order."""
        layout = self.layout
        plain = set(layout.dtypes) == {layout.dtype} and not layout.scales
        return self.carries_difference and not self.encoding.rotate and plain

    def check_summable(self) -> None:
        """Raise InvalidSpecError unless codes of several clients can be added up."""
        if not self.mechanism.summable:
            raise InvalidSpecError(
                "mechanism",
                self.mechanism.name,
                "has codes that cannot be summed",
                "choose another mechanism",
            )

    def sum_ring(self, num_clients: int, exact: bool = False) -> SumRing:
        """The ring in which the codes of at most ``num_clients`` clients are added up.

        It is as narrow as the sum of honest codes allows (:mod:`fl_privquant.mechanisms.modular_sum`), or
        holds all sums of codes where they must be ``exact``.
        """
        mechanism = self.mechanism
        if exact:
            return SumRing(mechanism.sum_bits(num_clients), mechanism.max_code)
        return mechanism.sum_ring(num_clients, self.dimension)

    def codes(self, payload: bytes) -> Ints:
        """The integers of a payload that can be added up over clients."""
        self.check_summable()
        return self.wire.codes(self.wire.unpack(payload))

    def add_codes(self, payload: bytes, total: Ints) -> None:
        """Add the :meth:`codes` of a payload to a vector, in place; a bad payload adds nothing."""
        self.check_summable()
        self.wire.add_codes(payload, total)

    def decode_sum(self, total: ArrayLike, num_clients: int) -> dict[str, Array]:
        """The mean update from the sum of the :meth:`codes` of ``num_clients`` clients, as arrays."""
        sums = np.asarray(total)
        if sums.shape != (self.dimension,):
            raise InvalidUpdateError(f"sum of codes: shape {sums.shape}, expected ({self.dimension},)")
        # Without a local name, so that the float64 array is freed before the vector is rotated.
        return self._restore(
            self.mechanism.decode_sum(sums, num_clients, self.clip).astype(self.layout.dtype, copy=False)
        )

    @cached_property
    def _rotation(self) -> Rotation | None:
        return Rotation(self.layout.dimension, self.rotation_seed) if self.encoding.rotate else None

    @cached_property
    def _subset(self) -> Subset | None:
        if self.encoding.keep is None:
            return None
        return Subset(self.layout.dimension, self.kept, self.rotation_seed)

    def _prepare(self, vector: _Vector) -> _Vector:
        """The vector after the stages before the coordinate clip; an array is changed in place."""
        if self.encoding.l2_clip is None and self._rotation is None:
            return vector
        prepared = np.asarray(vector)
        # Mechanisms refuse what is not finite, but the rotation would spread one NaN over all coordinates.
        check_finite_inputs(prepared)
        return self._transform(prepared)

    def _transform(self, prepared: Array) -> Array:
        """Clip the norm of a vector or of each row of a matrix, rotate it, and keep some coordinates."""
        l2_clip = self.encoding.l2_clip
        if l2_clip is not None:
            # Where only some coordinates are kept, their norm is clipped after the rotation; before it, a far
            # larger clip keeps sums in the rotation from overflowing.
            clip_l2(prepared, l2_clip if self._subset is None else _FAR_OUTSIDE * l2_clip)
        if self._rotation is not None:
            self._rotation.forward(prepared)
        if self._subset is not None:
            prepared = self._subset.take(prepared)
            clip_l2(prepared, self.encoding.l2_bound(self.layout.dimension) or 0.0)
        return prepared

    def _encode_vector(self, vector: _Vector, rng: Randomness, metrics: Mapping[str, Any]) -> EncodedUpdate:
        l2_clip = self.encoding.l2_clip
        if self.votes and l2_clip is not None:
            vector = np.asarray(vector)
            wide_enough = float(np.linalg.norm(vector)) <= l2_clip
        prepared = self._prepare(vector)
        if self.num_extra:
            coordinates = np.asarray(prepared)
            extra = self._metric_positions(metrics)
            if self.votes and self.clip_quantile is not None:
                if l2_clip is None:
                    wide_enough = 1.0 - clipped_fraction(coordinates, self.clip) >= self.clip_quantile
                extra = np.append(extra, self.clip if wide_enough else -self.clip)
            prepared = np.append(coordinates, extra.astype(coordinates.dtype))
        return self._draw_output(prepared, rng)

    def _draw_output(self, vector: _Vector, rng: Randomness) -> EncodedUpdate:
        return EncodedUpdate(self, self.mechanism.encode(vector, clip=self.clip, rng=rng))

    def _restore(self, vector: Array) -> dict[str, Array]:
        vector = vector[: self.kept]
        if self._subset is not None:
            vector = self._subset.restore(vector)
        if self._rotation is not None:
            vector = np.ascontiguousarray(vector)
            self._rotation.backward(vector)
        return self.layout.unflatten(vector)

    def add_update(self, update: Arrays, old: Arrays) -> dict[str, Array]:
        """The new arrays that a decoded update makes of ``old``, in their own types."""
        return {
            name: np.asarray(np.add(old[name], update[name], dtype=self.layout.dtype)).astype(
                dtype, copy=False
            )
            for name, dtype in zip(self.layout.names, self.layout.dtypes, strict=True)
        }

    def _check_arrays(self, arrays: Arrays) -> Arrays:
        self.layout.check(arrays)
        for name in self.layout.names:
            check_finite(arrays[name])
        return arrays
