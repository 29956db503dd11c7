"""Whatever leaves a client in clear is in the statement: every kind of message, in every way of use."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import (
    ClientMetrics,
    PrivateGrid,
    PrivQuantMod,
    PrivQuantStrategy,
)
from fl_privquant.flower._messages.grids import GridWrapper
from fl_privquant.flower.simulation import Federation, InlineEngine
from tests.flower.apps import CLIP, as_record, client_app, initial_arrays, simulate

CLIENTS = 6
KINDS = ("train", "evaluate", "query", "train.own", "evaluate.own", "query.own")
OTHERS = [kind for kind in KINDS if not kind.startswith("train")]
MECHANISM = pq.design("optm", epsilon=2.0, bits=2)
ENCODED = "fl_privquant.payload"


def talkative_client(for_the_app=(), for_training=(), fails=()):
    """A client that answers every kind of message with all that it has, or raises on some kinds."""
    app = ClientApp(mods=list(for_the_app))

    def answer(message, context):
        kind = message.metadata.message_type
        if kind in fails:
            raise ValueError(f"{kind}: my data are secret")
        arrays = message.content.get("arrays", as_record(initial_arrays()))
        metrics = MetricRecord({"num-examples": 3, "accuracy": 0.5, f"{kind}-secret": 0.25})
        told = ConfigRecord({f"{kind}-name": "Ada"})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics, "told": told}), reply_to=message)

    for decorate in (app.train, app.evaluate, app.query):
        mods = list(for_training) if decorate == app.train else None
        decorate(mods=mods)(answer)
        decorate("own", mods=mods)(answer)
    return app


class Wiretap(GridWrapper):
    """Keeps all that clients send, as it arrives."""

    def __init__(self, grid):
        super().__init__(grid)
        self.seen = set()

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        for reply in replies:
            self._look_at(reply)
        return replies

    def _look_at(self, reply):
        if reply.has_error():
            # Mods refuse with a text of their own; an app's text may quote data.
            self.seen |= {"texts of errors"} if "secret" in reply.error.reason else set()
            return
        for key, record in reply.content.items():
            if isinstance(record, ArrayRecord):
                if any(array.stype != ENCODED for array in record.values()):
                    self.seen.add(f"arrays '{key}'")
            else:
                protocol = ("secagg", "privquant")
                self.seen |= {repr(name) for name in record if not name.startswith(protocol)}


def ask(grid, kinds):
    """What the server's own code asks beside its strategy."""
    model = as_record(initial_arrays())
    return [
        reply
        for kind in kinds
        for reply in grid.send_and_receive(
            [Message(RecordDict({"arrays": model}), node, kind) for node in grid.get_node_ids()]
        )
    ]


def plan(aggregation):
    return pq.Target(epsilon=200.0, rounds=2, num_clients=CLIENTS).plan(25, aggregation=aggregation)


WAYS = {
    "plain": lambda **more: PrivQuantStrategy(FedAvg(), pq.Encoding(MECHANISM, CLIP), **more),
    "plan": lambda **more: PrivQuantStrategy(FedAvg(), plan(pq.PerClient()), **more),
    "secure sum": lambda **more: PrivQuantStrategy(
        FedAvg(), pq.Encoding(MECHANISM, CLIP), aggregation=pq.SecureSum(), **more
    ),
    "plan for a secure sum": lambda **more: PrivQuantStrategy(FedAvg(), plan(None), **more),
}


def mods(way, **options):
    # Plans for secure sums have a delta.
    masked = "secure sum" in way
    return [PrivQuantMod(max_epsilon=math.inf, max_delta=1e-5, secure_aggregation=masked, **options)]


def run(main, client):
    """What arrived in clear while a server's own code ran."""
    server, taps = ServerApp(), []

    @server.main()
    def started(grid, context):
        taps.append(Wiretap(grid))
        main(taps[0])
        context.state["arrays"] = ArrayRecord({"none": Array(np.zeros(1, np.float32))})

    InlineEngine().run(server, client, Federation(CLIENTS))
    return taps[0].seen


def run_strategy(strategy, client, kinds=()):
    """What arrived in clear while a strategy ran, with Flower's default of asking all clients to evaluate."""

    def main(grid):
        strategy.start(grid, as_record(initial_arrays()), num_rounds=2)
        ask(grid, kinds)

    return run(main, client)


def assert_stated(seen, private):
    text = "\n".join(private.privacy_statement())
    for name in seen:
        assert name in text
    # Every single figure says so, not only the last line.
    for statement in private.statements():
        assert all(name in str(statement) for name in seen)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_leaves_a_client_in_clear_by_default(way, flower_log):
    strategy = WAYS[way]()
    assert run_strategy(strategy, talkative_client(mods(way)), KINDS) == set()
    assert "in any figure" not in "".join(strategy.privacy_statement())
    # One clear line on each side.
    assert flower_log.text.count("Evaluation by clients: none, as their replies would arrive in clear") == 1
    for kind in OTHERS:
        assert f"PrivQuantError: no reply to '{kind}' messages: it would leave the client in clear" in (
            flower_log.text
        )


