"""An audit of runs that protect records: how well can the opened sum tell that a record was inserted?"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from scipy import stats

from fl_privquant.accounting import SimulatedSum
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.flower import linear_record_update
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.protocol import Request
from fl_privquant.planning import Target
from fl_privquant.planning.record_plan import RecordPlan
from fl_privquant.sampling.stream import RandomStream

SILOS, FEATURES, EPSILON, DELTA, TRIALS = 3, 11, 3.0, 0.01, 1500
CONFIDENCE = 0.99
# In clips of a record. At about this one the bound is largest, by the law of what is seen.
THRESHOLD = 1.7


@pytest.fixture(scope="module")
def planned() -> RecordPlan:
    target = Target(EPSILON, 1, SILOS, DELTA, unit="record", records=60, sampling_rate=0.8)
    plan = target.plan(FEATURES + 1, aggregation=SimulatedSum(0.0, 0.0))
    assert isinstance(plan, RecordPlan)
    return plan


def opened_sums(plan: RecordPlan, inserted: bool, weight: float = 1.0, trials: int = TRIALS) -> np.ndarray:
    """What a round shows in the direction of one record, ``weight`` clips long, with and without it.

    Everything is as in use: the draw of records, their gradients and the clip, the rotation, the noise, the
    codes, and their sum modulo the power of two that a secure sum would use. Only the stream is seeded, so
    that the test is the same each time.
    """
    stream = RandomStream.seeded(11, client=int(inserted) + int(2 * weight))
    model = {"coef": np.zeros((1, FEATURES)), "intercept": np.zeros(1)}
    codec = UpdateCodec(Layout.of(model), plan.encoding, rotation_seed=5)
    ring, message = codec.sum_ring(SILOS), train_message(plan, model)
    # Two ordinary patients, and one whose gradient is enormous, and clipped to the third coefficient.
    inputs = np.concatenate([0.3 * np.ones((2, FEATURES)), 1e9 * np.eye(FEATURES)[3:4]])[: 2 + inserted]
    labels = np.array([0, 1, 1])[: 2 + inserted]
    seen = np.empty(trials)
    for trial in range(trials):
        total = np.zeros(FEATURES + 1, np.int64)
        for silo in range(SILOS):
            rows = slice(None) if silo == 0 else slice(2)
            made = linear_record_update(message, inputs[rows], labels[rows], rng=stream).record_sum
            made = replace(made, arrays={name: weight * array for name, array in made.arrays.items()})
            total += codec.encode_record_sum(made, stream).codes()
        mean = codec.decode_sum(ring.unwrap(ring.residues(total), SILOS), SILOS)
        seen[trial] = mean["coef"][0, 3] * SILOS / plan.sampling.norm
    return seen


def train_message(plan: RecordPlan, model: dict[str, np.ndarray]) -> Message:
    """What a client gets in a round of the plan."""
    config = ConfigRecord({"server-round": 1})
    Request(1, plan.encoding).write(config)
    arrays = ArrayRecord({name: Array(array) for name, array in model.items()})
    with use_server_identity(1):
        return Message(RecordDict({"arrays": arrays, "config": config}), 1, "train")


def lower_bound(more: np.ndarray, fewer: np.ndarray) -> float:
    """The epsilon that the threshold shows."""
    hits, false = int((more > THRESHOLD).sum()), int((fewer > THRESHOLD).sum())
    level = (1.0 - CONFIDENCE) / 2.0
    least = stats.beta.ppf(level, hits, len(more) - hits + 1)
    most = stats.beta.ppf(1.0 - level, false + 1, len(fewer) - false)
    return math.log((least - DELTA) / most)


def test_an_inserted_record_is_found_about_as_well_as_stated_and_never_better(planned: RecordPlan) -> None:
    without = opened_sums(planned, inserted=False)
    bound = lower_bound(opened_sums(planned, inserted=True), without)
    # The bound is above the true epsilon with odds of at most 1 %.
    assert 0.5 * planned.statement.epsilon < bound <= planned.statement.epsilon
    # If gradients were three times as long, records would be told more easily than stated: it is noticed.
    loud = opened_sums(planned, inserted=True, weight=3.0, trials=300)
    assert lower_bound(loud, without) > planned.statement.epsilon
