"""Narrow sums over Flower: the same model in fewer bytes, wraps counted, false widths refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.accounting import Aggregation, SimulatedSum
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import SecureAggregationError
from fl_privquant.flower import PrivQuantStrategy, RoundRecord
from fl_privquant.flower.client.masking import _read_ring
from fl_privquant.mechanisms import base
from fl_privquant.mechanisms.modular_sum import SumRing
from fl_privquant.secagg._wire import RoundId
from fl_privquant.secagg.messages import Invitation
from tests.flower.apps import client_app, fedavg, mod_for, simulate

CLIENTS, DIMENSION = 40, 64
FRACTIONS = {"corrupt_fraction": 0.0, "dropout_fraction": 0.1}


def mechanism() -> Any:
    return pq.design("pbm", theta=0.02, levels=8)


def run(
    aggregation: Aggregation, encoding: Any = None, max_delta: float = 0.0
) -> tuple[np.ndarray, RoundRecord]:
    encoding = encoding or Encoding(mechanism(), 0.2)
    strategy = PrivQuantStrategy(fedavg(), encoding, aggregation=aggregation, simulated=True)
    client = client_app([mod_for(aggregation, max_delta=max_delta)])
    done = simulate(strategy, client, CLIENTS, initial={"x": np.zeros(DIMENSION, np.float32)})
    return done.model["x"], done.records[-1]


def test_the_model_is_the_same_and_the_bytes_are_fewer() -> None:
    exact, wide = run(pq.SecureSum(**FRACTIONS, exact_sums=True))
    masked, narrow = run(pq.SecureSum(**FRACTIONS))
    simulated, open_ = run(SimulatedSum(**FRACTIONS))
    np.testing.assert_array_equal(masked, exact)
    np.testing.assert_array_equal(simulated, exact)
    assert wide.bytes_up - narrow.bytes_up == CLIENTS * DIMENSION // 8
    assert open_.bytes_up == narrow.bytes_up
    assert (wide.overflowed_sums, narrow.overflowed_sums, open_.overflowed_sums) == (None, None, 0)


def test_a_simulation_counts_the_sums_that_wrap(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With 5 bits for sums of 40 codes up to 7, which spread by 50 or so."""
    exact, _ = run(SimulatedSum(**FRACTIONS))
    ring = SumRing(5, None, 3.5, 7)
    monkeypatch.setattr(base, "find_narrowest_ring", lambda *_: ring)
    with caplog.at_level("WARNING"):
        model, record = run(SimulatedSum(**FRACTIONS))
    wrong = int(np.count_nonzero(model != exact))
    assert record.overflowed_sums == wrong > 0
    assert f"{wrong} sums wrapped" in caplog.text


def test_sums_of_residues_are_not_said_to_wrap(caplog: pytest.LogCaptureFixture) -> None:
    """Every coordinate of a correct sum of rounded_gaussian was once reported as wrapped."""
    sums = SimulatedSum(**FRACTIONS)
    target = pq.Target(epsilon=8.0, delta=1e-5, rounds=3, num_clients=CLIENTS)
    plan = target.plan(DIMENSION, l2_clip=1.0, mechanism="rounded_gaussian", aggregation=sums)
    with caplog.at_level("WARNING"):
        _, record = run(sums, plan.encoding, max_delta=0.5)
    assert record.survivors == CLIENTS
    assert record.overflowed_sums == 0
    assert "wrapped" not in caplog.text


def codec() -> UpdateCodec:
    return UpdateCodec(Layout.of({"x": np.zeros(DIMENSION, np.float32)}), Encoding(mechanism(), 0.2))


def invitation(ring: SumRing) -> Invitation:
    return Invitation(RoundId(b"s" * 16, 1), CLIENTS, DIMENSION, ring.bits, ring.max_code, False)


def test_clients_take_either_ring_of_the_request_and_no_other() -> None:
    narrow, exact = codec().sum_ring(CLIENTS), codec().sum_ring(CLIENTS, exact=True)
    assert (narrow.bits, exact.bits) == (8, 9)
    for ring in (narrow, exact):
        assert _read_ring(invitation(ring), codec()) == ring
    for false in (replace(narrow, bits=7), replace(exact, bits=8), SumRing(9, None), SumRing(1, None)):
        with pytest.raises(SecureAggregationError, match="the server invited to a sum with"):
            _read_ring(invitation(false), codec())


def test_a_residue_is_a_function_of_the_sum() -> None:
    """Why a width cannot leak: what a narrow ring opens follows from what the exact one opens."""
    codes = np.random.default_rng(1).integers(0, 8, (CLIENTS, 500))
    exact = codes.sum(axis=0)
    for bits in (1, 3, 8):
        ring = SumRing(bits, None, 3.5, 7)
        opened = sum(ring.residues(code) for code in codes) & ((1 << bits) - 1)
        np.testing.assert_array_equal(opened, exact & ((1 << bits) - 1))
