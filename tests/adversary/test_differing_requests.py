"""A server that asks clients for different things, or invites to a sum that does not fit its request."""

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
    RECORD_SECAGG,
    Request,
    message_digest,
)
from fl_privquant.flower._messages.stages import ADVERTISE, KEY_DATA, KEY_STAGE
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.secagg.messages import Invitation
from tests.flower.apps import client_app, fedavg, mod_for, simulate

CLIENTS = 25
MECHANISM = pq.design("one_bit", epsilon=1.0)


def message(request: Request, values: np.ndarray) -> Message:
    config = ConfigRecord({"server-round": 1})
    request.write(config)
    content = {"arrays": ArrayRecord({"weight": Array(values)}), "config": config}
    with use_server_identity(1):
        return Message(RecordDict(content), 1, "train")


def test_the_digest_of_a_request_is_of_all_that_is_asked_for() -> None:
    """Only the listed entries, in the record of the request, may differ from client to client."""
    request = Request(3, Encoding(MECHANISM, clip=0.1), counted_releases=1)
    values = np.arange(8, dtype=np.float32)
    rotated = replace(request.encoding, rotate=True)

    def changed(record: str, key: str, value: Any, kind: type = ConfigRecord) -> Message:
        sent = message(request, values)
        if record not in sent.content:
            sent.content[record] = kind()
        sent.content[record][key] = value
        return sent

    def of_arrays(arrays: dict[str, np.ndarray]) -> Message:
        sent = message(request, values)
        sent.content["arrays"] = ArrayRecord({name: Array(each) for name, each in arrays.items()})
        return sent

    base = message_digest(message(request, values))
    assert {KEY_DELIVERY, KEY_SEED, KEY_RECEIVER, "privquant-counted-releases"} == PER_CLIENT_KEYS
    for key in (KEY_DELIVERY, KEY_SEED, KEY_RECEIVER):
        assert message_digest(changed("config", key, b"to one client")) == base
    assert message_digest(changed("config", "privquant-counted-releases", 9)) == base
    encodings = [
        replace(request.encoding, clip=0.2),
        replace(request.encoding, l2_clip=1.0),
        replace(request.encoding, mechanism=pq.design("one_bit", epsilon=0.5)),
        rotated,
    ]
    with use_server_identity(1):
        other_function = Message(message(request, values).content, 1, "train.other")
        other_group = Message(message(request, values).content, 1, "train", group_id="2")
    others = [
        message(replace(request, round=4), values),
        *(message(replace(request, encoding=each), values) for each in encodings),
        message(replace(request, encoding=rotated, rotation_seed=1), values),
        message(request, values + np.float32(1e-30)),
        message(request, values.reshape(8, 1)),
        of_arrays({"bias": values}),
        # Arrays are told apart by where they end.
        *(of_arrays({"weight": values[:end], "bias": values[end:]}) for end in (4, 3)),
        # The app's own configuration counts too, in any record and of any type.
        *(changed("config", "lr", value) for value in (0.0, 0, False, "0", b"0", [0.0])),
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


class Forging(GridWrapper):
    """A server that changes the invitation on its way to the clients."""

    def __init__(self, grid: Grid, changes: dict[str, Any]) -> None:
        super().__init__(grid)
        self._changes = changes
        self.reasons: list[str] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        sent = list(messages)
        for message in sent:
            record = message.content.get(RECORD_SECAGG)
            if isinstance(record, ConfigRecord) and record[KEY_STAGE] == ADVERTISE:
                invitation = Invitation.from_bytes(record[KEY_DATA])
                record[KEY_DATA] = replace(invitation, **self._changes).to_bytes()
        replies = list(super().send_and_receive(sent, timeout=timeout))
        self.reasons += [each.error.reason for each in replies if each.has_error()]
        return replies


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        # Codes of four levels go up to 7: with 6 a client refused if it had drawn a 7.
        ({"max_code": 6}, "max_code: the server invited to a sum with 6, but its request needs 7"),
        ({"max_code": None, "width": 2}, "width"),
        ({"width": 9}, "width: the server invited to a sum with 9, but its request needs 8"),
        ({"dimension": 2}, "dimension: the server invited to a sum with 2, but its request needs 1"),
    ],
)
def test_a_mismatch_is_refused_by_all_before_they_train(
    changes: dict[str, Any], word: str, flower_log: Any
) -> None:
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    assert (mechanism.max_code, mechanism.sum_bits(CLIENTS)) == (7, 8)
    trained: list[int] = []

    def train(arrays: dict[str, Any], partition: int, server_round: int) -> dict[str, Any]:
        trained.append(partition)
        return {name: each + each.dtype.type(0.1) for name, each in arrays.items()}

    strategy = PrivQuantStrategy(
        fedavg(), pq.Encoding(mechanism, clip=0.1), max_failed_rounds=1, aggregation=SecureSum()
    )
    client, initial = client_app([mod_for(SecureSum())], train), {"x": np.zeros(1, np.float32)}
    grid = simulate(
        strategy, client, CLIENTS, initial=initial, wrap_grid=lambda grid: Forging(grid, changes)
    ).grid
    assert trained == []
    assert len(grid.reasons) == CLIENTS
    assert len(set(grid.reasons)) == 1
    assert word in flower_log.text


def test_clients_that_fail_to_train_are_in_the_secure_sum() -> None:
    """Success through secure aggregation does not depend on data either: zeros are masked like codes."""

    def train(arrays: dict[str, Any], partition: int, server_round: int) -> dict[str, Any]:
        if partition % 2:
            raise RuntimeError("x[3] = 0.7")
        return {name: each + each.dtype.type(0.1) for name, each in arrays.items()}

    encoding = pq.Encoding(pq.design("none", fixed_point_bits=20), clip=0.2)
    strategy = PrivQuantStrategy(fedavg(), encoding, aggregation=SecureSum())
    client = client_app([mod_for(SecureSum())], train)
    model = simulate(strategy, client, CLIENTS, initial={"x": np.zeros(7, np.float32)}).vector
    assert strategy.survivors == {1: CLIENTS}
    np.testing.assert_allclose(model, 0.1 * 13 / 25, atol=1e-5)
