"""The noise of whole runs over Flower, put together from the seeds that real clients drew and took off.

An observer of the run notes of each code whose noise was added to it and taken off of it, and which codes are
in each opened sum. From that follows the covariance of the noise that the adversary does not know, and what
each client's own rounds cost under it at most. It must not exceed what is stated for its participations,
whoever is lost, restarted, killed or hostile.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fl_privquant.accounting import SecureSum, SimulatedSum
from fl_privquant.flower import CheckpointStrategy, PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower.server.seed_relay import SeedRelay
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.flower.simulation._nodes import FIRST_NODE_ID
from fl_privquant.mechanisms.additive.correlated_gaussian import CorrelatedGaussianMechanism
from fl_privquant.planning import CohortSampling, Plan, Target
from fl_privquant.secagg import ClientPolicy
from tests.flower.apps import Killed, client_app, fedavg, simulate

POPULATION, COHORT, APART, ROUNDS, DIMENSION = 90, 20, 3, 12, 16
SIZES = {"corrupt_fraction": 0.1, "dropout_fraction": 0.1}


class Observer:
    """Notes what codes are made of, and which of them are in each opened sum."""

    def __init__(self) -> None:
        # By client and attempt at a round: the seed that it added, and the one that it took off.
        self.codes: dict[tuple[int, int], tuple[bytes, bytes | None]] = {}
        self.attempt = 0
        # The clients of each attempt.
        self.asked: dict[int, list[int]] = {}
        # For each opened sum: the clients in it, and the seeds that the server took off.
        self.sums: list[tuple[int, list[int], list[bytes]]] = []
        self.mechanism: CorrelatedGaussianMechanism | None = None
        self._client = -1

    def __call__(self, message: Any, context: Any, call_next: Callable[..., Any]) -> Any:
        self._client = int(context.node_config["partition-id"])
        return call_next(message, context)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Look into clients and server while a run lasts."""
        bind, deliver, keep = CorrelatedGaussianMechanism.with_seeds, SeedRelay.deliver, SeedRelay.keep
        open_lost = SeedRelay.open_lost

        def with_seeds(mechanism: Any, seeds: Any) -> Any:
            self.mechanism = mechanism
            self.codes[self._client, self.attempt] = seeds.own, seeds.previous
            return bind(mechanism, seeds)

        def begin(relay: Any, messages: Any) -> None:
            self.attempt += 1
            nodes = [message.metadata.dst_node_id - FIRST_NODE_ID for message in messages]
            self.asked[self.attempt] = nodes
            deliver(relay, messages)

        def end(relay: Any, replies: Any, survivors: Any) -> None:
            nodes = [node - FIRST_NODE_ID for node in survivors]
            self.sums.append((self.attempt, nodes, []))
            keep(relay, replies, survivors)

        def ask(relay: Any, noise: Any, survivors: Any) -> list[bytes]:
            seeds = open_lost(relay, noise, survivors)
            self.sums[-1][2].extend(seeds)
            return seeds

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CorrelatedGaussianMechanism, "with_seeds", with_seeds)
            patch.setattr(SeedRelay, "deliver", begin)
            patch.setattr(SeedRelay, "keep", end)
            patch.setattr(SeedRelay, "open_lost", ask)
            yield

    def choose_corrupt(self, draw: np.random.Generator, most: int) -> set[int]:
        """Corrupt clients, as many as there can be with no more than ``most`` of them in any cohort."""
        chosen: set[int] = set()
        for client in draw.permutation(POPULATION).tolist():
            more = chosen | {client}
            if all(len(more.intersection(nodes)) <= most for nodes in self.asked.values()):
                chosen = more
        return chosen

    def covariance(self, corrupt: set[int]) -> NDArray[np.float64]:
        """The covariance of the noise of opened sums that nobody but honest clients knows."""
        assert self.mechanism is not None
        opened = [(attempt, nodes) for attempt, nodes, _ in self.sums if nodes]
        handed, private = self.mechanism.handed_deviation**2, self.mechanism.deviation**2
        columns: dict[bytes, NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(opened)))
        known = {seed for _, _, seeds in self.sums for seed in seeds}
        covariance = np.zeros((len(opened), len(opened)))
        for (client, _), (own, previous) in self.codes.items():
            if client in corrupt:
                known |= {own, previous or b""}
        for row, (attempt, nodes) in enumerate(opened):
            for client in nodes:
                own, previous = self.codes[client, attempt]
                columns[own][row] += 1.0
                if previous is not None:
                    columns[previous][row] -= self.mechanism.correlation
                if client not in corrupt:
                    covariance[row, row] += private
        for seed, column in columns.items():
            if seed not in known:
                covariance += handed * np.outer(column, column)
        return covariance

    def largest_cost(self, more_corrupt: int = 0) -> float:
        """The largest cost of an honest client's rounds over what is stated for them, of ten adversaries."""
        assert self.mechanism is not None
        most = self.mechanism.num_corrupt + more_corrupt
        stated = self.mechanism.shares.sensitivity**2
        opened = [nodes for _, nodes, _ in self.sums if nodes]
        assert len(opened) > 1
        ratios = []
        for seed in range(10):
            corrupt = self.choose_corrupt(np.random.default_rng(seed), most)
            assert corrupt
            inverse = np.abs(np.linalg.inv(self.covariance(corrupt)))
            for client in set(range(POPULATION)) - corrupt:
                own = [row for row, nodes in enumerate(opened) if client in nodes]
                if own:
                    # No directions of changes make more of it than this.
                    ratios.append(inverse[np.ix_(own, own)].sum() / (stated * len(own)))
        return float(max(ratios))


