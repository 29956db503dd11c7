"""Metrics through the mechanism: unbiased, counted as coordinates, in every way of aggregating."""

import math

import numpy as np
import pytest
from flwr.app import MetricRecord
from hypothesis import given
from hypothesis import strategies as st

import fl_privquant as pq
from fl_privquant.accounting import Accountant, PerClient, Release, SecureSum, SumOfCodes, UpdateNorms
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.metrics import MetricRange
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import ClientMetrics, PrivQuantMod, PrivQuantStrategy, QuantileClip
from tests.flower.apps import CLIP, client_app, fedavg, simulate, strategy_for

CLIENTS = 5
RANGES = {"loss": (0.0, 6.0), "secret": (-2.0, 2.0)}
FINE = pq.design("none", fixed_point_bits=24)


@pytest.mark.parametrize("way", ["per client", "sum of codes", "secure sum"])
@pytest.mark.parametrize("votes", [False, True])
def test_the_wrapped_strategy_gets_the_means(way, votes):
    encoding = Encoding(FINE, CLIP, l2_clip=0.3, rotate=True)
    ways = {"per client": PerClient(), "sum of codes": SumOfCodes(), "secure sum": SecureSum()}
    strategy = PrivQuantStrategy(
        fedavg(),
        QuantileClip(encoding) if votes else encoding,
        metrics=ClientMetrics(private=RANGES),
        aggregation=ways[way],
    )
    mods = [PrivQuantMod(math.inf, secure_aggregation=way == "secure sum")]
    done = simulate(strategy, client_app(mods), CLIENTS)
    # Clients 0 to 4 report 0.5 + their number, and 1.
    assert done.metrics == {"loss": pytest.approx(2.5, abs=1e-5), "secret": pytest.approx(1.0, abs=1e-5)}
    # Two coordinates more, or three, on both sides' books.
    dimension = 25 + 2 + votes
    norm = math.hypot(0.3, math.sqrt(2 + votes) * CLIP) / CLIP
    assert len(done.ledgers) == CLIENTS
    for ledger in done.ledgers.values():
        ((_, release),) = ledger.releases
        assert (release.dimension, release.norms.l2) == (dimension, pytest.approx(norm))
    lines = strategy.privacy_statement()
    assert any("'loss' in [0, 6], 'secret' in [-2, 2]" in line for line in lines)
    assert not any("not counted" in line for line in lines)


def test_they_cost_what_coordinates_cost(mechanism):
    strategy = PrivQuantStrategy(
        fedavg(), pq.Encoding(mechanism, CLIP, l2_clip=0.1), metrics=ClientMetrics(private=RANGES)
    )
    simulate(strategy, client_app([PrivQuantMod(2.0)]), CLIENTS)
    norms = UpdateNorms(l2=math.hypot(0.1, math.sqrt(2) * CLIP) / CLIP)
    expected = Accountant([Release(mechanism, 27, norms=norms)]).statement(1e-5)
    assert strategy.statements()[-1] == expected


@pytest.mark.parametrize(("size", "repeats"), [(3, 1), (4000, 4)])
def test_estimates_are_unbiased(mechanism, size, repeats):
    """In a large update each metric is carried by several coordinates, so that its mean has less noise."""
    layout = Layout.of({"x": np.zeros(size, np.float32)})
    ranges = tuple(MetricRange(name, *ends) for name, ends in RANGES.items())
    codec = UpdateCodec(layout, Encoding(mechanism, 0.1), private_metrics=ranges, clip_quantile=0.5)
    assert codec.dimension == size + 2 * repeats + 1
    update, count = {"x": np.zeros(size, np.float32)}, 4000 // repeats**2
    rng, total = pq.RandomStream.seeded(8), np.zeros(codec.dimension, np.int64)
    single = np.zeros(2)
    for _ in range(count):
        payload = codec.encode(update, rng, metrics={"loss": 1.25, "secret": -7.0, "other": 5.0})
        codec.add_codes(payload, total)
        single += list(codec.decode_metrics(payload).values())
    means = codec.decode_metric_means(total, count)
    np.testing.assert_allclose(single / count, list(means.values()), rtol=1e-6)

    def room(position):
        """Five standard deviations of the mean: odds below 1 to a million."""
        second_moment = float(mechanism.pmf(position)[0] @ mechanism.values**2)
        return 5.0 * math.sqrt((second_moment - position**2) / count)

    less = math.sqrt(repeats)
    assert means["loss"] == pytest.approx(1.25, abs=3.0 * room(1.25 / 3.0 - 1.0) / less)
    # Clipped to its range.
    assert means["secret"] == pytest.approx(-2.0, abs=2.0 * room(-1.0) / less)
    expected = 3.0 * math.sqrt(mechanism.mse() / (count * repeats))
    assert codec.metric_error(ranges[0], count) == pytest.approx(expected)
    assert codec.clip_vote_fraction(total, count) == pytest.approx(1.0, abs=0.5 * room(1.0))


@pytest.mark.parametrize("value", [None, math.nan, [1.0, 2.0], True])
def test_what_is_no_number_counts_as_the_middle(value):
    assert MetricRange("loss", 1.0, 3.0).position(value) == 0.0


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False) | st.integers(),
)
def test_positions_are_within_the_clip(first, second, value):
    low, high = min(first, second), max(first, second)
    try:
        metric = MetricRange("loss", low, high)
    except InvalidSpecError:
        assert low == high or not math.isfinite(high - low)
        return
    assert -1.0 <= metric.position(value) <= 1.0
    assert -1.0 <= metric.position(10**400) <= 1.0


