r"""Rounded shares whose noise is handed over: what a participation costs in a secure sum of correlated noise.

In round t client i sends m = R(x + z_(t,i) - beta z_(t-1,j) + w_(t,i)). It draws z_(t,i) ~ N(0, s^2) from a
seed, which it hands over to one client of the next round; that client takes beta z_(t,i) off. The *private
noise* w_(t,i) ~ N(0, s0^2) is never handed over. (All lengths are in units of the lattice's spacing, R(v) =
floor(v + 1/2), and the server sees the sum of m modulo a power of two.)

**What the server's sum tells.** Take all handed noise as given, that of every round. What is left in a code
is w, so the lemma of :mod:`fl_privquant.privacy_loss.additive.rounded_gaussian` applies to each round with
the inputs a = x + z - beta z' and eta(s0): the opened sum is, up to its factors, a post-processing of

    U_t = sum of x + Z_t - beta Z_(t-1) + W_t,

whatever was exposed, lost or relayed. Without w this would be false: a client whose seed is exposed has no
secret noise left, so its rounding would depend on its data. All T rounds together give the factor ((1 + eta)
/ (1 - eta))^(d T). Then U is the Gaussian mechanism of :mod:`fl_privquant.privacy_loss.correlated_noise` with
the noise of those clients of whom the adversary knows none:

* *Corrupt receivers* learn the seeds that they are handed, and corrupt senders know their own. A round's z
  counts for the survivors that are honest and whose receiver is honest: h - (corrupt clients of the next
  round) at least, where h is the number of honest survivors.
* *Lost receivers* take nothing off, and what they received is deleted. Left alone, the noise of a tenth of
  the clients would stay in the model, more than all noise that is taken off leaves. So when the sum of the
  next round is open, their senders tell the server their seeds, at most as many as clients may be lost, and
  the server takes that noise off whole. It no longer counts. Where the sender is gone as well, or the round
  was not opened, its z counts, with a cut link. The cost holds whatever links are cut.
* *Lost senders* are not in their sum. Nothing of theirs is taken off in the next round (the server says who
  survived), and their seeds are for noise that nobody added.
* W counts for all h honest survivors. Its variance is in units of that of Z, and as the server may choose
  whose seeds it routes to whom, only numbers of clients are used: any h' of the z of a round may count.

*Seeds that are told later*, when sums are known, tell no more than if they had been told before. All z of a
round that nobody knows are in its sum with the same weight. So given all sums until then, they are
exchangeable, whatever the inputs are, and those that are told have the joint distribution of any others, as
many, that were fixed in advance. Who is lost may therefore depend on all releases. It must not depend on the
z that nobody but the sender and an honest receiver knows, and does not: both are lost without regard to it.

A server that lies about survivors, or routes a seed twice, makes noise of one round be taken off twice or
left in, which changes beta for single links: this is not covered. Nor are rounds with fewer honest survivors
than counted, which must not be opened, as their noise protects other rounds, too.

**In integers.** z is 2^10 a + b fine points, a discrete Gaussian up to factors of 1 ± 1e-33 (step 2 there). A
client takes off floor((p z + 32) / 64) fine points, with beta = p / 64. That is beta z plus an error that
only depends on z modulo 64. Tell the adversary all z modulo 64, which depend on no data: the errors are then
known numbers, and z is a discrete Gaussian on a lattice of 64 points. With w, whose kernel of step 3 acts as
before, the noise of a whole run is normal up to a factor. Use Poisson's formula for all its N = n d T numbers
z at once: given the sums with w, their covariance is at least 1 / (1 / s^2 + 4 / s0^2) spacings^2, that is,
every deviation is at least 8000 times 64 fine points for s and s0 of 1.1 or more, and the factor is within 1
± N exp(-10^9).

**Tables.** Each of the 2 h d T draws of a run is within the total variation distance of its tables of the
ideal ones. This is charged as there, for each participation, with the draws of the whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fl_privquant.privacy_loss.additive.rounded_gaussian import RoundedShares
from fl_privquant.privacy_loss.closed_forms import NormalLoss, gaussian_loss
from fl_privquant.privacy_loss.correlated_noise import LagNoise, RoundSchedule

# Runs whose logarithm of the ratio exceeds this are not certified.
_MAX_RATIO = 30.0


@dataclass(frozen=True)
class CorrelatedShares:
    """Secure sums of codes with handed noise, in rounds that all have at least these numbers of clients."""

    schedule: RoundSchedule
    correlation: float
    num_honest: int
    """Honest survivors of each round."""
    num_exposed: int
    """Those of them whose seed is handed to a corrupt client or told to the server, at most."""
    deviation: float
    """Standard deviation s of handed noise that proofs count on, in spacings."""
    private_deviation: float
    """The same s0 of private noise."""
    table_distance: float = 0.0
    """Total variation distance of the two draws of a coordinate to the ideal noise."""

    @property
    def num_hidden(self) -> int:
        """Clients of a round whose handed noise nobody but honest clients knows."""
        return self.num_honest - self.num_exposed

    @cached_property
    def noise(self) -> LagNoise:
        """The noise of the sum that is counted, in units of the handed noise."""
        private = self.num_honest * self.private_deviation**2 / (self.num_hidden * self.deviation**2)
        return LagNoise(self.correlation, private)

    @cached_property
    def sensitivity(self) -> float:
        """Separation of one participation for an update that moves by one spacing."""
        cost = self.noise.participation_cost(self.schedule)
        return float((cost / self.num_hidden) ** 0.5) / self.deviation

    def log_ratio(self, dimension: int) -> float:
        """Logarithm of the factor by which a run may differ from a post-processing of normal noise."""
        return self._rounding.log_ratio * dimension * self.schedule.rounds

    def pairs(self, distance: float, dimension: int) -> list[NormalLoss]:
        """The bound for one participation of an update that moves by ``distance`` spacings at most.

        Empty where nothing is certified.
        """
        if self.num_hidden < 1:
            return []
        ratio = self.log_ratio(dimension)
        if ratio > _MAX_RATIO:
            return []
        separation = distance * self.sensitivity
        charge = self._rounding.charge(separation, dimension, ratio)
        return [gaussian_loss(separation, charge, ratio)] if charge < 1.0 else []

    @property
    def _rounding(self) -> RoundedShares:
        """The rounding of a round, which private noise hides; its tables are charged for all rounds."""
        distance = self.schedule.rounds * self.table_distance
        return RoundedShares(self.num_honest, self.private_deviation, distance)
