"""The errors that fl_privquant raises. Each message gives the value, the bound and what to change."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from typing import Any, Final, Literal

_MAX_CHARACTERS: Final = 500
# Python refuses to print integers of thousands of digits.
_MAX_PRINTED_INTEGER: Final = 10**80


class _Missing(Enum):
    """The type of :data:`MISSING`."""

    MISSING = "missing"


MISSING: Final[Literal[_Missing.MISSING]] = _Missing.MISSING
"""The value of an :class:`InvalidSpecError` about a parameter that was not given, or that needs no value."""


class PrivQuantError(Exception):
    """Parent of every error of this package."""


class InvalidSpecError(PrivQuantError, ValueError):
    """A parameter is out of range, misspelled or contradicts another one.

    The text is one line, made from the attributes.

    >>> print(InvalidSpecError("epsilon", -1.0, "is not above 0", "give a positive one"))
    epsilon: -1.0 is not above 0; give a positive one

    Parameters
    ----------
    parameter
        Its name in Python, or in the file that it was read from; several are joined by commas.
    value
        What was given, or :data:`MISSING`. Numbers, texts and short collections of them are shown, of other
        objects only the type.
    problem
        What is wrong with the value and which bound it breaks: the rest of the sentence.
    remedy
        What to change, unless the problem says it.
    """

    def __init__(self, parameter: str, value: Any, problem: str, remedy: str = "") -> None:
        # All arguments, because unpickling passes them to __init__ again.
        super().__init__(parameter, value, problem, remedy)
        self.parameter = parameter
        self.value = value
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        subject = "" if self.value is MISSING else describe_value(self.value)
        space = " " if subject and self.problem and self.problem[0] not in ",:;" else ""
        text = ": ".join(part for part in (self.parameter, f"{subject}{space}{self.problem}") if part)
        return f"{text}; {self.remedy}" if self.remedy else text


class InfeasibleDesignError(PrivQuantError):
    """No mechanism meets the spec; the message says what would have to change.

    ``every_epsilon`` says that no epsilon would help.
    """

    def __init__(self, message: str, every_epsilon: bool = False) -> None:
        super().__init__(message)
        self.every_epsilon = every_epsilon


class CertificationError(PrivQuantError):
    """A table of probabilities does not have the privacy that is claimed for it."""


class CodeOverflowError(PrivQuantError, OverflowError):
    """A sum of codes does not fit the integers that are to carry it."""


class InvalidUpdateError(PrivQuantError, ValueError):
    """An update or a payload is malformed: not finite, wrong length, codes out of range."""


class BudgetExhaustedError(PrivQuantError):
    """A release would spend more privacy than the budget allows.

    ``statement`` is the :class:`~fl_privquant.statement.PrivacyStatement` of the privacy spent, if known, and
    ``remedy`` what would help if the message does not say so.
    """

    def __init__(
        self,
        message: str,
        statement: Any = None,
        remedy: str = "For more rounds raise the budget, or spend less in each: a smaller epsilon, a smaller "
        "model, or more clients in a secure sum",
    ) -> None:
        super().__init__(message)
        self.statement = statement
        self.remedy = remedy


class LedgerDamagedError(BudgetExhaustedError):
    """A client's ledger cannot be read, written or relied on, so that nothing more may be released.

    The message says what the client's owner can do. It names files of the client, so it must not be sent to
    the server.
    """


class LedgerMismatchError(PrivQuantError):
    """A server has counted fewer releases than the client made, so its privacy figures would be too small."""


class SecureAggregationError(PrivQuantError):
    """A round of secure aggregation ends without a sum: a client refuses, or too few are left."""


class CulpritError(SecureAggregationError):
    """A round ends without a sum because a client's secret does not open: that client is named."""


def describe_value(value: Any) -> str:
    """A value as an error shows it: numbers, texts, paths and short collections, else the type.

    >>> describe_value(1.5), describe_value("optn"), describe_value([2, "a"]), describe_value(object())
    ('1.5', "'optn'", "[2, 'a']", 'an object')
    """
    if isinstance(value, int) and abs(value) >= _MAX_PRINTED_INTEGER:
        return f"a number of about {round(value.bit_length() * math.log10(2.0))} digits"
    if isinstance(value, os.PathLike):
        return one_line(os.fspath(value), 200)
    if isinstance(value, Enum):
        return one_line(repr(value.value), 80)
    if isinstance(value, numbers.Number):
        return one_line(value, 80)
    if value is None or isinstance(value, (str, bytes, Sequence, Set, Mapping)):
        return one_line(repr(value), 80)
    name = type(value).__name__
    return one_line(f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}", 80)


def one_line(foreign: object, most: int = _MAX_CHARACTERS) -> str:
    r"""A text from another party, as one printable line of at most ``most`` characters.

    Whatever another party wrote, an exception that quotes it included, goes through here before it is
    logged or put into a message: line breaks and terminal codes in it would forge other lines, and its
    length is the sender's choice.

    >>> one_line("dead\n\x1b[31mWARNING: all is well")
    'dead\\n\\x1b[31mWARNING: all is well'
    >>> one_line("a" * 1000, most=32)
    'aaaaaaaaaaa... (1000 characters)'
    """
    text = foreign if isinstance(foreign, str) else str(foreign)
    shown = "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text[:most]
    )
    if len(text) <= most and len(shown) <= most:
        return shown
    note = f"... ({len(text)} characters)"
    return (shown[: max(most - len(note), 0)] + note)[:most]


def pluralize(number: int, noun: str) -> str:
    """A number with what it counts, in the plural where that is right; for messages, tables and logs.

    >>> pluralize(1, "client"), pluralize(0, "client"), pluralize(20, "masked input")
    ('1 client', '0 clients', '20 masked inputs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def describe_other_version(what: str, received: object, expected: int, advice: str) -> str:
    """The error text for a file or message in another format version: both versions, and what to do.

    >>> describe_other_version("run.pqm", 3, 1, "design it anew")
    'run.pqm: version 3 is not 1, the one that this fl-privquant knows; design it anew'
    """
    return f"{what}: {explain_other_version(received, expected)}; {advice}"


def explain_other_version(received: object, expected: int) -> str:
    """What is wrong with a format version: both versions."""
    version = one_line(repr(received), 40)
    return f"version {version} is not {expected}, the one that this fl-privquant knows"
