"""What a server that is refused learns: the kind of the error, and nothing about the client."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flwr.app import Context, Message

import fl_privquant as pq
from fl_privquant.flower import PrivQuantMod
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.stages import ADVERTISE, protocol_content
from fl_privquant.secagg import ClientPolicy, RoundConfig, ServerRound, draw_session
from tests.flower.asking import ask, client, never, train

MECHANISM = pq.design("one_bit", epsilon=1.0)


def told(reply: Message) -> str:
    assert reply.has_error()
    reason: str = reply.error.reason
    assert reason.endswith("; the client's log says why")
    # No figure, no limit, no path.
    assert not re.search(r"\d|/|ε", reason)
    return reason


@pytest.mark.parametrize("spent", [1, 3])
def test_a_new_server_does_not_learn_what_earlier_runs_spent(tmp_path: Path, spent: int) -> None:
    mod = PrivQuantMod(1.0, budget=(spent + 0.5) * 25.0, ledger_file=tmp_path / "ledger")
    for _ in range(spent):
        assert mod(ask(MECHANISM), client(), train).has_content()
    assert told(mod(ask(MECHANISM), client(), never)).startswith("BudgetExhaustedError: ")


@pytest.mark.parametrize(
    ("mod", "context"),
    [
        (PrivQuantMod(0.75), client()),
        (PrivQuantMod(1.0), client(privquant_max_epsilon=0.75)),
        (PrivQuantMod(1.0), client(privquant_budget="much")),
        (PrivQuantMod(1.0, seed=3), client(privquant_budget=1e9)),
        (PrivQuantMod(1.0, ledger_file="/dev/null/ledger"), client()),
    ],
)
def test_a_server_does_not_learn_limits_or_files(mod: PrivQuantMod, context: Context) -> None:
    told(mod(ask(MECHANISM), context, never))


@pytest.mark.parametrize(
    ("policy", "context"),
    [
        (ClientPolicy(min_clients=50), client()),
        (
            ClientPolicy(),
            client(privquant_identity="/secret/key.pem", privquant_known_clients="/secret/list"),
        ),
        (ClientPolicy(answered_folder=Path("/dev/null/answered")), client()),
    ],
)
def test_a_server_does_not_learn_policies_or_names_of_key_files(
    policy: ClientPolicy, context: Context
) -> None:
    invitation = ServerRound(RoundConfig(draw_session(), 1, 5, 8, 7), range(1, 11)).invitation()
    with use_server_identity(1):
        message = Message(protocol_content(invitation, ADVERTISE), 7, "train")
    told(PrivQuantMod(1.0, secure_aggregation=policy)(message, context, never))


def test_what_is_wrong_with_the_message_itself_is_said() -> None:
    """So that operators can see that versions differ."""
    reply = PrivQuantMod(1.0)(ask(MECHANISM, version=1), client(), never)
    assert "protocol: version 1 is not" in reply.error.reason
