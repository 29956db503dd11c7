import inspect
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
)

import fl_privquant as pq
from fl_privquant.accounting import SumOfCodes
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.flower import ClientMetrics, NoUsableReplyError, PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower._messages.protocol import METRIC_CLIPPED, METRIC_NORM
from tests.flower.apps import (
    CLIP,
    SEED,
    assert_same_arrays,
    client_app,
    expected_model,
    fedavg,
    initial_arrays,
    simulate,
    strategy_for,
)


def test_the_summary_of_a_plan_says_what_the_whole_run_may_cost(flower_log):
    """It once ended with the ε of one coordinate, which is far smaller."""
    target = pq.Target(epsilon=8.0, delta=1e-5, rounds=2, num_clients=25)
    PrivQuantStrategy(fedavg(), target.plan(25)).summary()
    assert "all rounds together cost at most ε = 8, δ = 1e-05 (client" in flower_log.text


def test_an_aggregation_from_outside_opens_its_own_replies(mechanism):
    @dataclass(frozen=True)
    class AllButTheFirst(pq.PerClient):
        def open(self, replies):
            left_out = min(replies.payloads)
            kept = {node: payload for node, payload in replies.payloads.items() if node != left_out}
            return super().open(replace(replies, payloads=kept))

    strategy = strategy_for(mechanism, aggregation=AllButTheFirst())
    done = simulate(strategy)
    assert_same_arrays(done.model, expected_model(mechanism, range(1, 4)))


def test_with_none_the_result_is_plain_fedavg_bit_for_bit():
    # Uniform weights on the plain side too: every client has 7 examples.
    strategy = strategy_for(pq.design("none"), clip=1.0)
    plain = simulate(fedavg(), client_app(mods=[], num_examples=lambda _: 7), 5, 3)
    private = simulate(strategy, client_app([PrivQuantMod(max_epsilon=math.inf)]), 5, 3)
    for name in ("weight", "scale"):
        assert private.model[name].tobytes() == plain.model[name].tobytes()