@pytest.mark.parametrize(
    "ends", [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.inf), (-1.7e308, 1.7e308)]
)
def test_ranges_that_are_none_are_refused(ends):
    with pytest.raises(InvalidSpecError, match="private_metrics: 'loss' from"):
        strategy_for(FINE, metrics=ClientMetrics(private={"loss": ends}))


def test_the_weight_is_no_private_metric():
    with pytest.raises(InvalidSpecError, match="is what the wrapped strategy weighs clients by"):
        strategy_for(FINE, metrics=ClientMetrics(private={"num-examples": (0.0, 9.0)}))


def test_a_mechanism_for_whole_updates_has_no_room_for_them():
    whole = pq.design("cldp_l2", epsilon=1.0)
    with pytest.raises(InvalidSpecError, match="private_metrics: 'cldp_l2' spends one epsilon on"):
        simulate(strategy_for(whole, metrics=ClientMetrics(private=RANGES)))


def test_without_a_mechanism_they_travel_as_they_are():
    strategy = strategy_for(pq.design("none"), metrics=ClientMetrics(private=RANGES))
    metrics = simulate(strategy, client_app([PrivQuantMod(math.inf)]), CLIENTS).metrics
    assert metrics == {"loss": pytest.approx(2.5), "secret": pytest.approx(1.0)}


def test_metrics_outside_of_the_accounting_are_named_in_every_statement(mechanism, flower_log):
    strategy = strategy_for(mechanism, metrics=ClientMetrics(clipping=True))
    mod = PrivQuantMod(2.0, metrics=["loss", "num-examples"], report_clipping=True)
    simulate(strategy, client_app([mod]), CLIENTS)
    line = "in any figure: clients send or may send 'loss', 'num-examples', 'privquant-clipped-share'"
    assert any(line in each for each in strategy.privacy_statement())
    assert line in flower_log.text
    # A run that goes on from a checkpoint does not forget them.
    again = strategy_for(mechanism)
    again.restore_state(strategy.checkpoint_state())
    assert any(line in each for each in again.privacy_statement())


@pytest.mark.parametrize("way", ["per client", "secure sum"])
def test_clients_whose_training_fails_are_counted_through_the_mechanism(way, flower_log):
    """Zeros were released in their place, and nobody could know."""

    def train(arrays, partition, server_round):
        if partition < 3:
            raise ValueError("no data")
        return arrays

    strategy = PrivQuantStrategy(
        fedavg(),
        Encoding(FINE, CLIP, l2_clip=0.3, rotate=True),
        metrics=ClientMetrics(private={"loss": (0.0, 6.0), "privquant-failed": (0.0, 1.0)}),
        aggregation=SecureSum() if way == "secure sum" else PerClient(),
    )
    mods = [PrivQuantMod(math.inf, secure_aggregation=way == "secure sum")]
    metrics = simulate(strategy, client_app(mods, train), CLIENTS).metrics
    assert metrics["privquant-failed"] == pytest.approx(3 / 5, abs=1e-5)
    # What a client that failed does not report counts as the middle of its range.
    assert metrics["loss"] == pytest.approx((3 * 3.0 + 3.5 + 4.5) / 5, abs=1e-5)
    assert "round 1, about 60 % of trainings have failed so far, and zeros were sent instead" in (
        flower_log.text
    )
    # Only their number is known: no reply says who failed, or why.
    assert "no data" not in "".join(line for line in flower_log.lines if "PrivQuantMod" not in line)


def test_an_app_cannot_say_that_it_failed(flower_log):
    class Lying:
        def __call__(self, message, context, call_next):
            reply = call_next(message, context)
            reply.content["metrics"]["privquant-failed"] = 1.0
            return reply

    strategy = strategy_for(FINE, metrics=ClientMetrics(private={"privquant-failed": (0.0, 1.0)}))
    metrics = simulate(strategy, client_app([PrivQuantMod(math.inf), Lying()]), CLIENTS).metrics
    assert metrics["privquant-failed"] == pytest.approx(0.0, abs=1e-5)


def test_the_count_of_failures_says_how_rough_it_is(mechanism, flower_log):
    strategy = strategy_for(
        mechanism,
        metrics=ClientMetrics(private={"privquant-failed": (0.0, 1.0)}),
    )
    simulate(strategy, client_app([PrivQuantMod(2.0)]), CLIENTS, num_rounds=4)
    # Rounds are averaged: of a metric from 0 to 1 one round has half the error of a coordinate in [-1, 1].
    lines = [line for line in flower_log.lines if "of trainings have failed so far" in line]
    for number, line in enumerate(lines, start=1):
        error = 100.0 * 0.5 * math.sqrt(mechanism.mse() / (number * CLIENTS))
        assert f"round {number}, " in line
        assert f"(standard error {error:.0f} %)" in line
    assert len(lines) == 4


@pytest.mark.parametrize("given", [{}, {"loss": (0.0, 6.0)}])
def test_metrics_that_are_not_sent_do_not_end_the_run(given, flower_log):
    """A function of the user that reads them raised KeyError after the first round, and ended the run."""

    def averaged(contents, weight):
        records = [content["metrics"] for content in contents]
        return MetricRecord({"mean loss": sum(record["loss"] for record in records) / len(records)})

    strategy = PrivQuantStrategy(
        fedavg(train_metrics_aggr_fn=averaged), Encoding(FINE, CLIP), metrics=ClientMetrics(private=given)
    )
    metrics = simulate(strategy, client_app([PrivQuantMod(math.inf)]), CLIENTS).metrics
    missing = "PrivQuant: train_metrics_aggr_fn asks for 'loss', which is not among the metrics of private"
    if given:
        assert metrics == {"mean loss": pytest.approx(2.5, abs=1e-5)}
        assert missing not in flower_log.text
    else:
        assert metrics == {}
        assert f"{missing} replies ('num-examples')" in flower_log.text
