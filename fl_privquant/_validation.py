"""Checks of arguments: a value that is not a valid number, type or choice is refused in one clear line."""

from __future__ import annotations

import collections.abc
import difflib
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from fl_privquant.errors import MISSING, InvalidSpecError, PrivQuantError, one_line

_Class = TypeVar("_Class")
_Function = TypeVar("_Function", bound=Callable[..., Any])

Check: TypeAlias = Callable[[str, Any], Any]
"""A check of the value of a named argument; it raises InvalidSpecError."""


def check_number(name: str, value: Any) -> float:
    """The value as a float, if it is a real number; strings of digits and booleans are refused.

    >>> check_number("rate", 2)
    2.0
    """
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidSpecError(name, value, "is not a number")
    try:
        return float(value)
    except OverflowError:
        raise InvalidSpecError(name, value, "is too large") from None


def check_positive(name: str, value: Any, remedy: str = "") -> float:
    """The value as a float, if it is a finite number above 0; ``remedy`` goes into the error."""
    try:
        checked = check_number(name, value)
    except InvalidSpecError:
        checked = math.nan
    if not (math.isfinite(checked) and checked > 0.0):
        raise InvalidSpecError(name, value, "is not a finite number above 0", remedy)
    return checked


def check_in_interval(name: str, value: Any, interval: str, remedy: str = "") -> float:
    """The value as a float, if it is in an interval; a round bracket excludes an end, a square one does not.

    >>> check_in_interval("share", 1, "(0, 1]")
    1.0
    """
    checked = check_number(name, value)
    low, high = (float(end) for end in interval[1:-1].split(", "))
    at_end = (checked == low and interval[0] == "[") or (checked == high and interval[-1] == "]")
    if not (low < checked < high or at_end):
        raise InvalidSpecError(name, value, f"is outside {interval}", remedy)
    return checked