@pytest.mark.parametrize(
    "strategy",
    [
        fedavg(),
        fedavg(FedProx, proximal_mu=0.1),
        fedavg(FedAvgM, server_momentum=0.9),
        fedavg(FedAdam),
        fedavg(FedYogi),
        fedavg(FedAdagrad),
        fedavg(FedMedian),
        fedavg(FedTrimmedAvg, beta=0.2),
        fedavg(Krum, num_malicious_nodes=1),
        fedavg(MultiKrum, num_malicious_nodes=1, num_nodes_to_select=2),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_it_wraps_any_strategy(mechanism, strategy):
    done = simulate(PrivQuantStrategy(strategy, pq.Encoding(mechanism, CLIP)), num_clients=5, num_rounds=3)
    arrays, initial = done.model, initial_arrays()
    assert np.isfinite(arrays["weight"]).all()
    assert not np.array_equal(arrays["weight"], initial["weight"])
    assert {name: each.dtype for name, each in arrays.items()} == {
        name: each.dtype for name, each in initial.items()
    }
    # A counter is no part of an update: neither averaged nor turned into a fraction.
    assert arrays["steps"] == 3


def test_weights_are_uniform_whatever_clients_say(mechanism):
    # One client claims nearly all examples, and is weighed like the others.
    heavy = simulate(
        strategy_for(mechanism),
        client_app(num_examples=lambda p: 10**6 if p == 0 else 1),
    )
    assert_same_arrays(heavy.model, expected_model(mechanism, range(4)))


@pytest.mark.parametrize(("asked", "allowed"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_clipped_share_is_reported_only_if_both_sides_agree(mechanism, asked, allowed):
    client = client_app(mods=[PrivQuantMod(max_epsilon=10.0, report_clipping=allowed)])
    done = simulate(
        strategy_for(mechanism, clip=0.01, metrics=ClientMetrics(clipping=asked)),
        client,
    )
    metrics = done.metrics
    assert (METRIC_CLIPPED in metrics) == (asked and allowed)
    if asked and allowed:
        assert 0.5 < metrics[METRIC_CLIPPED] < 1.0


@pytest.mark.parametrize(
    ("l2_clip", "allowed", "words"),
    [
        (0.25, True, ""),
        (1e-3, True, "times the L2 clip of 0.001, and is cut to it; set l2_clip=0.2"),
        (1e3, True, "far below the L2 clip of 1000, which the noise is made for; set l2_clip=0.2"),
        (1e3, False, ""),
    ],
)
def test_an_l2_clip_that_is_far_off_is_logged_if_clients_report(
    mechanism, l2_clip, allowed, words, flower_log
):
    client = client_app(mods=[PrivQuantMod(max_epsilon=10.0, report_clipping=allowed)])
    encoding = Encoding(mechanism, l2_clip, l2_clip, rotate=True)
    strategy = PrivQuantStrategy(fedavg(), encoding, metrics=ClientMetrics(clipping=True))
    simulate(strategy, client)
    assert ("the usual update has an L2 norm of 0.2" in flower_log.text) == bool(words)
    assert words in flower_log.text
    named = [line for line in strategy.privacy_statement() if METRIC_NORM in line]
    assert bool(named) == allowed


def test_the_encoding_can_be_a_function_of_the_round(mechanism):
    other = pq.design("one_bit", epsilon=2.0)
    strategy = PrivQuantStrategy(
        fedavg(), lambda number: Encoding(mechanism if number == 1 else other, CLIP / number)
    )
    done = simulate(strategy, num_rounds=2)
    first = expected_model(mechanism, range(4))
    assert_same_arrays(
        done.model, expected_model(other, range(4), server_round=2, arrays=first, clip=CLIP / 2)
    )
    assert [(number, release.fingerprint) for number, release in strategy.ledger.releases] == [
        (1, strategy.request(1).fingerprint),
        (2, strategy.request(2).fingerprint),
    ]


def test_the_summary_says_what_is_promised(mechanism, flower_log):
    strategy = PrivQuantStrategy(fedavg(), pq.Encoding(mechanism, CLIP, rotate=True))
    simulate(strategy)
    for text in (
        "optm: 4 levels",
        "Bits per coordinate: 2",
        "coordinates 0.2",
        "randomized Hadamard",
        "Client weights: uniform ('num-examples' is replaced by 1)",
        "coordinate release, local view, replace-one: ε = 2, δ = 0 for one client's update",
        "client round (25 coordinates), local view, replace-one: ε = ",
        "client total (25 coordinates, 1 round), local view, replace-one: ε = ",
        "Wrapped strategy: FedAvg",
    ):
        assert text in flower_log.text, text
    flower_log.lines.clear()
    strategy.summary()
    assert "privacy is simulated" in flower_log.text


def test_a_run_that_is_known_to_be_simulated_says_so_at_its_start(mechanism, flower_log):
    strategy_for(mechanism, simulated=True).summary()
    assert "privacy is simulated" in flower_log.text


def test_the_number_of_clients_in_each_aggregate_is_kept(mechanism):
    def sometimes(partition, server_round):
        return server_round == 2 or partition < server_round - 1

    strategy = strategy_for(mechanism, max_failed_rounds=1)
    simulate(strategy, client_app(lost_when=sometimes), 5, num_rounds=3)
    assert strategy.survivors == {1: 5, 2: 0, 3: 3}
    again = strategy_for(mechanism)
    again.restore_state(strategy.checkpoint_state())
    assert again.survivors == strategy.survivors


def test_secure_clients_are_not_called_simulated(mechanism, flower_log):
    strategy = strategy_for(mechanism)
    simulate(strategy, client_app(mods=[PrivQuantMod(max_epsilon=10.0)]))
    strategy.summary()
    assert "simulated" not in flower_log.text


def test_no_protection_is_called_by_its_name(flower_log):
    simulate(
        strategy_for(pq.design("none"), clip=1.0),
        client_app([PrivQuantMod(max_epsilon=math.inf)]),
    )
    assert "coordinate release, local view, replace-one: no privacy (ε is infinite)" in flower_log.text


def test_codes_can_be_summed_as_integers_whatever_their_order(mechanism):
    strategy = strategy_for(mechanism, aggregation=SumOfCodes())
    client = client_app(mods=[PrivQuantMod(max_epsilon=10.0, seed=SEED, metrics=["loss"])])
    done = simulate(strategy, client)
    expected = expected_model(mechanism, range(4))
    for name, each in done.model.items():
        np.testing.assert_allclose(each, expected[name], rtol=0, atol=1e-6)
    assert done.metrics == {"loss": pytest.approx(2.0)}


def test_codes_that_cannot_be_summed_are_aggregated_one_by_one():
    client = client_app([PrivQuantMod(max_epsilon=math.inf)])
    summed = simulate(
        strategy_for(pq.design("none"), clip=1.0, aggregation=SumOfCodes()),
        client,
    )
    single = simulate(strategy_for(pq.design("none"), clip=1.0), client)
    assert_same_arrays(summed.model, single.model)


def test_a_round_without_a_usable_reply_is_never_silent(mechanism, flower_log):
    reason = "replied with error 2: ConnectionError: gone"
    with pytest.raises(NoUsableReplyError, match=f"round 1 has no usable reply .*; most nodes {reason}"):
        simulate(strategy_for(mechanism), client_app(lost_when=lambda *_: True))
    # One line for all that failed alike, with their names.
    assert flower_log.text.count(reason) == 1
    assert f"4 nodes (1, 2, 3, 4): {reason}" in flower_log.text


def test_clients_without_secure_aggregation_are_told_what_they_lack(mechanism, flower_log):
    """Clients once said that the server had sent no mechanism, and the server that nobody had replied."""
    strategy = strategy_for(mechanism, aggregation=pq.SecureSum())
    with pytest.raises(NoUsableReplyError, match="; round 1 ends without a sum: 0 clients sent keys"):
        simulate(strategy)
    assert "give its PrivQuantMod secure_aggregation=True" in flower_log.text
    assert "did not reply" not in flower_log.text
    # Nobody was asked to train, so that nothing is counted.
    assert len(strategy.ledger) == 0


def test_failed_rounds_are_tolerated_up_to_the_limit(mechanism, flower_log):
    def at_first(partition, server_round):
        return server_round < 3

    strategy = strategy_for(mechanism, max_failed_rounds=2)
    simulate(strategy, client_app(lost_when=at_first), num_rounds=3)
    assert strategy.failed_rounds == 0
    assert "round 2 in a row" in flower_log.text
    with pytest.raises(NoUsableReplyError):
        simulate(
            strategy_for(mechanism, max_failed_rounds=1),
            client_app(lost_when=at_first),
            num_rounds=3,
        )


def test_a_model_without_floats_is_refused(mechanism):
    with pytest.raises(InvalidSpecError, match="nothing to encode"):
        simulate(strategy_for(mechanism), initial={"steps": np.array(3)})


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"strategy": "FedAvg"}, "strategy"),
        ({"encoding": "optm"}, "encoding: 'optm', expected an Encoding"),
        ({"encoding": pq.design("none")}, r"expected an Encoding, such as Encoding\(mechanism, clip=0.1\)"),
        ({"max_failed_rounds": -1}, "max_failed_rounds"),
        ({"rotation_seed": -1}, "rotation_seed"),
    ],
)
def test_settings_out_of_range_are_refused_at_once(mechanism, arguments, match):
    with pytest.raises(InvalidSpecError, match=match):
        PrivQuantStrategy(**{"strategy": fedavg(), "encoding": pq.Encoding(mechanism, CLIP), **arguments})


