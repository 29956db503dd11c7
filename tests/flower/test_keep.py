"""Keeping a part of the coordinates, over Flower: the same model with and without masks, a smaller bill."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.accounting import Aggregation
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import InvalidSpecError, PrivQuantError
from fl_privquant.flower import PrivQuantStrategy, RoundRecord, ScheduledKeep
from fl_privquant.flower._messages.protocol import Request
from tests.flower.apps import fedavg, mod_for, moving_client, simulate

CLIENTS, DIMENSION, ROUNDS = 6, 400, 2


def encoding(keep: int | float | None) -> Encoding:
    mechanism = pq.design("optm", epsilon=2.0, bits=2)
    return Encoding(mechanism, 3.0 / math.sqrt(DIMENSION), 1.0, True, keep)


def run(
    keep: int | float | ScheduledKeep | None, aggregation: Aggregation
) -> tuple[np.ndarray, list[RoundRecord]]:
    encoded = keep if isinstance(keep, ScheduledKeep) else encoding(keep)
    client = moving_client(np.linspace(0.0, 0.1, DIMENSION, dtype=np.float32), [mod_for(aggregation)])
    strategy = PrivQuantStrategy(fedavg(), encoded, aggregation=aggregation)
    done = simulate(strategy, client, CLIENTS, ROUNDS, {"model": np.zeros(DIMENSION, np.float32)})
    return done.model["model"], done.records


def test_a_schedule_changes_what_is_sent_and_what_it_costs() -> None:
    """40 of 400 coordinates in round 1, all of them in round 2, masked and not."""
    schedule = ScheduledKeep(encoding(40), {2: None})
    summed, records = run(schedule, pq.SumOfCodes())
    masked, _ = run(schedule, pq.SecureSum(corrupt_fraction=0.0, dropout_fraction=0.2))
    np.testing.assert_array_equal(masked, summed)
    assert [record.codec.dimension for record in records] == [40, 400]
    assert records[0].bytes_up < records[1].bytes_up / 4
    costs = [record.spent.epsilon for record in records]
    # The second round is dearer than the first one was; with all coordinates in both it is dearer still.
    assert costs[1] - costs[0] > costs[0]
    assert run(None, pq.SumOfCodes())[1][-1].spent.epsilon > costs[1]


@pytest.mark.parametrize(
    ("kept", "base", "reason"),
    [
        ({0: 0.5}, encoding(None), "round 0 is below 1"),
        ({2: 0.0}, encoding(None), "keep: 0.0"),
        ({2: 0.5}, Encoding(encoding(None).mechanism, 0.1), "needs a rotation"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_at_once(kept: dict[int, Any], base: Any, reason: str) -> None:
    with pytest.raises(InvalidSpecError, match=reason):
        ScheduledKeep(base, kept)


@pytest.mark.parametrize("keep", [40, 0.25])
def test_the_model_is_the_same_with_and_without_masks(keep: int | float) -> None:
    summed, records = run(keep, pq.SumOfCodes())
    masked, masked_records = run(keep, pq.SecureSum())
    assert np.array_equal(summed, masked)
    assert np.linalg.norm(summed) > 0.0
    kept = encoding(keep).count_kept(DIMENSION)
    _, everything = run(None, pq.SumOfCodes())
    # 2 bits for each coordinate that is not kept are not sent by any client.
    saved = CLIENTS * (DIMENSION - kept) * 2 // 8
    assert [record.bytes_up + saved for record in records] == [record.bytes_up for record in everything]
    assert all(record.bytes_up > 0 for record in masked_records)


def test_rounds_have_subsets_of_their_own() -> None:
    codecs = [Request(number, encoding(40), rotation_seed=number).codec(layout()) for number in (1, 2)]
    first, second = (set(codec._subset.places.tolist()) for codec in codecs)
    assert len(first & second) < 30


def layout() -> Layout:
    return Layout.of({"model": np.zeros(DIMENSION, np.float32)})


def test_a_plan_counts_what_is_kept_and_says_so() -> None:
    target = pq.Target(6.0, rounds=3, num_clients=20)
    whole, part = target.plan(DIMENSION), target.plan(DIMENSION, keep=100)
    assert part.statement.epsilon <= 6.0
    assert part.encoding.count_kept(DIMENSION) == 100
    assert part.bytes_per_round < whole.bytes_per_round / 2
    assert "keeping 100 of 400 coordinates" in str(part)
    assert part.mean_squared_error > whole.mean_squared_error
    # The central Gaussian that it is compared with is that of the whole update.
    assert part.central_error == pytest.approx(whole.central_error, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_error": 1.1, "keep": 5}, "give only one of them"),
        ({"max_error": -1.0}, "max_error"),
        ({"keep": 0}, "keep"),
        ({"keep": 401}, "keep fewer"),
        ({"max_error": 1.1, "aggregation": pq.PerClient(), "mechanism": "one_bit"}, "secure sums"),
    ],
)
def test_wishes_that_contradict_each_other_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(PrivQuantError, match=words):
        pq.Target(6.0, rounds=3, num_clients=20).plan(DIMENSION, **settings)
