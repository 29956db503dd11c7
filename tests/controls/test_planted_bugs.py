"""Twenty realistic mistakes, each planted, and found by the audit, the check or a test.

Each is a row of the table in ``docs/pages/audit.md``. The audit attacks what an adversary sees, the check
reads the folder of a run, and tests run on a module with one thing changed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
import fl_privquant.codec.update as update_module
from fl_privquant.accounting import (
    Canaries,
    CanaryBound,
    PrivacyStatement,
    SimulatedSum,
    Unit,
    audit_scores,
    bound_of_outputs,
)
from fl_privquant.codec import record_sampling
from fl_privquant.codec._clip import clip_l2
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.distributions import certified_table as table_module
from fl_privquant.mechanisms.additive.rounded_gaussian import RoundedGaussianMechanism
from fl_privquant.planning import Plan, Target
from fl_privquant.privacy_loss.sums import blanket as blanket_module
from fl_privquant.sampling import _loops
from fl_privquant.sampling.fine_gaussian import FineGaussian
from fl_privquant.sampling.kernel import Sampler
from fl_privquant.secagg import client as client_module
from fl_privquant.secagg.crypto.masks import apply_masks
from tests.controls import claims, test_certification, test_kernel, test_spending
from tests.controls.mutation import mutated
from tests.secagg import test_uniformity
from tests.secagg.driver import open_round

CANARIES, DIMENSION, ROUNDS = 300, 400, 2
Find = Callable[[pytest.MonkeyPatch], bool]


@lru_cache(maxsize=1)
def _plan() -> Plan:
    target = Target(epsilon=4.0, rounds=ROUNDS, num_clients=CANARIES)
    sums = SimulatedSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    return target.plan(DIMENSION, 1.0, mechanism="rounded_gaussian", aggregation=sums, force=True)


class _Run:
    """What an adversary sees of rounds in which every client is a canary that sends far too long an update.

    With ``silent`` rounds, in which clients send zeros, the adversary can subtract noise that is used again.
    """

    def __init__(self, rounds: int = ROUNDS, silent: int = 0, reused: bool = False) -> None:
        self.canaries = Canaries(CANARIES, DIMENSION)
        self.seen: list[Any] = []
        zeros = np.zeros(DIMENSION)
        codec = UpdateCodec(Layout.of({"update": zeros}), _plan().encoding)
        modulus = 1 << codec.mechanism.sum_bits(CANARIES)
        for number in range(rounds + silent):
            total = np.zeros(DIMENSION, dtype=np.int64)
            self.singles = []
            for client in range(CANARIES):
                update = self.canaries.update(client, 10.0) if number < rounds else zeros
                rng = pq.RandomStream.seeded(client if reused else 1000 * number + client)
                codes = codec.codes(codec.encode({"update": update}, rng)).astype(np.int64)
                total = (total + codes) % modulus
                self.singles.append(codec.decode_sum(codes, 1)["update"])
            self.seen.append(codec.decode_sum(total, CANARIES)["update"] * CANARIES)

    def bound(self, seen: list[Any]) -> CanaryBound:
        scores, terms = self.canaries.score(seen), len(seen) * DIMENSION
        return audit_scores(scores, self.canaries.coins, _plan().statement, num_terms=terms)


def test_nothing_is_found_where_nothing_is_planted() -> None:
    """The control; the bound is above what is stated with probability 0.05, and the seed is fixed."""
    run = _Run()
    assert not run.bound(run.seen).refuted
    assert run.bound(run.seen).lower > 2.0
    assert not _difference_is_refuted(reused=False)


def _difference_is_refuted(reused: bool) -> bool:
    """Whether an attack is too good that subtracts the sum of a silent round."""
    run = _Run(rounds=1, silent=1, reused=reused)
    return run.bound([run.seen[0] - run.seen[1]]).refuted


def clip_is_twice_too_long(monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(update_module, "clip_l2", lambda vector, bound: clip_l2(vector, 2.0 * bound))
    run = _Run()
    return run.bound(run.seen).refuted


def clip_is_left_out(monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(update_module, "clip_l2", lambda vector, bound: 1.0)
    run = _Run()
    return run.bound(run.seen).refuted


def noise_is_divided_by_the_root_of_two(monkeypatch: pytest.MonkeyPatch) -> bool:
    noise = property(lambda self: FineGaussian(Fraction(self.deviation) * Fraction(5, 7)))
    monkeypatch.setattr(RoundedGaussianMechanism, "noise", noise)
    run = _Run()
    return run.bound(run.seen).refuted


def noise_is_used_again(monkeypatch: pytest.MonkeyPatch) -> bool:
    return _difference_is_refuted(reused=True)


def sums_are_not_masked(monkeypatch: pytest.MonkeyPatch) -> bool:
    """The server sees each client's own codes, with the noise of that client alone."""
    run = _Run()
    scores = np.array([run.canaries.directions[at] @ single for at, single in enumerate(run.singles)])
    return audit_scores(scores, run.canaries.coins, _plan().statement, num_terms=DIMENSION).refuted


def _local_codes(epsilon: float, careless: float = 0.0) -> list[Any]:
    mechanism, rng = pq.design("optm", epsilon=epsilon, bits=2), pq.RandomStream.seeded(0)
    coins = np.random.default_rng(0).random((2, 100_000)) < careless
    ends = ((-1.0, 0), (1.0, mechanism.num_levels - 1))
    return [
        np.where(coins[at], code, mechanism.encode(np.full(100_000, end), rng=rng))
        for at, (end, code) in enumerate(ends)
    ]


def some_draws_are_not_randomized(monkeypatch: pytest.MonkeyPatch) -> bool:
    codes = _local_codes(2.0, careless=0.05)
    return bound_of_outputs(*codes, PrivacyStatement(2.0, 0.0, Unit.COORDINATE)).refuted


