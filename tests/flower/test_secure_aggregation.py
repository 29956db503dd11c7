"""Secure aggregation over Flower: the same model to the last bit, whoever leaves and whenever."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg, FedMedian, Krum, Strategy

import fl_privquant as pq
from fl_privquant.accounting import LOCAL, Accountant, Budget, Release, SecureSum, SumOfCodes, View
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import NoUsableReplyError, PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower._messages.protocol import Request
from fl_privquant.packing.wire_format import PackedIndices
from fl_privquant.secagg import ClientPolicy, ClientRound, Stage
from tests.flower.apps import Simulated, client_app, fedavg, simulate

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CLIENTS, ROUNDS = 8, 3
STAGES = ("advertise", "share", "train", "unmask")


def mechanism(name: str = "optm", **parameters: Any) -> Any:
    return pq.design(name, **({"epsilon": 2.0} | parameters))


class Leaves:
    """The outermost mod of a client that is lost at one stage of one round."""

    def __init__(self, stage: str | None, clients: set[int], only_round: int | None = None) -> None:
        self.stage, self.clients, self.only_round = stage, clients, only_round

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        record = message.content.get("secagg")
        stage = record["secagg-stage"] if isinstance(record, ConfigRecord) else "train"
        number = int(message.metadata.group_id or message.content["config"]["server-round"])
        this_round = self.only_round is None or number == self.only_round
        if stage == self.stage and this_round and int(context.node_config["partition-id"]) in self.clients:
            raise ConnectionError("gone")
        return call_next(message, context)


def shifted(arrays: dict[str, np.ndarray], partition: int, server_round: int) -> dict[str, np.ndarray]:
    return {name: np.asarray(each + np.float32(0.01 * (partition - 3))) for name, each in arrays.items()}


def run(
    secure: bool,
    leaves: Leaves | None = None,
    encoder: Any = None,
    inner: Strategy | None = None,
    wrap_server: bool = True,
    rounds: int = ROUNDS,
    budget: Budget | None = None,
    policy: ClientPolicy | None = None,
    max_epsilon: float = math.inf,
    max_failed_rounds: int = 0,
    **options: Any,
) -> Simulated:
    strategy = PrivQuantStrategy(
        inner or fedavg(),
        pq.Encoding(encoder or mechanism(), clip=0.1),
        max_failed_rounds=max_failed_rounds,
        aggregation=SecureSum(**options) if secure and wrap_server else SumOfCodes(),
        budget=budget,
    )
    masked = (policy or True) if secure else False
    mod = PrivQuantMod(max_epsilon, max_delta=1e-3, seed=5, metrics=["loss"], secure_aggregation=masked)
    initial = {"weight": np.zeros((20, 17), np.float32), "bias": np.zeros((), np.float32)}
    mods = [leaves or Leaves(None, set()), mod]
    return simulate(strategy, client_app(mods, shifted), CLIENTS, rounds, initial)


@pytest.mark.parametrize(
    "encoder",
    [
        mechanism(),
        mechanism("one_bit"),
        mechanism("rqm", levels=5),
        mechanism("discrete_laplace", num_clients=CLIENTS),
        mechanism("skellam", num_clients=CLIENTS),
        pq.design("none", fixed_point_bits=20),
    ],
    ids=lambda each: each.name,
)
def test_the_model_is_the_same_to_the_last_bit(encoder: Any) -> None:
    plain = run(secure=False, encoder=encoder).vector
    assert np.array_equal(run(secure=True, encoder=encoder).vector, plain)
    assert np.abs(plain).max() > 0


def test_none_goes_through_in_fixed_point() -> None:
    lossless = pq.design("none")
    plain, secure = (run(secure=each, encoder=lossless).vector for each in (False, True))
    # Each of the clients errs by less than a step, in each round.
    step = 0.1 * lossless.for_sums().step
    assert 0.0 < np.abs(secure - plain).max() < ROUNDS * step
    assert np.array_equal(secure, run(secure=False, encoder=lossless.for_sums()).vector)


def test_the_error_says_that_clients_refuse_and_their_logs_why(flower_log: Any) -> None:
    """A policy that the round does not meet is the client's own matter."""
    expected = (
        r"0 clients sent keys.*8 nodes \(.*\): advertise: .*does not take part.*the client's log says why"
    )
    with pytest.raises(NoUsableReplyError, match=expected) as raised:
        run(secure=True, policy=ClientPolicy(min_clients=9))
    reason = "8 clients, below the 9 of this client's min_clients"
    assert reason not in str(raised.value)
    assert reason in flower_log.text


