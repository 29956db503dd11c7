"""A node whose owner decides: servers that lie to it, apps that do not answer, owners who mistype."""

import importlib
import math
import sys

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

import fl_privquant as pq
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.protocol import Reply
from fl_privquant.flower._messages.stages import ADVERTISE, protocol_content
from fl_privquant.flower.client.node_gate import NodeGate, _GatedConnection, _pop_reply
from fl_privquant.secagg._wire import RoundId
from fl_privquant.secagg.messages import Invitation
from tests.flower.asking import ask

NODE = 7


@pytest.fixture
def config(tmp_path):
    return {"privquant-max-epsilon": 2.0, "privquant-ledger-file": str(tmp_path / "ledger.jsonl")}


class LyingServer:
    """Hands messages to a node; some objects that it announces are others when they are sent, or None."""

    def __init__(self, messages, exchanged):
        self.messages, self.exchanged = list(messages), exchanged
        self.objects, self.replies, self.pushed = {}, [], {}

    def receive(self):
        if not self.messages:
            return None
        message = self.messages.pop(0)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.objects |= {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
        return remove_content_from_message(message), get_object_tree(message)

    def pull(self, run_id, object_id):
        found = self.exchanged.get(object_id, self.objects[object_id])
        if found is None:
            raise OSError("connection lost")
        return found

    def send(self, reply, tree, duration):
        self.replies.append(reply)
        return set(get_all_nested_objects(reply)), "session"

    def push(self, run_id, session, object_id, content):
        self.pushed[object_id] = content

    def connection(self):
        return (NODE, self.receive, self.send, None, None, self.pull, self.push, lambda *_: None)


def serve(server, config):
    _GatedConnection(NodeGate(config), "token", {"node_config": config}, server.connection()).serve()


def message_of(kind, content=None):
    with use_server_identity(1):
        return Message(RecordDict() if content is None else content, NODE, kind)


@pytest.mark.parametrize("sent", [None, b"garbage"], ids=["withheld", "garbage"])
def test_a_message_that_is_announced_and_cannot_be_read_does_not_end_the_node(config, flower_log, sent):
    lost, next_one = message_of("train"), message_of("evaluate")
    lost.metadata.__dict__["_message_id"] = lost.object_id
    server = LyingServer([lost, next_one], {lost.object_id: sent})
    serve(server, config)
    assert [reply.error.reason[:41] for reply in server.replies] == [
        "this node sends encoded updates only, and"
    ]
    assert "a message was not answered" in flower_log.text


def test_an_error_in_place_of_a_request_is_refused(config):
    with use_server_identity(1):
        request = Message(RecordDict(), NODE, "train")
    request.metadata.__dict__["_message_id"] = "a"
    error = Message(Error(0, "x"), reply_to=request)
    reply = NodeGate(config).answer(error, NODE, None)
    assert "asked for a plain update" in reply.error.reason


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("privquant-max-participation", 3, "privquant-max-participations"),
        ("privquant-bugdet", 3.0, "not a setting of this node"),
        ("privquant-node-token", "t", "not a setting of this node"),
        ("privquant-max-epsilon", math.inf, "inf, expected a finite number"),
        ("privquant-max-epsilon", "inf", "inf, expected a finite number"),
        ("privquant-max-epsilon", True, "True is not a number"),
        ("privquant-max-epsilon", "one", "'one' is not a number"),
        ("privquant-max-delta", "none", "'none' is not a number"),
        ("privquant-max-delta", 2.0, "max_delta"),
        ("privquant-budget", True, "True is not a number"),
        ("privquant-budget", -1.0, "-1.0 is not a number"),
        ("privquant-budget-delta", "small", "'small' is not a number"),
        ("privquant-max-participations", "few", "'few' is not a number"),
        ("privquant-min-clients", 1, "1 is not a whole number"),
        ("privquant-ledger-file", 5, "expected the name of a file"),
        ("privquant-identity", "/nowhere/identity.pem", "privquant-known-clients: missing"),
    ],
)
def test_a_mistyped_limit_is_refused_before_the_node_starts(config, key, value, named):
    with pytest.raises(InvalidSpecError, match=named):
        NodeGate({**config, key: value}).limits()


