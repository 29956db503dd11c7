"""How many neighbors a client needs, and how many shares open a secret: computed, not guessed.

=========  ==================================================================================
symbol     meaning
=========  ==================================================================================
n          clients of the round
C          the most of them that are corrupt: corrupt_fraction * n, rounded up; they hand all they
           know to the server
D          the most of them that are lost after keys were advertised: dropout_fraction * n, rounded up
k          neighbors of each client; its secrets have k + 1 holders: these, and itself
t          threshold: shares that open a secret
HG(N,M,k)  hypergeometric: how many are marked among k drawn from N, of which M are marked
=========  ==================================================================================

The graph is a ring in random order where each client is joined to the k/2 nearest on either side
(a Harary graph, Bell et al. 2020), or complete. So the neighbors of a client are a uniform set of
k among the n - 1 others, whoever is corrupt or lost, as long as who that is does not depend on the order.

**Security fails** if one of these happens:

1. *A secret pair is opened.* The server must never hold both the self-mask seed and the wrapping
   seed of an honest client, with t shares each. Honest holders give it shares of one of the two, corrupt
   holders of both. So with X corrupt neighbors it has X shares of the other one, and X < t
   suffices. X is HG(n - 1, C, k). The union bound over the n - C honest clients is:

       (n - C) P[X >= t].

   A server that *lies* could tell some holders that the client lives and others that it is lost. It
   then gets at most (k + 1 - X) + 2 X shares in all, so that 2 t > k + 1 + X is needed:

       (n - C) P[X >= 2 t - k - 1].

   This is what is computed for a complete graph, where it costs nothing, for signed rounds, and on request
   (``server_may_lie``). On a sparse graph it takes about twice as many neighbors (94 instead of 44 for
   1000 clients). In signed rounds clients also confirm the list of survivors to one another before they
   unmask, so that no two of them act on different lists. The threshold is the second line: were the
   confirmations worth nothing, no client's two secrets would open all the same.

2. *The honest survivors fall apart* into two groups with no edge between them: then the sum of each
   group could be opened by itself. R = C + D clients are gone from the ring, in the worst case. Each
   of the two borders between the groups is a run of at least h = k/2 neighbors on the ring that are
   all gone, as a shorter run is bridged by an edge. The two runs are disjoint. The union bound over
   where they start, with 2 h given clients all among the R, is:

       n (n - 1) / 2 * product over j < 2 h of (R - j) / (n - j).

   A complete graph never falls apart, nor does a ring with k > R.

**Correctness fails** if some secret has fewer than t holders left. A lost client has k holders
besides itself, of which HG(n - 1, D - 1, k) are lost; a client that is not lost has k + 1 holders, of
which HG(n - 1, D, k) are lost:

       D P[HG(n - 1, D - 1, k) > k - t]  +  (n - D) P[HG(n - 1, D, k) > k + 1 - t].

**Signed rounds: the server may lie.** It cannot choose the graph, but it can do two things more.

*It can try many graphs.* The graph follows from a hash over all advertised keys. The server can let its
corrupt clients draw other keys, or leave somebody out, until it likes the graph: after 2^g tries the odds of
a failure are 2^g times as large. Signed rounds are computed for 2^40 tries (:data:`GRINDING_TRIES`), which is
an assumption on the server's work: clients set no deadline for their rosters. At a million graphs a second
and core, 2^40 take 13 days of one core.

*It can choose who is lost*, once it knows the graph. On a ring that is fatal: of 500 clients it calls those
lost that complete two runs of k/2 around a group (the corrupt ones among them need not be called lost), and
opens the sum of the group alone. So signed rounds have a ring only where k > C + D, so that no such runs
exist, and elsewhere a *spread* graph: h = k/2 independent cycles in random order, where every client is
joined to the one before and the one after it. Moreover, clients confirm a list of survivors only if each
survivor has t holders among them, itself included. Then the honest survivors are connected, whoever is lost,
except with the odds of the following. Suppose that they fall apart, and let S be the smaller side, which has
a clients.

- Each client of S has t - 1 holders besides itself among S and the corrupt clients, so t - a of its
  neighbors are corrupt. Reveal the neighbors of these clients one after the other. Each of the 2 h is one
  of at least n - 2 a others, and a new corrupt one with odds of at most (C - x) / (n - 2 a) after x others.
  If T(x) are the odds of x or more corrupt neighbors, all clients of S have t - a or more of them with odds
  of at most T(t - a)^a.
- All of S together has a (t - 1) holders in S and among the corrupt. Of the a k neighbors that are revealed
  one after the other, each is corrupt with odds of at most C / (n - 1 - 2 a), and counts once, or of S with
  odds of at most a / (n - 1 - 2 a), and counts for both ends: Chernoff's bound.
- No client of S is joined to the other side, which has s >= max(a, n - C - D - a) clients. In one cycle,
  reveal who follows each client of S: it is one of the other side with odds of at least s / (n - 1), every
  time. So no client of S is joined to the other side in any cycle with odds of at most
  (1 - s / (n - 1))^(a h). This is multiplied by the ways to choose who is lost: at most D of the n - C - a
  others.

The smallest of these bounds, times the ways to choose S, is added up over a. The first decides for the
smallest groups and the last for large ones, where it is far below 2^-80. (The Markov chain of the first also
gives the distributions of corrupt and of lost neighbors on a spread graph, where a neighbor
may be drawn twice, in place of the hypergeometric ones.)

Half of the odds are left to the witnesses (:mod:`fl_privquant.secagg.signed.witnesses`).

The smallest even k (but no less than 32, or the complete graph) for which some t meets both bounds
is chosen, and the smallest such t, which tolerates the most dropouts.

References: Bonawitz et al., Practical Secure Aggregation, CCS 2017; Bell et al., Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead, CCS 2020 (what a good graph is, and the Harary graph in
random order; here, two runs are counted in the second event).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fl_privquant import _validation
from fl_privquant.cohort import count_clients, count_corrupt_and_dropped
from fl_privquant.errors import InvalidSpecError
from fl_privquant.secagg._wire import FLAG, UINT32

MAX_SECURITY_FAILURE: Final = 2.0**-40
"""The largest odds that a round is not secure."""

MAX_CORRECTNESS_FAILURE: Final = 2.0**-20
"""The largest odds that a round in which no more are lost than assumed gives no sum."""

MAX_CLIENTS: Final = 1 << 20
"""Most clients of a round for which parameters are chosen."""

MIN_NEIGHBORS: Final = 32
"""The fewest neighbors on a sparse graph; up to 33 clients the graph is complete. Fewer would save little,
and the odds would rest on the fractions of corrupt and lost clients being exact."""

MAX_CYCLE_NEIGHBORS: Final = 1024
"""Most neighbors in a spread graph, so that a server cannot have clients draw costly ones. Rounds that need
more have a ring, or a complete graph."""

GRINDING_TRIES: Final = 2.0**40
"""The number of graphs that a lying server is assumed to try before it shows one to clients that sign."""

ROUNDING: Final = 1.0 + 1e-6
"""A factor that covers rounding errors: odds are sums of rounded terms, whose relative error is far less."""


# Exponents of Chernoff's bound, and sizes of groups for which a sharper one is computed.
_CHERNOFF: Final = np.linspace(0.25, 6.0, 24)
_SMALL: Final = 8


@dataclass(frozen=True)
class GraphParameters:
    """Neighbors of each client and the shares that open a secret, for a number of clients.

    ``spread`` graphs consist of ``num_neighbors / 2`` cycles, others of one ring; where cycles have an edge
    in common, clients have fewer neighbors.
    """

    num_clients: Annotated[int, UINT32]
    num_neighbors: Annotated[int, UINT32]
    threshold: Annotated[int, UINT32]
    spread: Annotated[bool, FLAG] = False

    def __post_init__(self) -> None:
        n, k, t = self.num_clients, self.num_neighbors, self.threshold
        if n < 2 or not 1 <= k <= n - 1 or (k < n - 1 and k % 2) or (k == n - 1 and self.spread):
            raise InvalidSpecError(
                "num_neighbors",
                k,
                f"for {n} clients, expected {n - 1} (complete, not spread) or an even number below",
            )
        if self.spread and k > MAX_CYCLE_NEIGHBORS:
            raise InvalidSpecError(
                "num_neighbors", k, f"in a spread graph, expected at most {MAX_CYCLE_NEIGHBORS}"
            )
        if not k + 1 < 2 * t <= 2 * (k + 1):
            raise InvalidSpecError(
                "threshold",
                t,
                f"of {k + 1} holders, expected more than half of them: fewer let a server that lies "
                "about dropouts open both secrets of a client",
            )


def needs_cycles(num_clients: int, num_neighbors: int, gone: int) -> bool:
    """Whether a signed round needs a spread graph, as whoever chooses the ``gone`` clients could cut a ring.

    >>> [needs_cycles(10_000, neighbors, gone=2000) for neighbors in (72, 1026, 2002)]
    [True, False, False]
    """
    return num_neighbors <= min(gone, MAX_CYCLE_NEIGHBORS, num_clients - 2)


@_validation.check_argument_types
@lru_cache(maxsize=256)
def choose_parameters(
    num_clients: int,
    *,
    corrupt_fraction: float = 0.1,
    dropout_fraction: float = 0.1,
    server_may_lie: bool = False,
    signed: bool = False,
) -> GraphParameters:
    """The fewest neighbors, and the threshold, that keep both odds of failure (see the module's docstring).

    ``server_may_lie`` also protects both secrets of a client on a sparse graph if the server tells clients
    different things about who was lost. ``signed`` rounds always do, and need a graph that the server can
    neither find by trying many nor cut by choosing who is lost.

    ``corrupt_fraction + dropout_fraction`` must stay below 1, and so must ``corrupt_fraction + 2 *
    dropout_fraction`` up to 33 clients and where the server may lie. At least two honest clients must be left
    in a sum: three clients cannot have one corrupt *and* one lost, so one of the two fractions must be 0
    there, and both for two clients.

    Parameters
    ----------
    num_clients
        Clients of the round.
    corrupt_fraction, dropout_fraction
        Shares of the clients that may be corrupt, and that may be lost.
    server_may_lie
        Whether the server may tell clients different things.
    signed
        Whether messages are signed with identity keys.

    Returns
    -------
    GraphParameters
        The size of the graph, and the threshold of its secret sharing.

    Raises
    ------
    InvalidSpecError
        There is no such graph.

    >>> choose_parameters(10)
    GraphParameters(num_clients=10, num_neighbors=9, threshold=6, spread=False)
    >>> choose_parameters(1000)
    GraphParameters(num_clients=1000, num_neighbors=44, threshold=26, spread=False)
    >>> choose_parameters(1000, server_may_lie=True)
    GraphParameters(num_clients=1000, num_neighbors=94, threshold=66, spread=False)
    >>> choose_parameters(1000, signed=True)
    GraphParameters(num_clients=1000, num_neighbors=202, threshold=136, spread=False)
    """
    _validation.check_integer("num_clients", num_clients, 2, MAX_CLIENTS)
    corrupt, lost = count_corrupt_and_dropped(num_clients, corrupt_fraction, dropout_fraction)
    if corrupt + lost <= num_clients - 2:
        for k in [*range(MIN_NEIGHBORS, num_clients - 1, 2), num_clients - 1]:
            spread = signed and needs_cycles(num_clients, k, corrupt + lost)
            thresholds = np.arange((k + 1) // 2 + 1, k + 2)
            correct = _correctness_failures(num_clients, k, thresholds, lost, spread)
            good = thresholds[correct <= MAX_CORRECTNESS_FAILURE / (2 if signed else 1)]
            cohort = _Cohort(num_clients, k, corrupt, lost, spread)
            good = good[_security_failures(cohort, good, server_may_lie, signed) <= MAX_SECURITY_FAILURE]
            if good.size:
                return GraphParameters(num_clients, k, int(good[0]), spread)
    raise InvalidSpecError(
        "num_clients",
        num_clients,
        f"clients, {corrupt} of them corrupt and {lost} lost: no threshold withstands both and "
        "leaves two honest clients in the sum",
        f"train with more clients, or lower corrupt_fraction ({corrupt_fraction}) or "
        f"dropout_fraction ({dropout_fraction}), each of which may be 0",
    )


@lru_cache(maxsize=256)
def security_failure(
    parameters: GraphParameters,
    *,
    corrupt_fraction: float,
    dropout_fraction: float,
    server_may_lie: bool = False,
    signed: bool = False,
) -> float:
    """An upper bound on the odds that a round with this graph is not secure; from 1 on it says nothing.

    For ``signed`` rounds this is twice the odds of the graph, after all tries: the other half is left to the
    witnesses.

    >>> graph = GraphParameters(num_clients=1000, num_neighbors=44, threshold=26)
    >>> odds = security_failure(graph, corrupt_fraction=0.1, dropout_fraction=0.1)
    >>> print(f"2^{math.log2(odds):.1f}")
    2^-43.3
    """
    n, k = parameters.num_clients, parameters.num_neighbors
    cohort = _Cohort(
        n, k, *count_corrupt_and_dropped(n, corrupt_fraction, dropout_fraction), parameters.spread
    )
    return float(_security_failures(cohort, np.array([parameters.threshold]), server_may_lie, signed)[0])


def decoding_failure(parameters: GraphParameters, corrupt_fraction: float, correctable: int) -> float:
    """An upper bound on the odds that corrupt holders keep an honest client's secret from being opened.

    All corrupt holders reveal wrong shares, of which ``correctable`` can be corrected.

    >>> [decoding_failure(choose_parameters(n), 0.1, correctable) for n, correctable in ((25, 5), (500, 41))]
    [0.0, 0.0]
    >>> 0.01 < decoding_failure(choose_parameters(500), 0.1, 7) < 0.1
    True
    """
    n, k = parameters.num_clients, parameters.num_neighbors
    corrupt = count_clients(corrupt_fraction, n)
    tail = _neighbors_tail(n, corrupt, k, parameters.spread)
    return min(float(tail[min(correctable, k) + 1]) * ROUNDING, 1.0)


class _Cohort(NamedTuple):
    """The numbers that the odds of a graph depend on, as the table of this module names them."""

    n: int
    k: int
    corrupt: int
    lost: int
    spread: bool


def _security_failures(
    cohort: _Cohort, thresholds: NDArray[np.int64], server_may_lie: bool, signed: bool
) -> NDArray[np.float64]:
    n, k, corrupt, lost, spread = cohort
    if corrupt + lost > n - 2:
        return np.ones(thresholds.shape)
    enough_corrupt = 2 * thresholds - k - 1 if server_may_lie or signed or k == n - 1 else thresholds
    failures = (n - corrupt) * _neighbors_tail(n, corrupt, k, spread)[enough_corrupt]
    if k == n - 1 or (k > corrupt + lost and not spread):
        apart: float | NDArray[np.float64] = 0.0
    elif spread:
        apart = _cut_off_odds(cohort, thresholds)
    else:
        apart = 1.0 if signed else _disconnection_odds(n, k, corrupt + lost)
    return np.asarray((failures + apart) * ROUNDING * (2.0 * GRINDING_TRIES if signed else 1.0))


def _cut_off_odds(cohort: _Cohort, thresholds: NDArray[np.int64]) -> NDArray[np.float64]:
    """The odds that some honest survivors of a spread graph are cut off, whoever is lost (see the module)."""
    n, k, corrupt, lost, _ = cohort
    honest = n - corrupt
    size = np.arange(1, honest // 2 + 1)
    left = np.maximum(size, honest - lost - size)
    others = honest - size
    who_is_lost = np.log(lost + 1) + _log_choose(others, np.minimum(lost, others // 2))
    no_edge = who_is_lost + k // 2 * size * np.log1p(-left / (n - 1))
    # Holders that the clients of S have in S and among the corrupt, in all: Chernoff's bound, with factors of
    # which each gives one. An edge within S counts for both of its ends.
    pool = np.maximum(n - 1 - 2 * size, 1)
    grow = np.exp(_CHERNOFF)[:, None]
    moments = np.log1p((grow - 1) * corrupt / pool + (grow**2 - 1) * size / pool)
    concentrated = np.min(k * moments[None] - np.multiply.outer(thresholds - 1, _CHERNOFF)[..., None], axis=1)
    bounds = np.minimum(no_edge, size * concentrated)
    for a in range(1, min(len(size), _SMALL) + 1):
        tail = _upper_tail(_distinct_neighbor_odds(n, corrupt, k, 2 * (a - 1)))[np.maximum(thresholds - a, 0)]
        bounds[:, a - 1] = np.minimum(bounds[:, a - 1], a * np.log(np.maximum(tail, 1e-300)))
    return np.asarray(np.exp(np.minimum(bounds + _log_choose(honest, size), 0.0)).sum(axis=1))


def _neighbors_tail(n: int, marked: int, k: int, spread: bool) -> NDArray[np.float64]:
    """(k + 2,) the odds that a client has at least 0, 1, ..., k + 1 marked neighbors."""
    return (
        _upper_tail(_distinct_neighbor_odds(n, marked, k))
        if spread
        else hypergeometric_tail(n - 1, marked, k)
    )


def _distinct_neighbor_odds(n: int, marked: int, k: int, revealed: int = 0) -> NDArray[np.float64]:
    """(k + 2,) the odds of exactly 0, 1, ..., k + 1 different marked neighbors in k / 2 cycles.

    ``revealed`` edges of each cycle are known already; then tails of these odds are upper bounds.
    """
    counts, odds = np.arange(k + 2), np.zeros(k + 2)
    odds[0] = 1.0
    for draw in range(k):
        # The second neighbor in a cycle is not the first one.
        new = odds * np.clip((marked - counts) / (n - 1 - draw % 2 - revealed), 0.0, 1.0)
        odds -= new
        odds[1:] += new[:-1]
    return odds


def _upper_tail(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The odds of each number or more, summed from the small ones upwards."""
    return np.asarray(np.cumsum(odds[::-1])[::-1])


def _disconnection_odds(n: int, k: int, gone: int) -> float:
    run = k // 2
    if k == n - 1 or gone < 2 * run:
        return 0.0
    j = np.arange(2 * run)
    return 0.5 * n * (n - 1) * math.exp(float(np.log((gone - j) / (n - j)).sum()))


def _correctness_failures(
    n: int, k: int, thresholds: NDArray[np.int64], lost: int, spread: bool
) -> NDArray[np.float64]:
    """The odds that a client has fewer holders left than the threshold, for any client."""

    def too_few(gone: int, holders: NDArray[np.int64]) -> NDArray[np.float64]:
        """The odds that fewer than these numbers of a client's neighbors are left."""
        if not spread:
            return hypergeometric_tail(n - 1, gone, k)[k + 1 - holders]
        return np.asarray(np.cumsum(_distinct_neighbor_odds(n, n - 1 - gone, k))[holders - 1])

    failures = (n - lost) * too_few(lost, thresholds - 1)
    if lost:
        failures = failures + lost * too_few(lost - 1, thresholds)
    return np.asarray(failures * ROUNDING)


def hypergeometric_tail(population: int, marked: int, drawn: int) -> NDArray[np.float64]:
    """(drawn + 2,) the odds that at least 0, 1, ..., drawn + 1 of those drawn are marked."""
    x = np.arange(max(0, drawn - (population - marked)), min(marked, drawn) + 1)
    odds = np.zeros(drawn + 2)
    odds[x] = np.exp(
        _log_choose(marked, x)
        + _log_choose(population - marked, drawn - x)
        - _log_choose(population, np.array(drawn))
    )
    return _upper_tail(odds)


def _log_choose(n: int | NDArray[np.int64], k: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