@pytest.mark.parametrize("secure", [True, False])
def test_the_error_repeats_by_which_kind_of_limit_all_clients_refuse(secure: bool, flower_log: Any) -> None:
    """Under secure aggregation it once told only that no masked input had arrived."""
    with pytest.raises(NoUsableReplyError) as raised:
        run(secure=secure, max_epsilon=0.5)
    text = str(raised.value)
    assert "(8 failed, 0 silent)" in text
    assert "most nodes replied with error" in text
    assert (
        "CertificationError: the mechanism is above this client's limits; the client's log says why" in text
    )
    assert (
        "mechanism 'optm' has ε = 2, δ = 0 (coordinate release, local view, replace-one)" in flower_log.text
    )
    assert "above this client's max_epsilon 0.5" in flower_log.text
    assert "max_epsilon" not in text
    assert ("ends without a sum: no masked input arrived" in text) is secure
    assert "\n" not in text


def test_what_a_secure_sum_asks_clients_for() -> None:
    """An aggregation changes what clients are asked for, and not the encoding that was given."""
    encoding = Encoding(pq.design("none"), clip=0.1, rotate=True)
    plain = PrivQuantStrategy(FedAvg(), encoding, budget=Budget(8.0, 1e-5))
    secure = PrivQuantStrategy(
        FedAvg(), encoding, budget=Budget(8.0, 1e-5), aggregation=SecureSum(corrupt_fraction=0.2)
    )
    assert plain.request(1).encoding == plain.encoding == secure.encoding == encoding
    assert secure.request(1).encoding != encoding
    assert secure.request(1).encoding.rotate
    assert (plain.aggregation.view(20), secure.aggregation.view(20)) == (LOCAL, View(14))


@pytest.mark.parametrize("inner", [FedMedian, Krum])
def test_strategies_that_need_single_updates_are_refused(inner: Any) -> None:
    with pytest.raises(InvalidSpecError, match="compares single updates"):
        PrivQuantStrategy(inner(), pq.Encoding(mechanism(), clip=0.1), aggregation=SecureSum())


def test_mechanisms_without_integers_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match="does not give integers"):
        run(secure=True, encoder=mechanism("laplace"))


def test_a_server_cannot_turn_it_off() -> None:
    """Negative control: the same clients refuse a server that asks for updates in the clear."""
    with pytest.raises(NoUsableReplyError):
        run(secure=True, wrap_server=False)


def test_nothing_secret_is_left_when_the_round_is_over() -> None:
    contexts = run(secure=True).grid.contexts
    assert len(contexts) == CLIENTS
    for context in contexts.values():
        state = ClientRound.from_bytes(context.state["privquant-secagg"]["secagg-data"])
        assert state.stage == Stage.ENDED


