"""Correlated noise over Flower: seeds reach one client of the next round, and noise is taken off once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp import Grid

import fl_privquant as pq
from fl_privquant.accounting import SecureSum, SimulatedSum
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy, RoundRecord
from fl_privquant.flower._messages.grids import GridWrapper
from fl_privquant.flower._messages.protocol import KEY_RECEIVER, KEY_SEED
from fl_privquant.flower._messages.stages import KEY_DATA, KEY_STAGE, NOISE_KEY, NOISE_SEED, protocol_record
from fl_privquant.flower.server.seed_relay import SeedRelay
from fl_privquant.planning import CohortSampling, Plan, Target
from fl_privquant.secagg import ClientPolicy
from tests.flower.apps import client_app, fedavg, mod_for, simulate, trained

POPULATION, COHORT, APART, ROUNDS = 36, 12, 3, 6
NOBODY_LOST = {"corrupt_fraction": 0.0, "dropout_fraction": 0.0}
SOME_LOST = {"corrupt_fraction": 0.0, "dropout_fraction": 0.2}


def make_plan(aggregation: Any, dimension: int = 64, rounds: int = ROUNDS, **options: Any) -> Plan:
    target = Target(8.0, rounds=rounds, num_clients=COHORT, rounds_apart=APART)
    return target.plan(dimension, correlation="auto", aggregation=aggregation, force=True, **options)


class Spy:
    """A mod before all others that notes who got which seed and key, and which seed a client handed over.

    It also notes who is asked for its seed, after which round, and what it answers.
    """

    def __init__(self) -> None:
        self.got: dict[tuple[int, int], bytes] = {}
        self.keys: dict[tuple[int, int], bytes] = {}
        self.sent: dict[tuple[int, int], bytes] = {}
        self.asked: dict[tuple[int, int], bytes | None] = {}

    def __call__(self, message: Any, context: Any, call_next: Callable[..., Any]) -> Any:
        config = message.content.get("config", {})
        stage, client = protocol_record(message), int(context.node_config["partition-id"])
        place = (config.get("server-round"), client)
        if place[0] is not None:
            for key, kept in ((KEY_SEED, self.got), (KEY_RECEIVER, self.keys)):
                if key in config:
                    kept[place] = config[key]
        reply = call_next(message, context)
        if place[0] is not None and not reply.has_error():
            info = reply.content["privquant-reply"]
            if KEY_SEED in info:
                self.sent[place] = info[KEY_SEED]
        elif stage is not None and stage.get(KEY_STAGE) == NOISE_SEED:
            told = None if reply.has_error() else protocol_record(reply)[KEY_DATA]
            self.asked[int.from_bytes(stage[KEY_DATA], "little"), client] = told
        return reply


def run(
    aggregation: Any,
    plan: Plan | None = None,
    lost_when: Any = None,
    rounds: int = ROUNDS,
    train_with: Any = None,
    models: list[Any] | None = None,
    spy: Spy | None = None,
    wrap_grid: Any = lambda grid: grid,
    **options: Any,
) -> tuple[np.ndarray, list[RoundRecord], Any]:
    """The model, the records of rounds and the strategy of a run from seeded streams."""
    plan = plan or make_plan(aggregation)
    strategy = PrivQuantStrategy(
        fedavg(),
        plan,
        sampling=CohortSampling(APART, seed=5, clients=COHORT),
        simulated=True,
        max_failed_rounds=rounds,
        **options,
    )
    mod = mod_for(aggregation, max_delta=1e-5)
    client = client_app([mod] if spy is None else [spy, mod], train_with or trained, lost_when=lost_when)

    def note(number: int, arrays: Any) -> None:
        if models is not None and number:
            models.append(arrays["x"].numpy().copy())

    initial = {"x": np.zeros(plan.dimension, np.float32)}
    done = simulate(strategy, client, POPULATION, rounds, initial, wrap_grid=wrap_grid, evaluate_fn=note)
    return done.vector, done.records, strategy


def zeros(arrays: Any, partition: int, server_round: int) -> Any:
    return arrays


def some_lost(partition: int, number: int) -> bool:
    return partition % 9 == number % 9


def test_real_masks_and_the_simulation_agree_when_clients_are_lost() -> None:
    masked, with_masks, _ = run(SecureSum(**SOME_LOST), lost_when=some_lost)
    simulated, _, _ = run(SimulatedSum(**SOME_LOST), lost_when=some_lost)
    assert any(record.survivors < record.asked for record in with_masks)
    np.testing.assert_array_equal(masked, simulated)


@pytest.mark.parametrize("aggregation", [SecureSum(**NOBODY_LOST), SimulatedSum(**NOBODY_LOST)])
def test_each_seed_reaches_exactly_one_client_of_the_next_round(aggregation: Any) -> None:
    spy = Spy()
    _, records, _ = run(aggregation, spy=spy)
    assert len(records) == ROUNDS
    for number in range(1, ROUNDS):
        sent = [seed for (at, _), seed in spy.sent.items() if at == number]
        got = [seed for (at, _), seed in spy.got.items() if at == number + 1]
        assert len(sent) == len(set(sent)) == COHORT
        assert sorted(sent) == sorted(got)
    assert not any(at == 1 for at, _ in spy.got)
    # The last round hands nothing over.
    assert not any(at == ROUNDS for at, _ in spy.sent)
    sizes = {len(seed) for seed in spy.sent.values()}, {len(key) for key in spy.keys.values()}
    assert sizes == (({80}, {32}) if aggregation.masked else ({32}, {0}))


class SizeGrid(GridWrapper):
    """A grid that counts the bytes by which contents, as Flower packs them, are longer for the hand-over."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.added: list[int] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        sent = list(messages)
        replies = list(super().send_and_receive(sent, timeout=timeout))
        if not sent:
            # The last round evaluates nothing.
            return replies
        stage = protocol_record(sent[0])
        if stage is None:
            handed = sum(len(_without_seeds(each.content)[1]) for each in [*sent, *replies])
            self.added.append(sum(_without_seeds(each.content)[0] for each in [*sent, *replies]) - handed)
        elif stage[KEY_STAGE] == NOISE_KEY:
            keys = sum(len(protocol_record(reply)[KEY_DATA]) for reply in replies)
            self.added.append(sum(packed_size(each.content) for each in [*sent, *replies]) - keys)
        return replies