def check_integer(name: str, value: Any, least: int, most: int | None = None, remedy: str = "") -> int:
    """The value as an integer, if it is a whole number in that range; ``remedy`` goes into the error.

    >>> check_integer("rounds", 3.0, least=1)
    3
    """
    # Most values are plain integers, and checks against abstract classes are slow.
    is_whole = type(value) is int or (
        isinstance(value, numbers.Real) and not isinstance(value, bool) and value % 1 == 0
    )
    if not is_whole or value < least or (most is not None and value > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise InvalidSpecError(name, value, f"is not a whole number {bounds}", remedy)
    return int(value)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """The value, if it is one of the choices; the error text suggests the nearest of them."""
    allowed = list(choices)
    if value not in allowed:
        raise InvalidSpecError(
            name, value, f"is not one of {', '.join(allowed)}{suggest_nearest(str(value), allowed)}"
        )
    return str(value)


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the nearest known word, or nothing.

    >>> suggest_nearest("optn", ["optm", "rqm"])
    "; did you mean 'optm'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_argument_types(function: _Function) -> _Function:
    """Decorate a function: an argument of another type than it declares is refused by name.

    The function's own checks come first, as their texts say more. So this refuses what they let pass, and
    what made the function raise an error of Python's.

    >>> @check_argument_types
    ... def halve(number: float) -> float:
    ...     return number / 2
    >>> try:
    ...     halve("x")
    ... except InvalidSpecError as error:
    ...     print(error)
    number: 'x', expected a number
    """

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        try:
            result = function(*arguments, **keywords)
        except PrivQuantError:
            raise
        except Exception:
            _check_types(function, arguments, keywords)
            raise
        _check_types(function, arguments, keywords)
        return result

    return typing.cast(_Function, checked)


def check_argument_names(cls: type[_Class]) -> type[_Class]:
    """Decorate a class: an argument that it does not take is refused with the nearest one that it takes.

    Python's own TypeError names the argument only. Arguments that are missing are left to Python. Types are
    checked as by :func:`check_argument_types`.

    >>> @check_argument_names
    ... class Run:
    ...     def __init__(self, rounds: int) -> None:
    ...         self.rounds = rounds
    >>> try:
    ...     Run(round=3)
    ... except InvalidSpecError as error:
    ...     print(error)
    round: not an argument of Run, which takes rounds; did you mean 'rounds'?
    """
    decorated: Any = cls
    initialize = check_argument_types(decorated.__init__)
    accepted = [name for name in inspect.signature(initialize).parameters if name != "self"]

    @functools.wraps(initialize)
    def named(self: _Class, *arguments: Any, **keywords: Any) -> None:
        for name in keywords:
            if name not in accepted:
                raise InvalidSpecError(
                    one_line(name, 80),
                    MISSING,
                    f"not an argument of {cls.__name__}, which takes "
                    f"{', '.join(accepted)}{suggest_nearest(name, accepted)}",
                )
        initialize(self, *arguments, **keywords)

    decorated.__init__ = named
    return cls


def check_type(name: str, value: Any, hint: Any) -> Any:
    """The value, if it is of the type that a field is declared with; sequences become tuples.

    Only declarations with int, float, bool, str, None, and tuples of one of them are checked. A float may be
    given as an int, and a whole number as a float; :func:`check_integer` refuses floats that are not whole.

    >>> check_type("bins", [-1, 1.5], tuple[float, ...] | None)
    (-1.0, 1.5)
    """
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        if typing.get_origin(option) is tuple:
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise InvalidSpecError(name, value, "is not a list of numbers")
            return tuple(check_type(name, item, typing.get_args(option)[0]) for item in value)
        if option not in _TYPES:
            continue
        if isinstance(value, _TYPES[option]) and (option is bool or not isinstance(value, bool)):
            # Where a float is allowed too, 1.0 stays a float, such as a share of all, and is not the count 1.
            if option is int and float not in options and value % 1 == 0:
                return int(value)
            return float(value) if option is float else value
        raise InvalidSpecError(name, value, f"is not {_WORDS[option]}")
    return value


def check_declared(owner: Any, path: str = "") -> None:
    """Run the checks that fields are declared with, as in ``levels: Annotated[int, whole_in(2, 64)]``.

    None stands for a value that was not given, and is not checked where the declaration allows it. In error
    texts names begin with ``path``.
    """
    for name, optional, check in _declared_checks(owner.__class__):
        if (value := getattr(owner, name)) is not None or not optional:
            check(f"{path}{name}", value)


@functools.cache
def _declared_checks(cls: Any) -> list[tuple[str, bool, Check]]:
    """The names of fields, whether they may be None, and their checks."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return [
        (name, types.NoneType in typing.get_args(hint.__origin__), check)
        for name, hint in hints.items()
        for check in getattr(hint, "__metadata__", ())
    ]


def field_types(cls: Any) -> dict[str, Any]:
    """The declared types of a class's fields; they are read from annotations once, which takes long."""
    return _types_of(cls)


_types_of = functools.cache(typing.get_type_hints)
_signature_of = functools.cache(inspect.signature)


def integer_between(least: int, most: int, remedy: str = "") -> Check:
    """The check that :func:`check_integer` makes."""
    return lambda name, value: check_integer(name, value, least, most, remedy)


def number_between(interval: str, remedy: str = "") -> Check:
    """The check that :func:`check_in_interval` makes."""
    return lambda name, value: check_in_interval(name, value, interval, remedy)


def one_of(*choices: str) -> Check:
    """The check that :func:`check_choice` makes."""
    return lambda name, value: check_choice(name, value, choices)


# Integers from here on are not taken for numbers of any parameter.
_HUGE = 10**80
_TYPES: dict[Any, Any] = {float: numbers.Real, int: numbers.Real, bool: bool, str: str}
_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}


def _check_types(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Refuse an argument of another type than the function declares; types that are not known pass."""
    try:
        hints = _types_of(function)
        given = _signature_of(function).bind(*arguments, **keywords).arguments
    except (NameError, TypeError):
        return
    for name, value in given.items():
        if name in hints and not _fits(value, hints[name]):
            raise InvalidSpecError(name, value, f", expected {' or '.join(_describe_type(hints[name]))}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type, as far as that is known; what it contains is not looked at."""
    if hint is typing.Any:
        return True
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _fits(value, options[0])
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in options)
    if hint in (int, float):
        huge = isinstance(value, int) and abs(value) >= _HUGE
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and not huge
    kind = origin or hint
    return not isinstance(kind, type) or getattr(kind, "_is_protocol", False) or isinstance(value, kind)


def _describe_type(hint: Any) -> list[str]:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _describe_type(options[0])
    if origin in (types.UnionType, typing.Union):
        return [word for option in options for word in _describe_type(option)]
    if hint is types.NoneType:
        return ["None"]
    if origin is collections.abc.Callable:
        return ["a function"]
    return [_WORDS.get(hint) or str(getattr(origin or hint, "__name__", hint))]
