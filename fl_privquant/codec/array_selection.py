"""Patterns on the names of a model's arrays: which arrays are sent, and on what scale they are clipped.

**Clips of groups.** Layers move by different amounts: a clip that suits the head of a model may be ten times
what its body needs. ``clip_scales`` gives each group of arrays a factor s of both clips. An update Δ is
divided by the factors of its arrays when it is flattened, u = Δ / s, and the rest of the codec (L2 clip,
rotation, kept coordinates, coordinate clip, mechanism) sees one vector u with one ``clip`` and one
``l2_clip``. What is decoded is multiplied by s again. So

* coordinates of a group are clipped to [-s clip, s clip], where nothing is rotated;
* the L2 clip bounds the norm of u, that is the root of the sum over groups of (norm of Δ in the group / s)^2:
  if only one group moves, its norm may be s ``l2_clip``, and several groups share that bound;
* rotation and subsets mix the coordinates of u, so that all of them have the same noise. In Δ, a group of
  factor s has s times this noise, and s^2 times its mean squared error.

Guarantee: that of the encoding without factors, for the whole update as one release. Proof: factors are
constants that are fixed before data are seen, so that u is a function of the client's data alone, and
whatever u is, the codec clips it after the division to the bounds that are accounted for. The loss of a
mechanism is a maximum over all pairs of vectors within these bounds, whatever the factors are. Hence a server
that lies about them can make updates less useful, by clipping what matters, but learns no more.
Rounding in the division moves u before it is clipped, and so does not matter either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from fl_privquant import _validation
from fl_privquant.codec.array_layout import Arrays, Layout
from fl_privquant.errors import MISSING, InvalidSpecError, one_line

_T = TypeVar("_T")
_MAX_PATTERNS = 256
_MAX_CHARACTERS = 256
_MAX_NAMES_SHOWN = 5


@_validation.check_argument_names
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
    clip_scales: Sequence[tuple[str, float]] = ()
    """Pairs of a pattern and the factor of both clips for arrays that match it; the first pattern that
    matches an array counts, and every array that is sent must match one. Empty: 1 for all."""

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            object.__setattr__(self, name, _check_patterns(name, getattr(self, name)))
        object.__setattr__(self, "clip_scales", _check_scales(self.clip_scales))

    def of(self, arrays: Mapping[str, _T]) -> dict[str, _T]:
        """The arrays that are chosen, in their order; raises InvalidSpecError if a pattern matches none."""
        for key, patterns in (("include", self.include), ("exclude", self.exclude)):
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in arrays):
                    raise InvalidSpecError(key, pattern, f"matches no array of {_format_names(arrays)}")
        chosen = {name: array for name, array in arrays.items() if self._sends(name)}
        if arrays and not chosen:
            raise InvalidSpecError(
                "include, exclude",
                (list(self.include), list(self.exclude)),
                f"leave none of {_format_names(arrays)}",
            )
        return chosen

    def layout(self, model: Arrays) -> Layout:
        """The layout of the arrays of a model that are sent, in one vector, each on its scale."""
        sent = self.of(model)
        if not self.clip_scales:
            return Layout.of(sent)
        names = Layout.of(sent).names
        patterns = {name: self._find_pattern(name) for name in names}
        scales = dict(self.clip_scales)
        for name, pattern in patterns.items():
            if pattern is None:
                raise InvalidSpecError(
                    "clip_scales",
                    name,
                    f"matches none of {list(scales)}",
                    "add a pattern for it, such as '*': 1.0 as the last one",
                )
        for pattern in scales:
            if pattern not in patterns.values():
                raise InvalidSpecError(
                    "clip_scales",
                    pattern,
                    f"is the first match of no array that is sent, of {_format_names(names)}",
                )
        return Layout.of(sent, {name: scales[str(pattern)] for name, pattern in patterns.items()})

    def _find_pattern(self, name: str) -> str | None:
        """The first pattern of ``clip_scales`` that matches a name."""
        return next((pattern for pattern, _ in self.clip_scales if fnmatchcase(name, pattern)), None)

    def _sends(self, name: str) -> bool:
        included = not self.include or any(fnmatchcase(name, pattern) for pattern in self.include)
        return included and not any(fnmatchcase(name, pattern) for pattern in self.exclude)


def _check_patterns(key: str, patterns: object) -> tuple[str, ...]:
    """The patterns, if they are a list of texts; raises InvalidSpecError otherwise."""
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise InvalidSpecError(key, patterns, ", expected a list of patterns")
    for pattern in patterns:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= _MAX_CHARACTERS:
            raise InvalidSpecError(key, pattern, f"is not a text of at most {_MAX_CHARACTERS} characters")
    if len(patterns) > _MAX_PATTERNS:
        raise InvalidSpecError(key, MISSING, f"{len(patterns)} patterns, more than {_MAX_PATTERNS}")
    return tuple(patterns)


def _check_scales(pairs: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """The factors by pattern, if they are valid; raises InvalidSpecError otherwise."""
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise InvalidSpecError(
            "clip_scales",
            pairs,
            ", expected pairs of a pattern and a factor, as in [('head.*', 1.0), ('*', 0.1)]",
        )
    patterns = _check_patterns("clip_scales", [pattern for pattern, _ in pairs])
    if len(set(patterns)) < len(patterns):
        raise InvalidSpecError("clip_scales", MISSING, "a pattern is given twice", "leave one of them out")
    factors = [_validation.check_positive(f"clip_scales {pattern!r}", factor) for pattern, factor in pairs]
    return tuple(zip(patterns, factors, strict=True))


def _format_names(names: Iterable[str]) -> str:
    """Some names of a model's arrays, in one line."""
    listed = list(names)
    more = f" and {len(listed) - _MAX_NAMES_SHOWN} more" if len(listed) > _MAX_NAMES_SHOWN else ""
    return f"the model's ({one_line(', '.join(listed[:_MAX_NAMES_SHOWN]), 300)}{more})"


ALL_ARRAYS = ArrayChoice()
"""All arrays of a model."""
