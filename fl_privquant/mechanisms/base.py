"""Base classes of mechanisms: output values and distribution, encoder, decoder, serialization."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar, Self

import numpy as np

from fl_privquant._array_types import Array, ArrayLike, Floats, Ints
from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.distributions.codebook import MAX_LEVELS, Codebook
from fl_privquant.distributions.input_density import Density, as_density
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import CertificationError, InvalidSpecError, describe_other_version, one_line
from fl_privquant.mechanisms.handed_noise import HandedNoise, NoiseSeeds
from fl_privquant.mechanisms.modular_sum import SumRing, find_narrowest_ring
from fl_privquant.mechanisms.sum_limits import CoordinateNoise, SumLimits, bounded_noise, sum_limits
from fl_privquant.packing.wire_format import PackedIndices, PackedIntegers, WireFormat
from fl_privquant.privacy_loss.closed_forms import NOT_PRIVATE, response_loss
from fl_privquant.privacy_loss.composition.compose import NamedLoss, UpdateNorm
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss
from fl_privquant.privacy_loss.correlated_noise import PREFIX_SUMS, Workload
from fl_privquant.privacy_loss.sums.bit_sums import poisson_binomial_losses, theta_of_two_levels
from fl_privquant.privacy_loss.sums.blanket import blanket_loss
from fl_privquant.privacy_loss.tables.dominating_pair import dominating_loss, zero_out_loss
from fl_privquant.privacy_loss.update_bounds import NO_NORMS, WholeUpdate, table_update_losses
from fl_privquant.sampling.kernel import Sampler
from fl_privquant.sampling.stream import Randomness
from fl_privquant.statement import LOCAL, PrivacyStatement, Relation, Unit, View

_MAGIC = b"PQMECH"
_VERSION = 1
_PREFIX = struct.Struct("<6sHI")
_DIGEST_BYTES = 32
_FINGERPRINT_DIGITS = 32
_MAX_ROWS = 1 << 16
_MAX_HEADER_BYTES = 1 << 20
_MAX_NAME = 64
# How fields of plain types are written into a header, and read from it. The class of a mechanism handles all
# others, such as a table.
_PLAIN_TYPES: dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    float: (lambda value: float(value).hex(), float.fromhex),
    int: (int, int),
    str: (str, str),
    Mapping: (dict, dict),
}


@dataclass(frozen=True, eq=False, repr=False)
class Mechanism(ABC):
    """A mechanism for inputs in [-clip, clip]. It is stated for a clip of 1; the clip is given on use.

    Two mechanisms are equal if their bytes are. Subclasses are frozen dataclasses with ``eq=False``. Their
    field ``claimed_epsilon`` is the privacy loss that the design had to keep. The certified loss is computed
    when the mechanism is made, and must not exceed it.
    """

    name: str
    """The registered name."""
    parameters: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """How the mechanism was designed, for reports."""

    kind: ClassVar[str]
    unit: ClassVar[Unit] = Unit.COORDINATE
    """What :attr:`epsilon` covers, in the local view."""
    norm: ClassVar[UpdateNorm] = UpdateNorm.LINF
    """The norm that the clip bounds."""
    outputs_floats: ClassVar[bool] = False
    """Whether outputs are floating-point numbers. The guarantee then holds for exact real numbers only."""
    summable: ClassVar[bool] = True
    """Whether encoded updates are integers whose sum decodes, as secure aggregation needs."""
    no_sum_reason: ClassVar[str] = (
        "its messages cannot be added up; decode each client's, or use 'cldp_linf' or 'vqsgd_private'"
    )
    """The error text of a mechanism that is not summable: why, and what to use instead."""
    lossless: ClassVar[bool] = False
    """Whether decoding returns the encoded numbers unchanged, neither clipped nor rounded."""
    encodes_coordinates_alone: ClassVar[bool] = False
    """Whether :meth:`encode` treats each input by itself, and takes as many random words for each. Updates of
    several clients of a simulation are then encoded by one call."""
    _kinds: ClassVar[dict[str, type[Mechanism]]] = {}

    def __init_subclass__(cls, kind: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if kind:
            needed = ("to_codes", "sum_bits", "decode_sum")
            missing = [name for name in needed if getattr(cls, name) is getattr(Mechanism, name)]
            if cls.summable and missing:
                raise TypeError(
                    f"{cls.__name__}: a mechanism that is summable must define {', '.join(missing)}; set "
                    f"summable = False if its messages cannot be added up"
                )
            cls.kind = kind
            Mechanism._kinds[kind] = cls

    def __repr__(self) -> str:
        privacy = f"certified {self.statement.brief}"
        if math.isinf(self.epsilon):
            privacy = "not private"
        elif self.outputs_floats:
            privacy = f"{self.statement.brief} in exact arithmetic only"
        bias = f", bias up to {self.max_bias:.3g} of the clip" if self.max_bias else ""
        return f"<{self.name}: {self._form}, {privacy}, {self._errors}{bias}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mechanism) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """What identifies the mechanism: 32 hexadecimal digits of the SHA-256 of its bytes."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:_FINGERPRINT_DIGITS]

    @property
    @abstractmethod
    def _form(self) -> str:
        """The form of messages, such as the number of levels, in words."""

    @property
    def _errors(self) -> str:
        return f"mse {self.mse():.5g}, mae {self.mae():.5g}"

    @property
    def epsilon(self) -> float:
        """Certified privacy loss of one :attr:`unit` in the local view; infinite if nothing is certified."""
        return math.inf

    @property
    def delta(self) -> float:
        """The delta that goes with :attr:`epsilon`; 0 for pure differential privacy."""
        return 0.0

    @property
    def statement(self) -> PrivacyStatement:
        """The privacy statement of one :attr:`unit` in the local view, for people to read."""
        return PrivacyStatement(self.epsilon, self.delta, self.unit, method="exact")

    def loss(self, view: View = LOCAL, relation: Relation = Relation.REPLACE_ONE) -> NamedLoss:
        """The privacy loss of one :attr:`unit` in that view, with the name of the bound.

        In a sum it must hold whatever the inputs of the other ``view.honest_count - 1`` honest clients are.
        The relation is replace-one or zero-out. A loss for replace-one is also valid for zero-out, and a
        mechanism may return it; only a loss for zero-out has that relation as its
        :attr:`~fl_privquant.privacy_loss.composition.compose.NamedLoss.relation`.
        By default it is the loss of the worst mechanism that has the certified epsilon and delta.
        """
        if math.isinf(self.epsilon):
            return NamedLoss(NOT_PRIVATE)
        return NamedLoss(response_loss(self.epsilon, self.delta), "worst distribution")

    def update_losses(self, update: WholeUpdate) -> list[NamedLoss]:
        """Bounds on the loss of a whole update that may be below the sum of its coordinates' losses.

        With norms these are all bounds that rest on them. Without norms,
        they hold for updates of any norm. The accountant uses the bound with the smallest total.
        """
        return []

    def record_losses(self, update: WholeUpdate) -> list[tuple[PrivacyLoss, ...]]:
        """Bounds of what a release tells of one record; each is one loss for each order of neighbors.

        They are for updates that are sums over randomly drawn records (:attr:`UpdateNorms.record`). The list
        is empty where nothing is certified, as for all mechanisms but those that add Gaussian noise.
        """
        return []

    @property
    def handed(self) -> HandedNoise | None:
        """What holds for noise that a round hands over to the next; None if noise is fresh in each round."""
        return None

    def with_seeds(self, seeds: NoiseSeeds) -> Self:
        """The mechanism that draws handed noise from these seeds; itself if its noise is fresh."""
        return self

    def take_off(self, total: Ints, seeds: Sequence[bytes]) -> Ints:
        """The sum of codes of a round, less the handed noise of these seeds of the round before."""
        return total

    def round_equivalent_mse(self, lost: float = 0.0, workload: Workload = PREFIX_SUMS) -> float:
        """The variance of fresh noise of a code that would leave the same error in the models of all rounds.

        It is in squared clips; ``lost`` is the fraction of clients that are lost in each round, and
        ``workload`` says how models are made of mean updates.
        """
        return self.mse()

    @property
    def participation_norm(self) -> float:
        """How far one participation moves what all rounds tell, in units of the norm of the update.

        It is 1 if noise is fresh in each round; otherwise later rounds tell of an update, too.
        """
        return 1.0

    @property
    def encodes_whole_updates(self) -> bool:
        """Whether an update is encoded at once, and :attr:`epsilon` spent once for all its coordinates."""
        return self.unit is Unit.ROUND

    def releases(self, dimension: int) -> int:
        """How many times :attr:`epsilon` is spent when an update of that many coordinates is encoded."""
        return 1 if self.encodes_whole_updates else dimension

    def for_dimension(self, dimension: int) -> Mechanism:
        """The mechanism for updates of that many coordinates; the same one if coordinates are independent."""
        return self

    def bias(self, x: ArrayLike) -> Floats:
        """Mean estimate minus the input, for inputs in [-1, 1]; 0 by default."""
        return np.zeros(np.shape(x))

    @property
    def max_bias(self) -> float:
        """The bias that the mechanism states: largest |mean estimate - x| for inputs in [-1, 1]."""
        return 0.0

    @property
    @abstractmethod
    def bits_per_coordinate(self) -> float:
        """Bits in which one coordinate is sent, without secure aggregation."""

    def for_sums(self) -> Mechanism:
        """The mechanism to use where only sums of codes are seen; by default the same one."""
        return self

    @property
    def max_code(self) -> int | None:
        """The largest integer to be added up; None where codes are residues and their sum may wrap."""
        return None

    @property
    def distribution(self) -> OutputDistribution | None:
        """The output distribution of a coordinate, if the probability of each output is listed; else None."""
        return None

    def details(self) -> dict[str, str]:
        """Further lines for a printed description, each under its heading."""
        return {}

    def wire_format(self, dimension: int, clip: float, dtype: np.dtype[Any]) -> WireFormat:
        """How encoded updates of ``dimension`` coordinates are written, and decoded to ``dtype``.

        By default each coordinate is written as its code.
        """
        return PackedIntegers(self, dimension, clip, dtype, dimension, self.sum_bits(1), self.max_code)

    @abstractmethod
    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        """Random indices for the inputs; ``rng=None`` draws from the operating system's randomness."""

    @abstractmethod
    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        """Estimates of the inputs that gave these indices; off by :attr:`bias` on average."""

    # The next three methods are for summable mechanisms, which must override them: see __init_subclass__.

    def to_codes(self, indices: Array) -> Ints:
        """The integers >= 0 to be added up, below 2^sum_bits."""
        raise InvalidSpecError("mechanism", self.name, f": {self.no_sum_reason}")

    def sum_bits(self, num_clients: int) -> int:
        """Bits of the modulus 2^bits in which the codes of ``num_clients`` clients are added up."""
        raise InvalidSpecError("mechanism", self.name, f": {self.no_sum_reason}")

    def decode_sum(self, total: ArrayLike, num_clients: int, clip: float = 1.0) -> Floats:
        """The mean estimate from the sum of codes of ``num_clients`` clients, modulo 2^sum_bits."""
        raise InvalidSpecError("mechanism", self.name, f": {self.no_sum_reason}")

    def sum_ring(self, num_clients: int, dimension: int) -> SumRing:
        """The integers modulo 2^bits in which codes are summed, with as few bits as honest sums need.

        By default the bits are those of :meth:`sum_bits`; a mechanism may know that honest sums spread less.
        """
        return SumRing(self.sum_bits(num_clients), self.max_code)

    @property
    def coordinate_noise(self) -> CoordinateNoise:
        """Bounds on the value of one honest code that hold for every input in [-1, 1]."""
        raise InvalidSpecError("mechanism", self.name, "does not encode each coordinate to a code that sums")

    def sum_limits(self, num_clients: int, dimension: int, l2_bound: float | None, odds: float) -> SumLimits:
        """Limits, in units of the clip, that the mean of honest codes exceeds with at most these odds.

        ``l2_bound`` is the largest L2 norm of a client's inputs in units of the clip; None if not bounded.
        """
        return sum_limits(self.coordinate_noise, num_clients, dimension, l2_bound, odds)

    @abstractmethod
    def mae(self, density: Density | ArrayLike | None = None) -> float:
        """Exact mean absolute error for inputs in [-1, 1]; uniform unless a density is given."""

    @abstractmethod
    def mse(self, density: Density | ArrayLike | None = None) -> float:
        """Exact mean squared error for inputs in [-1, 1]; uniform unless a density is given."""

    def _header(self) -> dict[str, Any]:
        """Entries of the header besides the plain fields of the dataclass; by default there are none."""
        return {}

    def _arrays(self) -> list[Array]:
        """The arrays that follow the header; by default there are none."""
        return []

    @classmethod
    def _other_fields(cls, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        """The fields that are not plain, such as a table, from a header and the bytes after it."""
        if body:
            raise CertificationError(f"mechanism: {len(body)} bytes after the header of {cls.kind!r}")
        return {}

    def to_bytes(self) -> bytes:
        """The mechanism as bytes, which :meth:`from_bytes` reads and certifies again."""
        fields = {
            _header_key(name): _PLAIN_TYPES[kind][0](getattr(self, name))
            for name, kind in _plain_fields(type(self)).items()
        }
        header = json.dumps({"kind": self.kind, **fields, **self._header()}, sort_keys=True).encode()
        body = b"".join(np.ascontiguousarray(array).tobytes() for array in self._arrays())
        payload = _PREFIX.pack(_MAGIC, _VERSION, len(header)) + header + body
        return payload + hashlib.sha256(payload).digest()

    @staticmethod
    def from_bytes(blob: bytes) -> Mechanism:
        """The mechanism in ``blob``. Its privacy is certified again, whatever the bytes claim.

        Raises CertificationError where bytes are damaged, of another version, or claim more than they hold.
        """
        if not isinstance(blob, bytes | bytearray | memoryview):
            raise CertificationError(f"mechanism: {type(blob).__name__}, expected bytes")
        if len(blob) < _PREFIX.size + _DIGEST_BYTES:
            raise CertificationError(f"mechanism: {len(blob)} bytes are too few for a mechanism")
        payload, digest = blob[:-_DIGEST_BYTES], blob[-_DIGEST_BYTES:]
        magic, version, header_length = _PREFIX.unpack_from(payload)
        if magic != _MAGIC:
            raise CertificationError(f"mechanism: starts with {magic!r}, expected {_MAGIC!r}")
        if version != _VERSION:
            advice = "design it anew, or install the fl-privquant that wrote it"
            raise CertificationError(describe_other_version("mechanism", version, _VERSION, advice))
        if hashlib.sha256(payload).digest() != digest:
            raise CertificationError("mechanism: the checksum does not match; the bytes were damaged")
        if header_length > _MAX_HEADER_BYTES:
            raise CertificationError(
                f"mechanism: a header of {header_length} bytes, more than {_MAX_HEADER_BYTES}"
            )
        try:
            header = json.loads(payload[_PREFIX.size : _PREFIX.size + header_length])
            kind, name = Mechanism._kinds[header["kind"]], header["name"]
            if not (isinstance(name, str) and name.isprintable() and len(name) <= _MAX_NAME):
                raise ValueError(f"its name is no printable text of at most {_MAX_NAME} characters")
            # Overflows and the like are detected here rather than where the mechanism is used.
            with np.errstate(all="ignore", over="raise", divide="raise", invalid="raise"):
                others = kind._other_fields(header, payload[_PREFIX.size + header_length :])
                fields = {
                    name: _PLAIN_TYPES[plain][1](header[_header_key(name)])
                    for name, plain in _plain_fields(kind).items()
                }
                mechanism = kind(**fields, **others)
                if not math.isfinite(mechanism.mse()):
                    raise ValueError(f"its mean squared error is {mechanism.mse()}")
            return mechanism
        except CertificationError as error:
            raise CertificationError(one_line(error)) from error
        except Exception as error:  # any error: the bytes may be hostile
            reason = one_line(f"{type(error).__name__}: {error}")
            raise CertificationError(f"mechanism: malformed ({reason})") from error


class LatticeMechanism(Mechanism):
    """A mechanism with a codebook: clients send indices of codes, which lie on a lattice and add up."""

    @property
    @abstractmethod
    def codebook(self) -> Codebook:
        """Integer codes and their values."""

    @property
    def num_levels(self) -> int:
        """Number m of output values."""
        return self.codebook.num_levels

    @property
    def _form(self) -> str:
        return f"{self.num_levels} levels"

    @property
    def values(self) -> Floats:
        """(m,) output values for inputs in [-1, 1]."""
        return self.codebook.values

    @property
    def codes(self) -> Ints:
        """(m,) integers >= 0 on the lattice: ``values = offset + step * codes``."""
        return self.codebook.codes

    @property
    def max_code(self) -> int:
        return self.codebook.max_code

    @property
    def bits_per_coordinate(self) -> float:
        return float((self.num_levels - 1).bit_length())

    def wire_format(self, dimension: int, clip: float, dtype: np.dtype[Any]) -> WireFormat:
        return PackedIndices(self, dimension, clip, dtype, self.num_levels)

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        return self.codebook.decode(indices, clip)

    def to_codes(self, indices: Array) -> Ints:
        return np.asarray(self.codes[indices])

    def sum_bits(self, num_clients: int) -> int:
        return self.codebook.sum_bits(num_clients)

    def sum_ring(self, num_clients: int, dimension: int) -> SumRing:
        return find_narrowest_ring(self.codebook, self.distribution, num_clients, dimension)

    def decode_sum(self, total: ArrayLike, num_clients: int, clip: float = 1.0) -> Floats:
        return self.codebook.decode_sum(total, num_clients, clip)

    @property
    def coordinate_noise(self) -> CoordinateNoise:
        # A value that stays in an interval has a variance of at most a quarter of its squared length.
        mean, variance = 1.0 + self.max_bias, float(self.values[-1] - self.values[0]) ** 2 / 4.0
        return bounded_noise(mean, self.max_bias, variance, mean + float(np.abs(self.values).max()))

    @abstractmethod
    def pmf(self, x: ArrayLike) -> Floats:
        """(n, m) exact output probabilities for inputs in [-1, 1]."""

    def _mean_error(self, density: Density | ArrayLike | None, breaks: Array, power: int) -> float:
        """Mean of |value - x|^power, by quadrature of the distribution between the breaks."""
        nodes, weights = as_density(density).quadrature(breaks)
        errors = np.abs(self.values - nodes[:, None]) ** power
        return float(weights @ (self.pmf(nodes) * errors).sum(axis=1))


@dataclass(frozen=True, eq=False, repr=False)
class TableMechanism(LatticeMechanism, kind="table"):
    """A mechanism that draws from a certified table of integer weights.

    Guarantee: ``epsilon``-differential privacy of each coordinate and release against an adversary who sees
    the codes, certified in exact arithmetic on the very table that is sampled from.
    """

    table: CertifiedTable
    claimed_epsilon: float

    encodes_coordinates_alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.table.certify(self.claimed_epsilon)

    @property
    def epsilon(self) -> float:
        return self.table.epsilon

    @property
    def codebook(self) -> Codebook:
        return self.table.codebook

    @property
    def distribution(self) -> OutputDistribution:
        """The exact distribution of what is sampled."""
        return self.table.distribution

    def details(self) -> dict[str, str]:
        return self.table.details()

    def pmf(self, x: ArrayLike) -> Floats:
        return self.distribution.pmf(x)

    def loss(self, view: View = LOCAL, relation: Relation = Relation.REPLACE_ONE) -> NamedLoss:
        if math.isinf(self.epsilon):
            return super().loss(view, relation)
        if not view.is_local:
            loss = blanket_loss(self.table, view.honest_count, relation)
            return NamedLoss(loss, "blanket", relation=relation)
        whole = relation is Relation.REPLACE_ONE
        return NamedLoss(
            dominating_loss(self.table) if whole else zero_out_loss(self.table), relation=relation
        )

    def update_losses(self, update: WholeUpdate) -> list[NamedLoss]:
        dimension, honest = update.dimension, update.num_honest
        if update.norms == NO_NORMS and self.num_levels == 2:
            theta = theta_of_two_levels(self.table)
            return poisson_binomial_losses(1, theta, self.epsilon, dimension, honest)
        if update.l2_distance is None:
            return []
        losses = table_update_losses(self.table, update.l2_distance, dimension, honest)
        return [dataclasses.replace(loss, relation=update.relation) for loss in losses]

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        return self.distribution.mae(density)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return self.distribution.mse(density)

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        return self._sampler.encode(x, clip=clip, stream=rng)

    @cached_property
    def coordinate_noise(self) -> CoordinateNoise:
        distribution = self.distribution
        mean = float(np.abs(distribution.rows @ self.values).max())
        largest = mean + float(np.abs(self.values).max())
        return bounded_noise(
            mean, distribution.max_bias, distribution.max_variance, largest, distribution.min_variance
        )

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self.table)

    def _header(self) -> dict[str, Any]:
        return {
            "levels": self.num_levels,
            "rows": len(self.table.weights),
            "pieces": len(self.table.start_rows),
            "step": float(self.codebook.step).hex(),
            "offset": float(self.codebook.offset).hex(),
        }

    def _arrays(self) -> list[Array]:
        return [
            self.codes.astype("<u4"),
            self.table.weights.astype("<u8"),
            self.table.start_rows.astype("<u4"),
            self.table.end_rows.astype("<u4"),
        ]

    @classmethod
    def _other_fields(cls, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        return {"table": CertifiedTable(*cls._read_table_parts(header, body))}

    @staticmethod
    def _read_table_parts(header: dict[str, Any], body: bytes) -> tuple[Codebook, Ints, Ints, Ints]:
        """Codebook, weights, start rows and end rows of a table as they were sent, not certified yet."""
        levels, rows, pieces = (int(header[key]) for key in ("levels", "rows", "pieces"))
        # The sender claims these sizes, so they are checked before memory of that size is allocated.
        if not (2 <= levels <= MAX_LEVELS and 1 <= rows <= _MAX_ROWS and 1 <= pieces < _MAX_ROWS):
            raise CertificationError(
                f"mechanism: {levels} levels, {rows} rows, {pieces} pieces are out of range"
            )
        expected = 4 * levels + 8 * rows * levels + 8 * pieces
        if len(body) != expected:
            raise CertificationError(f"mechanism: {len(body)} bytes of arrays, expected {expected}")
        sent = [("codes", "<u4", levels), ("weights", "<u8", (rows, levels)), ("ends", "<u4", (2, pieces))]
        codes, weights, (start_rows, end_rows) = np.frombuffer(body, np.dtype(sent))[0]
        step, offset = float.fromhex(header["step"]), float.fromhex(header["offset"])
        if weights.max() > np.iinfo(np.int64).max:
            raise CertificationError("mechanism: a weight is above 2^63")
        codebook = Codebook(codes.astype(np.int64), step, offset)
        return codebook, *(array.astype(np.int64) for array in (weights, start_rows, end_rows))


def check_mechanism(value: object) -> Mechanism:
    """The value, if it is a mechanism."""
    if not isinstance(value, Mechanism):
        raise InvalidSpecError("mechanism", value, ", expected a Mechanism", "see fl_privquant.design")
    return value


@cache
def _plain_fields(cls: Any) -> dict[str, Any]:
    """The type of each plain field: str, int, float or Mapping."""
    names = [field.name for field in dataclasses.fields(cls)]
    kinds = {name: typing.get_origin(hint) or hint for name, hint in typing.get_type_hints(cls).items()}
    return {name: kinds[name] for name in names if kinds[name] in _PLAIN_TYPES}


def _header_key(name: str) -> str:
    """A field's key in headers, without the word "claimed": whatever a header says is a claim."""
    return name.removeprefix("claimed_")
