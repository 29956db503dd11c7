"""How many neighbours a client needs, and how many shares open a secret: computed, not guessed.

=========  ==================================================================================
symbol     meaning
=========  ==================================================================================
n          clients of the round
C          of them corrupt, at most: corrupt_fraction * n, rounded up; they hand all they know to
           the server
D          of them lost after keys were advertised, at most: dropout_fraction * n, rounded up
k          neighbours of each client; its secrets have k + 1 holders: these, and itself
t          threshold: shares that open a secret
HG(N,M,k)  hypergeometric: marked ones among k drawn from N of which M are marked
=========  ==================================================================================

The graph is a ring in random order where each client is joined to the k/2 nearest on either side
(a Harary graph, Bell et al. 2020), or complete. So the neighbours of a client are a uniform set of
k among the n - 1 others, whoever is corrupt or lost, as long as that does not depend on the order.

**Security fails** if one of these happens:

1. *A secret pair is opened.* The server must never hold both the self-mask seed and the wrapping
   seed of an honest client, with t shares each. Honest holders give it shares of one of the two, corrupt
   holders of both. So with X corrupt neighbours it has X shares of the other one, and X < t
   suffices. X is HG(n - 1, C, k); union over the n - C honest clients:

       (n - C) P[X >= t].

   A server that *lies* could tell some holders that the client lives and others that it is lost. It
   then gets at most (k + 1 - X) + 2 X shares in all, so that 2 t > k + 1 + X is needed:

       (n - C) P[X >= 2 t - k - 1].

   This is what is computed for a complete graph, where it costs nothing, and on request
   (``server_may_lie``). On a sparse graph it takes about twice as many neighbours (94 instead of 44 for
   1000 clients). Signed rounds do without: there clients confirm the list of survivors to one another
   before they unmask, so that no two of them act on different lists.

2. *The honest survivors fall apart* into two groups with no edge between them: then each group's
   sum could be told apart. R = C + D clients are gone from the ring, in the worst case. Each of the
   two borders between the groups is a run of at least h = k/2 neighbours on the ring that are all
   gone, as a shorter run is bridged by an edge. The two runs are disjoint: union over where they
   start, with 2 h given clients all among the R:

       n (n - 1) / 2 * product over j < 2 h of (R - j) / (n - j).

   A complete graph never falls apart.

**Correctness fails** if some secret has fewer than t holders left. A lost client has k holders
besides itself, of which HG(n - 1, D - 1, k) are lost; another has k + 1, and HG(n - 1, D, k):

       D P[HG(n - 1, D - 1, k) > k - t]  +  (n - D) P[HG(n - 1, D, k) > k + 1 - t].

**Grinding.** The order on the ring follows from a hash over all advertised keys, so a server that lies
cannot choose it. But it can *try*: let its corrupt clients draw other keys, or leave somebody out, until
it likes the graph. After 2^g tries the odds of a failure are 2^g times as large. Signed rounds, where a
server may lie, are therefore computed for 2^40 tries (``tries``, :data:`GRINDING_TRIES`), which takes 62
neighbours instead of 44 for 1000 clients. All of them must happen while clients wait for their rosters: at
a million graphs a second and core, 2^40 within ten minutes take some 1800 cores. Up to 150 clients with
the fractions at their defaults grinding gains nothing: 32 neighbours are more than C + D, and t more than C,
so that every graph is good.

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
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fl_privquant.cohort import checked_fraction, count_of
from fl_privquant.errors import InvalidSpecError

MIN_NEIGHBORS: Final = 32
"""Fewer save little and rest on the exact fractions; up to this the graph is complete."""

GRINDING_TRIES: Final = 2.0**40
"""Graphs that a server that lies is taken to try before it shows one to clients that sign."""

# The tails are sums of rounded terms; their relative error stays far below this.
_ROUNDING: Final = 1.0 + 1e-6


@dataclass(frozen=True)
class GraphParameters:
    """Neighbours of each client and the shares that open a secret, for a number of clients."""

    num_clients: int
    num_neighbors: int
    threshold: int

    def __post_init__(self) -> None:
        n, k, t = self.num_clients, self.num_neighbors, self.threshold
        if n < 2 or not 1 <= k <= n - 1 or (k < n - 1 and k % 2):
            raise InvalidSpecError(
                f"num_neighbors: {k} for {n} clients, expected {n - 1} (complete) or an even number below"
            )
        if not k + 1 < 2 * t <= 2 * (k + 1):
            raise InvalidSpecError(
                f"threshold: {t} of {k + 1} holders, expected more than half of them: fewer let a server "
                f"that lies about dropouts open both secrets of a client"
            )

    @property
    def num_holders(self) -> int:
        """Clients that hold a share of a client's secrets: its neighbours and itself."""
        return self.num_neighbors + 1


