"""Amplification by sampling: against exact enumeration, dp_accounting's figures, and wrong theorems."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from dp_accounting.pld import privacy_loss_distribution as pld

from fl_privquant._array_types import Floats
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta, gaussian_epsilon
from fl_privquant.privacy_loss.amplification import Curve, curve_of, subsampled_loss
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from tests.exact import hockey_stick

DELTA = 1e-5
ENDS = (0.3, 0.7)


def normal_curve(separation: float) -> Curve:
    curve = curve_of(lambda delta: gaussian_epsilon(separation, delta), math.inf, 160)
    assert curve is not None
    return curve


@pytest.mark.parametrize(
    ("separation", "rate", "rounds"), [(1.0, 0.1, 1), (1.0, 0.1, 100), (0.3, 0.01, 500), (3.0, 0.2, 5)]
)
def test_between_a_pair_that_occurs_and_the_renyi_theorem_for_replaced_clients(
    separation: float, rate: float, rounds: int
) -> None:
    """If all others and the replacement send 0, what is shown is dp_accounting's pair for a removed record.

    Its epsilon is therefore a lower bound of the truth. The bound of Wang, Balle and Kasiviswanathan for
    samples without replacement and replaced records is an upper bound, by moments and so larger.
    """
    loss = subsampled_loss(normal_curve(separation), rate)
    ours = compose_epsilon([Part(loss, rounds)], DELTA).epsilon
    occurs = pld.from_gaussian_mechanism(
        1.0 / separation, sampling_prob=rate, value_discretization_interval=1e-3
    ).self_compose(rounds)
    # Rounded down by what a pessimistic grid of that step can add.
    lower = occurs.get_epsilon_for_delta(DELTA) - 1e-3 * math.sqrt(rounds) - 1e-3
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    sampled = dp_event.SampledWithoutReplacementDpEvent(
        1000, round(1000 * rate), dp_event.GaussianDpEvent(1.0 / separation)
    )
    upper = accountant.compose(sampled, rounds).get_epsilon(DELTA)
    assert lower <= ours <= upper
    assert ours < gaussian_epsilon(separation * math.sqrt(rounds), DELTA)
    # Negative control: the epsilon of a round times the rate is what sampling does not give.
    naive = rate * compose_epsilon([Part(subsampled_loss(normal_curve(separation), 1.0), 1)], DELTA).epsilon
    assert rounds > 1 or naive < lower


def test_a_single_round_is_exact_where_all_others_send_nothing() -> None:
    loss, rate = subsampled_loss(normal_curve(1.0), 0.1), 0.1
    for epsilon in (0.0, 0.05, 0.3, 1.0, 3.0):
        whole = math.log1p(math.expm1(epsilon) / rate)
        exact = rate * gaussian_delta(1.0, whole)
        assert exact <= loss.delta(epsilon) <= exact * 1.02 + 1e-12


def bits_sum(bits: tuple[float, ...]) -> Floats:
    """The distribution of a sum of independent bits, by their probabilities of 1."""
    distribution = np.ones(1)
    for bit in bits:
        distribution = np.convolve(distribution, [1.0 - bit, bit])
    return distribution


def bits_curve(drawn: int) -> Curve:
    """The worst pair of sums over so many clients whose bits are 1 with one of the two probabilities."""
    epsilons = np.linspace(0.0, math.log(7.0 / 3.0), 60)

    def worst(epsilon: float) -> float:
        return max(
            hockey_stick(bits_sum((first, *others)), bits_sum((second, *others)), epsilon)
            for first, second in itertools.permutations(ENDS)
            for others in itertools.combinations_with_replacement(ENDS, drawn - 1)
        )

    return epsilons, np.array([*map(worst, epsilons[:-1]), 0.0])


def shown(updates: tuple[float, ...], drawn: int) -> Floats:
    """The distribution of the sum over a uniform choice of so many clients."""
    distributions = [bits_sum(chosen) for chosen in itertools.combinations(updates, drawn)]
    return np.asarray(np.mean(distributions, axis=0))


@pytest.mark.parametrize("drawn", [1, 2, 3])
def test_every_federation_of_four_clients(drawn: int) -> None:
    """Codes are bits, 0.3 or 0.7 likely to be 1. The base is the worst pair of sums of that many clients."""
    bounds = {rate: subsampled_loss(bits_curve(drawn), rate) for rate in (drawn / 4.0, drawn / 8.0)}
    worst = dict.fromkeys(bounds, 0.0)
    for others in itertools.combinations_with_replacement(ENDS, 3):
        for first, second in itertools.permutations(ENDS):
            pair = shown((first, *others), drawn), shown((second, *others), drawn)
            for epsilon in np.linspace(0.0, 1.0, 21):
                exact = hockey_stick(*pair, epsilon)
                for rate, bound in bounds.items():
                    worst[rate] = max(worst[rate], exact - bound.delta(epsilon))
    assert worst[drawn / 4.0] <= 1e-12
    # Negative control: half the rate is refuted, so these federations do test the theorem.
    assert worst[drawn / 8.0] > 1e-3


def test_corrupt_clients_must_not_count_as_ones_that_could_have_been_drawn() -> None:
    """Two of four clients tell the onlooker that they were not drawn: then both others were, for sure."""
    curve = bits_curve(2)
    exact = hockey_stick(bits_sum((0.7, 0.3)), bits_sum((0.3, 0.3)), 0.3)
    assert exact > subsampled_loss(curve, 2 / 4).delta(0.3)
    assert exact <= subsampled_loss(curve, 2 / 2).delta(0.3) * (1.0 + 1e-9)


def test_a_client_that_tips_the_number_over_is_known_to_have_taken_part() -> None:
    """Why Poisson sampling is counted by the number drawn: a round of two or more is shown, of three clients.

    The textbook rate, the probability of being drawn, is refuted once the rule looks at the number.
    """
    probability, epsilon = 0.2, 0.5
    distributions: dict[float, list[Floats]] = {0.3: [], 0.7: []}
    for update, outcomes in distributions.items():
        # With one other drawn the client's own draw decides; the number drawn is shown too.
        outcomes += [probability * bits_sum((update, 0.3)), np.array([1.0 - probability])]
    given_one_other = hockey_stick(
        np.concatenate(distributions[0.7]), np.concatenate(distributions[0.3]), epsilon
    )
    assert given_one_other > subsampled_loss(bits_curve(2), probability).delta(epsilon)
    # By the number drawn: given that two were, and one of them is the other one, both are known.
    assert given_one_other <= subsampled_loss(bits_curve(2), 1.0).delta(epsilon)


def two_rounds(clients: tuple[tuple[float, float, float], ...]) -> Floats:
    """Two sums of two clients each: updates in round 1, in round 2 without it, and after it."""
    drawn = list(itertools.combinations(range(len(clients)), 2))
    distributions = [
        np.outer(
            bits_sum(tuple(clients[client][0] for client in first)),
            bits_sum(tuple(clients[client][1 + (client in first)] for client in second)),
        )
        for first, second in itertools.product(drawn, repeat=2)
    ]
    return np.asarray(np.mean(distributions, axis=0)).ravel()


@pytest.mark.parametrize("keeps", [False, True])
def test_clients_that_keep_what_they_took_part_in_refute_the_bound(keeps: bool) -> None:
    """Three clients, two of whom are drawn in each round: later updates tell who was drawn before."""
    delta = 1e-4
    bound = compose_epsilon([Part(subsampled_loss(bits_curve(2), 2 / 3), 2)], delta).epsilon
    kinds = [kind for kind in itertools.product(ENDS, repeat=3) if keeps or kind[1] == kind[2]]
    worst = 0.0
    for others in itertools.combinations_with_replacement(kinds, 2):
        distributions = [two_rounds((kind, *others)) for kind in kinds]
        worst = max(worst, *(hockey_stick(*pair, bound) for pair in itertools.permutations(distributions, 2)))
    assert (worst > 2.0 * delta) == keeps
    assert (worst <= delta) == (not keeps)


def test_what_is_too_large_to_help_has_no_curve() -> None:
    assert curve_of(lambda delta: 600.0, math.inf, 10) is None
    assert curve_of(lambda delta: math.inf, math.inf, 10) is None
