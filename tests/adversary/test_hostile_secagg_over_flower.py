"""Secure aggregation over Flower messages: a client that seals garbage, a server that asks differently."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.grids import GridWrapper
from fl_privquant.flower._messages.protocol import (
    KEY_DELIVERY,
    KEY_RECEIVER,
    KEY_SEED,
    PER_CLIENT_KEYS,
    Request,
    message_digest,
)
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.secagg.messages import SharedSeeds
from tests.flower.apps import client_app, fedavg, mod_for, moving_client, simulate

CLIENTS, ROUNDS, CULPRIT = 25, 2, 7
MECHANISM = pq.design("one_bit", epsilon=1.0)


def deals_garbage(message: Message, context: Context, call_next: Any) -> Message:
    """A mod outside all others: the shares that the client deals fit to no secret."""
    record = message.content.get("secagg")
    reply = call_next(message, context)
    stage = record["secagg-stage"] if isinstance(record, ConfigRecord) else "train"
    if stage == "share" and int(context.node_config["partition-id"]) == CULPRIT:
        sent = SharedSeeds.from_bytes(reply.content["secagg"]["secagg-data"])
        garbage = replace(sent, corrections=tuple(bytes(len(block)) for block in sent.corrections))
        reply.content["secagg"]["secagg-data"] = garbage.to_bytes()
    return reply


def test_a_client_that_deals_garbage_is_left_out_of_later_rounds() -> None:
    """Its secret does not open: one round ends without a sum, and the client is not asked again."""
    asked: list[int] = []

    def counts(message: Message, context: Context, call_next: Any) -> Message:
        record = message.content.get("secagg")
        if isinstance(record, ConfigRecord) and record["secagg-stage"] == "advertise":
            asked.append(int(context.node_config["partition-id"]))
        return call_next(message, context)

    client = moving_client(np.float32(0.05), [counts, deals_garbage, mod_for(SecureSum())])
    # At the default settings no round may fail, but one that names a culprit does not count.
    strategy = PrivQuantStrategy(fedavg(), pq.Encoding(MECHANISM, clip=0.1), aggregation=SecureSum())
    simulate(strategy, client, CLIENTS, ROUNDS, {"weight": np.zeros(37, np.float32)})
    assert strategy.survivors == {1: 0, 2: CLIENTS - 1}
    assert asked.count(CULPRIT) == 1
    assert len(asked) == 2 * CLIENTS - 1


def message(request: Request, values: np.ndarray, name: str = "weight") -> Message:
    config = ConfigRecord({"server-round": 1})
    request.write(config)
    content = {"arrays": ArrayRecord({name: Array(values)}), "config": config}
    with use_server_identity(1):
        return Message(RecordDict(content), 1, "train")


def test_the_digest_of_a_request_is_of_all_that_is_asked_for() -> None:
    request = Request(3, Encoding(MECHANISM, clip=0.1))
    values = np.zeros(7, np.float32)
    base = message_digest(message(request, values))
    # What differs from client to client is no part of it.
    assert message_digest(message(replace(request, counted_releases=4), values)) == base
    rotated = replace(request.encoding, rotate=True)
    encodings = [
        replace(request.encoding, clip=0.2),
        replace(request.encoding, l2_clip=1.0),
        replace(request.encoding, mechanism=pq.design("one_bit", epsilon=0.5)),
        rotated,
    ]
    others = [
        message(replace(request, round=4), values),
        *(message(replace(request, encoding=each), values) for each in encodings),
        message(replace(request, encoding=rotated, rotation_seed=1), values),
        message(request, values + np.float32(1e-30)),
        message(request, values.reshape(7, 1)),
        message(request, values, name="bias"),
    ]
    assert len({base, *map(message_digest, others)}) == len(others) + 1


@pytest.mark.parametrize("cut", [1, 3])
def test_arrays_are_told_apart_by_where_they_end(cut: int) -> None:
    request = Request(3, Encoding(MECHANISM, clip=0.1))
    values = np.arange(8, dtype=np.float32)
    whole, other = message(request, values), message(request, values)
    whole.content["arrays"] = ArrayRecord({"a": Array(values[:4]), "b": Array(values[4:])})
    other.content["arrays"] = ArrayRecord({"a": Array(values[: 4 - cut]), "b": Array(values[4 - cut :])})
    assert message_digest(whole) != message_digest(other)


def test_the_digest_is_of_every_record_and_only_the_listed_entries_may_differ() -> None:
    """The app's own configuration is in it, in any record, and which function of the app is called."""
    request = Request(3, Encoding(MECHANISM, clip=0.1), counted_releases=1)
    values = np.zeros(7, np.float32)

    def changed(record: str, key: str, value: Any, kind: type = ConfigRecord) -> Message:
        sent = message(request, values)
        if record not in sent.content:
            sent.content[record] = kind()
        sent.content[record][key] = value
        return sent

    base = message_digest(message(request, values))
    own = {KEY_DELIVERY, KEY_SEED, KEY_RECEIVER, "privquant-counted-releases"}
    assert own == PER_CLIENT_KEYS
    for key in (KEY_DELIVERY, KEY_SEED, KEY_RECEIVER):
        assert message_digest(changed("config", key, b"to one client")) == base
    assert message_digest(changed("config", "privquant-counted-releases", 9)) == base
    with use_server_identity(1):
        other_function = Message(message(request, values).content, 1, "train.other")
        other_group = Message(message(request, values).content, 1, "train", group_id="2")
    others = [
        changed("config", "lr", 0.0),
        changed("config", "lr", 0),
        changed("config", "lr", False),
        changed("config", "lr", "0"),
        changed("config", "lr", b"0"),
        changed("config", "lr", [0.0]),
        changed("config", "server-round", 2),
        changed("app", "lr", 0.0),
        changed("app", "lr", 0.0, MetricRecord),
        # Outside of the request these names mean nothing, and a server could tell clients apart by them.
        changed("app", KEY_DELIVERY, b"to one client"),
        changed("app", "privquant-counted-releases", 1),
        other_function,
        other_group,
    ]
    assert len({base, *map(message_digest, others)}) == len(others) + 1


