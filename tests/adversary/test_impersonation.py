"""Attacks on who is who: nodes that are renumbered, clients that come twice, keys that are not known."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context, Message

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.errors import InvalidSpecError, SecureAggregationError
from fl_privquant.flower import NoUsableReplyError, PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower._messages.stages import KEY_IDENTITY, KEY_KNOWN_CLIENTS
from fl_privquant.flower.client.identity import (
    KEY_OPERATOR,
    apply_node_config,
    find_client_id,
    sign_identification,
)
from fl_privquant.secagg import ClientPolicy
from fl_privquant.secagg.signed.identities import (
    IdentityKey,
    KnownClients,
    client_id,
    create_identity,
    read_identity,
    read_known_clients,
    sign_known_clients,
    verify_identification,
    write_known_clients,
)
from tests.flower.apps import client_app, fedavg, simulate

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CLIENTS = 5


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Identity files 0.pem, 1.pem, ... and a list of them all: what an operator hands out."""
    keys = {f"clinic-{i}": create_identity(tmp_path / f"{i}.pem") for i in range(CLIENTS)}
    known = known_clients(keys)
    write_known_clients(tmp_path / "clients.json", known)
    return tmp_path


def known_clients(keys: Mapping[str, bytes]) -> KnownClients:
    today = datetime.datetime.now(datetime.UTC).date()
    return KnownClients({name: (IdentityKey(key, today),) for name, key in keys.items()}, today)


def configuration(files: Path, i: int) -> dict[str, Any]:
    return {KEY_IDENTITY: str(files / f"{i}.pem"), KEY_KNOWN_CLIENTS: str(files / "clients.json")}


class Configured:
    """The outermost mod: a node with a configuration of its own, as a SuperNode's operator writes it."""

    def __init__(self, configurations: Mapping[int, Mapping[str, Any]]) -> None:
        self.configurations = configurations

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        partition = int(context.node_config["partition-id"])
        context.node_config.update(self.configurations.get(partition, {}))
        return call_next(message, context)


def run(
    configurations: Mapping[int, Mapping[str, Any]],
    identities: Any,
    mods: tuple[Any, ...] = (),
    rounds: int = 2,
    **settings: Any,
) -> tuple[np.ndarray, dict[int, int]]:
    encoding = pq.Encoding(pq.design("stochastic", levels=16), clip=0.1)
    aggregation = SecureSum(identities=identities, **settings)
    strategy = PrivQuantStrategy(fedavg(), encoding, aggregation=aggregation)

    def shifted(arrays: dict[str, Any], partition: int, server_round: int) -> dict[str, Any]:
        return {name: each + np.float32(0.01 * partition) for name, each in arrays.items()}

    private = PrivQuantMod(max_epsilon=math.inf, seed=5, secure_aggregation=True)
    client = client_app([Configured(configurations), *mods, private], shifted)
    done = simulate(strategy, client, CLIENTS, rounds, {"weight": np.zeros(33, np.float32)})
    return done.vector, strategy.survivors


def test_a_round_of_clients_that_know_one_another_by_files(files: Path, flower_log: Any) -> None:
    configurations = {i: configuration(files, i) for i in range(CLIENTS)}
    signed, survivors = run(configurations, read_known_clients(files / "clients.json"))
    assert survivors == {1: CLIENTS, 2: CLIENTS}
    # The log says whether a round was signed.
    assert f"round 2, sum of {CLIENTS} clients, signed with identity keys" in flower_log.text
    assert "not signed" not in flower_log.text
    plain, _ = run({}, None)
    assert f"round 2, sum of {CLIENTS} clients, not signed" in flower_log.text
    np.testing.assert_array_equal(signed, plain)