def make_plan(aggregation: Any, correlation: float = 0.75, rounds: int = ROUNDS) -> Plan:
    target = Target(8.0, rounds=rounds, num_clients=COHORT, rounds_apart=APART)
    return target.plan(DIMENSION, correlation=correlation, aggregation=aggregation, force=True)


class Restarting:
    """A mod before all others: one client of each round has lost its state when it is to train."""

    def __init__(self) -> None:
        self.restarted: set[int] = set()

    def __call__(self, message: Any, context: Any, call_next: Callable[..., Any]) -> Any:
        number = message.content.get("config", {}).get("server-round", 0)
        if number > 1 and number not in self.restarted:
            self.restarted.add(number)
            # What it agreed on of masks is kept, or it could not take part.
            kept = {name: record for name, record in context.state.items() if name == "privquant-secagg"}
            context.state = RecordDict(kept)
        return call_next(message, context)


class LoseTwo:
    """Who is lost: two of the clients of each round, and three in the sixth, which is more than planned."""

    def __init__(self) -> None:
        self.lost: dict[int, set[int]] = defaultdict(set)

    def __call__(self, client: int, number: int) -> bool:
        if len(self.lost[number]) < (3 if number == 6 else 2):
            self.lost[number].add(client)
        return client in self.lost[number]


class KilledInRound(FedAvg):
    """The server dies in a round, when its sum is open and before anything of it is saved."""

    def __init__(self, number: int | None) -> None:
        super().__init__(fraction_evaluate=0.0)
        # A function, which is not saved with the run.
        self._dies = lambda server_round: server_round == number

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if self._dies(server_round):
            raise Killed
        return super().aggregate_train(server_round, replies)


def observe(
    aggregation: Any,
    encoding: Any = None,
    mods: Sequence[Any] = (),
    inner: Any = None,
    checkpoint: Path | None = None,
    observer: Observer | None = None,
) -> tuple[Observer, PrivQuantStrategy]:
    """A run of real clients, with an observer of all that they add and take off."""
    observer = observer or Observer()
    encoding = encoding or make_plan(aggregation)
    named = {} if isinstance(encoding, Plan) else {"aggregation": aggregation}
    private = PrivQuantStrategy(
        inner or fedavg(),
        encoding,
        sampling=CohortSampling(APART, seed=5, clients=COHORT),
        simulated=True,
        max_failed_rounds=ROUNDS,
        **named,
    )
    policy = ClientPolicy(**SIZES) if isinstance(aggregation, SecureSum) else False
    mod = PrivQuantMod(math.inf, max_delta=1e-5, secure_aggregation=policy)
    with observer.watch():
        simulate(
            private if checkpoint is None else CheckpointStrategy(private, checkpoint),
            client_app([observer, *mods, mod], lost_when=LoseTwo()),
            POPULATION,
            ROUNDS,
            {"x": np.zeros(DIMENSION, np.float32)},
        )
    return observer, private


