"""What every registered mechanism must do: a new one is covered as soon as it is registered."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.errors import CertificationError, CodeOverflowError, InvalidSpecError, InvalidUpdateError
from fl_privquant.mechanisms._continuous import FloatMechanism
from fl_privquant.mechanisms.registry import get_entry
from fl_privquant.mechanisms.vectors.base import VectorMechanism, VectorSpec
from fl_privquant.privacy_loss.composition.compose import UpdateNorm
from fl_privquant.sampling import chunks
from tests.exact import g_test
from tests.mechanisms.forgery import forged
from tests.typical import spec_fields
from tests.typical import typical as typical_of

BIASED = ("biased", "snapping", "top_k")
"""The mechanisms whose mean estimate is not the input."""


DETERMINISTIC = ("none", "top_k")
"""The mechanisms that draw nothing."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {"none, fixed point": ("none", {"fixed_point_bits": 20})}
"""Other mechanisms that a registered name builds, and with what parameters."""


def registered(name: str) -> str:
    return VARIANTS.get(name, (name, {}))[0]


def fields_of(name: str) -> set[str]:
    return spec_fields(registered(name))


def typical(name: str, epsilon: float = 1.0, **parameters: Any) -> Any:
    _, variant = VARIANTS.get(name, (name, {}))
    return typical_of(registered(name), epsilon, **variant, **parameters)


@pytest.fixture(params=[*pq.available_mechanisms(), *VARIANTS])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def mechanism(name: str) -> Any:
    return typical(name)


def private(name: str) -> bool:
    return "epsilon" in fields_of(name)


def rows_estimated(
    mechanism: Any, rows: np.ndarray, stream: pq.RandomStream, clip: float = 1.0
) -> np.ndarray:
    """Estimates of the rows of a matrix: at once, or one by one where a whole vector is encoded."""
    if not isinstance(mechanism, VectorMechanism):
        return mechanism.decode(mechanism.encode(rows, clip=clip, rng=stream), clip=clip)
    sized = mechanism.for_dimension(rows.shape[1])
    return np.array([sized.decode(sized.encode(row, clip, stream), clip) for row in rows])


def test_epsilon_is_certified_at_max_what_was_asked(name: str, mechanism: Any) -> None:
    assert mechanism.name == registered(name)
    if private(name):
        assert 0.5 < mechanism.epsilon <= 1.0
        assert 0.0 <= mechanism.delta < 1e-4
    else:
        assert mechanism.epsilon == math.inf


def test_what_epsilon_is_spent_on(mechanism: Any) -> None:
    if isinstance(mechanism, VectorMechanism):
        assert (mechanism.unit, mechanism.releases(1000)) == ("client round", 1)
        sized = mechanism.for_dimension(1000)
        assert (sized.dimension, sized.claimed_epsilon) == (1000, mechanism.claimed_epsilon)
        assert mechanism.unit in repr(sized) or math.isinf(sized.epsilon)
    else:
        assert (mechanism.unit, mechanism.releases(1000)) == ("coordinate release", 1000)
        assert mechanism.for_dimension(1000) is mechanism


PRIVATE = [each for each in pq.available_mechanisms() if private(each)]


@pytest.mark.parametrize("name", PRIVATE)
def test_more_privacy_costs_accuracy(name: str) -> None:
    errors = [typical(name, epsilon).mse() for epsilon in (0.8, 1.5, 3.0)]
    assert errors[0] > errors[1] > errors[2]


def test_round_trip_through_bytes(mechanism: Any) -> None:
    blob = mechanism.to_bytes()
    again = pq.Mechanism.from_bytes(blob)
    assert again == mechanism
    assert hash(again) == hash(mechanism)
    assert type(again) is type(mechanism)
    assert again.to_bytes() == blob
    assert (again.epsilon, again.delta, again.mse()) == (mechanism.epsilon, mechanism.delta, mechanism.mse())
    assert again.bits_per_coordinate == mechanism.bits_per_coordinate


