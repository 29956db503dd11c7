"""The server's ledger and those of its clients agree, whatever is lost on the way."""

import random
import re
from collections import Counter

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Budget, Release
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import BudgetExhaustedError
from fl_privquant.flower import CheckpointStrategy, PrivQuantMod, PrivQuantStrategy, StoppedResult
from fl_privquant.flower.client.ledger import ClientLedger
from fl_privquant.flower.simulation import Federation, InlineEngine
from tests.flower.apps import CLIP, client_app, fedavg, server_app, trained

CLIENTS, ROUNDS, DELTA = 6, 5, 1e-5


class Faulty:
    """A grid that loses messages on the way to clients, and replies on the way back."""

    def __init__(self, grid, contexts, lost_requests, lost_replies):
        self._grid, self._random = grid, random.Random(3)
        self._lost = (lost_requests, lost_replies)
        contexts.update(grid.contexts)

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, *, timeout=None):
        kept = [each for each in messages if self._random.random() >= self._lost[0]]
        replies = self._grid.send_and_receive(kept, timeout=timeout)
        return [each for each in replies if self._random.random() >= self._lost[1]]


def strategy_of(mechanism, **options):
    return PrivQuantStrategy(
        fedavg(),
        lambda number: Encoding(mechanism if number % 2 else OTHER, CLIP),
        max_failed_rounds=9,
        **options,
    )


OTHER = pq.design("one_bit", epsilon=1.0)


def assert_server_counts_all(ledger, contexts):
    """For every client and kind of release: at least as many on the server's side; and so is the cost."""
    released = 0
    for node, context in contexts.items():
        own = ClientLedger(context)
        for kind, count in Counter(release for _, release in own.releases).items():
            assert ledger.count(node, kind) >= count
        assert ledger.statement(DELTA).epsilon >= own.statement(DELTA).epsilon * (1.0 - 1e-12)
        released += len(own)
    return released


@pytest.mark.parametrize("lost", [(0.0, 0.0), (0.4, 0.0), (0.0, 0.4), (0.3, 0.3)])
def test_they_agree_after_faults(mechanism, lost):
    contexts = {}
    strategy = strategy_of(mechanism)
    server = server_app(lambda: strategy, ROUNDS, wrap_grid=lambda grid: Faulty(grid, contexts, *lost))
    InlineEngine().run(server, client_app([PrivQuantMod(10.0)]), Federation(CLIENTS))
    released = assert_server_counts_all(strategy.ledger, contexts)
    expected = Accountant([Release(mechanism, 25)] * 3 + [Release(OTHER, 25)] * 2)
    assert strategy.ledger.statement(DELTA) == expected.statement(DELTA)
    if lost[0] == 0.0:
        # Replies that are lost have been released all the same: both sides count them.
        assert released == CLIENTS * ROUNDS
        for context in contexts.values():
            assert ClientLedger(context).statement(DELTA).epsilon == expected.statement(DELTA).epsilon
    else:
        assert released < CLIENTS * ROUNDS


def going_on(contexts):
    """Wraps a grid so that clients go on with the state of the runs before, which ``contexts`` keeps."""

    def keep(grid):
        grid.states.update({node: context.state for node, context in contexts.items()})
        contexts.update(grid.contexts)
        return grid

    return keep


class Killed(KeyboardInterrupt):
    """An error that nothing handles."""