SUMS = pytest.mark.parametrize(
    "aggregation", [SimulatedSum(**SIZES), SecureSum(**SIZES)], ids=["simulated", "masked"]
)


@SUMS
def test_no_client_pays_more_than_is_stated_and_hardly_less(aggregation: Any) -> None:
    observer, _ = observe(aggregation)
    # Clients are lost, their senders tell their seeds, and a round that loses too many is not opened.
    assert sum(len(seeds) for *_, seeds in observer.sums) >= ROUNDS
    assert [len(nodes) for _, nodes, _ in observer.sums] == [18] * 5 + [0] + [18] * 6
    assert 0.9 < observer.largest_cost() <= 1.0
    # The control: with more corrupt clients than planned, it is more.
    assert observer.largest_cost(more_corrupt=2) > 1.0


@SUMS
def test_clients_that_restart_pay_no_more(aggregation: Any) -> None:
    observer, _ = observe(aggregation, mods=[Restarting()])
    kept_from_their_seed = sum(len(nodes) > 0 for _, nodes, _ in observer.sums)
    assert kept_from_their_seed == ROUNDS - 1
    assert 0.5 < observer.largest_cost() <= 1.0


@SUMS
def test_a_server_that_dies_with_an_open_sum_costs_clients_no_more(aggregation: Any, tmp_path: Path) -> None:
    observer, plan, path = Observer(), make_plan(aggregation, rounds=10), tmp_path / "run.checkpoint"

    def go_on(killed_in: int | None) -> PrivQuantStrategy:
        inner = KilledInRound(killed_in)
        return observe(aggregation, plan, inner=inner, checkpoint=path, observer=observer)[1]

    with pytest.raises(Killed):
        go_on(5)
    resumed = go_on(None)
    # The fifth round is there twice, with other clients. There are no more sums than were planned for.
    assert len(observer.sums) == 10
    assert set(observer.asked[5]).isdisjoint(observer.asked[6])
    assert observer.largest_cost() <= 1.0
    assert resumed.ledger.statement(1e-5, in_sum=True).epsilon <= 8.0


def test_correlations_that_a_policy_chooses_cost_what_is_stated_for_them() -> None:
    """Chains of rounds with equal noise stand side by side; each is counted by its own figure."""
    aggregation = SimulatedSum(**SIZES)
    weak, strong = (make_plan(aggregation, given).encoding for given in (0.25, 0.75))

    def choose(number: int) -> Any:
        return weak if number in (3, 4, 9) else strong

    observer, _ = observe(aggregation, encoding=choose)
    # Nothing is taken off in the first round of a chain.
    for (_, attempt), (_, previous) in observer.codes.items():
        assert previous is None or attempt not in (1, 3, 5, 9, 10)
    for mechanism, rounds in ((weak.mechanism, {3, 4, 9}), (strong.mechanism, {1, 2, 5, 7, 8, 10, 11, 12})):
        own = Observer()
        own.mechanism, own.codes, own.asked = mechanism, observer.codes, observer.asked
        own.sums = [opened for opened in observer.sums if opened[0] in rounds]
        assert 0.2 < own.largest_cost() <= 1.0


def test_a_run_that_begins_again_with_the_same_strategy_asks_no_client_too_soon() -> None:
    observer, aggregation = Observer(), SimulatedSum(**SIZES)
    sampling = CohortSampling(APART, seed=5, clients=COHORT)
    strategy = PrivQuantStrategy(
        fedavg(), make_plan(aggregation), sampling=sampling, simulated=True, max_failed_rounds=ROUNDS
    )
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        model = ArrayRecord({"x": Array(np.zeros(DIMENSION, np.float32))})
        for _ in range(2):
            # Flower counts rounds from 1 again.
            strategy.start(grid, model, num_rounds=4)

    with observer.watch():
        client = client_app([observer, PrivQuantMod(math.inf, max_delta=1e-5)], lost_when=LoseTwo())
        InlineEngine().run(server, client, Federation(POPULATION))
    # The second run counts from 1 again: clients that took part in the first one have not rested since.
    assert len(observer.sums) >= 4
    assert observer.largest_cost() <= 1.0
