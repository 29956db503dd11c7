"""The predicted size of a handshake is that of the messages of a round."""

from __future__ import annotations

import pytest

from fl_privquant.secagg import choose_parameters
from fl_privquant.secagg.message_sizes import handshake_bytes
from tests.secagg.driver import Round, open_round


def measured(round_: Round) -> float:
    """Bytes of all messages of a round that nobody left, without packed codes, for each client."""
    result = round_.run()
    assert len(result.survivors) == len(round_.inputs)
    total = sum(len(data) for messages in round_.sent.values() for data in messages.values())
    return total / len(round_.inputs) - round_.server.payload_bytes


@pytest.mark.parametrize("num_clients", [4, 20, 33, 60, 300])
def test_what_is_predicted_is_sent(num_clients: int) -> None:
    round_ = open_round(num_clients, restore=False)
    graph = choose_parameters(num_clients)
    # On a sparse graph the prediction is a mean over the places of clients among their neighbors.
    tolerance = 0.0 if graph.num_neighbors == num_clients - 1 else 0.01
    assert measured(round_) == pytest.approx(handshake_bytes(graph), rel=tolerance)


def test_the_bound_of_a_large_round() -> None:
    """At 500 clients the benchmark ``handshake`` measures less than this."""
    assert handshake_bytes(choose_parameters(500)) < 4500


def test_the_bound_of_a_signed_round() -> None:
    assert measured(open_round(100, signed=True, restore=False)) < 5500
