"""Stratified bits: the law of what is drawn, less error than binomial bits, privacy, forgery, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import fl_privquant as pq
from fl_privquant.accounting.accountant import Accountant
from fl_privquant.accounting.release import Release
from fl_privquant.errors import CertificationError, InvalidUpdateError
from fl_privquant.law.table import TOTAL_WEIGHT
from fl_privquant.loss.norms import Norms
from fl_privquant.loss.two_row_sums import TwoRows
from fl_privquant.mechanisms.pbm import PbmMechanism
from fl_privquant.mechanisms.stratified_bits import StratifiedBits
from fl_privquant.statement import View
from tests.brute_sums import own_code


def stratified(trials: int, theta: float) -> StratifiedBits:
    return StratifiedBits.of_bits("optm_aggregate", trials, round(TOTAL_WEIGHT * (0.5 - theta)), {})


@pytest.mark.parametrize("trials", [1, 2, 3, 8, 63])
def test_codes_have_the_stated_law(trials: int) -> None:
    """A chi-square test at 1e-6 for each input; and codes vary less than binomial ones."""
    mechanism, draws = stratified(trials, 0.35), 200_000
    bit = TwoRows.bit(mechanism.rare)
    for x in (-1.0, -0.37, 0.0, 0.9, 1.0):
        codes = mechanism.encode(np.full(draws, x), rng=pq.RandomStream.seeded(7))
        seen = np.bincount(codes, minlength=trials + 1)
        exact = own_code(bit, trials, 0.5 * (1.0 + x), stratified=True)
        assert mechanism.pmf(x)[0] == pytest.approx(exact, abs=1e-12)
        likely = draws * exact > 20.0
        expected = draws * np.append(exact[likely], exact[~likely].sum() + 1e-12)
        counts = np.append(seen[likely], seen[~likely].sum())
        assert stats.chisquare(counts[expected > 5], expected[expected > 5], sum_check=False).pvalue > 1e-6
    if trials > 1:
        seen = mechanism.encode(np.zeros(draws), rng=pq.RandomStream.seeded(8))
        assert float(seen.mean()) == pytest.approx(0.5 * trials, rel=0.01)
        assert float(seen.var()) < 0.9 * 0.25 * trials


@pytest.mark.parametrize("trials", [1, 2, 3, 7, 31])
def test_its_error_is_never_above_that_of_binomial_bits(trials: int) -> None:
    inputs = np.linspace(-1.0, 1.0, 201)
    ours, theirs = stratified(trials, 0.2), PbmMechanism("pbm", trials, stratified(trials, 0.2).rare, 99.0)
    for x in inputs:
        assert ours.mse(np.array([x])) <= theirs.mse(np.array([x])) * (1.0 + 1e-12)
    assert ours.mse() == pytest.approx(ours.law.mse(), rel=1e-9)
    assert ours.law.max_bias < 1e-12
    if trials == 1:
        assert ours.mse() == pytest.approx(theirs.mse(), rel=1e-12)
    else:
        assert ours.mse() < theirs.mse()


def test_the_local_loss_is_that_of_its_law() -> None:
    mechanism = stratified(5, 0.2)
    assert mechanism.law.epsilon == pytest.approx(mechanism.epsilon, rel=1e-9)
    assert mechanism.epsilon == pytest.approx(5 * math.log(0.7 / 0.3), rel=1e-8)


def test_the_accountant_does_not_count_it_as_separate_bits() -> None:
    """Telling each bit's sum by itself is a bound for binomial bits only: here one bit changes as a whole."""
    mechanism, norms = stratified(3, 0.1), Norms(l2=5.0)
    names = {each.name for each in mechanism.update_losses(norms, 500, View.aggregate(50))}
    assert names == {"l2 gaussian of bits"}
    accountant = Accountant()
    accountant.add(Release(mechanism, 500, View.aggregate(50), norms=norms), 3)
    binomial = Accountant()
    theirs = PbmMechanism("pbm", 3, mechanism.rare, 99.0)
    binomial.add(Release(theirs, 500, View.aggregate(50), norms=norms), 3)
    stated, other = accountant.statement(1e-5), binomial.statement(1e-5)
    assert stated.method.startswith("l2 gaussian of bits")
    assert other.epsilon <= stated.epsilon <= 1.01 * other.epsilon


def test_bytes_carry_it_and_forged_claims_raise() -> None:
    mechanism = stratified(7, 0.1)
    again = pq.Mechanism.from_bytes(mechanism.to_bytes())
    assert isinstance(again, StratifiedBits)
    assert again.to_bytes() == mechanism.to_bytes()
    object.__setattr__(again, "claimed_epsilon", mechanism.epsilon * 0.999999)
    with pytest.raises(CertificationError, match="above the claimed"):
        pq.Mechanism.from_bytes(again.to_bytes())
    for trials, rare in ((256, 1 << 30), (7, 0), (7, 1 << 31), (0, 5)):
        object.__setattr__(again, "trials", trials)
        object.__setattr__(again, "rare", rare)
        with pytest.raises(CertificationError):
            pq.Mechanism.from_bytes(again.to_bytes())


def test_any_shape_and_no_update_that_is_not_finite() -> None:
    mechanism = stratified(255, 0.1)
    update = np.zeros((3, 0, 2), dtype=np.float32)
    assert mechanism.encode(update, rng=pq.RandomStream.seeded(1)).shape == (3, 0, 2)
    ends = mechanism.encode(np.array([[-2.0, 2.0]]), rng=pq.RandomStream.seeded(1))
    assert ends.shape == (1, 2)
    assert ends.dtype == np.uint8
    with pytest.raises(InvalidUpdateError):
        mechanism.encode(np.array([0.0, np.nan]), rng=pq.RandomStream.seeded(1))