def test_the_owner_reads_what_may_leave(config):
    text = "\n".join(NodeGate(config).limits())
    assert "each with at most ε = 2, δ = 0 (coordinate release, local view, replace-one)" in text
    assert "the server can ask without end: set privquant-budget or privquant-max-participations" in text
    assert "updates are masked only if asked to, with at least 3 clients in a sum" in text
    assert f"all releases are counted in {config['privquant-ledger-file']}" in text
    limited = {
        **config,
        "privquant-budget": 500.0,
        "privquant-budget-delta": 1e-5,
        "privquant-max-participations": 12,
        "privquant-secure-aggregation": True,
        "privquant-min-clients": 50,
    }
    text = "\n".join(NodeGate(limited).limits())
    assert "without end" not in text
    assert "together cost at most ε = 500, δ = 1e-05 (client total, local view, replace-one)" in text
    assert "at most 12 rounds of all runs" in text
    assert "always masked, with at least 50 clients in a sum; masks do not protect from a server that" in text


def invitation(num_clients):
    invited = Invitation(RoundId(b"s" * 16, 1), num_clients, 25, 8, None, False)
    return message_of("train", protocol_content(invited.to_bytes(), ADVERTISE))


def test_the_owner_says_how_many_clients_hide_an_update(config, monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    gate = NodeGate({**config, "privquant-min-clients": 10})
    assert gate.answer(invitation(9), NODE, None).has_error()
    assert not gate.answer(invitation(10), NODE, None).has_error()


def test_a_node_that_was_restarted_does_not_answer_a_stage_again(config, monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["flower-supernode"])
    assert not NodeGate(config).answer(invitation(10), NODE, None).has_error()
    again = NodeGate(config).answer(invitation(10), NODE, None)
    assert "does not take part in the round, or no longer" in again.error.reason


def test_only_codes_of_an_app_s_reply_are_sent(config):
    """Neither its metrics, settings and other arrays, nor its metadata."""

    def talks(message):
        secret = MetricRecord({"num-examples": 123, "privquant-norm": 0.123})
        content = RecordDict({**message.content, "secret": secret, "told": ConfigRecord({"name": "Ada"})})
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__.update(
            _group_id="Ada", _ttl=123.0, _message_type="train.Ada", _dst_node_id=123
        )
        return reply

    request = ask(pq.design("optm", epsilon=1.0, bits=2))
    reply = NodeGate(config).answer(request, NODE, talks)
    sent = Reply.from_content(reply.content)
    assert sorted(reply.content) == ["privquant-reply", "privquant-update"]
    assert (sent.metrics, tuple(sent.allowed)) == ({}, ())
    metadata = reply.metadata
    assert (metadata.group_id, metadata.message_type) == (request.metadata.group_id, "train")
    assert metadata.ttl > 123.0


def test_replies_to_other_messages_are_dropped():
    """An app may answer what it was not asked, also in the name of another message."""
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    state, store = factory.state(), factory.objectstore_factory.store()
    for asked, told in [("ab" * 32, "false"), ("cd" * 32, "true"), ("ef" * 32, "false")]:
        request = message_of("train")
        request.metadata.__dict__["_message_id"] = asked
        answer = Message(RecordDict({"told": ConfigRecord({"told": told})}), reply_to=request)
        loop._insert_message(answer, state, store)
    assert _pop_reply(state, store, "cd" * 32).content["told"]["told"] == "true"
    assert len(state.get_messages_legacy(is_reply=True)) == 0


def test_a_budget_without_a_delta_says_what_it_lacks(config, flower_log):
    gaussian = pq.design("discrete_gaussian", epsilon=1.0, delta=1e-6, num_clients=4)
    limited = {**config, "privquant-max-delta": 1e-5, "privquant-budget": 1e6}
    assert NodeGate(limited).answer(ask(gaussian), NODE, None).has_error()
    assert "the mechanism has a δ, so give the budget a larger one" in flower_log.text