@pytest.mark.parametrize("way", WAYS)
def test_a_mod_of_training_alone_does_not_see_evaluations_so_they_are_not_asked_for(way):
    strategy = WAYS[way]()
    assert run_strategy(strategy, talkative_client(for_training=mods(way))) == set()


@pytest.mark.parametrize("way", WAYS)
def test_what_a_client_allows_is_all_that_leaves_it_and_is_named(way, flower_log):
    strategy = WAYS[way]()
    client = talkative_client(mods(way, metrics=["accuracy"]))
    # The server asks by itself, behind the back of its strategy.
    assert run_strategy(strategy, client, KINDS) == {"'accuracy'"}
    assert_stated({"'accuracy'"}, strategy)
    assert "send or may send 'accuracy' without protection" in flower_log.text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("whole_app", [True, False])
def test_an_evaluation_that_both_sides_allow_is_aggregated_and_named(way, whole_app, flower_log):
    strategy = WAYS[way](metrics=ClientMetrics(clear=["accuracy"]))
    # It is named before anybody is asked.
    assert_stated({"'accuracy'"}, strategy)
    own = mods(way, metrics=["accuracy"])
    results = []

    def main(grid):
        results.append(strategy.start(grid, as_record(initial_arrays()), num_rounds=2))

    seen = run(main, talkative_client(own) if whole_app else talkative_client(for_training=own))
    # A mod of training alone does not see the evaluation: all of it arrives, and all of it is named.
    everything = {"'accuracy'", "'evaluate-secret'", "'num-examples'", "'evaluate-name'", "arrays 'arrays'"}
    assert seen == ({"'accuracy'"} if whole_app else everything)
    assert_stated(seen, strategy)
    assert results[0].evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(0.5)
    assert "Evaluation by clients: accuracy" in flower_log.text


@pytest.mark.parametrize("whole_app", [True, False])
@pytest.mark.parametrize("kind", OTHERS)
def test_a_private_grid_sends_other_messages_only_if_they_are_allowed(kind, whole_app):
    def refused(grid):
        private = PrivateGrid(grid, pq.Encoding(MECHANISM, CLIP))
        for send in (private.send_and_receive, private.push_messages):
            with pytest.raises(
                InvalidSpecError, match=f"send clients no '{kind}' messages .*ClientMetrics\\(clear="
            ):
                send([Message(RecordDict(), node, kind) for node in grid.get_node_ids()])
        assert_stated(set(), private.private)

    client = talkative_client(mods("plain")) if whole_app else talkative_client(for_training=mods("plain"))
    assert run(refused, client) == set()
    grids = []

    def allowed(grid):
        grids.append(
            PrivateGrid(grid, pq.Encoding(MECHANISM, CLIP), metrics=ClientMetrics(clear=["accuracy"]))
        )
        ask(grids[0], ["train", kind])

    own = mods("plain", metrics=["accuracy"])
    client = talkative_client(own) if whole_app else talkative_client(for_training=own, fails=["query"])
    seen = run(allowed, client)
    assert seen == {"'accuracy'"} if whole_app else len(seen) >= 2
    assert_stated(seen, grids[0].private)


def test_pulled_replies_are_named_too():
    grids = []

    def main(grid):
        grids.append(
            PrivateGrid(grid, pq.Encoding(MECHANISM, CLIP), metrics=ClientMetrics(clear=["accuracy"]))
        )
        nodes = grid.get_node_ids()
        ids = grids[0].push_messages([Message(RecordDict(), node, "query.own") for node in nodes])
        assert len(list(grids[0].pull_messages(ids))) == CLIENTS

    run(main, talkative_client(for_training=mods("plain")))
    assert_stated({"'query.own-secret'", "'query.own-name'", "arrays 'arrays'"}, grids[0].private)


@pytest.mark.parametrize("kind", OTHERS)
def test_an_app_that_fails_tells_nothing(kind, flower_log):
    client = talkative_client(mods("plain", metrics=["accuracy"]), fails=[kind])
    replies = []
    assert run(lambda grid: replies.extend(ask(grid, [kind])), client) == set()
    assert {reply.error.reason for reply in replies} == {
        "InvalidUpdateError: the app failed; the client's log says why"
    }
    assert f"{kind}: my data are secret" in flower_log.text


def test_a_forgotten_mod_is_named_with_all_that_it_let_pass():
    strategy = PrivQuantStrategy(FedAvg(), pq.Encoding(MECHANISM, CLIP), max_failed_rounds=2)
    seen = run_strategy(strategy, talkative_client())
    assert seen == {"arrays 'arrays'", "'accuracy'", "'num-examples'", "'train-secret'", "'train-name'"}
    assert_stated(seen, strategy)
    strategy = PrivQuantStrategy(FedAvg(), pq.Encoding(MECHANISM, CLIP), max_failed_rounds=2)
    seen = run_strategy(strategy, talkative_client(fails=["train"]))
    assert seen == {"texts of errors"}
    assert_stated(seen, strategy)