def table_of_another_epsilon_is_drawn_from(monkeypatch: pytest.MonkeyPatch) -> bool:
    return bound_of_outputs(*_local_codes(2.5), PrivacyStatement(2.0, 0.0, Unit.COORDINATE)).refuted


@lru_cache(maxsize=1)
def _folder(directory: Path) -> Path:
    return claims.finish_run("mechanism=rounded_gaussian secagg=on", directory)


def _records_are_poisson(module: Any) -> bool:
    """Whether the number of drawn records varies as it should: between 0.8 and 1.25 times n q (1 - q).

    A chi-square of 2000 draws is outside of that with odds below 1e-6.
    """
    sampling = module.RecordSampling(clip=1.0, rate=0.2, divisor=1.0)
    rng = pq.RandomStream.seeded(0)
    numbers = [sampling.draw(200, rng).size for _ in range(2000)]
    return 0.8 < np.var(numbers) / (200 * 0.2 * 0.8) < 1.25


def records_are_drawn_in_batches_of_one_size(monkeypatch: pytest.MonkeyPatch) -> bool:
    old = "np.flatnonzero(words < np.uint64(int(self.rate * 2.0**53)))"
    assert _records_are_poisson(record_sampling)
    return not _records_are_poisson(
        mutated(record_sampling, old, "np.sort(np.argsort(words)[: int(self.rate * number)])")
    )


def _wrong(tests: Any, wrong: str, of: Any, is_right: Callable[[Any], bool], name: str) -> Find:
    """A planted bug of another control."""
    return lambda monkeypatch: not is_right(mutated(of, *getattr(tests, wrong)[name]))


def _hides_what_changed() -> bool:
    """Whether the masked codes of a client that sends zeros twice differ by noise: wrong once in 10^6."""
    vectors = []
    for number in (1, 2):
        round_ = open_round(
            4, test_uniformity.DIMENSION, max_code=511, width=11, restore=False, number=number
        )
        round_.inputs = {i: np.zeros_like(codes) for i, codes in round_.inputs.items()}
        round_.run_until("confirm")
        vectors.append(test_uniformity.vector_of(round_, 3, 11).astype(np.int64))
    odds = test_uniformity.p_value((vectors[0] - vectors[1]) % (1 << 11), 11)
    return odds > test_uniformity.FAILURE_ODDS


def masks_are_used_again(monkeypatch: pytest.MonkeyPatch) -> bool:
    assert _hides_what_changed()

    def mask_with_known_keys(vector: Any, found: Any) -> None:
        apply_masks(vector, [(bytes([at]) * 32, up) for at, (_, up) in enumerate(found)])

    monkeypatch.setattr(client_module, "apply_masks", mask_with_known_keys)
    return not _hides_what_changed()


AUDIT: dict[str, Find] = {
    "the L2 clip is twice too long": clip_is_twice_too_long,
    "the L2 clip is left out": clip_is_left_out,
    "noise is divided by the root of two": noise_is_divided_by_the_root_of_two,
    "noise is drawn from the same seed in every round": noise_is_used_again,
    "sums are not masked": sums_are_not_masked,
    "one draw in twenty is not randomized": some_draws_are_not_randomized,
    "the table is that of a larger epsilon": table_of_another_epsilon_is_drawn_from,
}
CHECK: dict[str, claims.Mutation] = {
    "corrupt clients are counted as honest": claims.count_corrupt_clients_as_honest,
    "a round is lost from the ledger": claims.lose_a_round,
    "a client's request is lost from the ledger": claims.lose_a_request,
    "rounds of one kind are counted once": claims.count_one_request,
    "some coordinates are not counted": claims.shorten_updates,
    "the figures of zero-out are called replace-one": claims.halve_the_relation,
    "the delta of a round is stated for the run": claims.lower_delta,
    "a mechanism with less noise is used": claims.swap_the_mechanism,
}
TESTS: dict[str, Find] = {
    "the draw compares with <= for <": _wrong(
        test_kernel,
        "WRONG",
        _loops,
        lambda module: test_kernel.is_exact(
            test_kernel.draw_with(module.encode_chunk), Sampler(test_kernel.table())
        ),
        "<= for < in the draw",
    ),
    "the certificate skips a column": _wrong(
        test_certification, "WRONG", table_module, test_certification.all_certified, "skips a column"
    ),
    "a client counts as its own cover": _wrong(
        test_spending,
        "WRONG_BLANKETS",
        blanket_module,
        test_spending.covers_the_sum,
        "the protected client counts as its own cover",
    ),
    "records are drawn in batches of one size": records_are_drawn_in_batches_of_one_size,
    "masks are used again in the next round": masks_are_used_again,
}


@pytest.mark.parametrize("name", AUDIT)
def test_the_audit_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert AUDIT[name](monkeypatch)


@pytest.mark.parametrize("name", CHECK)
def test_the_check_finds(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = _folder(tmp_path_factory.getbasetemp() / "planted")
    refused = partial(claims.is_refused, folder)
    assert refused(CHECK[name], random.Random(1))
    assert not refused(lambda files, copy, rng: None, random.Random(1))


@pytest.mark.parametrize("name", TESTS)
def test_a_test_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TESTS[name](monkeypatch)


def test_the_page_has_every_planted_bug() -> None:
    page = (Path(__file__).parents[2] / "docs/pages/audit.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (audit|check|test) \|", page, flags=re.MULTILINE)
    finders = (("audit", AUDIT), ("check", CHECK), ("test", TESTS))
    assert rows == [(name, finder) for finder, bugs in finders for name in bugs]
    assert len(rows) == 20
