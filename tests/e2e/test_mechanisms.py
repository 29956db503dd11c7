"""Every registered mechanism in a run of the inline engine, with and without the codec's other stages."""

import math

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower.simulation import Federation, InlineEngine
from tests.codec.test_update import mechanism_of
from tests.flower.apps import (
    CLIP,
    SEED,
    as_arrays,
    client_app,
    expected_model,
    fedavg,
    initial_arrays,
    server_app,
)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("name", pq.available_mechanisms())
def test_a_run_gives_the_mean_of_the_decoded_updates(name, rotate):
    mechanism = mechanism_of(name)
    strategy = PrivQuantStrategy(fedavg(), pq.Encoding(mechanism, CLIP, rotate=rotate))
    client = client_app(mods=[PrivQuantMod(max_epsilon=math.inf, max_delta=1e-3, seed=SEED)])
    result = InlineEngine().run(server_app(lambda: strategy), client, Federation(3))
    seed = strategy.request(1).rotation_seed
    expected = expected_model(mechanism, range(3), rotation_seed=seed, rotate=rotate)
    for key, each in as_arrays(result.arrays).items():
        np.testing.assert_array_equal(each, expected[key])
        assert each.dtype == initial_arrays()[key].dtype
    # A mechanism for whole updates spends its epsilon once, the others once a coordinate.
    assert strategy.ledger.statement(0.0).epsilon >= mechanism.for_dimension(25).epsilon
