"""Identities over Flower: a SuperNode's own key and list of clients, and which node is which client.

The configuration of a SuperNode, which the server does not see, names the files of its identity::

    flower-supernode ... --node-config 'privquant-identity="/etc/privquant/identity.pem"
        privquant-known-clients="/etc/privquant/clients.json"'

With ``privquant-operator``, a public key in hex, the list must be signed by the owner of that key.
``privquant-min-clients`` is the fewest clients of a round, if the app's policy does not ask for more.

In signed rounds the id of a client follows from its name (:mod:`fl_privquant.secagg.signed.identities`),
while messages are sent to Flower's node ids. So the server asks each node once who it is, and the answer is
signed for this session and node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fl_privquant import _validation
from fl_privquant.errors import MISSING, InvalidSpecError, SecureAggregationError
from fl_privquant.flower._messages.stages import KEY_IDENTITY, KEY_KNOWN_CLIENTS
from fl_privquant.secagg import ClientPolicy
from fl_privquant.secagg.signed.identities import KnownClients, identify, read_identity, read_known_clients

KEY_OPERATOR: Final = "privquant-operator"
KEY_MIN_CLIENTS: Final = "privquant-min-clients"


def apply_node_config(policy: ClientPolicy, node_config: Mapping[str, Any]) -> ClientPolicy:
    """The policy with the identity, the known clients and the fewest clients of the node's own configuration.

    The node's configuration takes precedence over the app's policy, because the node's owner wrote it.
    """
    if KEY_MIN_CLIENTS in node_config:
        required = _validation.check_integer(
            f"node config {KEY_MIN_CLIENTS}", node_config[KEY_MIN_CLIENTS], 2
        )
        policy = replace(policy, min_clients=max(policy.min_clients, required))
    identity, known_clients = node_config.get(KEY_IDENTITY), node_config.get(KEY_KNOWN_CLIENTS)
    if identity is None and known_clients is None:
        if KEY_OPERATOR in node_config:
            raise InvalidSpecError(
                KEY_OPERATOR, MISSING, f"given without {KEY_KNOWN_CLIENTS}, the list that the operator signs"
            )
        return policy
    if identity is None or known_clients is None:
        missing = KEY_IDENTITY if identity is None else KEY_KNOWN_CLIENTS
        raise InvalidSpecError(
            missing,
            MISSING,
            "missing in the node's configuration",
            "a client signs with its own key and knows the others by the list, so give both",
        )
    operator = node_config.get(KEY_OPERATOR)
    try:
        operator_key = None if operator is None else bytes.fromhex(str(operator))
    except ValueError:
        raise InvalidSpecError(KEY_OPERATOR, operator, ", expected a public key in hex") from None
    return replace(
        policy,
        identity=read_identity(Path(str(identity))),
        known_identities=read_known_clients(Path(str(known_clients)), operator_key),
    )


def find_client_id(policy: ClientPolicy, node_id: int) -> int:
    """The id under which a client takes part: that of its name on the list, or the node's without a list."""
    if policy.identity is None or not isinstance(policy.known_identities, KnownClients):
        return node_id
    return policy.known_identities.id_of(policy.identity.public_key().public_bytes_raw())


def sign_identification(policy: ClientPolicy, session: bytes, node_id: int) -> bytes:
    """A client's answer when the server asks who it is: its id, signed for this session and node."""
    if policy.identity is None or not isinstance(policy.known_identities, KnownClients):
        raise SecureAggregationError(
            f"this node has no identity; set {KEY_IDENTITY} and {KEY_KNOWN_CLIENTS} in its configuration"
        )
    return identify(policy.identity, find_client_id(policy, node_id), session, node_id)
