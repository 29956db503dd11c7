"""Identity keys of clients, and the list by which clients know one another, each in a file.

A client's *identity* is an Ed25519 key in a file of its own. A *list of known clients* gives each client a
name and one or more public keys. The operator of the federation writes it, and brings it to every client by
another way than through the server (configuration management, a signed package, a visit). The operator can
also sign the list.

*Names* identify clients. Flower's server numbers the nodes, so that a node's number proves nothing. In a
signed round a client's id is the first 8 bytes of the SHA-256 of its name: it follows from the list, the
server cannot choose it, and no client can be on a roster twice, however many keys it has.

*Rotation*: a client may have several keys at a time. Add the new one to the list, bring the list to all, let
the client use the new key, then remove the old one or let it expire. *Removal*: a client that is no longer
on the list is refused only by clients that have the new list. An old list with a valid signature cannot be
distinguished from a new one, so lists must be distributed promptly.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fl_privquant._files import replace_file
from fl_privquant.errors import MISSING, InvalidSpecError, SecureAggregationError, explain_other_version
from fl_privquant.secagg.crypto.keys import digest, is_valid_signature, sign, verify

_VERSION: Final = 1
_KEY_BYTES: Final = 32
_ID_BYTES: Final = 8
_MAX_NAME: Final = 64
_MAX_FILE_BYTES: Final = 1 << 24
_LIST_DOMAIN: Final = b"fl_privquant known clients v1\0"
_ID_DOMAIN: Final = b"fl_privquant client name v1\0"


@dataclass(frozen=True)
class IdentityKey:
    """A public key of a client, with the first and the last day on which it counts (UTC; None: no end)."""

    key: bytes
    added: datetime.date
    expires: datetime.date | None = None

    def __post_init__(self) -> None:
        if len(self.key) != _KEY_BYTES:
            raise InvalidSpecError(
                "public key",
                MISSING,
                f"{len(self.key)} bytes, expected {_KEY_BYTES} ({2 * _KEY_BYTES} hex digits)",
            )


@dataclass(frozen=True)
class KnownClients(Mapping[int, tuple[bytes, ...]]):
    """The known clients: for each id the public keys that it may sign with on a given day.

    Examples
    --------
    >>> key = IdentityKey(bytes(range(32)), datetime.date(2026, 1, 1), datetime.date(2026, 3, 1))
    >>> known = KnownClients({"clinic-3": (key,)}, datetime.date(2026, 2, 1))
    >>> known[client_id("clinic-3")] == (bytes(range(32)),)
    True
    >>> client_id("clinic-3") in KnownClients({"clinic-3": (key,)}, datetime.date(2026, 3, 2))
    False
    """

    clients: Mapping[str, tuple[IdentityKey, ...]]
    """Keys by name."""
    today: datetime.date
    """The day (UTC) for which keys are looked up; expired ones are left out, and those not yet added."""

    def __post_init__(self) -> None:
        owners: dict[object, str] = {}
        for name, keys in self.clients.items():
            if not (0 < len(name) <= _MAX_NAME and name.isprintable() and name == name.strip()):
                raise InvalidSpecError(
                    "client name",
                    name[:_MAX_NAME],
                    f", expected 1 to {_MAX_NAME} printable characters, no space at the ends",
                )
            for mark in (client_id(name), *(listed.key for listed in keys)):
                if mark in owners:
                    raise InvalidSpecError(
                        "clients",
                        (owners[mark], name),
                        "have the same key or id",
                        "every client needs a key of its own",
                    )
                owners[mark] = name

    def __getitem__(self, client: int) -> tuple[bytes, ...]:
        return self._valid_keys[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._valid_keys)

    def __len__(self) -> int:
        return len(self._valid_keys)

    def id_of(self, key: bytes) -> int:
        """The id of the client that has this public key today."""
        for client, keys in self._valid_keys.items():
            if key in keys:
                return client
        raise SecureAggregationError(
            f"this client's public key {key.hex()} is not on the list of known clients, or has expired; have "
            f"the operator run 'fl-privquant identity list add LIST NAME {key.hex()}' and bring the new list "
            "to all clients"
        )

    @cached_property
    def _valid_keys(self) -> dict[int, tuple[bytes, ...]]:
        today, valid = self.today, {}
        for name, keys in self.clients.items():
            usable = tuple(
                listed.key for listed in keys if listed.added <= today and (listed.expires or today) >= today
            )
            if usable:
                valid[client_id(name)] = usable
        return valid

    def with_key(self, name: str, key: IdentityKey) -> KnownClients:
        """The list with one more key for a client, which may be a new one."""
        return KnownClients({**self.clients, name: (*self.clients.get(name, ()), key)}, self.today)

    def without(self, name: str, key: bytes | None = None) -> KnownClients:
        """The list without a client, or without one of its keys."""
        keys = self.clients.get(name)
        if keys is None or (key is not None and key not in [listed.key for listed in keys]):
            what = name if key is None else f"{name} with key {key.hex()}"
            raise InvalidSpecError(
                what, MISSING, f"not on the list, which has {', '.join(self.clients) or 'nobody'}"
            )
        rest = tuple(listed for listed in keys if key is not None and listed.key != key)
        clients = {client: kept for client, kept in self.clients.items() if client != name}
        return KnownClients({**clients, name: rest} if rest else clients, self.today)


def client_id(name: str) -> int:
    """The id under which a client of that name takes part in signed rounds."""
    return int.from_bytes(hashlib.sha256(_ID_DOMAIN + name.encode()).digest()[:8], "little")


def create_identity(path: Path) -> bytes:
    """Make a key, write it to a new file that only its owner can read, and return the public key."""
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidSpecError(
            str(path), MISSING, "exists already, and a key that is overwritten is lost", "choose another file"
        ) from None
    except OSError as error:
        raise InvalidSpecError(str(path), MISSING, f"cannot be written ({error.strerror})") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return key.public_key().public_bytes_raw()


def read_identity(path: Path) -> Ed25519PrivateKey:
    """The key in a file that :func:`create_identity` wrote; refused if others can read the file.

    Parameters
    ----------
    path
        The file, a private key in PEM.

    Returns
    -------
    Ed25519PrivateKey
        The private key.

    Raises
    ------
    InvalidSpecError
        The file cannot be read, holds no Ed25519 key, or can be read by others.
    """
    text = _read(path, "fl-privquant identity new")
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidSpecError(
            str(path), MISSING, "no private key in PEM", "give a file that 'fl-privquant identity new' wrote"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidSpecError(str(path), MISSING, f"{type(key).__name__}, expected an Ed25519 key")
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise InvalidSpecError(
            str(path), MISSING, f"mode {mode:o}, others can read this key", f"run 'chmod 600 {path}'"
        )
    return key


def read_public_key_hex(path: Path) -> str:
    """The public key of an identity file, in hex."""
    return read_identity(path).public_key().public_bytes_raw().hex()


def read_known_clients(
    path: Path, operator: bytes | None = None, today: datetime.date | None = None
) -> KnownClients:
    """The list in a file. With an operator's public key, its signature in ``path`` + ``.sig`` is required.

    Parameters
    ----------
    path
        The file, which ``fl-privquant identity list`` writes.
    operator
        The public key that must have signed it; None if none has to.
    today
        The day on which keys must be valid; by default the present one (UTC).

    Returns
    -------
    KnownClients
        The clients, with their keys that are valid.

    Raises
    ------
    InvalidSpecError
        The file cannot be read, holds no list, or lacks the operator's signature.
    """
    text = _read(path, "fl-privquant identity list add")
    if operator is not None:
        _check_signature(path, text, operator)
    try:
        document = json.loads(text)
        if document["version"] != _VERSION:
            advice = "write it anew with fl-privquant identity list add, or install the one that wrote it"
            raise InvalidSpecError(
                str(path), MISSING, explain_other_version(document["version"], _VERSION), advice
            )
        clients = {str(name): tuple(map(_read_key, keys)) for name, keys in document["clients"].items()}
    except InvalidSpecError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidSpecError(
            str(path), MISSING, f"no list of known clients ({type(error).__name__}: {error})"
        ) from error
    return KnownClients(clients, today or datetime.datetime.now(datetime.UTC).date())


def write_known_clients(path: Path, known: KnownClients) -> None:
    """Write the list, whole or not at all. A signature of the former list is void, and removed."""
    document = {
        "version": _VERSION,
        "clients": {name: [_key_to_json(listed) for listed in keys] for name, keys in known.clients.items()},
    }
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    _signature_file(path).unlink(missing_ok=True)
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8"))


def sign_known_clients(path: Path, operator: Ed25519PrivateKey) -> Path:
    """Sign the list in a file by an operator's key; returns the file that the signature is in."""
    read_known_clients(path)
    signature = operator.sign(_LIST_DOMAIN + path.read_bytes())
    file = _signature_file(path)
    file.write_text(signature.hex() + "\n")
    return file


