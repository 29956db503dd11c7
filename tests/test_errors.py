"""The errors of the package: what they say is made from what they hold."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from fl_privquant.errors import MISSING, InvalidSpecError, describe_value
from fl_privquant.statement import Unit


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidSpecError("bits", 9, "is not from 1 to 8"), "bits: 9 is not from 1 to 8"),
        (
            InvalidSpecError("clip", -1.0, "is not above 0", "raise it"),
            "clip: -1.0 is not above 0; raise it",
        ),
        (InvalidSpecError("name", "optn", ", expected optm"), "name: 'optn', expected optm"),
        (InvalidSpecError("codes", MISSING, "must start at 0"), "codes: must start at 0"),
    ],
)
def test_the_text_is_made_from_the_attributes(error: InvalidSpecError, text: str) -> None:
    assert str(error) == text
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == text
    assert vars(copied) == vars(error)
    assert isinstance(copied, ValueError)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Unit.TOTAL, "'client total'"),
        (Path("a/b"), "a/b"),
        (None, "None"),
        (True, "True"),
        (object(), "an object"),
        (10**400, "a number of about 400 digits"),
    ],
)
def test_values_are_shown_briefly(value: object, shown: str) -> None:
    assert describe_value(value) == shown


def test_a_text_of_another_party_cannot_forge_a_line() -> None:
    text = str(InvalidSpecError("key", "a\nERROR: \x1b[31m" + "b" * 1000, "is not known"))
    assert text.isprintable()
    assert len(text) < 120
