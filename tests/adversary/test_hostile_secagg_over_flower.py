"""Secure aggregation over Flower messages: a client that seals garbage, a server that asks differently."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant.encoding import Encoding
from fl_privquant.flower import (
    PrivQuantMod,
    PrivQuantStrategy,
    SecureAggregationMod,
    SecureSum,
)
from fl_privquant.flower.asked import Asked
from fl_privquant.flower.engines import Federation, InlineEngine
from fl_privquant.flower.engines.internals import server_identity
from fl_privquant.flower.protocol import Request
from fl_privquant.secagg.messages import SharedSeeds

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
    client, server = ClientApp(), ServerApp()
    asked: list[int] = []

    def counts(message: Message, context: Context, call_next: Any) -> Message:
        record = message.content.get("secagg")
        if isinstance(record, ConfigRecord) and record["secagg-stage"] == "advertise":
            asked.append(int(context.node_config["partition-id"]))
        return call_next(message, context)

    @client.train(
        mods=[counts, deals_garbage, SecureAggregationMod(), PrivQuantMod(max_epsilon=math.inf, seed=5)]
    )
    def train(message: Message, context: Context) -> Message:
        arrays = {
            name: Array(np.asarray(each.numpy() + np.float32(0.05)))
            for name, each in message.content["arrays"].items()
        }
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 3})}
        return Message(RecordDict(content), reply_to=message)

    survivors: dict[int, int] = {}

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        strategy = PrivQuantStrategy(
            inner, mechanism=MECHANISM, clip=0.1, max_failed_rounds=1, aggregation=SecureSum()
        )
        record = ArrayRecord({"weight": Array(np.zeros(37, np.float32))})
        strategy.start(grid, record, num_rounds=ROUNDS)
        survivors.update(strategy.survivors)

    InlineEngine().run(server, client, Federation(num_clients=CLIENTS))
    assert survivors == {1: 0, 2: CLIENTS - 1}
    assert asked.count(CULPRIT) == 1
    assert len(asked) == 2 * CLIENTS - 1


def message(request: Request, values: np.ndarray, name: str = "weight") -> Message:
    config = ConfigRecord({"server-round": 1})
    request.write(config)
    content = {"arrays": ArrayRecord({name: Array(values)}), "config": config}
    with server_identity(1):
        return Message(RecordDict(content), 1, "train")


def test_the_digest_of_a_request_is_of_all_that_is_asked_for() -> None:
    request = Request(3, Encoding(MECHANISM, clip=0.1))
    values = np.zeros(7, np.float32)
    base = Asked.read(message(request, values)).digest
    # What differs from client to client is no part of it.
    assert Asked.read(message(replace(request, counted_releases=4), values)).digest == base
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
    assert len({base, *(Asked.read(other).digest for other in others)}) == len(others) + 1


@pytest.mark.parametrize("cut", [1, 3])
def test_arrays_are_told_apart_by_where_they_end(cut: int) -> None:
    request = Request(3, Encoding(MECHANISM, clip=0.1))
    values = np.arange(8, dtype=np.float32)
    whole = {"a": Array(values[:4]), "b": Array(values[4:])}
    other = {"a": Array(values[: 4 - cut]), "b": Array(values[4 - cut :])}
    assert request.digest(whole) != request.digest(other)
