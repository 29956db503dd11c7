import math
from fractions import Fraction

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Budget, Release, SpendingLedger
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import PrivQuantMod
from fl_privquant.flower._messages.protocol import PROTOCOL_VERSION, Reply, Request
from fl_privquant.flower.client.ledger import RECORD_LEDGER, ClientLedger
from tests.flower.apps import as_arrays, as_record, initial_arrays
from tests.flower.asking import DIMENSION, ask, client, never, refused, train
from tests.mechanisms.forgery import forged


def test_a_reply_holds_the_payload_and_nothing_else(mechanism):
    reply = PrivQuantMod(2.0)(ask(mechanism), client(), train)
    assert sorted(reply.content) == ["privquant-reply", "privquant-update"]
    read = Reply.from_content(reply.content)
    assert (read.round, read.simulated, dict(read.metrics)) == (1, False, {})
    assert len(read.payload) == 16 + math.ceil(DIMENSION * 2 / 8)


def test_secure_codes_differ_and_seeded_codes_do_not(mechanism):
    def payload(mod, context=None):
        return Reply.from_content(mod(ask(mechanism), context or client(), train).content).payload

    assert payload(PrivQuantMod(2.0)) != payload(PrivQuantMod(2.0))
    assert payload(PrivQuantMod(2.0, seed=3)) == payload(PrivQuantMod(2.0, seed=3))
    assert payload(PrivQuantMod(2.0, seed=3)) != payload(PrivQuantMod(2.0, seed=4))
    other = client(partition_id=1)
    assert payload(PrivQuantMod(2.0, seed=3)) != payload(PrivQuantMod(2.0, seed=3), other)
    from_context = PrivQuantMod(2.0, seed=lambda context: None)
    assert payload(from_context) != payload(from_context)


GAUSSIAN = pq.design("discrete_gaussian", epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("sent", "limits", "node", "exceeded"),
    [
        (pq.design("one_bit", epsilon=2.0), {"max_epsilon": 1.0}, {}, "max_epsilon 1"),
        (pq.design("none"), {"max_epsilon": 100.0}, {}, "max_epsilon 100"),
        (GAUSSIAN, {"max_epsilon": 2.0}, {}, "max_delta 0"),
        (GAUSSIAN, {"max_epsilon": 2.0, "max_delta": 0.5}, {"privquant_max_delta": 1e-6}, "max_delta 1e-06"),
    ],
)
def test_a_mechanism_above_the_clients_limit_is_refused_before_training(sent, limits, node, exceeded):
    mod = PrivQuantMod(**limits)
    assert f"above this client's {exceeded}" in refused(mod, ask(sent), client(**node), never)


def test_a_mechanism_within_the_clients_limits_is_not_refused():
    assert PrivQuantMod(2.0, max_delta=1e-5)(ask(GAUSSIAN), client(), train).has_content()


def test_an_app_that_replaces_its_state_does_not_erase_the_ledger():
    mechanism = pq.design("one_bit", epsilon=1.0)

    def forgetful(message, context):
        context.state = RecordDict()
        return train(message, context)

    mod, context = PrivQuantMod(1.0, budget=2.5 * DIMENSION), client()
    for number in (1, 2):
        assert not mod(ask(mechanism, number), context, forgetful).has_error()
    assert "BudgetExhausted" in refused(mod, ask(mechanism, 3), context, never)


@pytest.mark.parametrize("key", ["privquant-max-epsilon", "privquant-budget"])
@pytest.mark.parametrize("limit", [0.5, "0.5"])
def test_the_nodes_own_configuration_tightens_the_limits(mechanism, key, limit):
    context = client(**{key: limit})
    assert "0.5" in refused(PrivQuantMod(10.0), ask(mechanism), context, never)


