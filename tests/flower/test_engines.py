import gc
import pickle
import random

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import PrivQuantStrategy
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.arrays import DecodedArray, read_array
from fl_privquant.flower.simulation import Federation, InlineEngine, RayEngine, engine
from fl_privquant.flower.simulation.inline import InlineGrid
from tests.flower.apps import CLIP, assert_same_arrays, query_app, simulate


def send(app, num_clients=2, threads=1, nodes=(1, 2)):
    grid = InlineGrid(app, Federation(num_clients, {"rate": 0.5}, {"site": "here"}), threads)
    content = RecordDict({"config": ConfigRecord({"values": [1, 2]})})
    with use_server_identity(1):
        return list(grid.send_and_receive([Message(content, node, "query") for node in nodes])), content, grid


def reply_with(message, **metrics):
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


@pytest.mark.parametrize("threads", [1, 4])
def test_replies_come_in_the_order_of_nodes(threads):
    replies, _, _ = send(
        query_app(
            lambda message, context: reply_with(message, partition=context.node_config["partition-id"])
        ),
        num_clients=4,
        threads=threads,
        nodes=(4, 2, 1, 3),
    )
    assert [each.metadata.src_node_id for each in replies] == [1, 2, 3, 4]
    assert [each.content["metrics"]["partition"] for each in replies] == [0, 1, 2, 3]


def test_contexts_hold_the_configs():
    seen = {}

    def answer(message, context):
        seen.update(run=dict(context.run_config), node=dict(context.node_config))
        return reply_with(message)

    send(query_app(answer), nodes=(2,))
    assert seen == {"run": {"rate": 0.5}, "node": {"site": "here", "partition-id": 1, "num-partitions": 2}}


def test_what_a_client_changes_stays_with_it():
    def answer(message, context):
        message.content["config"]["values"].append(3)
        message.content["config"]["more"] = 1
        return reply_with(message, seen=len(message.content["config"]["values"]))

    replies, content, _ = send(query_app(answer))
    assert [each.content["metrics"]["seen"] for each in replies] == [3, 3]
    assert dict(content["config"]) == {"values": [1, 2]}


def test_a_client_keeps_its_state_from_message_to_message():
    def answer(message, context):
        count = context.state.get("count", MetricRecord({"n": 0}))["n"] + 1
        context.state["count"] = MetricRecord({"n": count})
        return reply_with(message, n=count)

    replies, _, _ = send(query_app(answer), nodes=(1, 1, 2, 1), threads=3)
    assert sorted(each.content["metrics"]["n"] for each in replies) == [1, 1, 2, 3]


def test_exceptions_and_unknown_nodes_become_error_replies():
    def answer(message, context):
        raise KeyError("lost")

    replies, _, _ = send(query_app(answer), nodes=(1, 77))
    assert [each.error.code for each in replies] == [2, 5]
    assert "KeyError: 'lost'" in replies[0].error.reason


def test_sampling_is_seeded_and_the_programs_own_randomness_left_alone(mechanism):
    def run(seed):
        strategy = FedAvg(fraction_train=0.4, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        private = PrivQuantStrategy(strategy, Encoding(mechanism, CLIP))
        return simulate(private, num_clients=10, num_rounds=2, seed=seed).model

    state = random.getstate()
    first, second, third = run(1), run(1), run(2)
    assert random.getstate() == state
    assert_same_arrays(first, second)
    assert not np.array_equal(first["weight"], third["weight"])


def test_decoded_arrays_travel_as_their_values():
    values = np.arange(6.0).reshape(2, 3)
    sent = pickle.loads(pickle.dumps(ArrayRecord({"w": DecodedArray.of(values)})))
    np.testing.assert_array_equal(read_array(sent["w"]), values)
    array = DecodedArray(lambda: values, values.dtype, values.shape)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)).numpy(), values)


def is_frozen(value):
    """Frozen objects are alive, but not among those that the garbage collector looks at."""
    return not any(other is value for other in gc.get_objects())


@pytest.mark.parametrize("frozen_before", [False, True])
def test_a_run_freezes_objects_only_while_it_lasts(frozen_before, monkeypatch):
    # As in a new process: an engine that once met objects frozen by others freezes none any more.
    monkeypatch.setattr(engine, "_frozen_by", None)
    gc.unfreeze()
    earlier = [object]
    frozen = []
    app = ServerApp()

    @app.main()
    def main(grid, context):
        frozen.append(is_frozen(earlier))

    try:
        if frozen_before:
            gc.freeze()
        InlineEngine().run(app, ClientApp(), Federation(1))
        assert frozen == [True]
        # What the program has frozen itself stays frozen.
        assert is_frozen(earlier) == frozen_before
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Federation(0),
        lambda: Federation(2, {"rates": [1, 2]}),
        lambda: InlineEngine(0),
        lambda: RayEngine(client_cpus=0),
        lambda: InlineEngine().run("module_without_attribute", ClientApp(), Federation(1)),
        lambda: InlineEngine().run(ClientApp(), ClientApp(), Federation(1)),
    ],
)
def test_what_cannot_be_run_is_refused(make):
    with pytest.raises(InvalidSpecError):
        make()


def test_the_result_wants_one_model():
    server = ServerApp()

    @server.main()
    def main(grid, context: Context):
        pass

    with pytest.raises(InvalidSpecError, match="put the final model there"):
        _ = InlineEngine().run(server, ClientApp(), Federation(1)).arrays