class CuriousFedAvg(FedAvg):
    """A strategy that asks clients by itself, before they train."""

    def configure_train(self, server_round, arrays, config, grid):
        nodes = list(grid.get_node_ids())
        list(grid.send_and_receive([Message(RecordDict(), node, "query") for node in nodes]))
        ids = list(grid.push_messages([Message(RecordDict(), node, "query.own") for node in nodes]))
        assert len(list(grid.pull_messages(ids))) == len(nodes)
        return super().configure_train(server_round, arrays, config, grid)


def test_what_the_wrapped_strategy_asks_for_by_itself_is_named():
    strategy = PrivQuantStrategy(CuriousFedAvg(), pq.Encoding(MECHANISM, CLIP))
    seen = run_strategy(strategy, talkative_client(for_training=mods("plain")))
    assert {"'query-secret'", "'query-name'", "arrays 'arrays'"} < seen
    # Pulled messages pass by the wiretap.
    assert_stated(seen | {"'query.own-secret'"}, strategy)


@pytest.mark.parametrize("code", [0, 2, 9, 1000])
def test_texts_of_errors_are_named_whatever_code_the_app_gives_them(code):
    app = ClientApp()

    @app.train()
    def train(message, context):
        return Message(Error(code, "my data are secret"), reply_to=message)

    strategy = PrivQuantStrategy(FedAvg(), pq.Encoding(MECHANISM, CLIP), max_failed_rounds=2)
    assert run_strategy(strategy, app) == {"texts of errors"}
    assert_stated({"texts of errors"}, strategy)


def test_more_metrics_than_a_statement_names_are_said_to_be_more():
    app = ClientApp()

    @app.train()
    def train(message, context):
        metrics = MetricRecord({f"layer-{number}": 0.5 for number in range(150)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    strategy = PrivQuantStrategy(FedAvg(), pq.Encoding(MECHANISM, CLIP), max_failed_rounds=2)
    run_strategy(strategy, app)
    for text in map(str, [strategy.statements()[0], *strategy.privacy_statement()[-1:]]):
        assert "'layer-16' and at least 91 more metrics" in text
        assert len(text) < 1000


def test_records_without_an_allowed_metric_do_not_even_leave_by_name():
    app = ClientApp(mods=mods("plain", metrics=["accuracy"]))

    @app.query()
    def query(message, context):
        found = {"found": MetricRecord({"accuracy": 0.5, "loss": 1.0}), "Ada": MetricRecord({"age": 30})}
        return Message(RecordDict(found), reply_to=message)

    replies = []
    run(lambda grid: replies.extend(ask(grid, ["query"])), app)
    assert {tuple(reply.content) for reply in replies} == {("found",)}
    assert {tuple(reply.content["found"]) for reply in replies} == {("accuracy",)}


def test_forgotten_mods_of_a_secure_sum_are_asked_for_by_name(flower_log):
    """The server once said "advertise: KeyError: 'arrays'"."""
    strategy = PrivQuantStrategy(
        FedAvg(), pq.Encoding(MECHANISM, CLIP), aggregation=pq.SecureSum(), max_failed_rounds=1
    )
    simulate(strategy, client_app([]), CLIENTS)
    advice = "use ClientApp(mods=[PrivQuantMod(..., secure_aggregation=True)])"
    assert f"a message of secure aggregation, which a mod should have answered; {advice}" in flower_log.text
    # An app that answers without looking at the message is no better.
    strategy = PrivQuantStrategy(
        FedAvg(), pq.Encoding(MECHANISM, CLIP), aggregation=pq.SecureSum(), max_failed_rounds=3
    )
    seen = run_strategy(strategy, talkative_client())
    assert "the client's app answered a message of secure aggregation" in flower_log.text
    assert seen == {"arrays 'arrays'", "'accuracy'", "'num-examples'", "'train-secret'", "'train-name'"}
    assert_stated(seen, strategy)


@pytest.mark.parametrize("argument", ["metrics.clear", "metrics"])
def test_one_name_is_not_a_collection_of_letters(argument):
    make = {
        "metrics.clear": lambda: ClientMetrics(clear="loss"),
        "metrics": lambda: PrivQuantMod(1.0, metrics="loss"),
    }
    with pytest.raises(InvalidSpecError, match=rf"^{argument}: 'loss' is one name.*\['loss'\]"):
        make[argument]()


def test_evaluations_are_weighted_as_clients_allow():
    """Weights are those that all clients send; if one does not, all weigh the same."""
    accuracies = [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]

    def evaluated(names):
        app = ClientApp(mods=[PrivQuantMod(max_epsilon=math.inf, metrics=names)])

        @app.train()
        def train(message, context):
            return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

        @app.evaluate()
        def evaluate(message, context):
            partition = context.node_config["partition-id"]
            metrics = {"accuracy": accuracies[partition], "num-examples": 5 if partition == 0 else 1}
            return Message(RecordDict({"found": MetricRecord(metrics)}), reply_to=message)

        done = simulate(WAYS["plain"](metrics=ClientMetrics(clear=names)), app, CLIENTS)
        return done.result.evaluate_metrics_clientapp[1]["accuracy"]

    assert evaluated(["accuracy"]) == pytest.approx(5 / 6)
    assert evaluated(["accuracy", "num-examples"]) == pytest.approx(0.5)