def packed_size(content: RecordDict) -> int:
    return recorddict_to_proto(content).ByteSize()


def _without_seeds(content: RecordDict) -> tuple[int, bytes]:
    """How many bytes shorter a message is without entries for seeds and keys, and these entries."""
    less, entries = RecordDict(dict(content)), b""
    for name, config in content.config_records.items():
        kept = {key: value for key, value in config.items() if key not in (KEY_SEED, KEY_RECEIVER)}
        entries += b"".join(config[key] for key in config.keys() - kept.keys())
        less[name] = ConfigRecord(kept)
    return packed_size(content) - packed_size(less), entries


def test_handing_over_takes_few_bytes_beyond_sealed_seeds_and_keys() -> None:
    """Contents of messages; Flower's envelopes are 108 bytes for the request of a key and its answer."""
    grids: list[SizeGrid] = []

    def wrap(grid: Grid) -> SizeGrid:
        grids.append(SizeGrid(grid))
        return grids[-1]

    run(SecureSum(**NOBODY_LOST), wrap_grid=wrap)
    (grid,) = grids
    # A request for keys and a train message for each round but the last, which has no further cohort.
    assert len(grid.added) == 2 * ROUNDS - 1
    of_rounds = np.array([*grid.added, 0]).reshape(ROUNDS, 2).sum(axis=1) / COHORT
    assert 100 < of_rounds.max() <= 200


def test_handed_noise_is_taken_off_and_models_have_the_planned_error() -> None:
    # 30,000 coordinates: the mean over 24 models has a standard error of some 0.8 %, 3 % are almost four.
    aggregation, rounds, models = SimulatedSum(**NOBODY_LOST), 24, []
    plan = make_plan(aggregation, dimension=30_000, rounds=rounds)
    run(aggregation, plan, rounds=rounds, train_with=zeros, models=models)
    measured = np.mean([np.mean(model.astype(np.float64) ** 2) for model in models])
    planned = plan.prefix_error * plan.central_error * 0.5 * (rounds + 1)
    assert len(models) == rounds
    assert measured == pytest.approx(planned, rel=0.03)
    # The control: the noise of single rounds would add up to much more.
    assert plan.mean_squared_error * 0.5 * (rounds + 1) > 2.0 * measured


def test_noise_that_nobody_takes_off_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregation = SimulatedSum(**NOBODY_LOST)
    plan = make_plan(aggregation, dimension=2000)
    models: list[Any] = []
    run(aggregation, plan, train_with=zeros, models=models)
    linked = np.mean(models[-1].astype(np.float64) ** 2)
    monkeypatch.setattr(SeedRelay, "keep", lambda *_: None)
    models.clear()
    run(aggregation, plan, train_with=zeros, models=models)
    # A factor of three is far outside of what 2000 coordinates vary by, some 3 %.
    assert np.mean(models[-1].astype(np.float64) ** 2) > 1.5 * linked


def test_seeds_for_lost_receivers_and_of_lost_senders_go_to_nobody() -> None:
    spy = Spy()

    run(SimulatedSum(**SOME_LOST), lost_when=some_lost, spy=spy)
    delivered = list(spy.got.values())
    assert len(delivered) == len(set(delivered))
    for (number, _), seed in spy.got.items():
        senders = [place for place, sent in spy.sent.items() if sent == seed]
        assert [place[0] for place in senders] == [number - 1]
        assert not some_lost(senders[0][1], number - 1)


def test_senders_of_lost_receivers_alone_tell_their_seeds() -> None:
    spy = Spy()
    run(SecureSum(**SOME_LOST), lost_when=some_lost, spy=spy)
    # Lost clients are gone before the spy sees what they got.
    never_got = {place for place, sealed in spy.sent.items() if sealed not in spy.got.values()}
    assert never_got
    assert set(spy.asked) == never_got
    assert {len(told or b"") for told in spy.asked.values()} == {32}


