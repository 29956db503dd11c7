"""Whole rounds: the exact sum of the survivors' codes, or a clean failure; never a wrong sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from fl_privquant.errors import InvalidSpecError, SecureAggregationError
from fl_privquant.secagg import ClientRound, RoundConfig, ServerRound, Stage
from fl_privquant.secagg.crypto import shamir
from fl_privquant.secagg.crypto.sharing import Seed
from fl_privquant.secagg.graph.parameters import GraphParameters
from tests.secagg.driver import SESSION, Lost, Round, open_round


def check(round_: Round, lost: Lost) -> None:
    """The sum is exact and of exactly those that the round did not lose."""
    result = round_.run(lost)
    gone = {*lost.advertise, *lost.share, *lost.mask}
    assert set(result.survivors) == round_.inputs.keys() - gone
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))
    assert all(
        client.stage is Stage.ENDED
        for i, client in round_.clients.items()
        if i not in {*gone, *lost.confirm, *lost.unmask}
    )


@pytest.mark.parametrize("signed", [False, True])
def test_sum_is_exact_without_dropout(signed: bool) -> None:
    check(open_round(6, 1000, signed=signed), Lost())


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "unmask"])
@pytest.mark.parametrize("graph", [None, (4, 3)])
def test_sum_is_exact_with_a_client_lost_at_any_stage(stage: str, graph: tuple[int, int] | None) -> None:
    check(open_round(8, 100, graph=graph), Lost(**{stage: [10]}))


@pytest.mark.parametrize("signed", [False, True])
def test_sum_is_exact_with_clients_lost_at_every_stage(signed: bool) -> None:
    check(
        open_round(16, 100, dropout_fraction=0.3, signed=signed),
        Lost(advertise=[3], share=[10, 45], mask=[17, 24], confirm=[38] * signed, unmask=[31]),
    )


def test_sum_is_exact_on_a_sparse_graph_of_computed_size() -> None:
    round_ = open_round(60, 50, restore=False)
    check(round_, Lost(advertise=[3], share=[10, 17], mask=[24, 31], unmask=[38]))
    assert round_.server.graph_parameters.num_neighbors < 58


def test_residues_sum_modulo_the_modulus() -> None:
    round_ = open_round(5, 300, max_code=None, width=9)
    result = round_.run(Lost(mask=[3]))
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors) % 512)
    assert round_.expected(result.survivors).max() > 511


@pytest.mark.parametrize("width", range(2, 33))
def test_every_width(width: int) -> None:
    check(open_round(3, 130, max_code=((1 << width) - 1) // 3, width=width), Lost())


@pytest.mark.parametrize("width", range(1, 33))
def test_every_width_of_residues(width: int) -> None:
    round_ = open_round(3, 130, max_code=None, width=width)
    result = round_.run()
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors) % (1 << width))


@pytest.mark.parametrize("dimension", [1, 65535, 65536, 65537, 200_001])
@pytest.mark.parametrize("width", [7, 13, 20])
def test_dimensions_around_the_chunks_of_the_masks(dimension: int, width: int) -> None:
    check(open_round(3, dimension, max_code=(1 << width) // 4, width=width, restore=False), Lost(mask=[3]))


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[Round, Lost]:
    n = draw(st.integers(3, 12))
    neighbors = draw(st.sampled_from([k for k in range(2, n) if k == n - 1 or k % 2 == 0]))
    threshold = draw(st.integers((neighbors + 1) // 2 + 1, neighbors + 1))
    width = draw(st.integers(1, 32))
    largest = ((1 << width) - 1) // n
    max_code = draw(st.integers(1, largest)) if largest and draw(st.booleans()) else None
    round_ = open_round(
        n,
        draw(st.integers(1, 70)),
        max_code=max_code,
        width=width,
        graph=(neighbors, threshold),
        seed=draw(st.integers(0, 2**32)),
        number=draw(st.integers(0, 2**64 - 1)),
        restore=draw(st.booleans()),
    )
    stages = draw(
        st.lists(
            st.sampled_from([*[""] * 12, "advertise", "share", "mask", "unmask"]), min_size=n, max_size=n
        )
    )
    lost = {
        stage: [i for i, at in zip(round_.inputs, stages, strict=True) if at == stage]
        for stage in ("advertise", "share", "mask", "unmask")
    }
    return round_, Lost(**lost)


@settings(max_examples=250)
@given(scenarios())
def test_exact_sum_or_clean_failure(scenario: tuple[Round, Lost]) -> None:
    round_, lost = scenario
    n = len(round_.inputs)
    config = round_.server._config
    neighbors, threshold = config.given
    members = n - len(lost.advertise) - len(lost.share)
    active = members - len(lost.mask)
    answering = active - len(lost.unmask)
    try:
        result = round_.run(lost)
    except SecureAggregationError:
        event("no sum")
        # On a complete graph of all invited it is known when a round has to come out.
        complete = neighbors == n - 1 and not lost.advertise
        assert not (complete and answering >= threshold)
        with pytest.raises(SecureAggregationError):
            round_.server.finish()
        return
    event("sum")
    expected = round_.expected(result.survivors)
    if config.max_code is None:
        expected %= 1 << config.width
    np.testing.assert_array_equal(result.total, expected)
    assert not {*result.survivors} & {*lost.advertise, *lost.share, *lost.mask}
    assert not round_.server.rejected.keys() & {*result.survivors}
    if neighbors == n - 1:
        assert len(result.survivors) == active
        assert answering >= min(threshold, n - len(lost.advertise))


def test_past_the_threshold_the_round_fails_and_the_next_one_works() -> None:
    round_ = open_round(6)
    with pytest.raises(SecureAggregationError, match="below the threshold 4"):
        round_.run(Lost(mask=[3, 10, 17]))
    assert "UnmaskReply" not in round_.sent
    again = open_round(6, number=2)
    again.clients = round_.clients
    check(again, Lost())


def test_too_few_unmask_replies_fail_cleanly() -> None:
    round_ = open_round(6)
    with pytest.raises(SecureAggregationError, match="below the threshold 4"):
        round_.run(Lost(unmask=[3, 10, 17]))
    assert not round_.server._total.any()


def test_clients_without_enough_holders_are_left_out_and_the_others_go_on() -> None:
    """On the ring 3 neighbors of one client are lost; it cannot be protected, the rest can."""
    round_ = open_round(20, graph=(4, 3), restore=False, until="share")
    rosters = round_.server.rosters()
    lonely = 3
    lost = round_.server._graph[lonely][:3]
    for i, roster in rosters.items():
        if i not in lost:
            round_.server.receive(i, round_.client(i).share_keys(roster))
    round_.mask()
    assert lonely not in round_.sent["MaskRequest"]
    assert "too few of its neighbors" in round_.server.rejected[lonely]
    result = round_.run(since="confirm")
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))


def test_wrong_shares_fail_cleanly_where_none_can_be_spared() -> None:
    round_ = open_round(4, 50, graph=(3, 4))
    round_.wire = lambda kind, client, data: (
        data[:40] + bytes([data[40] ^ 1]) + data[41:] if kind == "UnmaskReply" and client == 10 else data
    )
    with pytest.raises(SecureAggregationError, match="do not open its secret"):
        round_.run()
    assert not round_.server._total.any()


@pytest.mark.parametrize("kind", ["seed", "wrapping"])
def test_a_wrong_secret_is_recognized(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares that lie on one polynomial, but of another secret: each of the two checks catches it."""
    round_ = open_round(5, until="mask")
    round_.mask(lost=[10])
    round_.confirm()
    round_.unmask()
    server, combine = round_.server, shamir.combine

    def other(points: list[int], shares: np.ndarray) -> bytearray:
        secret = combine(points, shares)
        is_wrapping = server._dealt.is_committed(10, secret, Seed.WRAPPING)
        return bytearray(16) if is_wrapping == (kind == "wrapping") else secret

    monkeypatch.setattr(shamir, "combine", other)
    with pytest.raises(SecureAggregationError, match="do not open its secret"):
        round_.server.finish()


