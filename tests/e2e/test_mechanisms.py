"""Every registered mechanism in a run of the inline engine, with and without the codec's other stages."""

import pytest

import fl_privquant as pq
from fl_privquant.flower import PrivQuantStrategy
from tests.codec.test_update import mechanism_of
from tests.flower.apps import (
    CLIP,
    assert_same_arrays,
    client_app,
    expected_model,
    fedavg,
    initial_arrays,
    mod_for,
    simulate,
)


@pytest.mark.parametrize(("number", "name"), list(enumerate(pq.available_mechanisms())))
def test_a_run_gives_the_mean_of_the_decoded_updates(number, name):
    # Every other one with a rotation: what is rotated is no mechanism's own.
    mechanism, rotate = mechanism_of(name), bool(number % 2)
    strategy = PrivQuantStrategy(fedavg(), pq.Encoding(mechanism, CLIP, rotate=rotate))
    model = simulate(strategy, client_app([mod_for()]), 3).model
    seed = strategy.request(1).rotation_seed
    expected = expected_model(mechanism, range(3), rotation_seed=seed, rotate=rotate)
    assert_same_arrays(model, expected)
    assert {key: each.dtype for key, each in model.items()} == {
        key: each.dtype for key, each in initial_arrays().items()
    }
    # A mechanism for whole updates spends its epsilon once, the others once a coordinate.
    assert strategy.ledger.statement(0.0).epsilon >= mechanism.for_dimension(25).epsilon