def test_noise_of_lost_receivers_is_taken_off_by_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregation, models = SimulatedSum(**SOME_LOST), []
    plan = make_plan(aggregation, dimension=4000, rounds=12)

    def measure() -> float:
        models.clear()
        run(aggregation, plan, rounds=12, train_with=zeros, models=models, lost_when=some_lost)
        return float(np.mean([np.mean(model.astype(np.float64) ** 2) for model in models]))

    opened = measure()
    # The plan is for three lost clients in each round, of whose senders some are gone, too.
    assert opened < plan.prefix_error * plan.central_error * 0.5 * 13
    monkeypatch.setattr(SeedRelay, "open_lost", lambda *_: [])
    # One or two lost clients in each round leave a sixth more; 4000 coordinates vary by some 2 %.
    assert measure() > 1.1 * opened


def test_no_seed_is_told_beyond_those_planned_for_or_after_a_failed_round() -> None:
    relay = SeedRelay(SimulatedSum(**SOME_LOST), 0)
    noise = make_plan(SimulatedSum(**SOME_LOST)).encoding.mechanism.handed

    def deliver() -> None:
        relay._grid = object()
        relay._delivered = {10 + place: (place, bytes([place]) * 32) for place in range(5)}

    deliver()
    assert relay.open_lost(noise, [10]) == [bytes([place]) * 32 for place in (1, 2, 3)]
    assert noise.num_opened == 3
    # What was told once is forgotten.
    assert relay.open_lost(noise, [10]) == []
    deliver()
    assert relay.open_lost(noise, []) == []


def test_ledgers_count_the_plan_and_a_round_after_the_last_is_not_begun() -> None:
    aggregation = SimulatedSum(**NOBODY_LOST)
    plan = make_plan(aggregation)
    _, records, strategy = run(aggregation, plan, rounds=ROUNDS + 2)
    assert len(records) == ROUNDS
    spent = strategy.ledger.statement(1e-5, in_sum=True)
    assert 0.99 * 8.0 < spent.epsilon <= 8.0
    assert any("view of 12" in line and "client total" in line for line in strategy.privacy_statement())


def test_samplings_and_aggregations_that_the_noise_is_not_for_are_refused() -> None:
    aggregation = SimulatedSum(**NOBODY_LOST)
    plan = make_plan(aggregation)
    with pytest.raises(InvalidSpecError, match="CohortSampling"):
        PrivQuantStrategy(fedavg(), plan, sampling=CohortSampling(2, participations=2), simulated=True)
    with pytest.raises(InvalidSpecError, match="server that may lie"):
        make_plan(SecureSum(**NOBODY_LOST, server_may_lie=True))
    mechanism = plan.encoding.mechanism
    encoding = pq.Encoding(mechanism, plan.encoding.clip, 1.0, rotate=True)
    small = CohortSampling(APART, seed=5, clients=COHORT - 2)
    strategy = PrivQuantStrategy(fedavg(), encoding, aggregation=aggregation, sampling=small, simulated=True)
    with pytest.raises(InvalidSpecError, match="honest clients"):
        simulate(strategy, client_app([mod_for()]), POPULATION, 2, {"x": np.zeros(64, np.float32)})


@pytest.mark.parametrize("may_lie", [True, False])
def test_clients_for_whom_the_server_may_lie_refuse_correlated_noise(may_lie: bool) -> None:
    aggregation = SecureSum(**NOBODY_LOST)
    strategy = PrivQuantStrategy(
        fedavg(),
        make_plan(aggregation),
        sampling=CohortSampling(APART, seed=5, clients=COHORT),
        simulated=True,
        max_failed_rounds=2,
    )
    policy = ClientPolicy(**NOBODY_LOST, server_may_lie=may_lie)
    client = client_app([PrivQuantMod(math.inf, max_delta=1e-5, seed=3, secure_aggregation=policy)])
    done = simulate(strategy, client, POPULATION, 2, {"x": np.zeros(64, np.float32)})
    assert [record.survivors for record in done.records] == [0 if may_lie else COHORT] * 2


def test_a_client_takes_part_no_oftener_than_its_noise_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that asks everybody in each round, and does not check it, gets one answer of any three."""
    monkeypatch.setattr("fl_privquant.flower.server.strategy.check_round", lambda *_: None)
    aggregation = SimulatedSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    plan = make_plan(aggregation)
    encoding = pq.Encoding(plan.encoding.mechanism, plan.encoding.clip, 1.0, rotate=True)
    strategy = PrivQuantStrategy(
        fedavg(), encoding, aggregation=aggregation, simulated=True, max_failed_rounds=9
    )
    done = simulate(strategy, client_app([mod_for()]), COHORT, 4, {"x": np.zeros(64, np.float32)})
    assert [record.survivors for record in done.records] == [COHORT, 0, 0, COHORT]