@lru_cache(maxsize=256)
def choose_parameters(
    num_clients: int,
    *,
    corrupt_fraction: float = 0.1,
    dropout_fraction: float = 0.1,
    max_security_failure: float = 2.0**-40,
    max_correctness_failure: float = 2.0**-20,
    server_may_lie: bool = False,
    tries: float = 1.0,
) -> GraphParameters:
    """The fewest neighbours, and the threshold, that keep both odds of failure (see the module).

    ``server_may_lie`` keeps a client's secrets apart on a sparse graph too if the server tells clients
    different things about who was lost. ``tries`` is how many graphs the server may draw before it shows one.

    Raises InvalidSpecError where no graph does; roughly, corrupt_fraction + dropout_fraction must stay
    below 1, or corrupt_fraction + 2 * dropout_fraction up to 33 clients and for a server that may lie. At
    least two honest clients must be left in a sum: three clients cannot have one corrupt *and* one lost, so
    one of the two fractions must be 0 there, and both for two clients.

    >>> choose_parameters(10)
    GraphParameters(num_clients=10, num_neighbors=9, threshold=6)
    >>> choose_parameters(1000)
    GraphParameters(num_clients=1000, num_neighbors=44, threshold=26)
    >>> choose_parameters(1000, server_may_lie=True)
    GraphParameters(num_clients=1000, num_neighbors=94, threshold=66)
    >>> choose_parameters(1000, tries=GRINDING_TRIES)
    GraphParameters(num_clients=1000, num_neighbors=62, threshold=40)
    """
    if num_clients < 2:
        raise InvalidSpecError(f"num_clients: {num_clients}, expected 2 or more")
    corrupt = _count(num_clients, corrupt_fraction, "corrupt_fraction")
    lost = _count(num_clients, dropout_fraction, "dropout_fraction")
    for name, odds in (
        ("max_security_failure", max_security_failure),
        ("max_correctness_failure", max_correctness_failure),
    ):
        if not 0.0 < odds < 1.0:
            raise InvalidSpecError(f"{name}: {odds}, expected odds between 0 and 1")
    if corrupt + lost <= num_clients - 2:
        for k in [*range(MIN_NEIGHBORS, num_clients - 1, 2), num_clients - 1]:
            thresholds = np.arange((k + 1) // 2 + 1, k + 2)
            failures = _security_failures(num_clients, k, thresholds, corrupt, lost, server_may_lie)
            secure = tries * failures <= max_security_failure
            correct = _correctness_failures(num_clients, k, thresholds, lost) <= max_correctness_failure
            good = thresholds[secure & correct]
            if good.size:
                return GraphParameters(num_clients, k, int(good[0]))
    raise InvalidSpecError(
        f"{num_clients} clients, {corrupt} of them corrupt and {lost} lost: no threshold withstands both and "
        f"leaves two honest clients in the sum; train with more clients, or lower corrupt_fraction "
        f"({corrupt_fraction}) or dropout_fraction ({dropout_fraction}), each of which may be 0"
    )


@lru_cache(maxsize=256)
def security_failure(
    parameters: GraphParameters,
    *,
    corrupt_fraction: float,
    dropout_fraction: float,
    server_may_lie: bool = False,
    tries: float = 1.0,
) -> float:
    """Bound on the odds that a round of this graph is not secure; 1 or more says nothing.

    >>> graph = GraphParameters(num_clients=1000, num_neighbors=44, threshold=26)
    >>> for tries in (1.0, GRINDING_TRIES):
    ...     odds = security_failure(graph, corrupt_fraction=0.1, dropout_fraction=0.1, tries=tries)
    ...     print(f"2^{math.log2(odds):.1f}")
    2^-43.3
    2^-3.3
    """
    n = parameters.num_clients
    corrupt = _count(n, corrupt_fraction, "corrupt_fraction")
    lost = _count(n, dropout_fraction, "dropout_fraction")
    thresholds = np.array([parameters.threshold])
    failures = _security_failures(n, parameters.num_neighbors, thresholds, corrupt, lost, server_may_lie)
    return tries * float(failures[0])


def correctness_failure(parameters: GraphParameters, *, dropout_fraction: float) -> float:
    """Bound on the odds that a round of this graph ends without a sum; 1 or more says nothing."""
    n = parameters.num_clients
    lost = _count(n, dropout_fraction, "dropout_fraction")
    thresholds = np.array([parameters.threshold])
    return float(_correctness_failures(n, parameters.num_neighbors, thresholds, lost)[0])


def _count(num_clients: int, fraction: float, name: str) -> int:
    return count_of(checked_fraction(name, fraction), num_clients)


def _security_failures(
    n: int, k: int, thresholds: NDArray[np.int64], corrupt: int, lost: int, server_may_lie: bool
) -> NDArray[np.float64]:
    if corrupt + lost > n - 2:
        return np.ones(thresholds.shape)
    enough_corrupt = 2 * thresholds - k - 1 if server_may_lie or k == n - 1 else thresholds
    opened = (n - corrupt) * _tail(n - 1, corrupt, k)[enough_corrupt]
    return np.asarray((opened + _falls_apart(n, k, corrupt + lost)) * _ROUNDING)


def _falls_apart(n: int, k: int, gone: int) -> float:
    run = k // 2
    if k == n - 1 or gone < 2 * run:
        return 0.0
    j = np.arange(2 * run)
    return 0.5 * n * (n - 1) * math.exp(float(np.log((gone - j) / (n - j)).sum()))


def _correctness_failures(n: int, k: int, thresholds: NDArray[np.int64], lost: int) -> NDArray[np.float64]:
    failures = (n - lost) * _tail(n - 1, lost, k)[k + 2 - thresholds]
    if lost:
        failures = failures + lost * _tail(n - 1, lost - 1, k)[k + 1 - thresholds]
    return np.asarray(failures * _ROUNDING)


def _tail(population: int, marked: int, drawn: int) -> NDArray[np.float64]:
    """(drawn + 2,) the odds that at least 0, 1, ..., drawn + 1 of those drawn are marked."""
    x = np.arange(max(0, drawn - (population - marked)), min(marked, drawn) + 1)
    odds = np.zeros(drawn + 2)
    odds[x] = np.exp(
        _log_choose(marked, x)
        + _log_choose(population - marked, drawn - x)
        - _log_choose(population, np.array(drawn))
    )
    return np.asarray(np.cumsum(odds[::-1])[::-1])


def _log_choose(n: int, k: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
