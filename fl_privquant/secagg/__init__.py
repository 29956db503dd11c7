"""Secure aggregation of integer codes: the server learns their sum, exactly, and not the codes.

Double masking of Bonawitz et al. 2017 on the sparse graph of Bell et al. 2020 (SecAgg+), as two state
machines that exchange bytes: :class:`ClientRound` and :class:`ServerRound`. Nothing here sends, stores
or logs anything.

1. *Advertise keys.* Each client draws two X25519 key pairs and sends the public keys.
2. *Share keys.* The server draws a graph. Each client splits its mask key and the seed of its self
   mask among its neighbours and itself, a share each, sealed so that only the receiver can open it.
3. *Masked input.* A client adds to its codes the self mask and, for each neighbour, a mask that both
   derive from their keys and that one of them subtracts; modulo 2^width. In the sum these cancel.
4. *Unmask.* For a client whose input arrived its neighbours reveal shares of its seed, for one that
   was lost shares of its mask key: never both. With ``threshold`` shares the server removes the masks
   that are left.

Threat model
------------
**The server** learns the sum of the codes of the clients whose input arrived, who they are, and when
others were lost. Of the honest clients it learns the sum of their codes and no more, even together
with C = floor(corrupt_fraction * n) corrupt clients that follow the protocol and tell it all they
see. This fails with odds of at most ``max_security_failure`` (2^-40) a round over the drawing of the
graph (:mod:`fl_privquant.secagg.parameters`), as long as X25519, HKDF-SHA256, AES-256 and
ChaCha20-Poly1305 hold. What the sum itself tells about a client is the mechanism's privacy to bound.

**A client** learns the ids and public keys of its neighbours and which of them were lost; no sum.

**A server that lies** is covered in part. *Without identity keys it is trusted not to impersonate
clients*: one that invents a client's neighbours learns that client's codes. With identity keys (Ed25519,
known to the clients beforehand) a client masks only towards clients that signed their keys for this
round. The server still draws the graph; with more than 33 clients it is trusted to draw it at random,
unless ``num_neighbors`` asks for the complete graph, and to tell all clients the same about who was
lost. On the complete graph a server that tells them different things still cannot open both secrets
of a client: a client answers once a round, and the threshold leaves room for no second opening. But it
can make the sum smaller: at least (n - C)(2 t - n - C) / (t - C) honest clients stay in it for a
threshold t, so never one alone (raise ``threshold`` to raise that number). On a sparse graph,
``server_may_lie`` keeps the two secrets apart too, with about twice as many neighbours; how small the
sum can be made is not bounded there.

**Corrupt clients** can falsify the sum by what they put in, as without secure aggregation, or end the
round without a sum. They cannot make a wrong sum of the honest inputs pass by false shares: opened
secrets are checked against the public key or a commitment.

**Dropouts.** Whoever is lost before its shares are in costs nothing. One lost later costs the server
a key agreement and a mask for each of its neighbours. Up to floor(dropout_fraction * n) of these the
sum comes out with odds of 1 - ``max_correctness_failure``; once a secret has fewer holders left than
the threshold, the round ends without a sum, nothing was released, and the next round starts afresh.

**Not covered**: what the transport leaks or loses (use TLS), attacks by timing on the same machine,
copies of secrets that Python made before they were erased. Keys are drawn for each round and erased
with it: a client that is broken into later does not give away its earlier codes.
"""

from fl_privquant.secagg.client import ClientRound
from fl_privquant.secagg.client_state import Stage
from fl_privquant.secagg.parameters import (
    GraphParameters,
    choose_parameters,
    correctness_failure,
    security_failure,
)
from fl_privquant.secagg.policy import ClientPolicy
from fl_privquant.secagg.round_config import RoundConfig, new_session
from fl_privquant.secagg.server import OpenedSum, ServerRound

__all__ = [
    "ClientPolicy",
    "ClientRound",
    "GraphParameters",
    "OpenedSum",
    "RoundConfig",
    "ServerRound",
    "Stage",
    "choose_parameters",
    "correctness_failure",
    "new_session",
    "security_failure",
]