@pytest.mark.parametrize("stage", ["advertise", "train"])
def test_sums_are_counted_with_the_honest_clients_that_stayed(stage: str) -> None:
    fractions = {"corrupt_fraction": 0.25, "dropout_fraction": 0.125}
    strategy = run(True, Leaves(stage, {2}, only_round=2), **fractions).strategy
    # Eight clients, two of them corrupt; in round 2 one has left.
    release = Release(mechanism(), 341, View(6))
    expected = Accountant([release, release, Release(mechanism(), 341, View(5))])
    assert strategy.ledger.statement(1e-5, in_sum=True) == expected.statement(1e-5)
    levels = strategy.statements()
    assert [(each.unit.value, str(each.view)) for each in levels] == [
        ("coordinate release", "local"),
        ("client round", "local"),
        ("client round", "aggregate of 6"),
        ("client total", "local"),
        ("client total", "aggregate of 5 to 6"),
    ]
    assert levels[4].epsilon < levels[3].epsilon


def test_rounds_that_came_to_no_sum_are_counted_with_the_min_that_could_have(
    flower_log: Any,
) -> None:
    done = run(True, Leaves("unmask", set(range(6)), only_round=2), max_failed_rounds=1)
    assert "nothing was applied" in flower_log.text
    stated = done.ledger.statement(1e-5, in_sum=True)
    assert stated.scope == "341 coordinates, 3 rounds"
    # One of the eight is counted as corrupt, and one may be lost: no sum of fewer honest clients is opened.
    assert str(stated.view) == "aggregate of 6 to 7"


def test_nothing_is_counted_where_no_keys_were_agreed_on() -> None:
    done = run(True, Leaves("advertise", set(range(7)), only_round=2), max_failed_rounds=1)
    assert [number for number, _ in done.ledger.releases] == [1, 3]


@pytest.mark.parametrize("limited", [True, False])
def test_no_sum_of_fewer_honest_clients_than_planned_is_opened(limited: bool, flower_log: Any) -> None:
    spent = Accountant([Release(mechanism(), 341, View(CLIENTS))] * 2).statement(1e-5)
    done = run(
        True,
        Leaves("train", {1}, only_round=2),
        corrupt_fraction=0.0,
        dropout_fraction=0.0,
        max_failed_rounds=1,
        rounds=2,
        budget=Budget(spent.epsilon, 1e-5) if limited else None,
    )
    assert "below the 8 without which clients do not unmask" in flower_log.text
    stated = done.ledger.statement(1e-5, in_sum=True)
    assert (str(stated.view), stated.epsilon) == (f"aggregate of {CLIENTS}", pytest.approx(spent.epsilon))
    assert done.strategy.survivors == {1: CLIENTS, 2: 0}
    assert np.array_equal(done.vector, run(False, rounds=1).vector)


def test_metrics_that_clients_let_pass_are_averaged_over_those_in_the_sum() -> None:
    plain, secure = (run(each).result.train_metrics_clientapp for each in (False, True))
    assert secure == plain
    assert plain[1]["loss"] == pytest.approx(0.5 + np.mean(range(CLIENTS)))
    lost = run(True, Leaves("train", {7}))
    assert lost.metrics["loss"] == pytest.approx(0.5 + np.mean(range(7)))


@pytest.mark.parametrize("name", ["corrupt_fraction", "dropout_fraction"])
@pytest.mark.parametrize("value", [-1.0, 1.0, math.nan])
def test_fractions_that_are_none_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidSpecError, match=name):
        SecureSum(**{name: value})


def test_an_update_goes_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes go from the mechanism to their masks: never packed otherwise, and requests are read once."""
    asked: list[int] = []
    packed: list[str] = []
    read, pack = Request.read, PackedIndices.pack

    def counting(config: ConfigRecord) -> Request:
        asked.append(1)
        return read(config)

    def noting(self: PackedIndices, encoded: Any) -> bytes:
        packed.append("indices")
        return pack(self, encoded)

    monkeypatch.setattr(Request, "read", counting)
    monkeypatch.setattr(PackedIndices, "pack", noting)
    run(secure=True)
    assert packed == []
    assert len(asked) == CLIENTS * ROUNDS
    run(secure=False)
    assert len(packed) == CLIENTS * ROUNDS
    assert len(asked) == 2 * CLIENTS * ROUNDS
