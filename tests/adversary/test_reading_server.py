"""A server that chooses weights, to read a client off its refusals, gets releases that are counted.

The client is honest: one step of gradient descent on one example x, through a hidden layer of one ReLU. The
server sends weights for which the step overflows, or the app raises, if and only if x has a certain property,
such as x[j] > t. Each answer was then one bit of x, and free: an error was not counted.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

import fl_privquant as pq
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.flower import PrivQuantMod
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.protocol import Reply, Request
from fl_privquant.flower.client.ledger import ClientLedger
from tests.flower.asking import client

FEATURES = 8
STEPS = 12
DIMENSION = 2 * FEATURES + 2

App = Callable[[Message, Context], Message]


def request_of(mechanism: pq.Mechanism, number: int, changes: dict[str, Any]) -> Request:
    names = ("l2_clip", "rotate")
    encoding = Encoding(mechanism, 0.2, **{name: changes[name] for name in names if name in changes})
    return Request(number, encoding, **{name: changes[name] for name in changes if name not in names})


def ask(arrays: dict[str, np.ndarray], mechanism: pq.Mechanism, number: int, **changes: Any) -> Message:
    config = ConfigRecord({"server-round": number})
    request_of(mechanism, number, changes).write(config)
    record = ArrayRecord({name: Array(np.asarray(each)) for name, each in arrays.items()})
    with use_server_identity(1):
        return Message(RecordDict({"arrays": record, "config": config}), 7, "train")


def weights(feature: int = 0, threshold: float = 0.0, gain: float = 1e30) -> dict[str, np.ndarray]:
    """A model whose hidden unit is active, with a gradient that is no float32, if x[feature] > threshold."""
    first = np.zeros(FEATURES, np.float32)
    first[feature] = gain
    return {
        "first": first,
        "bias": np.float32([-threshold * gain]),
        "second": np.float32([gain]),
        "rest": np.zeros(FEATURES, np.float32),
    }


def relu_step(example: np.ndarray) -> App:
    """One honest step on the square of the network's output."""

    def train(message: Message, context: Context) -> Message:
        arrays = {name: each.numpy() for name, each in message.content["arrays"].items()}
        with np.errstate(over="ignore", invalid="ignore"):
            inner = np.float32(arrays["first"] @ example + arrays["bias"][0])
            hidden = np.maximum(inner, np.float32(0.0))
            output = arrays["second"][0] * hidden
            slope = 2.0 * output * arrays["second"][0] * (inner > 0)
            new = dict(arrays)
            if inner > 0:
                new["first"] = (arrays["first"] - np.float32(0.1) * slope * example).astype(np.float32)
                new["second"] = (arrays["second"] - np.float32(0.2) * output * hidden).astype(np.float32)
        record = ArrayRecord({name: Array(np.asarray(each)) for name, each in new.items()})
        metrics = MetricRecord({"num-examples": 1, "loss": float(np.nan_to_num(output, posinf=1e30))})
        return Message(RecordDict({"arrays": record, "m": metrics}), reply_to=message)

    return train


def read_by_errors(app: App, mod: PrivQuantMod, context: Context, mechanism: pq.Mechanism) -> np.ndarray:
    """The features as bisection finds them, with an error for "above"."""
    found = np.empty(FEATURES)
    numbers = itertools.count(1)
    for feature in range(FEATURES):
        low, high = -1.0, 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2.0
            reply = mod(ask(weights(feature, middle), mechanism, next(numbers)), context, app)
            low, high = (middle, high) if reply.has_error() else (low, middle)
        found[feature] = (low + high) / 2.0
    return found


@pytest.fixture(scope="module")
def mechanism() -> pq.Mechanism:
    return pq.design("optm", epsilon=1.0, bits=2)