def test_a_limit_that_cannot_be_read_is_refused_rather_than_ignored(mechanism):
    context = client(privquant_budget="much")
    assert "privquant-budget" in refused(PrivQuantMod(10.0), ask(mechanism), context, never)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": None}, "wrap its strategy in PrivQuantStrategy"),
        ({"version": 1}, f"protocol: version 1 is not {PROTOCOL_VERSION}"),
        ({"version": 1}, "install the same fl-privquant on clients and server"),
        ({"version": True}, f"protocol: version True is not {PROTOCOL_VERSION}"),
        ({"version": "2"}, f"protocol: version '2' is not {PROTOCOL_VERSION}"),
        ({"round": None}, "privquant-round"),
        ({"round": -1}, "round: -1"),
        ({"round": True}, "privquant-round"),
        ({"clip": None}, "privquant-clip"),
        ({"clip": 0.0}, "clip: 0.0"),
        ({"clip": math.nan}, "clip: nan"),
        ({"clip": "wide"}, "privquant-clip: 'wide', expected float"),
        ({"l2_clip": math.inf}, "l2_clip: inf"),
        ({"rotation_seed": 0.5}, "privquant-rotation-seed"),
        ({"mechanism": None}, "privquant-mechanism"),
        ({"mechanism": b""}, "too few"),
        ({"mechanism": b"PQMECH" + bytes(100)}, "version 0"),
        ({"report_clipping": 1}, "privquant-report-clipping"),
    ],
)
def test_malformed_requests_are_refused_with_the_reason(mechanism, changes, reason):
    assert reason in refused(PrivQuantMod(10.0), ask(mechanism, **changes), app=never)


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": (0.5).hex()},
        {"epsilon": math.nan.hex() if hasattr(math.nan, "hex") else "nan"},
        {"kind": "none", "epsilon": (0.5).hex()},
        {"kind": "unheard-of"},
        {"levels": 1 << 40},
        {"rows": -1},
        {"step": "0x1.8p+2000"},
    ],
)
def test_forged_mechanisms_are_refused(mechanism, changes):
    # Signed by a right checksum: only certifying the table itself can tell.
    assert "CertificationError" in refused(PrivQuantMod(2.0), ask(forged(mechanism, **changes)), app=never)


def test_a_forged_name_does_not_send_the_update_in_the_clear(mechanism):
    reply = PrivQuantMod(2.0)(ask(forged(mechanism, name="none")), client(), train)
    assert len(Reply.from_content(reply.content).payload) == 16 + math.ceil(DIMENSION * 2 / 8)


def broken(change):
    def app(message, context):
        arrays = as_arrays(message.content["arrays"])
        return Message(
            RecordDict({"arrays": as_record(change(arrays)), "m": MetricRecord()}), reply_to=message
        )

    return app


def payload_of(reply):
    assert reply.has_content()
    return Reply.from_content(reply.content).payload


NO_UPDATES = [
    (lambda arrays: {**arrays, "weight": np.full((6, 4), np.nan, np.float32)}, "not finite"),
    (lambda arrays: {**arrays, "scale": np.array(np.inf, np.float32)}, "not finite"),
    (lambda arrays: {**arrays, "weight": np.zeros((4, 6), np.float32)}, "shape"),
    (lambda arrays: {**arrays, "weight": np.zeros((6, 4), np.int64)}, "expected floats"),
    (lambda arrays: {"weight": arrays["weight"]}, "missing"),
    (lambda arrays: {**arrays, "more": np.zeros(3)}, "not known"),
    (lambda arrays: dict(reversed(arrays.items())), "in another order"),
]


@pytest.mark.parametrize(("change", "reason"), NO_UPDATES)
def test_updates_that_do_not_fit_are_a_release_of_zeros(change, reason, flower_log):
    # Without noise, to see what was encoded.
    context, mod = client(), PrivQuantMod(math.inf, seed=3)
    sent = pq.design("none", fixed_point_bits=20)
    payload = payload_of(mod(ask(sent), context, broken(change)))
    decoded = Request(1, Encoding(sent, 0.2)).codec(Layout.of(initial_arrays())).decode(payload)
    assert all(np.all(each == 0.0) for each in decoded.values())
    assert len(ClientLedger(context)) == 1
    # The reason is for the client's own log.
    assert reason in flower_log.text


