"""The codec of whole updates: named arrays to one payload, and payloads or their sums back to arrays.

In order on the client, and reversed on the server: flatten, clip the L2 norm (optional), rotate
(optional), clip each coordinate, encode, pack. What the mechanism gives decides the payload:

* indices of up to 65536 levels, packed at their fixed width (:mod:`fl_privquant.codec.pack`);
* other integers, as codes of ``sum_bits(1)`` bits;
* the few integers that a mechanism for whole updates makes of one, at its own width;
* floating-point numbers (mechanisms without a quantizer), as they are, little-endian.

**Lossless.** Mechanism ``none`` changes nothing, but a difference does: in floating point ``(new - old)
+ old`` is not ``new``. So where nothing would be lost (``none``, no L2 clip, no rotation) the payload
carries the trained arrays themselves, each in its own type: :attr:`UpdateCodec.carries_difference` is
False, and the mean of decoded updates is the mean that plain federated averaging computes, bit for bit.

**The vote.** With ``clip_quantile`` q one more coordinate follows those of the update: +clip if the clip
holds at least a share q of them, else -clip. It is encoded by the same mechanism, so it is one more release
of the same certified loss, is added up as all others are, and decodes without bias to the share of clients
for which the clip is wide enough: what a server needs to move the clip.

**Private metrics.** In the same way each of ``private_metrics`` is one more coordinate, before the vote: the
client's value, clipped to a range and scaled to [-clip, clip]. It decodes without bias to the client's value,
or to the mean over clients.

**Nothing to send.** A client without a usable update (it is not finite, or the app failed) encodes a vector
of zeros, vote and metrics included: :meth:`UpdateCodec.encode_nothing`. The payload has the same form and the
same privacy as any other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant.codec.clip import check_clips, checked_clip, clip_l2, clipped_share
from fl_privquant.codec.layout import Arrays, Layout
from fl_privquant.codec.metric_range import NO_METRICS, MetricRange, checked_metrics
from fl_privquant.codec.pack import (
    HEADER_BYTES,
    check_range,
    pack_codes,
    pack_indices,
    packed_size,
    read_body,
    unpack_codes,
    unpack_indices,
    write_header,
)
from fl_privquant.codec.rotate import Rotation
from fl_privquant.errors import CodeOverflowError, InvalidSpecError, InvalidUpdateError
from fl_privquant.law.codebook import MAX_LEVELS
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.sampling.chunks import LazyVector
from fl_privquant.sampling.stream import RandomStream

__all__ = ["UpdateCodec"]

_Vector = NDArray[Any] | LazyVector

# Beside the kinds of fl_privquant.codec.pack: floating-point numbers that no mechanism quantized.
_KIND_FLOATS: Final = 16
_KIND_ARRAYS: Final = 17


@dataclass(frozen=True)
class UpdateCodec:
    """Turns the update of one client into a payload, and payloads or sums of codes into updates.

    Parameters
    ----------
    layout
        What arrays an update has.
    mechanism
        What encodes a coordinate, and whose guarantee each coordinate has.
    clip
        Coordinates are clipped to [-clip, clip].
    l2_clip
        Largest L2 norm of an update; larger ones are scaled down. None: any.
    rotation_seed
        Public seed of this round's rotation. None: no rotation.
    clip_quantile
        The share of coordinates that clients vote on: whether the clip holds as many. None: no vote.
    private_metrics
        Metrics that follow the update, each with the range that it is clipped to.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> update = {"weight": np.array([[0.3, -0.2]], dtype=np.float32), "bias": np.array(0.1)}
    >>> codec = UpdateCodec(Layout.of(update), pq.design("one_bit", epsilon=2.0), clip=0.5)
    >>> payload = codec.encode(update, pq.RandomStream.seeded(1))
    >>> len(payload), {name: each.shape for name, each in codec.decode(payload).items()}
    (17, {'weight': (1, 2), 'bias': ()})
    """

    layout: Layout
    mechanism: Mechanism
    clip: float
    l2_clip: float | None = None
    rotation_seed: int | None = None
    clip_quantile: float | None = None
    private_metrics: tuple[MetricRange, ...] = ()

    def __post_init__(self) -> None:
        checked_clip("clip", self.clip)
        if self.clip_quantile is not None and not 0.0 < self.clip_quantile <= 1.0:
            raise InvalidSpecError(f"clip_quantile: {self.clip_quantile} is outside (0, 1]")
        if self.l2_clip is not None:
            checked_clip("l2_clip", self.l2_clip)
        check_clips(self.clip, self.l2_clip, self.layout.dimension, self.layout.dtype)
        checked_metrics(self.private_metrics)
        # Bound to the layout: mechanisms for whole updates are made for one number of coordinates.
        object.__setattr__(self, "mechanism", self.mechanism.for_dimension(self.dimension))
        if self.num_extra and self._wire == "message":
            asked = "clip_quantile" if self.votes else "private_metrics"
            raise InvalidSpecError(
                f"{asked}: {self.mechanism.name} spends one epsilon on a whole update, so that one "
                f"coordinate of it is all noise; use a mechanism for single coordinates, or do without"
            )
        if self._wire in ("codes", "message"):
            packed_size(self._num_codes, width=self._code_bits)

    @property
    def dimension(self) -> int:
        """Number of coordinates that are encoded, with metrics and vote: each is one release."""
        return self.layout.dimension + self.num_extra

    @property
    def num_extra(self) -> int:
        """Number of coordinates that follow the update: private metrics, then the vote."""
        return len(self.private_metrics) + self.votes

    @cached_property
    def votes(self) -> bool:
        """Whether a vote on the clip follows the update; where nothing is clipped there is none."""
        return self.clip_quantile is not None and self.carries_difference

    @property
    def l2_bound(self) -> float | None:
        """Largest L2 norm of the coordinates that are encoded, with metrics and vote; None for any."""
        if self.l2_clip is None or not self.num_extra:
            return self.l2_clip
        return math.hypot(self.l2_clip, math.sqrt(self.num_extra) * self.clip)

    @cached_property
    def lossless(self) -> bool:
        """Whether decoding gives back the very numbers that were encoded."""
        # Not by its name, which is the sender's word: a forged one would send the update in the clear.
        return self.mechanism.lossless

    @cached_property
    def carries_difference(self) -> bool:
        """Whether payloads hold the difference to the model, or the trained arrays themselves."""
        plain = self.l2_clip is None and self.rotation_seed is None and not self.private_metrics
        return not (self.lossless and plain)

    @cached_property
    def num_bytes(self) -> int:
        """Size of every payload: it depends on the layout and the mechanism, never on the data."""
        if self._wire == "arrays":
            return HEADER_BYTES + self.layout.num_bytes
        if self._wire == "floats":
            return HEADER_BYTES + self.dimension * self.layout.dtype.itemsize
        if self._wire == "indices":
            return packed_size(self.dimension, num_levels=self._num_levels)
        return packed_size(self._num_codes, width=self._code_bits)

    @cached_property
    def bits_per_coordinate(self) -> float:
        """Bits of the payload for each coordinate, without the header of 16 bytes."""
        return 8.0 * (self.num_bytes - HEADER_BYTES) / self.dimension if self.dimension else 0.0

    def encode(
        self,
        update: Arrays,
        rng: RandomStream | None = None,
        threads: int = 1,
        metrics: Mapping[str, Any] = NO_METRICS,
    ) -> bytes:
        """The payload of an update given as arrays; ``rng=None`` draws secure randomness.

        Of ``metrics`` those of :attr:`private_metrics` are encoded with it; one that is missing, or is not a
        number, counts as the middle of its range.
        """
        if self._wire == "arrays":
            return self._pack_arrays(update)
        return self._encode_vector(self.layout.flatten(update), rng, threads, metrics)

    def encode_difference(
        self,
        new: Arrays,
        old: Arrays,
        rng: RandomStream | None = None,
        threads: int = 1,
        metrics: Mapping[str, Any] = NO_METRICS,
    ) -> bytes:
        """The payload of the step from ``old`` to ``new`` arrays; otherwise as :meth:`encode`."""
        if not self.carries_difference:
            return self.encode(new, rng, threads)
        return self._encode_vector(self.layout.difference(new, old), rng, threads, metrics)

    def encode_nothing(self, old: Arrays, rng: RandomStream | None = None, threads: int = 1) -> bytes:
        """The payload of a client that has no usable update: zeros, with metrics and vote."""
        if self._wire == "arrays":
            return self._pack_arrays(old, finite=False)
        return self._encode_prepared(np.zeros(self.dimension, dtype=self.layout.dtype), rng, threads)

    def clipped_share(self, new: Arrays, old: Arrays) -> float:
        """The share of coordinates that the coordinate clip cuts. It depends on the data: not private."""
        return clipped_share(np.asarray(self._prepared(self.layout.difference(new, old))), self.clip)

    def decode(self, payload: bytes) -> dict[str, NDArray[Any]]:
        """The estimated update in a payload, as arrays; see :attr:`carries_difference`."""
        if self._wire == "arrays":
            return self._unpack_arrays(payload)
        return self._restore(self._estimate(payload))

    def clip_vote(self, payload: bytes) -> float:
        """The vote in a payload, 1 for a clip that is wide enough and 0 for another, on average."""
        self._check_votes()
        return 0.5 + 0.5 * float(self._estimate(payload)[-1]) / self.clip

    def clip_vote_share(self, total: ArrayLike, num_clients: int) -> float:
        """The share of clients that voted for the clip, unbiased, from the sum of their :meth:`codes`."""
        self._check_votes()
        last = np.asarray(total)[-1:]
        return 0.5 + 0.5 * float(self.mechanism.decode_sum(last, num_clients, self.clip)[0]) / self.clip

    def metrics_of(self, payload: bytes) -> dict[str, float]:
        """One client's private metrics from its payload, unbiased within their ranges."""
        if not self.private_metrics:
            return {}
        return self._metric_values(self._estimate(payload)[self._metric_places] / self.clip)

    def metric_means(self, total: ArrayLike, num_clients: int) -> dict[str, float]:
        """The means of private metrics over clients, unbiased, from the sum of their :meth:`codes`."""
        if not self.private_metrics:
            return {}
        sums = np.asarray(total)[self._metric_places]
        return self._metric_values(self.mechanism.decode_sum(sums, num_clients, self.clip) / self.clip)

    @property
    def _metric_places(self) -> slice:
        first = self.layout.dimension
        return slice(first, first + len(self.private_metrics))

    def _metric_values(self, positions: NDArray[Any]) -> dict[str, float]:
        return {
            each.name: each.value(float(position))
            for each, position in zip(self.private_metrics, positions, strict=True)
        }

    def _check_votes(self) -> None:
        if not self.votes:
            raise InvalidSpecError("clip_quantile: None, so that clients did not vote on the clip")

    def apply(self, payload: bytes, old: Arrays) -> dict[str, NDArray[Any]]:
        """The estimated new arrays: what ``old`` became, in their own types."""
        decoded = self.decode(payload)
        if not self.carries_difference:
            return decoded
        return self._added(decoded, old)

    def apply_on_demand(self, payload: bytes, old: Arrays) -> dict[str, Callable[[], NDArray[Any]]]:
        """What :meth:`apply` gives, each array computed when it is asked for, and anew each time.

        The payload is checked now. Until an array is wanted it takes one byte a coordinate, not the
        four or eight of the array: a server can hold the updates of many clients.
        """
        direct = (
            self._wire == "indices"
            and self._rotation is None
            and set(self.layout.dtypes) == {self.layout.dtype}
        )
        if not direct:
            arrays = self.apply(payload, old)
            return {name: functools.partial(np.array, each) for name, each in arrays.items()}
        indices = self._unpack_indices(payload)
        return {
            name: functools.partial(self._looked_up, indices[place], old[name])
            for name, place in zip(self.layout.names, self.layout.places, strict=True)
        }

    def _looked_up(self, indices: NDArray[Any], old: NDArray[Any]) -> NDArray[Any]:
        from fl_privquant.codec.vector_loops import look_up_and_add

        new = np.empty(old.shape, dtype=self.layout.dtype)
        look_up_and_add(indices, self._level_values, old.reshape(-1), new.reshape(-1))
        return new

    def codes(self, payload: bytes) -> NDArray[np.int64]:
        """The integers of a payload that can be added up over clients, as secure aggregation needs."""
        if not self.mechanism.summable:
            raise InvalidSpecError(
                f"{self.mechanism.name}: its codes cannot be summed; choose another mechanism"
            )
        if self._wire == "codes":
            return self._unpack_codes(payload)
        found = self._unpack_codes(payload) if self._wire == "message" else self._unpack_indices(payload)
        return self.mechanism.to_codes(found)

    def add_codes(self, payload: bytes, total: NDArray[np.int64]) -> None:
        """Add the :meth:`codes` of a payload to a vector, in place; a bad payload adds nothing."""
        if self._wire != "indices" or not self.mechanism.summable:
            total += self.codes(payload)
            return
        from fl_privquant.codec.vector_loops import add_codes

        add_codes(self._unpack_indices(payload), self._level_codes, total)

    def decode_sum(self, total: ArrayLike, num_clients: int) -> dict[str, NDArray[Any]]:
        """The mean update from the sum of the :meth:`codes` of ``num_clients`` clients, as arrays."""
        sums = np.asarray(total)
        if sums.shape != (self.dimension,):
            raise InvalidUpdateError(f"sum of codes: shape {sums.shape}, expected ({self.dimension},)")
        mean = self.mechanism.decode_sum(sums, num_clients, self.clip)
        return self._restore(mean.astype(self.layout.dtype, copy=False))

    def apply_sum(self, total: ArrayLike, num_clients: int, old: Arrays) -> dict[str, NDArray[Any]]:
        """The new arrays that the mean update makes of ``old``, in their own types."""
        return self._added(self.decode_sum(total, num_clients), old)

    @cached_property
    def _num_levels(self) -> int | None:
        """Number of outputs, where an index of 16 bits can tell them apart."""
        levels = getattr(self.mechanism, "num_levels", None)
        return int(levels) if levels is not None and levels <= MAX_LEVELS else None

    @cached_property
    def _wire(self) -> str:
        if not self.carries_difference:
            return "arrays"
        if self.mechanism.outputs_floats:
            return "floats"
        if hasattr(self.mechanism, "message_size"):
            return "message"
        return "codes" if self._num_levels is None else "indices"

    @property
    def _num_codes(self) -> int:
        """Number of integers of a payload."""
        return int(getattr(self.mechanism, "message_size", self.dimension))

    @property
    def _code_bits(self) -> int:
        """Bits of each."""
        bits = getattr(self.mechanism, "message_bits", None)
        return self.mechanism.sum_bits(1) if bits is None else int(bits)

    @cached_property
    def _level_values(self) -> NDArray[Any]:
        """What each index stands for, in the vector's precision: a lookup is all that decoding takes."""
        indices = np.arange(self._num_levels or 0)
        return self.mechanism.decode(indices, self.clip).astype(self.layout.dtype)

    @cached_property
    def _level_codes(self) -> NDArray[np.int64]:
        return np.ascontiguousarray(self.mechanism.to_codes(np.arange(self._num_levels or 0)), dtype=np.int64)

    @cached_property
    def _rotation(self) -> Rotation | None:
        return None if self.rotation_seed is None else Rotation(self.layout.dimension, self.rotation_seed)

    def _prepared(self, vector: _Vector) -> _Vector:
        """The vector after the stages before the coordinate clip; an array is changed in place."""
        if self.l2_clip is None and self._rotation is None:
            return vector
        prepared = np.asarray(vector)
        # Mechanisms refuse what is not finite; but before they see it, one NaN would be spread over all.
        if not np.isfinite(prepared).all():
            count = int(np.count_nonzero(~np.isfinite(prepared)))
            raise InvalidUpdateError(
                f"update: {count} of {prepared.size} coordinates are not finite; nothing was encoded, "
                f"look for divergence upstream"
            )
        if self.l2_clip is not None:
            clip_l2(prepared, self.l2_clip)
        if self._rotation is not None:
            self._rotation.forward(prepared)
        return prepared

    def _encode_vector(
        self, vector: _Vector, rng: RandomStream | None, threads: int, metrics: Mapping[str, Any]
    ) -> bytes:
        prepared = self._prepared(vector)
        if self.num_extra:
            coordinates = np.asarray(prepared)
            positions = [each.position(metrics.get(each.name)) for each in self.private_metrics]
            if self.votes and self.clip_quantile is not None:
                wide_enough = 1.0 - clipped_share(coordinates, self.clip) >= self.clip_quantile
                positions.append(1.0 if wide_enough else -1.0)
            extra = self.clip * np.array(positions)
            prepared = np.append(coordinates, extra.astype(coordinates.dtype))
        return self._encode_prepared(prepared, rng, threads)

    def _encode_prepared(self, vector: _Vector, rng: RandomStream | None, threads: int) -> bytes:
        encoded = self.mechanism.encode(vector, clip=self.clip, rng=rng, threads=threads)
        if self._wire == "indices" and self._num_levels is not None:
            return pack_indices(encoded, self._num_levels)
        if self._wire == "codes":
            return pack_codes(self.mechanism.to_codes(encoded), self._code_bits)
        if self._wire == "message":
            return pack_codes(encoded, self._code_bits)
        dtype = self.layout.dtype.newbyteorder("<")
        with np.errstate(over="ignore"):
            body = np.asarray(encoded).astype(dtype)
        _check_finite(body)
        return write_header(_KIND_FLOATS, dtype.itemsize, self.dimension) + body.tobytes()

    def _estimate(self, payload: bytes) -> NDArray[Any]:
        """The estimates of the coordinates, as they were when they were encoded."""
        if self._wire == "indices":
            from fl_privquant.codec.vector_loops import look_up

            estimates = np.empty(self.dimension, dtype=self.layout.dtype)
            look_up(self._unpack_indices(payload), self._level_values, estimates)
            return estimates
        if self._wire == "codes":
            estimate = self.mechanism.decode_sum(self._unpack_codes(payload), 1, self.clip)
            return estimate.astype(self.layout.dtype, copy=False)
        if self._wire == "message":
            try:
                estimate = self.mechanism.decode(self._unpack_codes(payload), self.clip)
            except CodeOverflowError as error:
                raise InvalidUpdateError(f"payload: {error}") from error
            return estimate.astype(self.layout.dtype, copy=False)
        dtype = self.layout.dtype.newbyteorder("<")
        size = self.dimension * dtype.itemsize
        body = read_body(payload, _KIND_FLOATS, dtype.itemsize, self.dimension, size)
        values = np.frombuffer(body.tobytes(), dtype=dtype)
        _check_finite(values)
        return self.mechanism.decode(values, self.clip).astype(self.layout.dtype)

    def _restore(self, vector: NDArray[Any]) -> dict[str, NDArray[Any]]:
        vector = vector[: self.layout.dimension]
        if self._rotation is not None:
            vector = np.ascontiguousarray(vector)
            self._rotation.backward(vector)
        return self.layout.unflatten(vector)

    def _added(self, update: Arrays, old: Arrays) -> dict[str, NDArray[Any]]:
        return {
            name: np.asarray(np.add(old[name], update[name], dtype=self.layout.dtype)).astype(
                dtype, copy=False
            )
            for name, dtype in zip(self.layout.names, self.layout.dtypes, strict=True)
        }

    def _unpack_indices(self, payload: bytes) -> NDArray[Any]:
        if self._num_levels is None:
            raise InvalidSpecError(f"{self.mechanism.name}: does not encode to indices")
        return unpack_indices(payload, self._num_levels, self.dimension)

    def _unpack_codes(self, payload: bytes) -> NDArray[np.int64]:
        codes = unpack_codes(payload, self._code_bits, self._num_codes)
        if self._wire == "codes" and self.mechanism.max_code is not None:
            check_range(codes, "codes", self.mechanism.max_code)
        return codes.astype(np.int64)

    def _pack_arrays(self, arrays: Arrays, finite: bool = True) -> bytes:
        self.layout.check(arrays)
        parts = [write_header(_KIND_ARRAYS, 0, self.dimension)]
        for name, dtype in zip(self.layout.names, self.layout.dtypes, strict=True):
            if finite:
                _check_finite(arrays[name])
            parts.append(np.asarray(arrays[name], dtype=dtype.newbyteorder("<")).tobytes())
        return b"".join(parts)

    def _unpack_arrays(self, payload: bytes) -> dict[str, NDArray[Any]]:
        body = read_body(payload, _KIND_ARRAYS, 0, self.dimension, self.layout.num_bytes).tobytes()
        arrays: dict[str, NDArray[Any]] = {}
        start = 0
        for name, shape, dtype in zip(self.layout.names, self.layout.shapes, self.layout.dtypes, strict=True):
            count = math.prod(shape)
            values = np.frombuffer(body, dtype.newbyteorder("<"), count=count, offset=start)
            _check_finite(values)
            arrays[name] = values.astype(dtype).reshape(shape)
            start += count * dtype.itemsize
        return arrays


def _check_finite(values: NDArray[Any]) -> None:
    if not np.isfinite(values).all():
        raise InvalidUpdateError("payload: a value is not finite; the client's training diverged")