class FreezesOthers(GridWrapper):
    """A server that tells all clients but one not to learn, after the masks were agreed on."""

    def __init__(self, grid: Grid, victim: int | None) -> None:
        super().__init__(grid)
        self._victim = victim

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        sent = list(messages)
        for each in sent:
            if "config" in each.content and self._victim not in (None, each.metadata.dst_node_id):
                each.content["config"] = ConfigRecord({**each.content["config"], "lr": 0.0})
        return super().send_and_receive(sent, timeout=timeout)


@pytest.mark.parametrize("attacked", [False, True])
def test_a_server_that_freezes_all_clients_but_one_opens_nothing(attacked: bool) -> None:
    """With lr=0 for all others, the opened mean was the victim's update and noise."""
    client, server = ClientApp(), ServerApp()
    update = np.random.default_rng(1).normal(0, 0.02, 500).astype(np.float32)

    @client.train(mods=[PrivQuantMod(max_epsilon=math.inf, secure_aggregation=True)])
    def train(message: Message, context: Context) -> Message:
        rate = float(message.content["config"]["lr"])
        arrays = {"weight": Array(message.content["arrays"]["weight"].numpy() + np.float32(rate) * update)}
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    models: dict[int, np.ndarray] = {}

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=5, min_available_nodes=5)
        strategy = PrivQuantStrategy(
            inner,
            pq.Encoding(pq.design("none"), clip=0.1),
            max_failed_rounds=1,
            aggregation=SecureSum(exact_sums=True),
        )
        lying = FreezesOthers(grid, min(grid.get_node_ids()) if attacked else None)
        strategy.start(
            lying,
            ArrayRecord({"weight": Array(np.zeros(500, np.float32))}),
            num_rounds=1,
            train_config=ConfigRecord({"lr": 1.0}),
            evaluate_fn=lambda number, arrays: models.update({number: arrays["weight"].numpy()}),
        )

    InlineEngine().run(server, client, Federation(num_clients=5))
    learned = float(np.corrcoef(models[1], update)[0, 1]) if models[1].any() else 0.0
    # Either the sum is refused, or it is of masks that do not cancel: five standard deviations of noise.
    assert (abs(learned) < 5 / math.sqrt(500)) if attacked else (learned > 0.99)


def test_a_strategy_that_asks_clients_differently_is_told(flower_log: Any) -> None:
    """An honest one: without the check, each round would end with a sum of masks."""

    class Differing(FedAvg):
        def configure_train(self, *args: Any, **keywords: Any) -> Iterable[Message]:
            for place, each in enumerate(super().configure_train(*args, **keywords)):
                own = ConfigRecord({**each.content["config"], "place": place})
                each.content = RecordDict({**each.content, "config": own})
                yield each

    trained: list[int] = []
    client = client_app([mod_for(SecureSum())], lambda arrays, partition, _: trained.append(partition))
    encoding = pq.Encoding(MECHANISM, clip=0.1)
    strategy = PrivQuantStrategy(fedavg(Differing), encoding, aggregation=SecureSum())
    with pytest.raises(InvalidSpecError, match=r"node \d+ is sent another configuration or model"):
        simulate(strategy, client, 5)
    assert trained == []
