"""Formats of other versions: a file or message is refused by one line that says what to do.

Requests and replies: ``tests/flower``. Keys of configurations: ``tests/simulations/test_config.py``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.accounting import Release, SpendingLedger
from fl_privquant.errors import CertificationError, InvalidSpecError, InvalidUpdateError, LedgerDamagedError
from fl_privquant.flower import CheckpointStrategy, PrivQuantStrategy
from fl_privquant.flower.server.checkpoint import CheckpointError
from fl_privquant.mechanisms._design_cache import DesignCache
from fl_privquant.packing.pack import pack_codes, unpack_codes
from fl_privquant.secagg import ClientRound
from fl_privquant.secagg._wire import RoundId, Subset
from fl_privquant.secagg.messages import Invitation, UnmaskRequest
from fl_privquant.secagg.signed.identities import read_known_clients
from tests.flower.apps import fedavg

MECHANISM = pq.design("one_bit", epsilon=1.0)


def refused(kind: type[Exception], words: str, action: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=words) as raised:
        action()
    assert "\n" not in str(raised.value)


def of_version(blob: bytes, version: int) -> bytes:
    """A mechanism's bytes with another version, and the checksum that fits."""
    payload = blob[:6] + struct.pack("<H", version) + blob[8:-32]
    return payload + hashlib.sha256(payload).digest()


@pytest.mark.parametrize("version", [0, 2, 9])
def test_mechanisms(version: int) -> None:
    blob = of_version(MECHANISM.to_bytes(), version)
    refused(
        CertificationError,
        f"version {version} is not 1.*design it anew, or install",
        lambda: pq.Mechanism.from_bytes(blob),
    )
    # Negative control: the same bytes in this version are a mechanism.
    assert pq.Mechanism.from_bytes(of_version(blob, 1)).epsilon == MECHANISM.epsilon


def test_cached_designs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DesignCache(tmp_path)

    class Older:
        def to_bytes(self) -> bytes:
            return of_version(MECHANISM.to_bytes(), 0)

    cache.fetch("spec", Older, lambda blob: Older())
    with caplog.at_level(logging.WARNING):
        built = cache.fetch("spec", lambda: MECHANISM, pq.Mechanism.from_bytes)
    assert built is MECHANISM
    assert "version 0 is not 1" in caplog.text
    assert "designing it anew" in caplog.text
    # And kept in its place.
    assert (
        cache.fetch("spec", lambda: pytest.fail("designed"), pq.Mechanism.from_bytes).epsilon
        == MECHANISM.epsilon
    )


def ledger_lines(*contents: dict[str, Any]) -> str:
    """Lines of a ledger whose chain is right, whatever they say."""
    chain, lines = "", []
    for content in contents:
        chain = hashlib.sha256((chain + json.dumps(content, sort_keys=True)).encode()).hexdigest()[:32]
        lines.append(json.dumps({**content, "chain": chain}, sort_keys=True) + "\n")
    return "".join(lines)


def test_ledgers(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(ledger_lines({"version": 2}))
    words = "version 2 is not 1.*nothing more may be spent; install the fl-privquant that wrote it"
    refused(LedgerDamagedError, words, lambda: SpendingLedger(path))
    path.write_text(ledger_lines({"mechanism": "ab", "bytes": ""}))
    refused(LedgerDamagedError, "does not say its version", lambda: SpendingLedger(path))
    path.write_text(ledger_lines({"version": 1}))
    refused(LedgerDamagedError, "head", lambda: SpendingLedger(path))
    SpendingLedger.accept(path).spend(1, Release(MECHANISM, 10))
    assert SpendingLedger(path).rounds == (1,)


@pytest.mark.parametrize("version", [2, 4, None, "x"])
def test_checkpoints(tmp_path: Path, version: Any) -> None:
    path = tmp_path / "run.checkpoint"
    content = json.dumps({"version": version}).encode()
    with path.open("wb") as file:
        np.savez(file, **{"checkpoint.json": np.frombuffer(content, np.uint8)})
    words = f"version {version!r} is not 3.*finish the run with the fl-privquant that began it, or delete"
    refused(
        CheckpointError,
        words,
        lambda: (
            CheckpointStrategy(
                PrivQuantStrategy(fedavg(), pq.Encoding(MECHANISM, clip=0.1)), path
            ).finished_rounds
        ),
    )


def test_lists_of_known_clients(tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    path.write_text('{"version": 2, "clients": {}}')
    refused(InvalidSpecError, "version 2 is not 1.*write it anew", lambda: read_known_clients(path))


def test_messages_of_secure_aggregation_and_payloads() -> None:
    message = bytearray(UnmaskRequest(RoundId(bytes(16), 1), Subset(3, (0, 1))).to_bytes())
    message[2] += 1
    words = "version 7 of the secure-aggregation protocol, expected 6; install the same version"
    refused(InvalidUpdateError, words, lambda: UnmaskRequest.from_bytes(message))
    state = bytearray(
        ClientRound.join(Invitation(RoundId(bytes(16), 1), 5, 20, 7, 15, False).to_bytes(), 3).to_bytes()
    )
    state[2] -= 1
    words = "state of a client: version 7 is not 8.*begin the run anew"
    refused(InvalidUpdateError, words, lambda: ClientRound.from_bytes(state))
    payload = bytearray(pack_codes([1, 2], 3))
    payload[2] += 1
    words = "version 2 is not 1.*install the same fl-privquant on clients and server"
    refused(InvalidUpdateError, words, lambda: unpack_codes(payload, 3, 2))