def test_damaged_bytes_raise(mechanism: Any) -> None:
    blob = mechanism.to_bytes()
    for at in range(0, len(blob), max(1, len(blob) // 97)):
        damaged = bytearray(blob)
        damaged[at] ^= 0x10
        with pytest.raises(CertificationError):
            pq.Mechanism.from_bytes(bytes(damaged))
    for end in (0, 3, 20, len(blob) // 2, len(blob) - 1):
        with pytest.raises(CertificationError):
            pq.Mechanism.from_bytes(blob[:end])


def test_estimates_have_the_stated_bias(mechanism: Any) -> None:
    """None, for all but a few."""
    vector = isinstance(mechanism, VectorMechanism)
    # Inside the ball, where the norm is that of the whole vector.
    x = np.linspace(-0.04, 0.04, 5) if vector else np.linspace(-0.1, 0.1, 5)
    draws = 4_000 if vector else 40_000
    estimates = rows_estimated(mechanism, np.tile(x, (draws, 1)), pq.RandomStream.seeded(11), clip=0.1)
    bias = 0.1 * mechanism.bias(x / 0.1)
    # Float rounding, where nothing is random: single precision, where that is sent.
    spread = estimates.std(axis=0) + (1e-7 if mechanism.outputs_floats else 1e-9)
    # 6 standard errors: for 5 inputs and some 20 mechanisms, odds below 1e-6 of a false alarm.
    assert np.all(np.abs(estimates.mean(axis=0) - x - bias) < 6 * spread / math.sqrt(draws))


@pytest.mark.parametrize(
    "name", [each for each in pq.available_mechanisms() if hasattr(typical(each), "pmf")]
)
@pytest.mark.parametrize("x", [-0.97, -0.37, 0.77])
def test_draws_follow_the_output_probabilities(mechanism: Any, x: float) -> None:
    """A G-test, which an honest encoder fails once in 10^6; that of the opposite input is not passed."""
    draws = 400_000
    codes = mechanism.encode(np.full(draws, 0.1 * x), clip=0.1, rng=pq.RandomStream.seeded(5))
    probabilities = mechanism.pmf([x, -x])
    observed = np.bincount(codes, minlength=probabilities.shape[1])
    assert g_test(observed, draws * probabilities[0]) > 1e-6
    assert g_test(observed, draws * probabilities[1]) < 1e-6


def test_a_bias_is_the_exception(mechanism: Any) -> None:
    bias = mechanism.bias(np.linspace(-1.0, 1.0, 41))
    assert bias.shape == (41,)
    assert bool(bias.any()) == (mechanism.name in BIASED)


def test_the_exact_error_is_what_draws_show(mechanism: Any) -> None:
    if isinstance(mechanism, VectorMechanism):
        x = np.random.default_rng(4).uniform(-1.0, 1.0, (4_000, 1))
    else:
        x = np.linspace(-1.0, 1.0, 200_001)[None]
    errors = np.abs(rows_estimated(mechanism, x, pq.RandomStream.seeded(5)) - x).ravel()
    rounding = 1e-7 if mechanism.outputs_floats else 1e-9
    for power, exact in ((2, mechanism.mse()), (1, mechanism.mae())):
        drawn = errors**power
        assert drawn.mean() == pytest.approx(exact, abs=7 * drawn.std() / math.sqrt(x.size) + rounding)


VECTORS = [each for each in pq.available_mechanisms() if issubclass(get_entry(each).spec, VectorSpec)]


@pytest.mark.parametrize("name", VECTORS)
def test_the_exact_error_of_vectors_is_what_draws_show(mechanism: Any) -> None:
    generator = np.random.default_rng(6)
    x = generator.uniform(-1.0, 1.0, (4_000, 3))
    if mechanism.norm is UpdateNorm.L2:
        x = generator.normal(size=x.shape)
        x *= generator.random((len(x), 1)) ** (1 / 3) / np.linalg.norm(x, axis=1, keepdims=True)
    sized = mechanism.for_dimension(3)
    squared = ((rows_estimated(sized, x, pq.RandomStream.seeded(5)) - x) ** 2).sum(axis=1)
    margin = 7 * squared.std() / math.sqrt(len(x))
    assert squared.mean() == pytest.approx(3 * sized.mse(), abs=margin)
    assert squared.mean() == pytest.approx(np.mean([sized.squared_error(row) for row in x]), abs=margin)


def test_a_sum_of_codes_decodes_to_the_mean(mechanism: Any) -> None:
    if not mechanism.summable:
        for asked in (
            lambda: mechanism.sum_bits(2),
            lambda: mechanism.to_codes(np.zeros(1, np.uint8)),
            lambda: mechanism.decode_sum(np.zeros(3, np.int64), 2),
        ):
            with pytest.raises(InvalidSpecError, match="add"):
                asked()
        return
    num_clients = 1 if mechanism.parameters.get("num_clients") == 1 else 7
    x = np.random.default_rng(0).uniform(-1, 1, (num_clients, 300))
    mechanism = mechanism.for_dimension(300)
    stream = pq.RandomStream.seeded(3)
    indices = [mechanism.encode(row, rng=stream) for row in x]
    codes = np.array([mechanism.to_codes(each) for each in indices])
    modulus = 1 << mechanism.sum_bits(num_clients)
    assert codes.shape == (num_clients, 300)
    assert codes.min() >= 0
    assert codes.max() < modulus
    assert mechanism.max_code is None or codes.max() <= mechanism.max_code
    mean = mechanism.decode_sum(codes.sum(axis=0) % modulus, num_clients)
    decoded = np.array([mechanism.decode(each) for each in indices])
    assert mean == pytest.approx(decoded.mean(axis=0), abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_any_shape_and_precision(mechanism: Any, shape: tuple[int, ...], dtype: type) -> None:
    x = np.full(shape, 0.25, dtype)
    if isinstance(mechanism, VectorMechanism):
        mechanism = mechanism.for_dimension(3)
        if shape != (3,):
            with pytest.raises(InvalidUpdateError, match="shape"):
                mechanism.encode(x)
            return
        encoded = mechanism.encode(x, rng=pq.RandomStream.seeded(1))
        assert (encoded.shape, encoded.dtype.kind) == ((mechanism.message_size,), "u")
        assert int(encoded.max()) < 1 << mechanism.message_bits
        assert mechanism.decode(encoded).shape == shape
        return
    encoded = mechanism.encode(x, rng=pq.RandomStream.seeded(1))
    assert encoded.shape == shape
    assert mechanism.decode(encoded).shape == shape


def test_the_same_seed_gives_the_same_codes(mechanism: Any) -> None:
    x = np.linspace(-1, 1, 70_000).astype(np.float32)
    mechanism = mechanism.for_dimension(x.size)
    first, second = (mechanism.encode(x, rng=pq.RandomStream.seeded(9, round=2)) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("name", [each for each in pq.available_mechanisms() if each not in VECTORS])
def test_chunks_precision_and_layout_do_not_matter(mechanism: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(2).uniform(-1.2, 1.2, (40, 50)).astype(np.float32)
    expected = mechanism.encode(x, rng=pq.RandomStream.seeded(3))
    others = [np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]]
    if not mechanism.outputs_floats:
        others.append(x.astype(np.float64))
    monkeypatch.setattr(chunks, "_CHUNK", 77)
    for same in (x, *others):
        codes = mechanism.encode(same, rng=pq.RandomStream.seeded(3))
        np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize(
    "name", [*(each for each in pq.available_mechanisms() if each not in DETERMINISTIC), *VARIANTS]
)
def test_by_default_codes_are_not_repeatable(name: str, mechanism: Any) -> None:
    x = np.linspace(0.001, 0.013, 4096)
    mechanism = mechanism.for_dimension(x.size)
    distinct = len({mechanism.encode(x).tobytes() for _ in range(8)})
    # A vector mechanism says little: a message of 13 bits can come twice, but not eight times.
    assert distinct > 1 if isinstance(mechanism, VectorMechanism) else distinct == 8


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(mechanism: Any, bad: float) -> None:
    with pytest.raises(InvalidUpdateError):
        mechanism.for_dimension(2).encode(np.array([0.1, bad]))


@pytest.mark.parametrize("name", VECTORS)
def test_messages_that_are_none(mechanism: Any) -> None:
    mechanism = mechanism.for_dimension(3)
    good = mechanism.encode(np.zeros(3))
    with pytest.raises(InvalidUpdateError, match="integers"):
        mechanism.decode(good.astype(np.float64))
    for bad in (good[:-1], np.concatenate([good, good]), good[None]):
        with pytest.raises(InvalidUpdateError, match="shape"):
            mechanism.decode(bad)
    for value in (-1, mechanism.wire_format(3, 1.0, np.dtype(np.float32)).largest + 1):
        damaged = good.astype(np.int64)
        damaged[-1] = value
        with pytest.raises(CodeOverflowError, match="outside"):
            mechanism.decode(damaged)


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan, np.inf])
def test_a_bad_clip_is_refused(mechanism: Any, clip: float) -> None:
    with pytest.raises(InvalidSpecError, match="clip"):
        mechanism.for_dimension(3).encode(np.zeros(3), clip=clip)


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.nan, np.inf, "one"])
def test_a_bad_epsilon_is_refused(name: str, epsilon: Any) -> None:
    with pytest.raises(InvalidSpecError, match="epsilon"):
        typical(name, epsilon)


def test_an_unknown_parameter_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpecError, match="not a parameter of"):
        pq.design(registered(name), epsilom=1.0)