@pytest.mark.parametrize("records", [{}, {"a": ArrayRecord(), "b": ArrayRecord()}])
def test_an_app_must_reply_with_one_record_of_arrays(mechanism, records, flower_log):
    def app(message, context):
        return Message(RecordDict({**records, "m": MetricRecord()}), reply_to=message)

    assert payload_of(PrivQuantMod(2.0)(ask(mechanism), client(), app))
    assert f"{len(records)} ArrayRecords from the app" in flower_log.text


def test_an_app_that_empties_what_it_received_does_no_harm(mechanism):
    def app(message, context):
        record = message.content["arrays"]
        names = list(record)
        arrays = dict(zip(names, record.to_numpy_ndarrays(keep_input=False), strict=True))
        return Message(RecordDict({"arrays": as_record(arrays), "m": MetricRecord()}), reply_to=message)

    assert PrivQuantMod(2.0)(ask(mechanism), client(), app).has_content()


def test_the_ledger_can_be_counted_again(mechanism):
    context = client()
    mod = PrivQuantMod(2.0)
    for number in (1, 2, 5):
        assert mod(ask(mechanism, number), context, train).has_content()
    ledger = ClientLedger(context)
    assert [(number, release.dimension) for number, release in ledger.releases] == [
        (1, DIMENSION), (2, DIMENSION), (5, DIMENSION)
    ]  # fmt: skip
    assert {release.mechanism.epsilon for _, release in ledger.releases} == {mechanism.epsilon}
    assert ledger.statement(0.0).epsilon == pytest.approx(3 * DIMENSION * mechanism.epsilon)
    again = Accountant([Release(mechanism, DIMENSION)] * 3)
    assert ledger.statement(1e-5) == again.statement(1e-5)


def test_a_clip_to_a_norm_is_counted_by_the_norm():
    mechanism = pq.design("one_bit", epsilon=1.0)
    plain, clipped = client(), client()
    for number in range(3):
        PrivQuantMod(2.0)(ask(mechanism, number), plain, train)
        PrivQuantMod(2.0)(ask(mechanism, number, l2_clip=0.01), clipped, train)
    assert [release.norms.l2 for _, release in ClientLedger(clipped).releases] == [pytest.approx(0.05)] * 3
    found = ClientLedger(clipped).statement(1e-5)
    assert found.method == "l2 renyi+rdp"
    assert found.epsilon < 0.1 * ClientLedger(plain).statement(1e-5).epsilon


def test_a_budget_at_a_delta_lasts_longer():
    mechanism = pq.design("one_bit", epsilon=0.5)

    def answered(budget):
        mod, context = PrivQuantMod(2.0, budget=budget), client()
        count = 0
        while mod(ask(mechanism, count), context, train).has_content():
            count += 1
        return count, ClientLedger(context)

    budget = 4.5 * DIMENSION * mechanism.epsilon
    pure, _ = answered(budget)
    count, ledger = answered(Budget(budget, 1e-5))
    assert pure == 4
    assert count >= 6
    # As much as fits, and not one more: counted anew, without the mod.
    release = Release(mechanism, DIMENSION)
    assert Accountant([release] * count).statement(1e-5).epsilon <= budget
    assert Accountant([release] * (count + 1)).statement(1e-5).epsilon > budget
    assert len(ledger) == count


def test_the_nodes_budget_holds_beside_the_apps(mechanism):
    cost = DIMENSION * mechanism.epsilon
    node = {"privquant_budget": 2.5 * cost, "privquant_budget_delta": 1e-5}
    for budget, allowed in ((1.5 * cost, 1), (Budget(1e9, 1e-5), 2), (None, 2)):
        mod, context = PrivQuantMod(2.0, budget), client(**node)
        answers = [mod(ask(mechanism, number), context, train).has_content() for number in range(9)]
        assert sum(answers) >= allowed
        assert not answers[-1]
        assert ClientLedger(context).statement(1e-5).epsilon <= 2.5 * cost