@pytest.mark.parametrize(("node", "key"), [(3, "stranger"), (4, "2")], ids=["not on the list", "twice"])
def test_a_node_without_an_identity_of_its_own_is_left_out(
    files: Path, node: int, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A corrupt client that runs many nodes must not count as many: the sums would hide less than stated."""
    create_identity(files / "stranger.pem")
    configurations = {i: configuration(files, i) for i in range(CLIENTS)}
    configurations[node][KEY_IDENTITY] = str(files / f"{key}.pem")
    _, survivors = run(configurations, read_known_clients(files / "clients.json"))
    assert survivors == {1: CLIENTS - 1, 2: CLIENTS - 1}
    assert ("is not on the list of known clients" in caplog.text) == (key == "stranger")


def test_two_keys_of_one_client_are_one_client(files: Path) -> None:
    """While a key is changed a client has two; they have one id, so it cannot come twice."""
    create_identity(files / "new.pem")
    known = read_known_clients(files / "clients.json")
    second = read_identity(files / "new.pem").public_key().public_bytes_raw()
    known = known.with_key("clinic-2", IdentityKey(second, known.today))
    write_known_clients(files / "clients.json", known)
    configurations = {i: configuration(files, i) for i in range(CLIENTS)}
    configurations[4] = {**configuration(files, 4), KEY_IDENTITY: str(files / "new.pem")}
    _, survivors = run(configurations, known)
    assert survivors == {1: CLIENTS - 1, 2: CLIENTS - 1}
    # In place of the old key, the new one serves as well.
    configurations = {i: configuration(files, i) for i in range(CLIENTS)}
    configurations[2][KEY_IDENTITY] = str(files / "new.pem")
    _, survivors = run(configurations, known)
    assert survivors == {1: CLIENTS, 2: CLIENTS}


def test_a_removed_client_is_refused_by_those_with_the_new_list(files: Path) -> None:
    """The server still invites it: everybody else refuses the roster, and no sum is opened."""
    old = read_known_clients(files / "clients.json")
    write_known_clients(files / "new.json", old.without("clinic-1"))
    configurations = {
        i: {
            **configuration(files, i),
            KEY_KNOWN_CLIENTS: str(files / ("new.json" if i != 1 else "clients.json")),
        }
        for i in range(CLIENTS)
    }
    with pytest.raises(NoUsableReplyError):
        run(configurations, old)
    _, survivors = run(configurations, read_known_clients(files / "new.json"))
    assert survivors == {1: CLIENTS - 1, 2: CLIENTS - 1}


def test_a_server_without_signatures_is_refused_by_clients_that_have_a_list(files: Path) -> None:
    configurations = {i: configuration(files, i) for i in range(CLIENTS)}
    with pytest.raises(NoUsableReplyError):
        run(configurations, None)


def test_the_server_cannot_number_clients_as_it_likes(files: Path) -> None:
    """The id in signed rounds follows from the name, whatever number the server gives the node."""
    policy = apply_node_config(ClientPolicy(), configuration(files, 3))
    assert {find_client_id(policy, node) for node in (0, 7, 2**63)} == {client_id("clinic-3")}
    assert find_client_id(ClientPolicy(), 7) == 7


def test_identifications_are_for_one_session_and_one_node(files: Path) -> None:
    policy = apply_node_config(ClientPolicy(), configuration(files, 3))
    known = read_known_clients(files / "clients.json")
    answer = sign_identification(policy, bytes(16), 7)
    assert verify_identification(known, answer, bytes(16), 7) == client_id("clinic-3")
    assert verify_identification(known, answer, bytes(16), 8) is None
    assert verify_identification(known, answer, bytes([1]) * 16, 7) is None
    other = client_id("clinic-2").to_bytes(8, "little")
    assert verify_identification(known, other + answer[8:], bytes(16), 7) is None
    for at in range(len(answer)):
        changed = bytearray(answer)
        changed[at] ^= 1
        assert verify_identification(known, bytes(changed), bytes(16), 7) is None
    for cut in range(len(answer)):
        assert verify_identification(known, answer[:cut], bytes(16), 7) is None
    with pytest.raises(SecureAggregationError, match="has no identity"):
        sign_identification(ClientPolicy(), bytes(16), 7)


def test_a_list_that_the_operator_did_not_sign_is_not_used(files: Path) -> None:
    operator = Ed25519PrivateKey.generate()
    key = operator.public_key().public_bytes_raw().hex()
    wanted = {**configuration(files, 0), KEY_OPERATOR: key}
    with pytest.raises(InvalidSpecError, match="cannot be read"):
        apply_node_config(ClientPolicy(), wanted)
    sign_known_clients(files / "clients.json", operator)
    assert apply_node_config(ClientPolicy(), wanted).identity is not None
    write = files / "clients.json"
    write.write_bytes(write.read_bytes().replace(b"clinic-4", b"clinic-9"))
    with pytest.raises(InvalidSpecError, match="not signed by the operator"):
        apply_node_config(ClientPolicy(), wanted)
    with pytest.raises(InvalidSpecError, match="expected a public key in hex"):
        apply_node_config(ClientPolicy(), {**wanted, KEY_OPERATOR: "xy"})
    with pytest.raises(InvalidSpecError, match="given without"):
        apply_node_config(ClientPolicy(), {KEY_OPERATOR: key})
    for missing in (KEY_IDENTITY, KEY_KNOWN_CLIENTS):
        with pytest.raises(InvalidSpecError, match=f"{missing}: missing"):
            apply_node_config(ClientPolicy(), {k: v for k, v in wanted.items() if k != missing})
