"""True updates wait in memory or in files, and are measured one by one; rows say what was spent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.accounting import LOCAL, PrivacyStatement, Unit, View
from fl_privquant.accounting.accountant import coordinate_statement
from simulations.runner import probe as probe_module
from simulations.runner.probe import Probe
from simulations.runner.recording import spent_columns


@pytest.mark.parametrize("room", [0, 100, 1 << 20])
def test_updates_come_in_the_order_of_clients_wherever_they_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(probe_module, "_MAX_BYTES_IN_MEMORY", room)
    probe = Probe(tmp_path / "probe", same_process=True)
    for client in (2, 0, 11):
        probe.store(1, client, {"weight": np.full(5, client, np.float64)})
    probe.store(2, 0, {"weight": np.zeros(5)})
    in_files = {0: 4, 100: 2, 1 << 20: 0}[room]
    assert len(list(tmp_path.glob("probe/*"))) == in_files
    for _ in range(2):
        assert [update["weight"][0] for update in probe.read(1)] == [0.0, 2.0, 11.0]
    probe.clear(1)
    assert list(probe.read(1)) == []
    assert len(list(probe.read(2))) == 1
    probe.clear(2)


def test_what_a_killed_process_was_writing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = Probe(tmp_path)
    for client in (3, 1):
        probe.store(1, client, {"weight": np.full((2, 3), client, np.float32), "bias": np.array(0.5)})

    def kill(file: Any, **arrays: Any) -> None:
        Path(file).write_bytes(b"part")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", kill)
    with pytest.raises(KeyboardInterrupt):
        probe.store(1, 2, {"weight": np.zeros((2, 3), np.float32), "bias": np.array(0.5)})
    first, second = probe.read(1)
    assert (first["weight"].shape, first["weight"].dtype, first["bias"].shape) == ((2, 3), np.float32, ())
    assert (first["weight"][1, 2], second["weight"][1, 2], float(second["bias"])) == (1.0, 3.0, 0.5)
    probe.clear(1)
    assert list(tmp_path.iterdir()) == []


def test_the_delta_of_a_row_holds_for_all_its_totals() -> None:
    """Few releases are counted without a delta in the local view: that is not the delta of their sum."""
    local = PrivacyStatement(4.0, 0.0, Unit.TOTAL, method="pure")
    summed = PrivacyStatement(2.0, 1e-9, Unit.TOTAL, View(54).stated)
    row = spent_columns([local, summed], View(54), secure=True)
    assert (row["epsilon_client_total"], row["epsilon_client_total_sum"]) == (4.0, 2.0)
    assert row["delta_client_total"] == 1e-9
    # The totals of before the first round cost nothing.
    assert spent_columns([], View(54), secure=True)["delta_client_total"] == 0.0


def test_what_is_not_private_says_nothing_of_the_models_view() -> None:
    """The central baseline states that view itself; a table would have two figures for it."""
    spent = spent_columns([coordinate_statement(pq.design("none"))], LOCAL, secure=False)
    assert math.isinf(spent["epsilon_client_total"])
    assert math.isnan(spent["epsilon_client_total_models"])


def test_a_view_without_a_statement_is_not_said_to_cost_nothing() -> None:
    summed = PrivacyStatement(2.0, 1e-5, Unit.TOTAL, View(54).stated)
    row = spent_columns([summed], View(54), secure=True)
    assert row["epsilon_client_total_sum"] == 2.0
    assert row["epsilon_client_total"] == math.inf