def test_bisection_by_errors_reads_nothing_and_is_counted(mechanism: pq.Mechanism) -> None:
    example = np.random.default_rng(4).uniform(-1.0, 1.0, FEATURES).astype(np.float32)
    mod, context = PrivQuantMod(1.0), client()
    found = read_by_errors(relu_step(example), mod, context, mechanism)
    # It was 96 requests for 8 features to 2^-12, and a ledger that said "nothing released".
    assert np.abs(found - example).max() > 0.1
    assert np.ptp(found) == 0.0
    assert len(ClientLedger(context)) == FEATURES * STEPS


def test_a_budget_ends_the_questions(mechanism: pq.Mechanism) -> None:
    example = np.linspace(-1.0, 1.0, FEATURES, dtype=np.float32)
    mod, context = PrivQuantMod(1.0, budget=3.5 * DIMENSION * mechanism.epsilon), client()
    answers = [mod(ask(weights(), mechanism, number), context, relu_step(example)) for number in range(6)]
    assert [each.has_error() for each in answers] == [False, False, False, True, True, True]
    # The refusal is the same, whatever the data.
    other = client()
    again = [mod(ask(weights(), mechanism, number), other, relu_step(-example)) for number in range(6)]
    assert [each.error.reason for each in answers[3:]] == [each.error.reason for each in again[3:]]


def everything(reply: Message) -> dict[str, Any]:
    """All of a reply but the codes themselves: what must be the same for all data."""
    assert reply.has_content(), reply.error
    content = {
        key: {
            name: (each.dtype, each.shape, each.stype, len(each.data)) if isinstance(each, Array) else each
            for name, each in record.items()
        }
        for key, record in reply.content.items()
    }
    metadata = {
        name: getattr(reply.metadata, name)
        for name in ("message_type", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id")
    }
    return {"content": content, "metadata": metadata}


def fails(error: BaseException) -> App:
    def train(message: Message, context: Context) -> Message:
        raise type(error)(*error.args)

    return train


def returns(reply: Any) -> App:
    return lambda message, context: reply


def replies(change: Callable[[dict[str, np.ndarray]], dict[str, Any]]) -> App:
    def train(message: Message, context: Context) -> Message:
        arrays = change({name: each.numpy() for name, each in message.content["arrays"].items()})
        record = ArrayRecord({name: Array(np.asarray(each)) for name, each in arrays.items()})
        return Message(RecordDict({"arrays": record}), reply_to=message)

    return train


def with_error(message: Message, context: Context) -> Message:
    return Message(Error(0, "x[3] = 0.7"), reply_to=message)


def of_another_kind(message: Message, context: Context) -> Message:
    names = message.content["arrays"]
    record = ArrayRecord({name: Array("float32", (1,), "torch", b"1234") for name in names})
    return Message(RecordDict({"arrays": record}), reply_to=message)


def without_state(message: Message, context: Context) -> Message:
    context.state = None  # type: ignore[assignment]
    raise RuntimeError("0.7")


class Panic(BaseException):
    """As extensions that are written in Rust raise it, whose panics are no exceptions for Python."""


HOSTILE_DATA: dict[str, App] = {
    "raises": fails(RuntimeError("x[3] = 0.7")),
    "raises an error of this package": fails(pq.BudgetExhaustedError("x[3] = 0.7")),
    "runs out of memory": fails(MemoryError("0.7")),
    "ends its process": fails(SystemExit("0.7")),
    "is canceled": fails(asyncio.CancelledError("0.7")),
    "panics": fails(Panic("0.7")),
    "replies with an error": with_error,
    "replies with nothing": returns(None),
    "replies with a word": returns("0.7"),
    "NaN in one place": replies(lambda arrays: arrays | {"bias": np.float32([np.nan])}),
    "infinite in all": replies(lambda arrays: {name: each + np.inf for name, each in arrays.items()}),
    "another dtype": replies(lambda arrays: arrays | {"bias": np.array([1])}),
    "booleans": replies(lambda arrays: arrays | {"bias": np.array([True])}),
    "complex": replies(lambda arrays: arrays | {"bias": np.array([1j])}),
    "long double": replies(lambda arrays: arrays | {"bias": np.array([1e4000], dtype=np.longdouble)}),
    "another shape": replies(lambda arrays: arrays | {"bias": np.zeros((1, 1), np.float32)}),
    "another name": replies(lambda arrays: {f"{name}0.7": each for name, each in arrays.items()}),
    "no arrays": replies(lambda arrays: {}),
    "another order": replies(lambda arrays: dict(reversed(arrays.items()))),
    "another serialization": of_another_kind,
    "no state": without_state,
}
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"l2_clip": 0.3},
    "rotated": {"l2_clip": 0.3, "rotate": True, "rotation_seed": 5},
    "with a vote": {"clip_quantile": 0.9},
    "a forged seed": {"rotate": True, "rotation_seed": -(2**62)},
}