def _check_signature(path: Path, text: bytes, operator: bytes) -> None:
    try:
        signature = bytes.fromhex(_read(_signature_file(path), "fl-privquant identity list sign").decode())
    except InvalidSpecError:
        raise
    except ValueError:
        signature = b""
    if not is_valid_signature(operator, signature, _LIST_DOMAIN + text):
        raise InvalidSpecError(
            str(path),
            MISSING,
            f"not signed by the operator {operator.hex()}",
            "the list was changed after it was signed, or signed by another key",
        )


def _signature_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sig")


def _read(path: Path, command: str) -> bytes:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidSpecError(str(path), MISSING, f"above {_MAX_FILE_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise InvalidSpecError(
            str(path), MISSING, f"cannot be read ({error.strerror})", f"'{command}' writes one"
        ) from error


def _read_key(entry: Any) -> IdentityKey:
    expires = entry.get("expires")
    return IdentityKey(
        bytes.fromhex(entry["key"]),
        datetime.date.fromisoformat(entry["added"]),
        None if expires is None else datetime.date.fromisoformat(expires),
    )


def _key_to_json(key: IdentityKey) -> dict[str, str | None]:
    return {
        "key": key.key.hex(),
        "added": key.added.isoformat(),
        "expires": None if key.expires is None else key.expires.isoformat(),
    }


def identify(identity: Ed25519PrivateKey, client_id: int, session: bytes, node_id: int) -> bytes:
    """A client's answer when the server asks who it is: its id, signed for this session and node."""
    client = client_id.to_bytes(_ID_BYTES, "little")
    return client + sign(identity, _identification_digest(session, node_id), client)


def verify_identification(
    known: Mapping[int, Any], answer: bytes, session: bytes, node_id: int
) -> int | None:
    """The id of the known client that gave this answer, or None if none did."""
    client, signature = answer[:_ID_BYTES], answer[_ID_BYTES:]
    identity = int.from_bytes(client, "little")
    if identity not in known or not verify(
        known[identity], signature, _identification_digest(session, node_id), client
    ):
        return None
    return identity


def _identification_digest(session: bytes, node_id: int) -> bytes:
    return digest(b"identification", session, node_id.to_bytes(_ID_BYTES, "little"))
