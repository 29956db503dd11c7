"""Wrong masks: reused, shared by all, or never taken off; each must be noticed.

More controls, of single rounds, are in tests/secagg/test_uniformity.py. Keys are drawn afresh: an honest
protocol fails a check once in 10^6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import client as client_module
from fl_privquant.secagg.crypto.masks import apply_masks
from tests.secagg.driver import Round, open_round
from tests.secagg.test_uniformity import FAILURE_ODDS, p_value, vector_of

WIDTH = 11
DIMENSION = 40_000

Masks = Iterable[tuple[bytes, bool]]


def masked(number: int) -> Round:
    """A round of clients that all send zeros, up to the masked inputs."""
    round_ = open_round(4, DIMENSION, max_code=511, width=WIDTH, restore=False, number=number)
    round_.inputs = dict.fromkeys(round_.inputs, np.zeros(DIMENSION, dtype=int))
    round_.advertise()
    round_.share()
    round_.mask()
    return round_


def hides_what_changed() -> bool:
    """Whether a client that sends the same twice shows nothing of it: the difference is noise."""
    one, two = (vector_of(masked(number), 3, WIDTH).astype(np.int64) for number in (1, 2))
    return p_value((one - two) % (1 << WIDTH), WIDTH) > FAILURE_ODDS


def hides_who_is_alike() -> bool:
    """Whether two clients that send the same cannot be told from two that do not."""
    round_ = masked(1)
    vectors = [vector_of(round_, i, WIDTH).astype(np.int64) for i in list(round_.inputs)[:2]]
    return p_value((vectors[0] - vectors[1]) % (1 << WIDTH), WIDTH) > FAILURE_ODDS


def sums_are_right() -> bool:
    """Whether masks cancel: a round that ends with a sum, the right one."""
    round_ = open_round(5, 200, max_code=15)
    try:
        total = round_.run().total
    except SecureAggregationError:
        return False
    return np.array_equal(total, round_.expected(list(round_.inputs)))


def with_keys(change: Callable[[int, bytes], bytes]) -> Callable[[NDArray[Any], Masks], None]:
    """A client that masks with other keys than those it was to use; the self mask is first."""
    return lambda vector, found: apply_masks(
        vector, [(change(i, key), up) for i, (key, up) in enumerate(found)]
    )


def test_honest_masks_pass_the_checks() -> None:
    assert hides_what_changed()
    assert hides_who_is_alike()
    assert sums_are_right()


def test_masks_reused_between_rounds_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "apply_masks", with_keys(lambda i, key: bytes([i]) * 32))
    assert not hides_what_changed()


def test_one_self_mask_for_all_clients_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no pairwise masks: with them vectors would differ, and only the sum be open."""
    monkeypatch.setattr(
        client_module,
        "apply_masks",
        lambda vector, found: apply_masks(vector, [(bytes(32), True)]),
    )
    assert not hides_who_is_alike()


def test_masks_of_one_sign_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        client_module,
        "apply_masks",
        lambda vector, found: apply_masks(vector, [(key, True) for key, _ in found]),
    )
    assert not sums_are_right()