def test_server_ignores_late_repeated_and_foreign_messages() -> None:
    round_ = open_round(4, until="share")
    server, advertised = round_.server, round_.sent["KeyAdvertisement"]
    assert not server.receive(3, advertised[3])
    assert not server.receive(999, advertised[3])
    round_.share()
    assert not server.receive(3, advertised[3])
    assert not server.receive(10, round_.sent["SharedSeeds"][3])
    round_.mask()
    before = server._total.copy()
    assert not server.receive(3, round_.sent["MaskedInput"][3])
    np.testing.assert_array_equal(server._total, before)
    round_.confirm()
    round_.unmask()
    result = server.finish()
    np.testing.assert_array_equal(result.total, round_.expected(round_.inputs))
    assert not server.rejected


def test_server_drops_clients_that_share_a_key() -> None:
    round_ = open_round(6)
    round_.advertise(lost=[3])
    stolen = bytearray(round_.sent["KeyAdvertisement"][10])
    stolen[28:36] = (3).to_bytes(8, "little")
    assert round_.server.receive(3, bytes(stolen))
    round_.share()
    assert round_.server.rejected.keys() == {3, 10}
    assert round_.run(since="mask").survivors == (17, 24, 31, 38)


def test_server_rejects_keys_of_small_order() -> None:
    round_ = open_round(5)
    round_.wire = lambda kind, client, data: (
        data[:36] + bytes(32) + data[68:] if kind == "KeyAdvertisement" and client == 3 else data
    )
    result = round_.run()
    assert result.survivors == (10, 17, 24, 31)
    assert "no usable X25519 key" in round_.server.rejected[3]


def test_server_refuses_what_cannot_be_right() -> None:
    base = {"session": SESSION, "number": 1, "dimension": 3, "width": 8, "max_code": 15}
    with pytest.raises(InvalidSpecError, match="sum_bits"):
        ServerRound(RoundConfig(**base), range(18))
    with pytest.raises(InvalidSpecError, match="2 or more"):
        ServerRound(RoundConfig(**base), [1])
    for wrong in ({"width": 33}, {"dimension": 0}, {"max_code": 0}):
        with pytest.raises(InvalidSpecError):
            RoundConfig(**base | wrong)
    with pytest.raises(InvalidSpecError, match="more than half"):
        GraphParameters(num_clients=5, num_neighbors=4, threshold=2)
    with pytest.raises(InvalidSpecError, match="even"):
        GraphParameters(num_clients=6, num_neighbors=3, threshold=3)


def test_server_stages_come_in_order() -> None:
    server = open_round(4).server
    closing = (server.mask_requests, server.survivor_lists, server.unmask_requests)
    for close in (*closing, server.finish):
        with pytest.raises(SecureAggregationError, match="at stage ADVERTISE"):
            close()
    with pytest.raises(SecureAggregationError, match="0 clients sent keys"):
        server.rosters()
    with pytest.raises(SecureAggregationError, match="at stage ENDED"):
        server.rosters()


def test_states_survive_storage_between_all_stages() -> None:
    round_ = open_round(4)
    check(round_, Lost())
    state = round_.clients[3].to_bytes()
    assert ClientRound.from_bytes(state).to_bytes() == state