def test_a_server_that_counts_less_than_the_client_is_refused(mechanism):
    context, mod = client(), PrivQuantMod(2.0)
    for number, counted in ((1, 0), (2, 1), (3, 7)):
        assert mod(ask(mechanism, number, counted_releases=counted), context, train).has_content()
    # More is fine: requests get lost. Less means that the server has forgotten, or says so.
    reason = refused(mod, ask(mechanism, 4, counted_releases=2), context, never)
    assert "LedgerMismatchError" in reason
    assert "has counted 2 releases of this kind, this client has made 3" in reason
    assert len(ClientLedger(context)) == 3
    # Another kind of release is counted by itself.
    other = pq.design("one_bit", epsilon=1.0)
    assert mod(ask(other, 5, counted_releases=0), context, train).has_content()


def test_a_message_that_is_delivered_twice_is_answered_once(mechanism):
    context, mod, message = client(), PrivQuantMod(2.0), ask(mechanism, 1, counted_releases=0)
    assert mod(message, context, train).has_content()
    assert "LedgerMismatchError" in refused(mod, message, context, never)


def test_the_budget_is_used_up_and_not_exceeded(mechanism):
    context = client()
    mod = PrivQuantMod(2.0, budget=2.5 * DIMENSION * mechanism.epsilon)
    assert [mod(ask(mechanism, number), context, train).has_content() for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    reason = refused(mod, ask(mechanism, 9), context, never)
    assert "above the budget of ε = " in reason
    assert "Spent: client total (25 coordinates, 2 rounds), local view, replace-one: ε = " in reason


def test_a_damaged_ledger_stops_everything(mechanism):
    context = client()
    context.state[RECORD_LEDGER] = ConfigRecord({"who knows": "what"})
    assert "what was spent is not known" in refused(PrivQuantMod(2.0, 1e9), ask(mechanism), context, never)


def test_a_ledger_file_outlives_the_clients_state(mechanism, tmp_path):
    path = tmp_path / "ledgers" / "client.json"
    mod = PrivQuantMod(2.0, budget=2 * DIMENSION * mechanism.epsilon, ledger_file=path)
    # A new state each time: a new run, or a SuperNode that was restarted.
    assert [mod(ask(mechanism, 1), client(), train).has_content() for _ in range(3)] == [True, True, False]
    assert SpendingLedger(path).rounds == (1, 1)
    # Another process, whose budget would allow more.
    assert PrivQuantMod(2.0, budget=1e9, ledger_file=path)(ask(mechanism, 2), client(), train).has_content()
    path.write_text("{}\n")
    assert "nothing more may be" in refused(mod, ask(mechanism), client(), never)
    fresh = PrivQuantMod(2.0, budget=1e9, ledger_file=path)
    assert "nothing more may be" in refused(fresh, ask(mechanism), client(), never)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_epsilon": 0.0},
        {"max_epsilon": math.nan},
        {"max_epsilon": 1.0, "max_delta": 1.0},
        {"max_epsilon": 1.0, "budget": -1.0},
        {"max_epsilon": 1.0, "budget": math.nan},
        {"max_epsilon": 1.0, "metrics": "loss"},
    ],
)
def test_limits_out_of_range_are_refused_at_once(arguments):
    with pytest.raises(InvalidSpecError):
        PrivQuantMod(**arguments)


def test_budgets_are_counted_exactly():
    # Ten times a float is rounded; the exact product decides, rounded up.
    release = Release(pq.design("one_bit", epsilon=0.1), 1)
    spent = Accountant([release] * 9)
    exact = 10 * Fraction(release.mechanism.epsilon)
    enough = float(exact) if Fraction(float(exact)) >= exact else math.nextafter(float(exact), 2.0)
    spent.check(10, release, [Budget(enough)])
    with pytest.raises(pq.BudgetExhaustedError) as raised:
        spent.check(10, release, [Budget(math.nextafter(enough, 0.0))])
    assert raised.value.statement == spent.statement(0.0)
