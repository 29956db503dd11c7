"""Checks that keys of a configuration are declared with: a refusal names the key, the value and the bound."""

from __future__ import annotations

from typing import Any, ClassVar

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError


class Keys:
    """Base of a group of keys, which makes the checks that its keys are declared with.

    ``path`` is what the names of its keys begin with in error messages.
    """

    path: ClassVar[str]

    def __post_init__(self) -> None:
        checks.check_declared(self, f"{self.path}.")


def at_least(least: int) -> checks.Check:
    """The check that refuses numbers below the least."""

    def check(name: str, value: Any) -> Any:
        if not value >= least:
            raise InvalidSpecError(f"{name}: {value} is below {least}")
        return value

    return check
