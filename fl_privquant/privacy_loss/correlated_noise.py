r"""Noise that is correlated over rounds: what it costs a client, and the error of the models that it leaves.

A run of T rounds releases sums y_t = x_t + n_t. Each client takes part in rounds that are at least b apart.
The noise has **one lag**,

    n_t = z_t - beta z_(t-1) + w_t,      z_0 = 0,      0 <= beta < 1,

where z_t and w_t are independent and normal, of variance 1 and r in each coordinate. Noise that was added
in one round is mostly taken off again in the next. Models are sums of updates, so what counts is the error of
prefix sums y_1 + ... + y_t, in which z_s stays as (1 - beta) z_s for all s < t. The price is that y_(t+1)
tells something about x_t, too: a client's update keeps costing in later rounds.

**Adaptive releases.** Let S be the (T, T) covariance of n: S = L L' + r I, with L = I - beta (shift). Let
Delta_t be the change of x_t for two neighboring inputs, which may depend on everything released before. Given
the past, y_t is normal, and the two means differ by an amount that the past determines (the best linear
forecast of n_t from n_1, ..., n_(t-1) is the same for both). So T rounds are T adaptive Gaussian releases,
whose squared separations add up to

    Q = sum over i, j of (S^-1)_ij <Delta_i, Delta_j>.

If Q is at most q on every path, the run is dominated by one normal pair of separation sqrt(q): stop it, and
add an independent release of what is left (Denisov et al., "Improved Differential Privacy for SGD via Optimal
Private Linear Operators on Adaptive Streams", NeurIPS 2022; Smith, Thakurta, "Fully Adaptive Composition for
Gaussian Differential Privacy", 2022).

**The worst case.** S is tridiagonal, with -beta beside the diagonal, and positive definite: an M-matrix. So
all entries of S^-1 are nonnegative, Q is largest for equal Delta_t of the largest norm D in the rounds P of
the client, and Q <= D^2 F(P), F(P) = sum over i, j in P of (S^-1)_ij. *Earlier rounds are worse*: the
entries from round t on are those of the inverse of a chain that begins with the diagonal entry 1 + beta^2 + r
- (something at most beta^2), which is at least the 1 + r with which the run begins, and which is shorter.
Diagonal entries that grow make inverses of M-matrices smaller. *Rounds that are closer are worse*: beyond the
diagonal the entries of a row fall, v_(j+1) = v_j beta / (1 + beta^2 + r - beta p) with p <= 1. So the worst
rounds are 1, 1 + b, 1 + 2b, ..., as many as there are.

**Links that are cut.** Some of the noise is never taken off: a fraction f_t of z_t stays, because those who
were to subtract it are lost. Then S = sum over t of (1 - f_t) a_t a_t' + f_t e_t e_t' + r I, with a_t = e_t -
beta e_(t+1). It is the mean of the covariances S_C in which each link t is in the set C of cut links with
probability f_t, independently. The inverse is operator convex, so Q <= the mean of the Q of S_C. S_C falls
into chains that each begin anew, so its Q is at most D^2 times the sum over chains of F(m), where m is the
number of the client's rounds in a chain and F(m) is for the first m worst rounds. With

    g = max over m of F(m) / m,

Q <= D^2 g k for k rounds, *whatever links are cut*, chosen by whatever was released. So g D^2 is what one
participation costs, whenever it is, and the accounting of a run adds up the participations of a client. Note
that a cut can cost privacy: where r > 0 the first round of a chain has less noise than the later ones, F(1) >
F(k) / k (with beta = .99 and r = .1, 1.46 times). Without w, F(m) / m grows, but for the last rounds, whose
effect ends with the run (less than .2 %), so that g = F(k) / k nearly.

**More noise than is counted** only helps: it can be told to the adversary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final

import numpy as np
from scipy.linalg import solveh_banded

from fl_privquant import _validation
from fl_privquant._array_types import Floats
from fl_privquant.errors import MISSING, InvalidSpecError

MAX_ROUNDS: Final = 10_000
"""The longest run that correlated noise is planned for."""

CORRELATION_STEPS: Final = 64
"""Correlations are multiples of 1 / 64, so that a client takes noise off in whole numbers."""

# Rows of a workload are held in memory.
_MAX_WORKLOAD = 4_000
# Covers the rounding of the linear systems, whose condition is at most 4 / (1 - beta)^2 <= 2e4.
_FLOAT_ROOM = 1.0 + 1e-9


@dataclass(frozen=True)
class Workload:
    """How each model depends on the mean updates of all rounds; without arguments it is their sum.

    Parameters
    ----------
    momentum
        The server's step in round t is v_t = momentum v_(t-1) + y_t, times the learning rate of that round.
    learning_rates
        The server's learning rate in each round; None for 1 in all of them.

    >>> Workload(momentum=0.5).matrix(3)
    array([[1.  , 0.  , 0.  ],
           [1.5 , 1.  , 0.  ],
           [1.75, 1.5 , 1.  ]])
    """

    momentum: float = 0.0
    learning_rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _validation.check_in_interval("momentum", self.momentum, "[0, 1)")
        for rate in self.learning_rates or ():
            _validation.check_number("learning_rates", rate)

    def matrix(self, rounds: int) -> Floats:
        """(rounds, rounds) what each model has of the mean update of each round.

        Raises
        ------
        InvalidSpecError
            There are too many rounds, or another number of learning rates.
        """
        if rounds > _MAX_WORKLOAD:
            raise InvalidSpecError("rounds", rounds, f"is above {_MAX_WORKLOAD}, the most with a workload")
        rates = np.ones(rounds) if self.learning_rates is None else np.asarray(self.learning_rates)
        if rates.shape != (rounds,):
            raise InvalidSpecError(
                "learning_rates", MISSING, f"there are {rates.size} for {rounds} rounds", "give one a round"
            )
        ages = np.subtract.outer(np.arange(rounds), np.arange(rounds))
        steps = np.where(ages >= 0, self.momentum ** np.maximum(ages, 0.0), 0.0)
        return np.asarray(np.cumsum(rates[:, None] * steps, axis=0))


PREFIX_SUMS: Final = Workload()
"""Models that are the sums of mean updates."""


@dataclass(frozen=True)
class RoundSchedule:
    """The rounds of a run, how far apart a client's rounds are at least, and how models are made of updates.

    >>> RoundSchedule(rounds=100, rounds_apart=10).max_participations
    10
    """

    rounds: Annotated[int, _validation.integer_between(1, MAX_ROUNDS)]
    rounds_apart: Annotated[int, _validation.integer_between(1, MAX_ROUNDS)]
    workload: Workload = PREFIX_SUMS

    def __post_init__(self) -> None:
        _validation.check_declared(self)
        # Refuses a workload of another number of rounds.
        _ = self.workload_moments

    @property
    def max_participations(self) -> int:
        """The most rounds that a client can take part in."""
        return math.ceil(self.rounds / self.rounds_apart)

    @cached_property
    def workload_moments(self) -> tuple[float, float, float]:
        """Mean squared norms of the workload's rows, of what they have of the last round, and their product.

        Models have noise z_t - beta z_(t-1) by the workload W, that is, z_t by W less beta times W with its
        columns moved by one. These three numbers give its variance for every beta.
        """
        if self.workload == PREFIX_SUMS:
            middle = 0.5 * (self.rounds + 1)
            return middle, middle - 1.0, middle - 1.0
        matrix = self.workload.matrix(self.rounds)
        moved = matrix[:, 1:]
        products = (matrix, matrix), (moved, moved), (matrix[:, :-1], moved)
        first, second, third = (float((a * b).sum()) / self.rounds for a, b in products)
        return first, second, third


@dataclass(frozen=True)
class LagNoise:
    """Noise z_t - ``correlation`` z_(t-1) + w_t, with variance 1 of z and ``private`` of w.

    >>> noise = LagNoise(0.8)
    >>> round(noise.participation_cost(RoundSchedule(100, 10)), 3)
    3.367
    """

    correlation: float
    """The share of a round's noise that the next round takes off, in [0, 1)."""
    private: float = 0.0
    """Variance of the noise that no round takes off, in units of that of z."""

    def __post_init__(self) -> None:
        _validation.check_in_interval("correlation", self.correlation, "[0, 1)")
        _validation.check_in_interval("private", self.private, "[0, inf)")

    def covariance(self, rounds: int) -> Floats:
        """(rounds, rounds) the covariance S of the noise of all rounds, if no link is cut."""
        lag = np.eye(rounds) - self.correlation * np.eye(rounds, k=-1)
        return np.asarray(lag @ lag.T + self.private * np.eye(rounds))

    def squared_sensitivities(self, schedule: RoundSchedule) -> Floats:
        """(k,) F(1), ..., F(k): the worst squared distance of one to k participations, in deviations of z.

        They are for updates that change by 1 at most, and no cut link.
        """
        rounds = np.arange(0, schedule.rounds, schedule.rounds_apart)
        bands = np.empty((2, schedule.rounds))
        bands[0] = -self.correlation
        bands[1] = 1.0 + self.correlation**2 + self.private
        bands[1, 0] = 1.0 + self.private
        units = np.zeros((schedule.rounds, rounds.size))
        units[rounds, np.arange(rounds.size)] = 1.0
        # A run of one round has no band beside the diagonal.
        inverse = solveh_banded(bands[-schedule.rounds :], units)[rounds]
        return np.asarray(np.diagonal(inverse.cumsum(axis=0).cumsum(axis=1)) * _FLOAT_ROOM)

    def participation_cost(self, schedule: RoundSchedule) -> float:
        """The g of the module: the squared distance of a participation at most, whatever links are cut."""
        costs = self.squared_sensitivities(schedule)
        return float((costs / np.arange(1, costs.size + 1)).max())

    def model_variance(self, schedule: RoundSchedule, lost: float = 0.0, opened: float = 0.0) -> float:
        """The mean variance of a coordinate of the models of all rounds.

        ``lost`` is the fraction of noise that stays, and ``opened`` the fraction that the server takes off
        whole in the next round, because it is told that noise.
        """
        whole, moved, product = schedule.workload_moments

        def linked(correlation: float) -> float:
            return whole - 2.0 * correlation * product + correlation**2 * moved

        taken_off = (1.0 - lost - opened) * linked(self.correlation) + opened * linked(1.0)
        return taken_off + (lost + self.private) * whole


