"""Secure aggregation of integer codes: the server learns their sum, exactly, and not the codes.

This is the double masking of Bonawitz et al. 2017 on the sparse graph of Bell et al. 2020 (SecAgg+), as two
state machines that exchange bytes: :class:`ClientRound` and :class:`ServerRound`. Nothing here sends, stores
or logs anything. The page "Threat model" of the documentation says the following with less detail, and also
why each message is needed.

1. *Advertise keys.* Each client draws an X25519 key pair and sends the public key.
2. *Share keys.* A graph follows from the hash of all these keys. Two neighbors agree on a *pair secret*,
   from which come the root of a mask that they have in common and shares of one another's seeds. Each client
   draws the seed of a self mask and a *wrapping seed*, under which it leaves the roots of its masks with the
   server, and shares both seeds among its neighbors and itself. No share is sent: holders derive them, and
   the dealer tells the server by how much some of them are off (:mod:`fl_privquant.secagg.crypto.sharing`).
3. *Masked input.* A client adds to its codes the self mask and, for each neighbor, a mask that both
   derive from their root and from all that they were told, and that one of them subtracts; modulo 2^width.
   In the sum these cancel.
4. *Confirm*, in signed rounds. Clients sign the list of those whose input arrived, with all that they were
   told before, and go on only if a quorum of *witnesses* (the first clients of a random order) signed the
   same.
5. *Unmask.* For a client whose input arrived its neighbors reveal shares of its self mask's seed, for one
   that was lost shares of its wrapping seed: never both. With ``threshold`` shares the server removes the
   masks that are left.

**No secret key is used in two rounds**, so that what is revealed after a dropout, or by a client that is
compromised later, exposes no other round. Only identity keys stay; on their own they hide nothing.

Threat model
------------
n clients send keys; C = corrupt_fraction * n of them, rounded up, are corrupt and tell the server all they
know; D = dropout_fraction * n, rounded up, may be lost. These are counted among the clients *of the round,
whom the server chooses*: it can leave out honest ones. So a client's ``min_clients`` must be so large that
``corrupt_fraction`` of it covers all the clients that are assumed to be corrupt in the whole federation.

**The server** learns the sum of the codes of the clients whose input arrived, who they are, and when others
were lost. About the honest clients it learns the sum of their codes and nothing else, even together with C
corrupt clients that follow the protocol. This fails with a probability of at most 2^-40 per round over
the drawing of the graph (:mod:`fl_privquant.secagg.graph.parameters`), as long as X25519, HKDF-SHA256,
SHAKE-256 and AES-256 hold. What the sum itself reveals about a client is bounded by the differential privacy
of the mechanism.

**A client** learns the ids and public keys of its neighbors and which of them were lost; in signed rounds it
learns the ids of all clients and of all that were lost. It learns no sum.

**Without identity keys the server is trusted** not to invent clients (a server that invents a client's
neighbors learns that client's codes), and on sparse graphs also to tell all clients the same. Clients insist
on their own policy all the same (:class:`ClientPolicy`): the fewest clients, a complete graph for up to 33
clients and 32 neighbors or more for larger rounds, a threshold t with 2 t > n + C on complete graphs or the
odds above on sparse ones, and on complete graphs no more than D lost clients.

**With identity keys the server may lie** (Ed25519, known to the clients beforehand; the model and the attacks
are in ``tests/adversary``). Every sum that opens holds the codes of at least n - C - D honest clients, all of
whom were sent the same invitation, list of clients, request and model:

- *Clients cannot be invented.* The pair secret takes both clients' keys of the round, a key that their
  identities share (:mod:`fl_privquant.secagg.crypto.keys`) and the digest of the graph. So nobody else can
  derive a share that a client holds, or the root of a mask that it adds. Two clients that were shown
  different lists or keys have different roots, which do not cancel, and different shares, which open nothing.
- *The graph cannot be chosen.* A client gets the list of all clients, each of which it knows, none twice. It
  draws the graph itself, from this list and from the root of a tree of all keys that holds its own
  (:mod:`fl_privquant.secagg.graph.roster_tree`). The server can try many graphs, by keys of its corrupt
  clients or by leaving somebody out: the odds of 2^-40 hold after 2^40 tries. Up to 360 clients (at
  fractions of a tenth) every graph is good.
- *The server can choose whom it calls lost*, once it knows the graph. The honest survivors stay connected
  whoever is lost (:mod:`fl_privquant.secagg.graph.parameters`), so that no sum of a part of them opens.
- *All are told the same.* Masks are derived from a digest of everything that a client was told: where two
  were told different things, their masks do not cancel.
- *There is one list of survivors.* A client signs one, of at least n - D, and unmasks once a quorum of the
  witnesses signed the same; two quorums have an honest client in common
  (:mod:`fl_privquant.secagg.signed.witnesses`). Even with two lists, each client of which unmasks once, no
  client's two secrets would open (:mod:`fl_privquant.secagg.graph.parameters`).

The server can always end a round without a sum, and it chooses who is invited. A thief of an identity key can
impersonate other clients towards its owner from then on; earlier rounds stay secret.

**Corrupt clients** can put any integers into the sum; the server refuses an opened sum that honest clients
cannot have sent (:mod:`fl_privquant.codec.sum_check`). Wrong shares are corrected, up to half of those beyond
the threshold, and their senders named; opened seeds are checked against a commitment. A dealer of shares that
do not fit together ends a round without a sum, and is named (:attr:`ServerRound.culprits`). More wrong shares
than can be corrected have an honest dealer named, with odds that are stated; so a client is left out only on
sufficient evidence, of one round or several (:mod:`fl_privquant.secagg.signed.evidence`).

**Dropouts.** With up to D lost clients the sum is opened with a probability of 1 - 2^-20; with more, the
round ends without a sum, nothing is released, and the next round starts afresh.

**One state, one answer.** A client answers each stage once, from whichever copy of its state
(:mod:`fl_privquant.secagg._answer_log`).

What is not covered is on the page "Threat model".
"""

from fl_privquant.secagg._client_state import Stage
from fl_privquant.secagg.client import ClientRound
from fl_privquant.secagg.client_policy import ClientPolicy
from fl_privquant.secagg.graph.parameters import GraphParameters, choose_parameters, security_failure
from fl_privquant.secagg.round_config import RoundConfig, draw_session
from fl_privquant.secagg.server import ServerRound, UnmaskedSum
from fl_privquant.secagg.signed.identities import KnownClients, read_identity, read_known_clients

__all__ = [
    "ClientPolicy",
    "ClientRound",
    "GraphParameters",
    "KnownClients",
    "RoundConfig",
    "ServerRound",
    "Stage",
    "UnmaskedSum",
    "choose_parameters",
    "draw_session",
    "read_identity",
    "read_known_clients",
    "security_failure",
]
