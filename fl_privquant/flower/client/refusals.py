"""What leaves a client that refuses: the kind of the error and a constant text; the client's log says why.

Reasons name what earlier runs have spent, the limits of the client and files of its owner, none of which is
for a server. Only the reasons for which a message is refused by itself, whoever gets it, are sent along.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Final

from flwr.app import Error, Message

from fl_privquant.errors import (
    BudgetExhaustedError,
    CertificationError,
    LedgerDamagedError,
    LedgerMismatchError,
    PrivQuantError,
    SecureAggregationError,
)
from fl_privquant.flower._flower_internals import ErrorCode, log
from fl_privquant.flower._messages.protocol import CODE_BUDGET_EXHAUSTED

_PUBLIC_REASONS: Final[Mapping[type, str]] = {
    LedgerDamagedError: "the client's ledger cannot be relied on",
    BudgetExhaustedError: "this client's budget, or its number of rounds, allows no further release",
    LedgerMismatchError: (
        "the server has counted fewer releases than this client has made, or asks again too soon; restore "
        "the server's checkpoint, or begin a new run"
    ),
    CertificationError: "the mechanism is above this client's limits",
    SecureAggregationError: "this client does not take part in the round, or no longer",
    PrivQuantError: "this client's configuration does not allow what is asked for",
}


def make_refusal(message: Message, error: PrivQuantError, mod: object, by_message: bool = False) -> Message:
    """The reply of a mod that refuses a message because of an error, which is logged here.

    ``by_message`` says that the error depends on the message alone, so that its text may be sent.
    """
    kind = type(error).__name__
    log(WARNING, "%s refused: %s: %s", type(mod).__name__, kind, error)
    told = next(_PUBLIC_REASONS[parent] for parent in type(error).__mro__ if parent in _PUBLIC_REASONS)
    text = str(error) if by_message else f"{told}; the client's log says why"
    # It has to reply to the incoming message: a reply to the app's message would never reach the server.
    exhausted = isinstance(error, BudgetExhaustedError) and not isinstance(error, LedgerDamagedError)
    code = CODE_BUDGET_EXHAUSTED if exhausted else ErrorCode.MOD_FAILED_PRECONDITION
    return Message(Error(code, f"{kind}: {text}"), reply_to=message)