def test_a_mistyped_bits_is_hinted_at() -> None:
    with pytest.raises(InvalidSpecError, match=r"takes .*bits, .* did you mean 'bits'"):
        pq.design("optm", epsilon=1.0, bit=2)


@pytest.mark.parametrize("name", PRIVATE)
def test_forged_claims_gain_nothing(mechanism: Any) -> None:
    """What claims less loss than it has is refused, however well-formed its bytes."""
    less = mechanism.epsilon * 0.999
    blob = forged(mechanism, epsilon=less.hex())
    if isinstance(mechanism, VectorMechanism):
        # Its chances are not sent but follow from the claim: the receiver draws with those of the claim.
        assert pq.Mechanism.from_bytes(blob).epsilon <= less
        return
    with pytest.raises(CertificationError, match="claimed"):
        pq.Mechanism.from_bytes(blob)


@pytest.mark.parametrize("name", PRIVATE)
def test_the_loss_of_the_output_probabilities_is_inside_what_is_certified(mechanism: Any) -> None:
    """From the probabilities alone, by the definition: P(S) <= e^epsilon Q(S) + delta for the worst set S."""
    if not hasattr(mechanism, "pmf"):
        # Real noise and whole updates have no list of probabilities; their own tests check the accounting.
        assert isinstance(mechanism, FloatMechanism | VectorMechanism)
        return
    rows = mechanism.pmf(np.linspace(-1.0, 1.0, 21))
    assert rows.sum(axis=1) == pytest.approx(1.0, abs=1e-9)
    worst = max(
        float(np.maximum(first - math.exp(mechanism.epsilon) * second, 0.0).sum())
        for first in rows
        for second in rows
    )
    assert worst <= mechanism.delta + 1e-12
    # Negative control: with a tenth less loss the same probabilities would not do.
    tighter = math.exp(0.9 * mechanism.epsilon)
    assert max(float(np.maximum(a - tighter * b, 0.0).sum()) for a in rows for b in rows) > mechanism.delta
