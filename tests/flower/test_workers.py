"""Clients in worker processes: the same results to the last bit, whoever serves them or is killed."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.arrays import DecodedArray, read_array
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.flower.simulation.inline import InlineGrid
from tests.flower.apps import CLIP, assert_same_arrays, client_app, fedavg, query_app, simulate

CRASHED = 8


def counting(message, context):
    """Answers how often this client was asked, by whom it is served, and what it was sent."""
    count = context.state.get("count", MetricRecord({"n": 0}))["n"] + 1
    context.state["count"] = MetricRecord({"n": count})
    sent = message.content["config"]["values"]
    sent.append(0)
    metrics = {"n": count, "worker": os.getpid(), "sent": sent, "id": context.node_config["partition-id"]}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


class Workers:
    """A grid with workers, which ends them with the block."""

    def __init__(self, answer, num_clients, processes=2):
        self.grid = InlineGrid(query_app(answer), Federation(num_clients), processes=processes)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.grid.close()

    def ask(self, nodes, **values):
        content = RecordDict({"config": ConfigRecord({"values": [7], **values})})
        with use_server_identity(1):
            return list(self.grid.send_and_receive([Message(content, node, "query") for node in nodes]))


def gone(process_id):
    """Whether a process has ended, waited for at most a minute."""
    for _ in range(600):
        try:
            os.kill(process_id, 0)
            if Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("num_clients", [1, 2, 5, 150])
@pytest.mark.parametrize("processes", [2, 3])
def test_every_client_is_served_once_and_by_a_worker(num_clients, processes):
    with Workers(counting, num_clients, processes) as workers:
        nodes = list(range(1, num_clients + 1))
        replies = workers.ask(reversed(nodes))
        served = {reply.content["metrics"]["worker"] for reply in replies}
        assert [reply.metadata.src_node_id for reply in replies] == nodes
        assert [reply.content["metrics"]["id"] for reply in replies] == list(range(num_clients))
        assert all(reply.content["metrics"]["sent"] == [7, 0] for reply in replies)
        assert os.getpid() not in served
        assert len(served) <= min(processes, num_clients)
        assert workers.ask([]) == []


def test_states_follow_clients_from_worker_to_worker():
    """Cohorts of every size and mixture, so that clients change workers; each remembers all its messages."""
    rng, asked = np.random.default_rng(3), dict.fromkeys(range(1, 12), 0)
    served: dict[int, set[int]] = {node: set() for node in asked}
    with Workers(counting, len(asked), 3) as workers:
        for _ in range(25):
            nodes = [int(node) for node in rng.choice(list(asked), rng.integers(1, 12))]
            before = dict(asked)
            for reply in workers.ask(nodes):
                node, metrics = reply.metadata.src_node_id, reply.content["metrics"]
                asked[node] = max(asked[node], metrics["n"])
                served[node].add(metrics["worker"])
            assert asked == {node: before[node] + nodes.count(node) for node in asked}
        contexts = workers.grid.contexts
        assert {node: contexts[node].state["count"]["n"] for node in asked if asked[node]} == {
            node: count for node, count in asked.items() if count
        }
    assert max(map(len, served.values())) > 1


def test_errors_of_clients_and_unknown_nodes_are_replies():
    def answer(message, context):
        raise KeyError("lost")

    with Workers(answer, 2) as workers:
        for _ in range(2):
            replies = workers.ask((1, 77))
            assert [reply.error.code for reply in replies] == [2, 5]
            assert "KeyError: 'lost'" in replies[0].error.reason


def test_replies_are_copies_even_if_clients_share_a_record():
    shared = MetricRecord({"id": -1})

    def answer(message, context):
        shared["id"] = context.node_config["partition-id"]
        return Message(RecordDict({"metrics": shared}), reply_to=message)

    with Workers(answer, 9) as workers:
        replies = workers.ask(range(1, 10))
        assert [reply.content["metrics"]["id"] for reply in replies] == list(range(9))


def killing(message, context):
    if context.node_config["partition-id"] == message.content["config"].get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    return counting(message, context)


def test_a_killed_worker_costs_its_clients_this_round_and_no_more():
    nodes = range(1, 41)
    with Workers(killing, len(nodes)) as workers:
        workers.ask(nodes)
        replies = workers.ask(nodes, kill=17)
        lost = {reply.metadata.src_node_id for reply in replies if reply.has_error()}
        assert len(replies) == len(nodes)
        assert 18 in lost
        for reply in replies:
            if reply.has_error():
                assert reply.error.code == CRASHED
                assert "it was killed" in reply.error.reason
            else:
                assert reply.content["metrics"]["n"] == 2
        # New workers serve them from now on, with the states that they had.
        after = workers.ask(nodes)
        expected = [2 if node in lost else 3 for node in nodes]
        assert [reply.content["metrics"]["n"] for reply in after] == expected


def test_a_worker_that_is_killed_while_it_waits_is_replaced():
    with Workers(counting, 6) as workers:
        served = {reply.content["metrics"]["worker"] for reply in workers.ask(range(1, 7))}
        victim = served.pop()
        os.kill(victim, signal.SIGKILL)
        assert gone(victim)
        workers.ask(range(1, 7))
        again = workers.ask(range(1, 7))
        assert not any(reply.has_error() for reply in again)


def test_workers_end_with_the_grid_and_have_randomness_of_their_own():
    def draw(message, context):
        # Long enough for the other worker to take a client too.
        time.sleep(0.05)
        drawn = float(np.random.random())  # noqa: NPY002
        metrics = MetricRecord({"draw": drawn, "worker": os.getpid()})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    with Workers(draw, 8) as workers:
        replies = workers.ask(range(1, 9))
        metrics = [reply.content["metrics"] for reply in reversed(replies)]
        first = {each["worker"]: each["draw"] for each in metrics}
    assert len(set(first.values())) == len(first)
    assert all(gone(process_id) for process_id in first)


@pytest.mark.parametrize(("processes", "num_clients"), [(2, 5), (3, 7), (6, 4)])
def test_processes_change_neither_models_nor_ledgers(mechanism, processes, num_clients):
    def run(number):
        strategy = PrivQuantStrategy(fedavg(fraction_train=0.7), Encoding(mechanism, CLIP))
        engine = InlineEngine(processes=number)
        done = simulate(strategy, None, num_clients, 4, engine=engine, seed=4)
        ledgers = {
            node: dict(context.state.get("privquant-ledger", {}))
            for node, context in done.grid.contexts.items()
        }
        return done.model, ledgers, strategy.privacy_statement()

    (model, ledgers, statement), (expected, own, said) = run(processes), run(1)
    assert_same_arrays(model, expected)
    assert ledgers == own
    assert statement == said
    assert any(ledgers.values())


def test_budgets_of_clients_hold_whichever_worker_serves_them(mechanism):
    dimension = 25
    budget = 2.5 * dimension * mechanism.epsilon
    client = client_app(mods=[PrivQuantMod(max_epsilon=10.0, budget=budget)])
    strategy = PrivQuantStrategy(fedavg(), Encoding(mechanism, CLIP), max_failed_rounds=9)
    done = simulate(strategy, client, 5, 6, engine=InlineEngine(processes=2))
    assert len(done.ledgers) == 5
    for ledger in done.ledgers.values():
        assert len(ledger) == 2
        assert ledger.statement(0.0).epsilon <= budget


def test_decoded_arrays_travel_as_their_values():
    values = np.arange(6.0).reshape(2, 3)
    sent = pickle.loads(pickle.dumps(ArrayRecord({"w": DecodedArray.of(values)})))
    np.testing.assert_array_equal(read_array(sent["w"]), values)
    array = DecodedArray(lambda: values, values.dtype, values.shape)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)).numpy(), values)


def test_threads_and_processes_together_are_refused():
    with pytest.raises(InvalidSpecError, match="not of both"):
        InlineEngine(threads=2, processes=2)
    with pytest.raises(InvalidSpecError, match="processes"):
        InlineEngine(processes=0)


PROGRAM = """
    import os, signal, time
    from flwr.app import Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from fl_privquant.flower.simulation import Federation, InlineEngine

    # Jobs that a shell runs in the background ignore it, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    client, server = ClientApp(), ServerApp()

    @client.query()
    def query(message, context):
        # In one piece: the other worker writes too.
        os.write(1, b"worker %d\\n" % os.getpid())
        time.sleep(600)

    @server.main()
    def main(grid, context):
        grid.send_and_receive([Message(RecordDict(), node, "query") for node in grid.get_node_ids()])

    InlineEngine(processes=2).run(server, client, Federation(2))
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_workers_at_work_end_with_the_program(end):
    """By Ctrl-C, which reaches all processes of a terminal, and by a kill of the server's process alone."""
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers = [int(program.stdout.readline().split()[1]) for _ in range(2)]
    if end == signal.SIGINT:
        os.killpg(program.pid, end)
    else:
        os.kill(program.pid, end)
    program.wait(120)
    if end == signal.SIGINT:
        assert "KeyboardInterrupt" in program.stderr.read()
    program.stdout.close()
    program.stderr.close()
    assert all(gone(worker) for worker in workers)