@pytest.mark.parametrize("only_some", [False, True])
def test_they_agree_after_a_restart(mechanism, tmp_path, only_some):
    """Clients keep their state over the restart of the server, as SuperNodes do."""
    contexts, path = {}, tmp_path / "run.checkpoint"

    def run(dies):
        def train(arrays, partition, server_round):
            if dies and server_round == 3 and partition >= (3 if only_some else 0):
                raise Killed
            return trained(arrays, partition, server_round)

        strategy = strategy_of(mechanism)
        server = server_app(lambda: CheckpointStrategy(strategy, path), ROUNDS, wrap_grid=going_on(contexts))
        InlineEngine().run(server, client_app([PrivQuantMod(10.0)], train), Federation(CLIENTS, seed=3))
        return strategy

    with pytest.raises(Killed):
        run(dies=True)
    strategy = run(dies=False)
    released = assert_server_counts_all(strategy.ledger, contexts)
    # Some clients had answered in round 3 before the server died, and the one at which it died had spent too.
    assert CLIENTS * ROUNDS <= released <= CLIENTS * ROUNDS + (4 if only_some else 1)
    # Round 3 was asked for twice.
    expected = Accountant([Release(mechanism, 25)] * 4 + [Release(OTHER, 25)] * 2)
    assert strategy.ledger.statement(DELTA) == expected.statement(DELTA)


def test_a_server_that_lost_its_ledger_gets_nothing_more(mechanism, flower_log):
    """A new server, without the checkpoint, that goes on with the run of the old one."""
    contexts = {}

    def run(num_rounds):
        strategy = PrivQuantStrategy(fedavg(), pq.Encoding(mechanism, CLIP), max_failed_rounds=9)
        server = server_app(lambda: strategy, num_rounds, wrap_grid=going_on(contexts))
        InlineEngine().run(server, client_app([PrivQuantMod(10.0)]), Federation(CLIENTS, seed=3))

    run(2)
    run(1)
    assert flower_log.text.count("LedgerMismatchError") >= CLIENTS
    assert "has counted 0 releases of this kind, this client has made 2" in flower_log.text
    assert all(len(ClientLedger(context)) == 2 for context in contexts.values())


def test_the_servers_budget_stops_the_run_with_what_was_spent(mechanism):
    release = Release(mechanism, 25)
    budget = Budget(Accountant([release] * 3).statement(DELTA).epsilon, DELTA)
    strategy = PrivQuantStrategy(fedavg(), pq.Encoding(mechanism, CLIP), budget=budget)
    server = server_app(lambda: strategy, 9)
    done = InlineEngine().run(server, client_app(), Federation(4))
    result = server.result
    assert isinstance(result, StoppedResult)
    assert re.search(r"after 3 of 9 rounds: round 4: .*Spent: client total \(25 coord", result.reason)
    assert result.stopped.statement == Accountant([release] * 3).statement(DELTA)
    assert len(strategy.ledger) == 3
    # The model and the metrics of three rounds, as a run of three rounds has them.
    whole = server_app(lambda: PrivQuantStrategy(fedavg(), pq.Encoding(mechanism, CLIP)), 3)
    three = InlineEngine().run(whole, client_app(), Federation(4))
    for name, each in three.arrays.items():
        np.testing.assert_array_equal(done.arrays[name].numpy(), each.numpy())
    assert result.train_metrics_clientapp == whole.result.train_metrics_clientapp
    assert not isinstance(whole.result, StoppedResult)


def test_a_budget_below_one_round_is_an_error(mechanism):
    strategy = PrivQuantStrategy(fedavg(), pq.Encoding(mechanism, CLIP), budget=Budget(0.01, DELTA))
    with pytest.raises(BudgetExhaustedError, match=r"round 1: .*nothing released"):
        InlineEngine().run(server_app(lambda: strategy, 9), client_app(), Federation(4))
    assert len(strategy.ledger) == 0


def test_clients_that_all_have_spent_their_budgets_stop_the_run(mechanism):
    strategy = PrivQuantStrategy(fedavg(), pq.Encoding(mechanism, CLIP), max_failed_rounds=99)
    client = client_app([PrivQuantMod(10.0, budget=2.5 * 25 * mechanism.epsilon)])
    server = server_app(lambda: strategy, 9)
    InlineEngine().run(server, client, Federation(4))
    assert "after 2 of 9 rounds: round 3: every client refuses" in server.result.reason
    assert server.result.stopped.statement.unit == "client total"
