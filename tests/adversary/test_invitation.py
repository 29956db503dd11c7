"""A server whose invitation to a secure sum does not fit its request learns nothing by who refuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.flower import PrivQuantStrategy
from fl_privquant.flower._messages.protocol import RECORD_SECAGG
from fl_privquant.flower._messages.stages import ADVERTISE, KEY_DATA, KEY_STAGE
from fl_privquant.secagg.messages import Invitation
from tests.flower.apps import client_app, fedavg, mod_for, simulate

CLIENTS = 25


class Forging:
    """A grid that changes the invitation on its way to the clients."""

    def __init__(self, grid: Any, changes: dict[str, Any]) -> None:
        self._grid = grid
        self._changes = changes
        self.reasons: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], **options: Any) -> list[Message]:
        sent = list(messages)
        for message in sent:
            record = message.content.get(RECORD_SECAGG)
            if isinstance(record, ConfigRecord) and record[KEY_STAGE] == ADVERTISE:
                invitation = Invitation.from_bytes(record[KEY_DATA])
                record[KEY_DATA] = replace(invitation, **self._changes).to_bytes()
        replies = list(self._grid.send_and_receive(sent, **options))
        self.reasons += [each.error.reason for each in replies if each.has_error()]
        return replies


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        # Codes of four levels go up to 7: with 6 a client refused if it had drawn a 7.
        ({"max_code": 6}, "max_code: the server invited to a sum with 6, but its request needs 7"),
        ({"max_code": 8}, "max_code"),
        ({"max_code": None}, "max_code"),
        ({"max_code": None, "width": 2}, "width"),
        ({"width": 9}, "width: the server invited to a sum with 9, but its request needs 8"),
        ({"dimension": 2}, "dimension: the server invited to a sum with 2, but its request needs 1"),
    ],
)
def test_a_mismatch_is_refused_by_all_before_they_train(
    changes: dict[str, Any], word: str, flower_log: Any
) -> None:
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    assert (mechanism.max_code, mechanism.sum_bits(CLIENTS)) == (7, 8)
    trained: list[int] = []

    def train(arrays: dict[str, Any], partition: int, server_round: int) -> dict[str, Any]:
        trained.append(partition)
        return {name: each + each.dtype.type(0.1) for name, each in arrays.items()}

    strategy = PrivQuantStrategy(
        fedavg(), pq.Encoding(mechanism, clip=0.1), max_failed_rounds=1, aggregation=SecureSum()
    )
    client, initial = client_app([mod_for(SecureSum())], train), {"x": np.zeros(1, np.float32)}
    grid = simulate(
        strategy, client, CLIENTS, initial=initial, wrap_grid=lambda grid: Forging(grid, changes)
    ).grid
    assert trained == []
    assert len(grid.reasons) == CLIENTS
    assert len(set(grid.reasons)) == 1
    assert word in flower_log.text


@pytest.mark.parametrize("fails", ["all", "some"])
def test_clients_that_fail_to_train_are_in_the_secure_sum(fails: str) -> None:
    """Success through secure aggregation does not depend on data either: zeros are masked like codes."""
    mechanism = pq.design("none", fixed_point_bits=20)

    def train(arrays: dict[str, Any], partition: int, server_round: int) -> dict[str, Any]:
        if fails == "all" or partition % 2:
            raise RuntimeError("x[3] = 0.7")
        return {name: each + each.dtype.type(0.1) for name, each in arrays.items()}

    strategy = PrivQuantStrategy(fedavg(), pq.Encoding(mechanism, clip=0.2), aggregation=SecureSum())
    client = client_app([mod_for(SecureSum())], train)
    model = simulate(strategy, client, CLIENTS, initial={"x": np.zeros(7, np.float32)}).vector
    assert strategy.survivors == {1: CLIENTS}
    share = 0.0 if fails == "all" else 13 / 25
    np.testing.assert_allclose(model, 0.1 * share, atol=1e-5)
