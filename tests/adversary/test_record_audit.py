"""An audit of runs that protect records: how well can the opened sum tell that a record was inserted?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fl_privquant.accounting import SimulatedSum
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.record_sampling import RecordSum
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.planning import Target
from fl_privquant.planning.record_plan import RecordPlan
from fl_privquant.sampling.stream import RandomStream

SILOS, DIMENSION, EPSILON, DELTA, TRIALS = 3, 12, 3.0, 0.01, 10_000
CONFIDENCE = 1.0 - 1e-3


@pytest.fixture(scope="module")
def planned() -> RecordPlan:
    target = Target(EPSILON, 1, SILOS, DELTA, unit="record", records=60, sampling_rate=0.5)
    plan = target.plan(DIMENSION, aggregation=SimulatedSum(0.0, 0.0))
    assert isinstance(plan, RecordPlan)
    return plan


def opened_sums(plan: RecordPlan, inserted: bool, weight: float = 1.0) -> np.ndarray:
    """What a round shows in the direction of one record, ``weight`` clips long, with and without it.

    Everything is as in use: the draw of records, the rotation, the noise, the codes, and their sum modulo the
    power of two that a secure sum would use. Only the stream is seeded, so that the test is the same each
    time.
    """
    stream = RandomStream.seeded(11, client=int(inserted) + int(2 * weight))
    codec = UpdateCodec(Layout.of({"w": np.zeros(DIMENSION)}), plan.encoding, rotation_seed=5)
    ring, sampling = codec.sum_ring(SILOS), plan.sampling
    others = np.linspace(-1.0, 1.0, DIMENSION) * sampling.norm
    direction = np.zeros(DIMENSION)
    direction[3] = weight * sampling.norm
    seen = np.empty(TRIALS)
    for trial in range(TRIALS):
        total = np.zeros(DIMENSION, np.int64)
        for silo in range(SILOS):
            is_drawn = inserted and silo == 0 and sampling.draw(1, stream).size > 0
            made = RecordSum({"w": others + direction * is_drawn}, sampling)
            total += codec.encode_record_sum(made, stream).codes()
        mean = codec.decode_sum(ring.unwrap(ring.residues(total), SILOS), SILOS)
        seen[trial] = mean["w"][3]
    return seen


def lower_bound(more: np.ndarray, fewer: np.ndarray) -> float:
    """The epsilon that a threshold, chosen on the first halves, shows on the second ones."""
    half = TRIALS // 2

    def bound(threshold: float, part: slice) -> float:
        hits, false = int((more[part] > threshold).sum()), int((fewer[part] > threshold).sum())
        level = (1.0 - CONFIDENCE) / 2.0
        least = stats.beta.ppf(level, hits, half - hits + 1) if hits else 0.0
        most = stats.beta.ppf(1.0 - level, false + 1, half - false)
        return math.log((least - DELTA) / most) if least > DELTA else 0.0

    thresholds = np.quantile(np.concatenate([more[:half], fewer[:half]]), np.linspace(0.5, 0.999, 60))
    best = max(thresholds, key=lambda threshold: bound(threshold, slice(half)))
    return bound(best, slice(half, None))


def test_an_inserted_record_is_found_about_as_well_as_stated_and_never_better(planned: RecordPlan) -> None:
    without = opened_sums(planned, inserted=False)
    bound = lower_bound(opened_sums(planned, inserted=True), without)
    # The bound is above the true epsilon with odds of at most 1e-3. Three other seeds gave
    # 1.67 to 1.98.
    assert 0.5 * planned.statement.epsilon < bound <= planned.statement.epsilon
    # A record of three times the clip is told more easily than stated: the audit would notice it.
    assert lower_bound(opened_sums(planned, inserted=True, weight=3.0), without) > planned.statement.epsilon
