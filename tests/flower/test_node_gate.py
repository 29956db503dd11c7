"""What a node that encodes updates itself lets out, whatever app and server it meets."""

import sys

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from typer.testing import CliRunner

import fl_privquant as pq
from fl_privquant.accounting import SpendingLedger
from fl_privquant.cli.main import app as cli
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import PrivQuantMod
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.protocol import Reply
from fl_privquant.flower.client.node import NODE_TOKEN, make_token_record
from fl_privquant.flower.client.node_gate import NodeGate
from tests.flower.apps import as_record, initial_arrays
from tests.flower.asking import ask, never, train

NODE = 7


def never_run(message):
    raise AssertionError("the app must not be called")


def run(message):
    return train(message, None)


def message_of(kind, *records):
    content = RecordDict({"arrays": as_record(initial_arrays()), "config": ConfigRecord({"server-round": 1})})
    for record in records:
        content.update(record)
    with use_server_identity(1):
        return Message(content, NODE, kind)


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "node" / "ledger.jsonl"


@pytest.fixture
def gate(ledger):
    return NodeGate({"privquant-max-epsilon": 2.0, "privquant-ledger-file": str(ledger)})


@pytest.mark.parametrize("kind", ["evaluate", "query", "query.weights", "train.custom", "train"])
def test_a_plain_app_gets_refusals_only(gate, kind):
    reply = gate.answer(message_of(kind), NODE, never_run)
    assert reply.has_error()
    assert "this node sends" in reply.error.reason
    assert "\n" not in reply.error.reason


def test_what_the_app_trains_is_encoded_and_counted_here(gate, ledger, mechanism):
    seen = []

    def plain_app(message):
        seen.append(message)
        return run(message)

    reply = gate.answer(ask(mechanism), NODE, plain_app)
    assert sorted(reply.content) == ["privquant-reply", "privquant-update"]
    assert not Reply.from_content(reply.content).simulated
    assert len(seen) == 1
    assert SpendingLedger(ledger).statement(0.0).epsilon == pytest.approx(25 * mechanism.epsilon)


def test_a_failing_app_gives_zeros_and_no_reason(gate, mechanism):
    def fails(message):
        raise RuntimeError("secret 0.123")

    reply = gate.answer(ask(mechanism), NODE, fails)
    assert not reply.has_error()


def test_the_node_has_the_last_word_on_epsilon(gate):
    reply = gate.answer(ask(pq.design("optm", epsilon=3.0, bits=2)), NODE, never_run)
    assert reply.has_error()


def test_no_delta_is_allowed_unless_the_owner_allows_it(ledger):
    gaussian = pq.design("discrete_gaussian", epsilon=1.0, delta=1e-6, num_clients=4)
    config = {"privquant-max-epsilon": 2.0, "privquant-ledger-file": str(ledger)}
    assert NodeGate(config).answer(ask(gaussian), NODE, never_run).has_error()
    allowing = NodeGate({**config, "privquant-max-delta": 1e-5})
    assert not allowing.answer(ask(gaussian), NODE, run).has_error()


def test_a_node_that_wants_masks_sends_nothing_without(ledger, mechanism):
    config = {"privquant-max-epsilon": 2.0, "privquant-ledger-file": str(ledger)}
    masking = NodeGate({**config, "privquant-secure-aggregation": True})
    reply = masking.answer(ask(mechanism), NODE, never_run)
    assert "did not agree on masks" in reply.error.reason


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, "privquant-max-epsilon"),
        ({"privquant-max-epsilon": 1.0, "privquant-secure-aggregation": "yes"}, "true or false"),
    ],
)
def test_a_node_without_limits_does_not_start(config, named):
    with pytest.raises(InvalidSpecError, match=named):
        NodeGate(config)


@pytest.mark.parametrize("mod", [PrivQuantMod(2.0), PrivQuantMod(2.0, secure_aggregation=True)])
class TestModsInTheApp:
    def context(self, token):
        config = {"partition-id": 0} | ({} if token is None else {NODE_TOKEN: token})
        return Context(1 << 50, NODE, config, RecordDict(), {})

    def test_they_step_aside_for_a_node_that_encodes(self, mod):
        message = message_of("train", make_token_record("t0"))
        reply = mod(message, self.context("t0"), train)
        assert sorted(reply.content) == ["arrays", "metrics"]

    @pytest.mark.parametrize(("configured", "sent"), [("t0", None), (None, "t0"), ("t0", "t1"), ("", "")])
    def test_neither_a_server_nor_a_configuration_switches_them_off(self, mod, configured, sent):
        message = message_of("train", *([] if sent is None else [make_token_record(sent)]))
        assert mod(message, self.context(configured), never).has_error()


def test_the_command_asks_the_owner_for_limits(monkeypatch):
    # The command replaces the arguments of its process.
    monkeypatch.setattr(sys, "argv", sys.argv)
    result = CliRunner().invoke(cli, ["supernode", "--insecure", "--node-config", "partition-id=0"])
    assert isinstance(result.exception, InvalidSpecError)
    assert "--node-config 'privquant-max-epsilon=1.0'" in str(result.exception)


def test_help_names_the_settings_of_the_node(monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    shown = CliRunner().invoke(cli, ["supernode", "--help"]).output
    assert "Required: privquant-max-epsilon." in shown
    assert "privquant-budget-delta" in shown
