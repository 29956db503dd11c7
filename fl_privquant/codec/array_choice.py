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

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from fl_privquant import checks
from fl_privquant.codec.array_layout import Arrays, Layout
from fl_privquant.errors import InvalidSpecError, one_line

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
    clip_scales: Sequence[tuple[str, float]] = ()
    """Pairs of a pattern and the factor of both clips for arrays that match it; the first pattern that
    matches an array counts, and every array that is sent must match one. Empty: 1 for all."""

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            object.__setattr__(self, name, _patterns(name, getattr(self, name)))
        object.__setattr__(self, "clip_scales", _scales(self.clip_scales))

    def of(self, arrays: Mapping[str, _T]) -> dict[str, _T]:
        """The arrays that are chosen, in their order; raises InvalidSpecError if a pattern matches none."""
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

    def layout(self, model: Arrays) -> Layout:
        """The layout of the arrays of a model that are sent, in one vector, each on its scale."""
        sent = self.of(model)
        if not self.clip_scales:
            return Layout.of(sent)
        names = Layout.of(sent).names
        patterns = {name: self._pattern(name) for name in names}
        scales = dict(self.clip_scales)
        for name, pattern in patterns.items():
            if pattern is None:
                raise InvalidSpecError(
                    f"clip_scales: {one_line(name, 100)} matches none of {list(scales)}; add a pattern for "
                    f"it, such as '*': 1.0 as the last one"
                )
        for pattern in scales:
            if pattern not in patterns.values():
                raise InvalidSpecError(
                    f"clip_scales: {pattern!r} is the first match of no array that is sent, of "
                    f"{_shown(names)}"
                )
        return Layout.of(sent, {name: scales[str(pattern)] for name, pattern in patterns.items()})

    def _pattern(self, name: str) -> str | None:
        """The first pattern of ``clip_scales`` that matches a name."""
        return next((pattern for pattern, _ in self.clip_scales if fnmatchcase(name, pattern)), None)

    def _sends(self, name: str) -> bool:
        included = not self.include or any(fnmatchcase(name, pattern) for pattern in self.include)
        return included and not any(fnmatchcase(name, pattern) for pattern in self.exclude)


def _patterns(key: str, patterns: object) -> tuple[str, ...]:
    """The patterns, if they are a list of texts; raises InvalidSpecError otherwise."""
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise InvalidSpecError(f"{key}: {one_line(repr(patterns), 80)}, expected a list of patterns")
    for pattern in patterns:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= _MOST_CHARACTERS:
            raise InvalidSpecError(
                f"{key}: {one_line(repr(pattern), 80)} is not a text of at most {_MOST_CHARACTERS} characters"
            )
    if len(patterns) > _MOST_PATTERNS:
        raise InvalidSpecError(f"{key}: {len(patterns)} patterns, more than {_MOST_PATTERNS}")
    return tuple(patterns)


def _scales(pairs: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """The factors by pattern, if they are valid; raises InvalidSpecError otherwise."""
    patterns = _patterns("clip_scales", [pattern for pattern, _ in pairs])
    if len(set(patterns)) < len(patterns):
        raise InvalidSpecError("clip_scales: a pattern is given twice; leave one of them out")
    factors = [checks.positive(f"clip_scales {pattern!r}", factor) for pattern, factor in pairs]
    return tuple(zip(patterns, factors, strict=True))


def scaled_clips(clips: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """The largest of clips by pattern, and all of them as shares of it.

    >>> scaled_clips({"head.*": 0.5, "*": 0.125})
    (0.5, {'head.*': 1.0, '*': 0.25})
    """
    checked = {pattern: checks.positive(f"clip {pattern!r}", clip) for pattern, clip in clips.items()}
    largest = max(checked.values(), default=math.nan)
    return checks.positive("clip", largest), {pattern: clip / largest for pattern, clip in checked.items()}


def _shown(names: Iterable[str]) -> str:
    """Some names of a model's arrays, in one line."""
    listed = list(names)
    more = f" and {len(listed) - _MOST_NAMES_SHOWN} more" if len(listed) > _MOST_NAMES_SHOWN else ""
    return f"the model's ({one_line(', '.join(listed[:_MOST_NAMES_SHOWN]), 300)}{more})"


ALL_ARRAYS = ArrayChoice()
"""All arrays of a model."""
