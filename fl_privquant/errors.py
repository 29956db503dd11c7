"""The errors that fl_privquant raises. Each message gives the value, the bound and what to change."""

from __future__ import annotations

from typing import Any, Final

_MOST_CHARACTERS: Final = 500


class PrivQuantError(Exception):
    """Parent of every error of this package."""


class InvalidSpecError(PrivQuantError, ValueError):
    """A parameter of a design is out of range, misspelled or contradicts another one."""


class InfeasibleDesignError(PrivQuantError):
    """No mechanism meets the spec; the message says what would have to change."""


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


def one_line(foreign: object, most: int = _MOST_CHARACTERS) -> str:
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


def counted(number: int, noun: str) -> str:
    """A number with what it counts, in the plural where that is right; for messages, tables and logs.

    >>> counted(1, "client"), counted(0, "client"), counted(20, "masked input")
    ('1 client', '0 clients', '20 masked inputs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def other_version(what: str, received: object, expected: int, advice: str) -> str:
    """The error text for a file or message in another format version: both versions, and what to do.

    >>> other_version("run.pqm", 3, 1, "design it anew")
    'run.pqm: version 3 is not 1, the one that this fl-privquant knows; design it anew'
    """
    version = one_line(repr(received), 40)
    return f"{what}: version {version} is not {expected}, the one that this fl-privquant knows; {advice}"
