"""Seeded runs give the models and statements that are written down, whatever the code looks like."""

import json

import pytest

from tests.e2e.seeded_runs import TABLE, outcome, runs

_EXPECTED = json.loads(TABLE.read_text())


def test_the_table_has_every_run():
    assert set(_EXPECTED) == set(runs())


@pytest.mark.parametrize("run", runs())
def test_a_seeded_run_gives_what_is_written_down(run):
    assert outcome(run) == _EXPECTED[run]
