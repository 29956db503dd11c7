"""The server's ledger and those of its clients agree, whatever is lost on the way."""

import random
import re
from collections import Counter

import pytest

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Budget, Release
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import BudgetExhaustedError
from fl_privquant.flower import CheckpointStrategy, PrivQuantMod, PrivQuantStrategy, StoppedResult
from fl_privquant.flower.client.ledger import ClientLedger
from tests.flower.apps import (
    CLIP,
    Killed,
    assert_same_arrays,
    client_app,
    fedavg,
    simulate,
    strategy_for,
    trained,
)

CLIENTS, ROUNDS, DELTA = 6, 5, 1e-5


class Faulty:
    """A grid that loses messages on the way to clients, and replies on the way back."""

    def __init__(self, grid, lost_requests, lost_replies):
        self._grid, self._random = grid, random.Random(3)
        self._lost = (lost_requests, lost_replies)

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
    strategy = strategy_of(mechanism)
    client = client_app([PrivQuantMod(10.0)])
    done = simulate(strategy, client, CLIENTS, ROUNDS, wrap_grid=lambda grid: Faulty(grid, *lost))
    contexts = done.grid.contexts
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


def going_on(grids):
    """Wraps a grid so that clients go on with the states of the run before, if there was one."""

    def keep(grid):
        if grids:
            grid.states.update(grids[-1].states)
        grids.append(grid)
        return grid

    return keep


@pytest.mark.parametrize("only_some", [False, True])
def test_they_agree_after_a_restart(mechanism, tmp_path, only_some):
    """Clients keep their state over the restart of the server, as SuperNodes do."""
    grids, path = [], tmp_path / "run.checkpoint"

    def run(dies):
        def train(arrays, partition, server_round):
            if dies and server_round == 3 and partition >= (3 if only_some else 0):
                raise Killed
            return trained(arrays, partition, server_round)

        strategy = strategy_of(mechanism)
        saved, client = CheckpointStrategy(strategy, path), client_app([PrivQuantMod(10.0)], train)
        simulate(saved, client, CLIENTS, ROUNDS, seed=3, wrap_grid=going_on(grids))
        return strategy

    with pytest.raises(Killed):
        run(dies=True)
    strategy = run(dies=False)
    released = assert_server_counts_all(strategy.ledger, grids[-1].contexts)
    # Some clients had answered in round 3 before the server died, and the one at which it died had spent too.
    assert CLIENTS * ROUNDS <= released <= CLIENTS * ROUNDS + (4 if only_some else 1)
    # Round 3 was asked for twice.
    expected = Accountant([Release(mechanism, 25)] * 4 + [Release(OTHER, 25)] * 2)
    assert strategy.ledger.statement(DELTA) == expected.statement(DELTA)


def test_a_server_that_lost_its_ledger_gets_nothing_more(mechanism, flower_log):
    """A new server, without the checkpoint, that goes on with the run of the old one."""
    grids = []

    def run(num_rounds):
        strategy = strategy_for(mechanism, max_failed_rounds=9)
        client = client_app([PrivQuantMod(10.0)])
        simulate(strategy, client, CLIENTS, num_rounds, seed=3, wrap_grid=going_on(grids))

    run(2)
    run(1)
    assert flower_log.text.count("LedgerMismatchError") >= CLIENTS
    assert "has counted 0 releases of this kind, this client has made 2" in flower_log.text
    assert all(len(ClientLedger(context)) == 2 for context in grids[-1].contexts.values())


def test_the_servers_budget_stops_the_run_with_what_was_spent(mechanism):
    release = Release(mechanism, 25)
    budget = Budget(Accountant([release] * 3).statement(DELTA).epsilon, DELTA)
    strategy = strategy_for(mechanism, budget=budget)
    done = simulate(strategy, num_rounds=9)
    result = done.result
    assert isinstance(result, StoppedResult)
    assert re.search(r"after 3 of 9 rounds: round 4: .*Spent: client total \(25 coord", result.reason)
    assert result.stopped.statement == Accountant([release] * 3).statement(DELTA)
    assert len(strategy.ledger) == 3
    # The model and the metrics of three rounds, as a run of three rounds has them.
    whole = simulate(strategy_for(mechanism), num_rounds=3)
    assert_same_arrays(done.model, whole.model)
    assert result.train_metrics_clientapp == whole.result.train_metrics_clientapp
    assert not isinstance(whole.result, StoppedResult)


def test_a_budget_below_one_round_is_an_error(mechanism):
    strategy = strategy_for(mechanism, budget=Budget(0.01, DELTA))
    with pytest.raises(BudgetExhaustedError, match=r"round 1: .*nothing released"):
        simulate(strategy, num_rounds=9)
    assert len(strategy.ledger) == 0


def test_clients_that_all_have_spent_their_budgets_stop_the_run(mechanism):
    strategy = strategy_for(mechanism, max_failed_rounds=99)
    client = client_app([PrivQuantMod(10.0, budget=2.5 * 25 * mechanism.epsilon)])
    result = simulate(strategy, client, num_rounds=9).result
    assert "after 2 of 9 rounds: round 3: every client refuses" in result.reason
    assert result.stopped.statement.unit == "client total"
