"""Seeds, which switch the noise off for whoever knows them: a server must not be able to set one."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import fl_privquant as pq
from fl_privquant.flower import PrivQuantMod
from tests.flower.asking import ask, client, never, refused, train

MECHANISM = pq.design("one_bit", epsilon=1.0)
# The app takes its seed from the run's configuration, which the server writes.
FROM_THE_SERVER = PrivQuantMod(1.0, seed=lambda context: context.run_config.get("seed"))


@pytest.mark.parametrize(
    "limit",
    [
        {"privquant_max_epsilon": 1.0},
        {"privquant_max_delta": 1e-6},
        {"privquant_budget": 1e6},
        {"privquant_budget_delta": 1e-6},
        {"privquant_max_participations": 9},
    ],
)
def test_beside_the_limits_of_a_node_seeds_are_refused(limit: dict[str, Any]) -> None:
    assert "seed: whoever knows it" in refused(
        FROM_THE_SERVER, ask(MECHANISM), client({"seed": 1}, **limit), never
    )
    # Without a seed the client answers, and where the owner simulates too.
    assert FROM_THE_SERVER(ask(MECHANISM), client({}, **limit), train).has_content()
    simulated = client({"seed": 1}, privquant_simulated=True, **limit)
    assert FROM_THE_SERVER(ask(MECHANISM), simulated, train).has_content()


@pytest.mark.parametrize("program", ["flwr-clientapp", "/usr/lib/flwr/flwr_clientapp.py"])
def test_on_a_supernode_seeds_are_refused(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    for mod in (FROM_THE_SERVER, PrivQuantMod(1.0, seed=3)):
        assert "seed: whoever knows it" in refused(mod, ask(MECHANISM), client({"seed": 1}), never)
        # What the server writes into the run's configuration allows nothing.
        forged = client({"seed": 1, "privquant-simulated": True})
        assert "seed: whoever knows it" in refused(mod, ask(MECHANISM), forged, never)
    assert FROM_THE_SERVER(ask(MECHANISM), client({}), train).has_content()


def test_in_a_simulation_seeds_are_as_before() -> None:
    assert FROM_THE_SERVER(ask(MECHANISM), client({"seed": 1}), train).has_content()
