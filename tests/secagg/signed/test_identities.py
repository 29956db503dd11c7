"""Identity files and the list of known clients: what is written, read, refused; rotation and removal."""

from __future__ import annotations

import contextlib
import datetime
import json
import stat
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fl_privquant.cli.main import app
from fl_privquant.errors import InvalidSpecError, PrivQuantError, SecureAggregationError
from fl_privquant.secagg.crypto import keys
from fl_privquant.secagg.signed.identities import (
    IdentityKey,
    KnownClients,
    client_id,
    create_identity,
    read_identity,
    read_known_clients,
    sign_known_clients,
    write_known_clients,
)

DAY = datetime.date(2026, 5, 1)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["identity", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def test_a_new_key_is_for_its_owner_only_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    printed = run("new", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert run("show", str(path)) == printed == public(read_identity(path)).hex()
    before = path.read_bytes()
    with pytest.raises(InvalidSpecError, match="exists already"):
        run("new", str(path))
    assert path.read_bytes() == before
    path.chmod(0o640)
    with pytest.raises(InvalidSpecError, match=r"mode 640.*chmod 600"):
        read_identity(path)


def test_files_that_hold_no_key(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    with pytest.raises(InvalidSpecError, match="cannot be read"):
        read_identity(path)
    path.write_bytes(b"-----BEGIN nothing")
    path.chmod(0o600)
    with pytest.raises(InvalidSpecError, match="no private key"):
        read_identity(path)
    with pytest.raises(InvalidSpecError, match="cannot be written"):
        create_identity(tmp_path / "missing" / "identity.pem")


def test_a_key_is_changed_with_an_overlap_and_then_removed(tmp_path: Path) -> None:
    """The list of a client that gets a new key: both sign for a time, then the new one only."""
    path = tmp_path / "clients.json"
    old, new, other = (tmp_path / name for name in ("old.pem", "new.pem", "other.pem"))
    hexes = {file: run("new", str(file)) for file in (old, new, other)}
    run("list", "add", str(path), "clinic-1", hexes[old])
    run("list", "add", str(path), "clinic-2", hexes[other], "--expires", "2099-12-31")
    run("list", "add", str(path), "clinic-1", hexes[new])
    known = read_known_clients(path)
    clinic = client_id("clinic-1")
    for file in (old, new):
        key = read_identity(file)
        assert known.id_of(public(key)) == clinic
        assert keys.verify(known[clinic], keys.sign(key, bytes(32), b"text"), bytes(32), b"text")
    stranger = keys.sign(read_identity(other), bytes(32), b"text")
    assert not keys.verify(known[clinic], stranger, bytes(32), b"text")
    run("list", "remove", str(path), "clinic-1", "--key", hexes[old])
    known = read_known_clients(path)
    assert known[clinic] == (bytes.fromhex(hexes[new]),)
    with pytest.raises(SecureAggregationError, match="not on the list of known clients, or has expired"):
        known.id_of(bytes.fromhex(hexes[old]))
    run("list", "remove", str(path), "clinic-1")
    assert clinic not in read_known_clients(path)
    shown = run("list", "show", str(path))
    assert "clinic-2" in shown
    assert "until 2099-12-31" in shown
    assert "clinic-1" not in shown


@pytest.mark.parametrize(("days", "valid"), [(-1, False), (0, True), (9, True), (10, True), (11, False)])
def test_keys_are_valid_from_the_first_day_to_the_last(days: int, valid: bool) -> None:
    key = IdentityKey(bytes(32), DAY, DAY + datetime.timedelta(days=10))
    known = KnownClients({"one": (key,)}, DAY + datetime.timedelta(days=days))
    assert (client_id("one") in known) == valid
    assert len(known) == valid


def test_a_key_or_a_name_belongs_to_one_client(tmp_path: Path) -> None:
    key = IdentityKey(bytes(32), DAY)
    with pytest.raises(InvalidSpecError, match="have the same key or id"):
        KnownClients({"one": (key,), "two": (key,)}, DAY)
    with pytest.raises(InvalidSpecError, match="have the same key or id"):
        KnownClients({"one": (key, key)}, DAY)
    for name in ("", " one", "one ", "a\nb", "x" * 65, "\x1b[31m"):
        with pytest.raises(InvalidSpecError, match="client name"):
            KnownClients({name: (key,)}, DAY)
    path = tmp_path / "clients.json"
    run("list", "add", str(path), "one", "00" * 32)
    for arguments, message in (
        (("one", "zz"), "not hex"),
        (("one", "00"), "expected 32"),
        (("one", "11" * 32, "--expires", "2020-01-01"), "has passed"),
    ):
        with pytest.raises(InvalidSpecError, match=message):
            run("list", "add", str(path), *arguments)
    with pytest.raises(AssertionError, match="'soon' does not match the format"):
        run("list", "add", str(path), "one", "11" * 32, "--expires", "soon")


def test_a_signed_list_is_read_as_signed_or_not_at_all(tmp_path: Path) -> None:
    path, operator = tmp_path / "clients.json", Ed25519PrivateKey.generate()
    write_known_clients(path, KnownClients({"one": (IdentityKey(bytes(32), DAY),)}, DAY))
    with pytest.raises(InvalidSpecError, match="cannot be read"):
        read_known_clients(path, public(operator))
    sign_known_clients(path, operator)
    assert client_id("one") in read_known_clients(path, public(operator), DAY)
    with pytest.raises(InvalidSpecError, match="not signed by the operator"):
        read_known_clients(path, public(Ed25519PrivateKey.generate()))
    document = json.loads(path.read_text())
    document["clients"]["mallory"] = [{"key": "11" * 32, "added": "2026-01-01", "expires": None}]
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidSpecError, match="not signed by the operator"):
        read_known_clients(path, public(operator))
    signature = tmp_path / "clients.json.sig"
    signature.write_text("no hex")
    with pytest.raises(InvalidSpecError, match="not signed by the operator"):
        read_known_clients(path, public(operator))
    write_known_clients(path, read_known_clients(path))
    assert not signature.exists()


def test_the_operator_signs_by_a_command(tmp_path: Path) -> None:
    path, operator = tmp_path / "clients.json", tmp_path / "operator.pem"
    run("list", "add", str(path), "one", "22" * 32)
    key = run("new", str(operator))
    assert key in run("list", "sign", str(path), str(operator))
    assert "one" in run("list", "show", str(path), "--operator", key)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3), st.integers(0, 300))
def test_damaged_lists_are_refused_by_an_error_of_ours(changes: list[tuple[int, int]], length: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clients.json"
        write_known_clients(path, KnownClients({"one": (IdentityKey(bytes(32), DAY, DAY),)}, DAY))
        text = bytearray(path.read_bytes())
        for at, value in changes:
            text[at % len(text)] = value
        path.write_bytes(text[:length])
        with contextlib.suppress(PrivQuantError):
            assert isinstance(read_known_clients(path), KnownClients)


@pytest.mark.parametrize(
    "text",
    ["[]", "null", "{}", '{"version": 2, "clients": {}}', '{"version": 1, "clients": []}',
     '{"version": 1, "clients": {"a": [{"key": 7}]}}', '{"version": 1, "clients": {"a": ["b"]}}',
     '{"version": 1, "clients": {"a": [{"key": "00", "added": "2026-01-01"}]}}', "[" * 100_000],
)  # fmt: skip
def test_other_documents_are_no_lists(text: str, tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    path.write_text(text)
    with pytest.raises(InvalidSpecError, match=r"clients\.json|public key"):
        read_known_clients(path)
