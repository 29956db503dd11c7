"""Which arrays of a model are sent: by patterns on their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from fl_privquant.errors import InvalidSpecError, one_line

__all__ = ["ALL_ARRAYS", "ArrayChoice"]

_T = TypeVar("_T")
_MOST_PATTERNS = 256
_MOST_CHARACTERS = 256
_MOST_NAMES_SHOWN = 5


@dataclass(frozen=True)
class ArrayChoice:
    """The arrays whose names match one of ``include``, or all without it, and none of ``exclude``.

    In patterns ``*`` stands for any text and ``?`` for one character.

    >>> choice = ArrayChoice(include=("head.*",), exclude=("*.bias",))
    >>> choice.of({"body.weight": 1, "head.weight": 2, "head.bias": 3})
    {'head.weight': 2}
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            object.__setattr__(self, name, _patterns(name, getattr(self, name)))

    def of(self, arrays: Mapping[str, _T]) -> dict[str, _T]:
        """The arrays that are chosen, in their order; raises InvalidSpecError where a pattern has none."""
        for key, patterns in (("include", self.include), ("exclude", self.exclude)):
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in arrays):
                    raise InvalidSpecError(f"{key}: {pattern!r} matches no array of {_shown(arrays)}")
        chosen = {name: array for name, array in arrays.items() if self._sends(name)}
        if arrays and not chosen:
            raise InvalidSpecError(
                f"include {list(self.include)} without {list(self.exclude)}: leaves none of {_shown(arrays)}"
            )
        return chosen

    def _sends(self, name: str) -> bool:
        included = not self.include or any(fnmatchcase(name, pattern) for pattern in self.include)
        return included and not any(fnmatchcase(name, pattern) for pattern in self.exclude)


def _patterns(key: str, given: object) -> tuple[str, ...]:
    """Patterns that somebody gave, if they are some."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidSpecError(f"{key}: {one_line(repr(given), 80)}, expected a list of patterns")
    for pattern in given:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= _MOST_CHARACTERS:
            raise InvalidSpecError(
                f"{key}: {one_line(repr(pattern), 80)} is not a text of at most {_MOST_CHARACTERS} characters"
            )
    if len(given) > _MOST_PATTERNS:
        raise InvalidSpecError(f"{key}: {len(given)} patterns, more than {_MOST_PATTERNS}")
    return tuple(given)


def _shown(names: Iterable[str]) -> str:
    """Some names of a model's arrays, in one line."""
    listed = list(names)
    more = f" and {len(listed) - _MOST_NAMES_SHOWN} more" if len(listed) > _MOST_NAMES_SHOWN else ""
    return f"the model's ({one_line(', '.join(listed[:_MOST_NAMES_SHOWN]), 300)}{more})"


ALL_ARRAYS = ArrayChoice()
"""All arrays of a model."""