@pytest.mark.parametrize("name", HOSTILE_DATA)
def test_whatever_the_app_does_the_answer_is_one_release(
    mechanism: pq.Mechanism, name: str, flower_log: Any
) -> None:
    # What is asked for decides nothing of this; each kind of request is asked with some of the data.
    names = list(REQUESTS)
    for request_name in ("plain", names[list(HOSTILE_DATA).index(name) % len(names)]):
        changes = REQUESTS[request_name]
        mod, context, twin = PrivQuantMod(1.0), client(), client()
        arrays = weights(gain=1.0)
        bad = mod(ask(arrays, mechanism, 1, **changes), context, HOSTILE_DATA[name])
        good = mod(ask(arrays, mechanism, 1, **changes), twin, relu_step(np.ones(FEATURES, np.float32)))
        assert everything(bad) == everything(good)
        assert len(ClientLedger(context)) == len(ClientLedger(twin)) == 1
        assert ClientLedger(context).statement(1e-5) == ClientLedger(twin).statement(1e-5)
        # The state that Flower stores has it, too.
        assert len(context.state["privquant-ledger"]) == 1
        # Nothing of what the app said is in what leaves.
        assert "0.7" not in repr(bad.content["privquant-reply"])
    assert "zeros are released" in flower_log.text


@pytest.mark.parametrize("name", REQUESTS)
def test_zeros_are_what_is_encoded(name: str) -> None:
    changes = REQUESTS[name]
    # A mechanism that adds nothing shows what went in: every coordinate, and a vote for neither side.
    plain = pq.design("none", fixed_point_bits=20)
    message = ask(weights(gain=1.0), plain, 1, **changes)
    reply = PrivQuantMod(math.inf)(message, client(), HOSTILE_DATA["NaN in one place"])
    codec = request_of(plain, 1, changes).codec(Layout.of(weights()))
    payload = Reply.from_content(reply.content).payload
    assert all(not np.any(each) for each in codec.decode(payload).values())
    if codec.votes:
        assert codec.clip_vote(payload) == 0.5


@pytest.mark.parametrize("kind", ["none", "gaussian", "discrete_gaussian", "cldp_l2", "vqsgd_private", "pbm"])
def test_every_kind_of_payload_has_zeros(kind: str) -> None:
    options = {"none": {}, "gaussian": {"delta": 1e-5}, "discrete_gaussian": {"delta": 1e-5}}
    sent = pq.design(kind, **({"epsilon": 1.0} if kind != "none" else {}), **options.get(kind, {}))
    for value in (0.0, np.nan, 3e38):
        arrays = weights(gain=1.0)
        arrays["rest"][:] = value
        mod = PrivQuantMod(math.inf, max_delta=0.5)
        apps = (HOSTILE_DATA["raises"], relu_step(np.ones(FEATURES, np.float32)))
        failed, moved = (everything(mod(ask(arrays, sent, 1), client(), app)) for app in apps)
        assert failed == moved


def test_an_interrupt_by_the_owner_is_not_caught(mechanism: pq.Mechanism) -> None:
    context = client()
    with pytest.raises(KeyboardInterrupt):
        PrivQuantMod(1.0)(ask(weights(), mechanism, 1), context, fails(KeyboardInterrupt()))
    # Nothing left, and the ledger counts it all the same.
    assert len(ClientLedger(context)) == 1
