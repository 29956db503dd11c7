"""The page with the results of all studies."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta, gaussian_separation
from simulations.studies.__main__ import choose_parts
from simulations.studies._pages import zero_out_epsilon
from simulations.studies.results import PAGE, published_rows, results_text


def test_the_committed_page_is_what_the_committed_tables_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == results_text()


def test_at_least_ten_published_numbers_stand_beside_ours() -> None:
    rows = published_rows()
    assert len(rows) >= 10
    published, here, best = (
        rows[name].astype(float) for name in ("published MAE", "here", "best design here")
    )
    # What the paper prints comes out again, but for MVU on normal inputs, which the study discusses.
    normal = rows["mechanism"].eq("MVU") & rows["setting"].str.contains("N(", regex=False)
    assert np.abs(here / published - 1.0)[~normal].max() < 0.01
    assert (best <= here).all()


def test_commands_of_the_page_exist() -> None:
    named = re.findall(r"python -m simulations\.studies ([\w-]+)", PAGE.read_text(encoding="utf-8"))
    assert len(set(named)) >= 6
    for name in set(named) - {"all", "results"}:
        assert choose_parts([name])


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_zero_out_is_half_the_distance(epsilon: float) -> None:
    """The stated epsilon covers half the distance at the same delta, and a hundredth less does not."""
    half, stated = gaussian_separation(epsilon, 1e-5) / 2.0, zero_out_epsilon(epsilon, 1e-5)
    assert gaussian_delta(half, stated) <= 1e-5
    assert gaussian_delta(half, stated - 1e-6) > 1e-5
