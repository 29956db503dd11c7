"""What the server sees before unmasking is noise: chi-square tests, each with a control that must fail.

Keys are drawn afresh, so outcomes vary between runs: an honest protocol fails a test once in 10^6.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fl_privquant.packing.pack import unpack_codes
from fl_privquant.secagg import client as client_module
from fl_privquant.secagg.crypto.masks import apply_masks
from fl_privquant.secagg.messages import MaskedInput
from tests.secagg.driver import Round, open_round

FAILURE_ODDS = 1e-6
DIMENSION = 40_000

Masks = Iterable[tuple[bytes, bool]]


def p_value(words: NDArray[Any], width: int) -> float:
    """How likely a uniform vector is at least as far from even counts, in the top 6 bits and the low 6."""
    bits = min(width, 6)
    values = words.astype(np.int64)
    high = np.bincount(values >> (width - bits), minlength=1 << bits)
    low = np.bincount(values & ((1 << bits) - 1), minlength=1 << bits)
    return 2 * min(stats.chisquare(high).pvalue, stats.chisquare(low).pvalue)


def masked(width: int, inputs: Callable[[int], NDArray[Any]] | None = None) -> Round:
    round_ = open_round(4, DIMENSION, max_code=((1 << width) - 1) // 4, width=width, restore=False)
    # As far from uniform as inputs can be.
    round_.inputs = {i: inputs(i) if inputs else np.zeros(DIMENSION, dtype=int) for i in round_.inputs}
    round_.advertise()
    round_.share()
    round_.mask()
    return round_


def vector_of(round_: Round, i: int, width: int) -> NDArray[Any]:
    payload = MaskedInput.from_bytes(round_.sent["MaskedInput"][i]).payload
    return unpack_codes(payload, width, DIMENSION)


def only(keep: Callable[[int], bool]) -> Callable[[NDArray[Any], Masks], None]:
    """A broken client: of its masks it applies those at the positions to keep; the self mask is first."""
    return lambda vector, keys: apply_masks(vector, [key for i, key in enumerate(keys) if keep(i)])


@pytest.mark.parametrize("width", [3, 8, 11, 16, 20, 32])
def test_masked_vectors_are_uniform(width: int) -> None:
    round_ = masked(width)
    for i in round_.inputs:
        assert p_value(vector_of(round_, i, width), width) > FAILURE_ODDS / 4
    vectors = [vector_of(round_, i, width).astype(np.int64) for i in round_.inputs]
    for one, two in itertools.pairwise(vectors):
        # Masks are shared in pairs: vectors must not show it two at a time either.
        assert p_value((one + two) % (1 << width), width) > FAILURE_ODDS / 6
        assert p_value((one - two) % (1 << width), width) > FAILURE_ODDS / 6


def test_control_unmasked_vectors_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "apply_masks", only(lambda i: False))
    round_ = masked(11)
    assert p_value(vector_of(round_, 3, 11), 11) < FAILURE_ODDS


def test_control_a_bias_in_the_masks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One word in ten is left without masks."""

    def biased(vector: NDArray[Any], keys: Masks) -> None:
        plain = vector[::10].copy()
        apply_masks(vector, keys)
        vector[::10] = plain

    monkeypatch.setattr(client_module, "apply_masks", biased)
    assert p_value(vector_of(masked(11), 3, 11), 11) < FAILURE_ODDS


@pytest.mark.parametrize("width", [8, 13, 32])
def test_the_sum_without_unmasking_is_useless(width: int) -> None:
    """Pairwise masks cancel in the sum, self masks do not: it is uniform, and tells nothing of the inputs."""
    largest = ((1 << width) - 1) // 4
    half = np.arange(DIMENSION) < DIMENSION // 2
    round_ = masked(width, lambda i: np.where(half, 0, largest))
    total = round_.server._total.astype(np.int64) % (1 << width)
    assert p_value(total, width) > FAILURE_ODDS / 2
    # A distinguisher of inputs all 0 from inputs all at the largest code: none by rank.
    assert stats.mannwhitneyu(total[half], total[~half]).pvalue > FAILURE_ODDS / 2
    np.testing.assert_array_equal(round_.run(since="confirm").total, np.where(half, 0, 4 * largest))


def test_control_without_self_masks_the_sum_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "apply_masks", only(lambda i: i > 0))
    half = np.arange(DIMENSION) < DIMENSION // 2
    round_ = masked(13, lambda i: np.where(half, 0, 2047))
    total = round_.server._total.astype(np.int64) % (1 << 13)
    assert p_value(total, 13) < FAILURE_ODDS
    assert stats.mannwhitneyu(total[half], total[~half]).pvalue < FAILURE_ODDS
    np.testing.assert_array_equal(total, np.where(half, 0, 4 * 2047))


def test_a_late_input_of_a_client_called_dead_stays_masked() -> None:
    """Its mask key was opened; the self mask alone still hides it."""
    width = 11
    round_ = open_round(5, DIMENSION, max_code=400, width=width, restore=False)
    round_.inputs = dict.fromkeys(round_.inputs, np.zeros(DIMENSION, dtype=int))
    round_.advertise()
    round_.share()
    late = {}
    receive = round_.server.receive
    round_.server.receive = lambda i, data: bool(late.setdefault(i, data)) if i == 3 else receive(i, data)
    round_.mask()
    round_.confirm()
    round_.unmask()
    masks: list[tuple[bytes, bool]] = []
    masks_left = round_.server._remaining_masks

    def recorded() -> Masks:
        masks.extend(masks_left())
        return iter(masks)

    round_.server._remaining_masks = recorded
    assert not round_.server.finish().total.any()
    # All that was opened of client 3 are the masks it shares with the others, opposite to what it added.
    vector = unpack_codes(MaskedInput.from_bytes(late[3]).payload, width, DIMENSION).astype(np.uint16)
    pairwise = sorted(key for key, _ in masks)
    assert len(pairwise) == 8
    shared = [key for key, added in masks if added]
    assert len(shared) == 4
    apply_masks(vector, [(key, False) for key in shared])
    assert p_value(vector & 2047, width) > FAILURE_ODDS
    assert not receive(3, late[3])
