"""Each fault for real, on the inline engine: a clear message, the good clients' mean, the budget kept."""

import numpy as np
import pytest
from flwr.app import Message

import fl_privquant as pq
from fl_privquant.accounting import SumOfCodes
from fl_privquant.flower import PrivQuantMod
from fl_privquant.flower._flower_internals import copy_records
from fl_privquant.flower._messages.protocol import PROTOCOL_VERSION
from fl_privquant.flower.simulation.inline import SimulationGrid
from tests.flower.apps import (
    SEED,
    assert_same_arrays,
    client_app,
    expected_model,
    simulate,
    strategy_for,
)

BAD = 1
GOOD = [0, 2, 3]
DIMENSION = 25


class Tamper:
    """A mod around PrivQuantMod that changes what the bad client sends."""

    def __init__(self, change):
        self.change = change

    def __call__(self, message, context, call_next):
        reply = call_next(message, context)
        return self.change(reply) if context.node_config["partition-id"] == BAD else reply


def with_payload(change):
    def tamper(reply):
        array = reply.content["privquant-update"]["payload"]
        array.data = change(array.data)
        return reply

    return tamper


def with_info(**changes):
    def tamper(reply):
        for key, value in changes.items():
            reply.content["privquant-reply"][f"privquant-{key}"] = value
        return reply

    return tamper


def without(record):
    def tamper(reply):
        del reply.content[record]
        return reply

    return tamper


def run(client, mechanism, flower_log, wrap_grid=lambda grid: grid):
    strategy = strategy_for(mechanism)
    return simulate(strategy, client, wrap_grid=wrap_grid).model, flower_log.text


def test_a_client_that_is_lost_is_named_and_left_out(mechanism, flower_log):
    client = client_app(lost_when=lambda partition, _: partition == BAD)
    arrays, text = run(client, mechanism, flower_log)
    assert_same_arrays(arrays, expected_model(mechanism, GOOD))
    assert f"node {BAD + 1}: replied with error" in text
    assert "3 usable updates, 1 failed" in text


PAYLOAD_FAULTS = {
    "truncated": (with_payload(lambda data: data[:-1]), "bytes, expected"),
    "too long": (with_payload(lambda data: data + b"\0"), "bytes, expected"),
    "empty": (with_payload(lambda data: b""), "0 bytes"),
    "codes out of range": (
        with_payload(lambda data: data[:16] + b"\xff" * (len(data) - 16)),
        "above the 25 digits below 3",
    ),
    "another width": (with_payload(lambda data: data[:4] + b"\x05" + data[5:]), "number of levels 5"),
    "another length": (with_payload(lambda data: data[:8] + b"\x07" + data[9:]), "length 7"),
    "stale round": (with_info(round=0), "reply to round 0, not 1"),
    "another mechanism": (with_info(mechanism="0" * 32), "not by the one that was requested"),
    "another version": (with_info(version=7), f"protocol: version 7 is not {PROTOCOL_VERSION}"),
    "round of another type": (with_info(round="one"), "privquant-round"),
    "no payload": (without("privquant-update"), "holds no encoded update"),
    "no header": (without("privquant-reply"), "holds no encoded update"),
}


@pytest.mark.parametrize("aggregation", [pq.PerClient(), SumOfCodes()])
@pytest.mark.parametrize("fault", PAYLOAD_FAULTS)
def test_a_bad_payload_is_dropped_by_node(flower_log, fault, aggregation):
    # Three levels: not every digit is an index.
    mechanism = pq.design("optm", epsilon=2.0, levels=3)
    change, reason = PAYLOAD_FAULTS[fault]
    client = client_app(mods=[Tamper(change), PrivQuantMod(max_epsilon=10.0, seed=SEED)])
    strategy = strategy_for(mechanism, aggregation=aggregation)
    model, expected = simulate(strategy, client).model, expected_model(mechanism, GOOD)
    if isinstance(aggregation, SumOfCodes):
        # The sum of codes is rounded once, and not for each client.
        for name, each in expected.items():
            np.testing.assert_allclose(model[name], each, rtol=0, atol=1e-6)
    else:
        assert_same_arrays(model, expected)
    assert f"node {BAD + 1}: " in flower_log.text
    assert reason in flower_log.text


def test_a_client_without_the_mod_is_dropped_and_told_about(mechanism, flower_log):
    private, plain = client_app(), client_app(mods=[])

    class Mixed(type(private)):
        def __call__(self, message, context):
            return (plain if context.node_config["partition-id"] == BAD else private)(message, context)

    arrays, text = run(Mixed(), mechanism, flower_log)
    assert_same_arrays(arrays, expected_model(mechanism, GOOD))
    assert "add PrivQuantMod" in text


class ForgingGrid(SimulationGrid):
    """A grid that delivers more replies than were asked for."""

    def __init__(self, grid, forge):
        self.__dict__.update(grid.__dict__)
        self._forge = forge

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        return self._forge(replies) if replies else replies


def from_node(reply, node):
    forged_reply = Message(
        content=reply.content, metadata=type(reply.metadata)(**_fields(reply.metadata, node))
    )
    assert forged_reply.metadata.src_node_id == node
    return forged_reply


def _fields(metadata, node):
    names = ("run_id", "message_id", "dst_node_id", "reply_to_message_id")
    names += ("group_id", "created_at", "ttl", "message_type")
    return {**{name: getattr(metadata, name) for name in names}, "src_node_id": node}


def run_forged(mechanism, flower_log, forge):
    return run(client_app(), mechanism, flower_log, lambda grid: ForgingGrid(grid, forge))


def test_a_reply_from_a_node_that_was_not_asked_is_dropped(mechanism, flower_log):
    arrays, text = run_forged(mechanism, flower_log, lambda replies: [from_node(replies[0], 999), *replies])
    assert_same_arrays(arrays, expected_model(mechanism, range(4)))
    assert "node 999: dropped: this node was not asked" in text


def test_a_second_reply_of_a_node_is_dropped(mechanism, flower_log):
    arrays, text = run_forged(mechanism, flower_log, lambda replies: [*replies, replies[2]])
    assert_same_arrays(arrays, expected_model(mechanism, range(4)))
    assert "node 3: dropped: this node has already replied" in text


def test_a_node_that_never_replies_is_counted(mechanism, flower_log):
    arrays, text = run_forged(mechanism, flower_log, lambda replies: replies[:BAD] + replies[2:])
    assert_same_arrays(arrays, expected_model(mechanism, GOOD))
    assert "1 node did not reply" in text


def test_a_reply_of_the_round_before_does_not_shut_out_the_right_one(mechanism, flower_log):
    kept = []

    strategy = strategy_for(mechanism)

    # The strategy replaces the content of replies: these are copies made before.
    def remember(replies):
        copies = [Message(content=copy_records(each.content), metadata=each.metadata) for each in replies]
        late, kept[:] = list(kept), copies
        return [*late, *replies]

    done = simulate(strategy, num_rounds=2, wrap_grid=lambda grid: ForgingGrid(grid, remember))
    first = expected_model(mechanism, range(4))
    assert_same_arrays(done.model, expected_model(mechanism, range(4), server_round=2, arrays=first))
    assert "4 nodes (1, 2, 3, 4): dropped: reply to round 1, not 2" in flower_log.text
