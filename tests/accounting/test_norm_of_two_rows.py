"""Updates of bounded norm, encoded in bits: the accountant states the smallest certified figure, by name."""

from __future__ import annotations

import pytest

import fl_privquant as pq
from fl_privquant.accounting.accountant import Accountant
from fl_privquant.accounting.release import Release
from fl_privquant.design.spread import usual_norm_ratio
from fl_privquant.loss import norms as norms_module
from fl_privquant.loss.norms import Norms
from fl_privquant.mechanisms import sum_of_bits as bits_module
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import PrivacyStatement, View


def whole_run(mechanism: Mechanism, clients: int, dimension: int, rounds: int) -> PrivacyStatement:
    accountant = Accountant()
    norms = Norms(l2=usual_norm_ratio(dimension))
    accountant.add(Release(mechanism, dimension, View.aggregate(clients), norms=norms), rounds)
    return accountant.statement(1e-5)


@pytest.mark.parametrize(
    ("name", "wish", "method"),
    [
        ("one_bit", {"epsilon": 0.08}, "l2 gaussian of two rows"),
        ("pbm", {"theta": 0.0137, "levels": 4}, "l2 gaussian of bits"),
    ],
)
def test_the_worst_case_of_the_others_is_stated_where_it_is_smaller_than_the_blanket(
    name: str, wish: dict[str, float], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = pq.design(name, **wish)
    stated = whole_run(mechanism, 100, 7850, 50)
    assert stated.method.startswith(method)
    for module in (norms_module, bits_module):
        monkeypatch.setattr(module, "two_row_loss", lambda *arguments: None)
    from fl_privquant.accounting import accountant

    for name in ("_unit_loss", "_update_losses"):
        monkeypatch.setattr(accountant, name, getattr(accountant, name).__wrapped__)
    blanket = whole_run(mechanism, 100, 7850, 50)
    assert blanket.method.startswith("l2 gaussian of the sum")
    assert stated.epsilon < 0.999 * blanket.epsilon


def test_one_client_alone_has_no_sum() -> None:
    """The local view is not counted by the others, of whom there are none."""
    mechanism = pq.design("one_bit", epsilon=0.5)
    names = [each.name for each in mechanism.update_losses(Norms(l2=2.0), 100)]
    assert "l2 gaussian of two rows" not in names


def test_mechanisms_with_more_rows_are_counted_otherwise() -> None:
    mechanism = pq.design("optm", epsilon=0.5, bits=2)
    names = [each.name for each in mechanism.update_losses(Norms(l2=2.0), 100, View(1000))]
    assert names
    assert "l2 gaussian of two rows" not in names
