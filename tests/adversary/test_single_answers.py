"""A client answers once at each stage: copies of its stored state, and threads, get no second answer."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import ClientRound
from fl_privquant.secagg.messages import UnmaskReply, UnmaskRequest
from fl_privquant.secagg.wire import Subset
from tests.secagg.driver import CONTEXT, at

VICTIM = 3


def test_copies_of_one_state_unmask_once() -> None:
    """Messages that arrive at once are handed copies: with two lists, they would give both secrets away."""
    round_ = at("unmask", 20, signed=False)
    request = UnmaskRequest.from_bytes(round_.server.unmask_requests()[VICTIM])
    stored, policy = round_.clients[VICTIM].to_bytes(), round_.policies[VICTIM]
    other = replace(request, active=Subset(20, request.active.places[:-1]))
    first, second = (ClientRound.from_bytes(stored, policy) for _ in range(2))
    assert UnmaskReply.from_bytes(first.unmask(request.to_bytes())).seed_shares
    with pytest.raises(SecureAggregationError, match="answers each stage once"):
        second.unmask(other.to_bytes())
    with pytest.raises(SecureAggregationError, match="answers each stage once"):
        ClientRound.from_bytes(stored, policy).unmask(request.to_bytes())


@pytest.mark.parametrize("stage", ["share", "mask", "confirm", "unmask"])
def test_three_threads_get_one_answer_at_every_stage(stage: str) -> None:
    round_ = at(stage, 20)
    close = {
        "share": round_.server.rosters,
        "mask": lambda: round_.server.mask_requests(CONTEXT),
        "confirm": round_.server.survivor_lists,
        "unmask": round_.server.unmask_requests,
    }[stage]
    request, stored = close()[VICTIM], round_.clients[VICTIM].to_bytes()
    start, answers, refusals = threading.Barrier(3), [], []

    def answer() -> None:
        client = ClientRound.from_bytes(stored, round_.policies[VICTIM])
        step = {
            "share": client.share_keys,
            "mask": lambda data: client.settle(data, CONTEXT),
            "confirm": client.confirm,
            "unmask": client.unmask,
        }[stage]
        start.wait()
        try:
            answers.append(step(request))
        except SecureAggregationError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=answer) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 1
    assert len(refusals) == 2
    assert all("answers each stage once" in refusal for refusal in refusals)


def test_a_round_is_not_joined_again_from_an_older_state() -> None:
    round_ = at("share", 20)
    with pytest.raises(SecureAggregationError, match="once"):
        ClientRound.join(round_.server.invitation(), VICTIM, round_.policies[VICTIM])