def error_ratio(
    schedule: RoundSchedule,
    noise: LagNoise,
    *,
    not_counted: float = 0.0,
    lost: float = 0.0,
    opened: float = 0.0,
) -> float:
    """The mean squared error of models over that with independent noise, for the same privacy loss.

    Parameters
    ----------
    schedule, noise
        The run, with its workload, and its noise.
    not_counted
        Variance of further noise that is fresh in each round and does not count for privacy, in units of that
        of z: rounding errors.
    lost, opened
        The fractions of noise that stay, and that the server is told and takes off in the next round.

    >>> schedule = RoundSchedule(rounds=100, rounds_apart=10)
    >>> round(error_ratio(schedule, LagNoise(0.8)), 3)
    0.199
    """
    added = LagNoise(noise.correlation, noise.private + not_counted)
    variance = added.model_variance(schedule, lost, opened)
    # Independent noise costs 1 for each participation.
    return noise.participation_cost(schedule) * variance / schedule.workload_moments[0]


def find_correlation(
    schedule: RoundSchedule,
    *,
    private: float = 0.0,
    not_counted: float = 0.0,
    lost: float = 0.0,
    opened: float = 0.0,
) -> float:
    """The correlation, a multiple of 1 / 64, with the least :func:`error_ratio`; 0 where none gains.

    Parameters
    ----------
    schedule
        The rounds, how far apart a client takes part, and the workload.
    private, not_counted
        Variances of noise that is fresh in each round, over that of the noise that is handed over: what
        counts for privacy, and what does not.
    lost, opened
        Shares of handed noise that is not taken off: as its client is lost, or that the server takes off.

    Returns
    -------
    float
        The correlation.

    >>> find_correlation(RoundSchedule(100, 10)), find_correlation(RoundSchedule(100, 1))
    (0.796875, 0.0)
    """

    def error(correlation: float) -> float:
        noise = LagNoise(correlation, private)
        return error_ratio(schedule, noise, not_counted=not_counted, lost=lost, opened=opened)

    if schedule.rounds_apart == 1:
        return 0.0
    return min((step / CORRELATION_STEPS for step in range(CORRELATION_STEPS)), key=error)