def test_the_callers_config_is_left_alone(mechanism):
    config = ConfigRecord({"mine": 1})
    simulate(strategy_for(mechanism), train_config=config)
    assert dict(config) == {"mine": 1}


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6.0),
        np.array(2.5),
        np.zeros((0, 3), np.float32),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(3, dtype=">f4"),
        # Their headers are longer than usual.
        np.ones((1,) * 60, np.float16),
        np.zeros(1, [(f"field-{i}", "f4") for i in range(50)]),
    ],
    ids=lambda values: f"{values.ndim}-d {values.dtype.kind}{values.dtype.itemsize}",
)
def test_arrays_are_read_as_numpy_would(values):
    from fl_privquant.flower._messages.arrays import read_array

    for _ in range(2):
        found = read_array(Array(values))
        assert found.dtype == values.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("cut", [0, 5, 9, 60, 127, 128, 130, -1])
def test_arrays_that_are_cut_off_are_refused(cut):
    from fl_privquant.flower._messages.arrays import read_array

    whole = Array(np.arange(6.0))
    with pytest.raises(InvalidUpdateError, match="cannot be read"):
        read_array(Array(whole.dtype, whole.shape, whole.stype, whole.data[:cut]))


def test_arrays_that_were_decoded_are_ordinary_arrays():
    from fl_privquant.flower._messages.arrays import DecodedArray, read_array

    values = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    array = DecodedArray(values.copy, values.dtype, values.shape)
    assert (array.dtype, array.shape, array.stype) == ("float32", (2, 3), "numpy.ndarray")
    assert array.data == Array(values).data
    copied = array.numpy()
    copied[:] = 0.0
    np.testing.assert_array_equal(read_array(array), values)
    record = ArrayRecord({"x": array})
    np.testing.assert_array_equal(record.to_numpy_ndarrays()[0], values)


def test_a_strategy_takes_an_encoding_and_at_most_ten_keywords():
    _, strategy, encoding, *keywords = inspect.signature(PrivQuantStrategy.__init__).parameters.values()
    assert (strategy.name, encoding.name) == ("strategy", "encoding")
    assert encoding.default is encoding.empty
    assert len(keywords) <= 10
    assert all(keyword.kind is keyword.KEYWORD_ONLY for keyword in keywords)
