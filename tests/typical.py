"""A typical design of any registered mechanism, by its name alone."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import fl_privquant as pq
from fl_privquant.mechanisms.registry import get_entry

__all__ = ["spec_fields", "typical"]

# What mechanisms for the secure sum are told besides: a whole run, of which one coordinate's loss follows.
_RUN = {"num_clients": 100, "dimension": 1000}


def spec_fields(name: str) -> set[str]:
    """The parameters that a mechanism takes."""
    return {each.name for each in dataclasses.fields(get_entry(name).spec)}


@cache
def typical(name: str, epsilon: float = 1.0, **parameters: Any) -> Any:
    """The mechanism of that name with an epsilon, if it takes one, and those parameters that it takes.

    Mechanisms cannot be changed, so that tests share them: to read a design from the disk takes milliseconds.
    """
    fields = spec_fields(name)
    wanted = {"epsilon": epsilon, **parameters}
    if "run_epsilon" in fields:
        wanted = {"run_epsilon": epsilon, **_RUN, **parameters}
    return pq.design(name, **{key: value for key, value in wanted.items() if key in fields})
