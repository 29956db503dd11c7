"""The commands ``fl-privquant identity``: keys of clients, and the list by which clients know one another."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fl_privquant.errors import InvalidSpecError, pluralize

if TYPE_CHECKING:
    from fl_privquant.secagg.signed.identities import KnownClients

identity_app = typer.Typer(help="Identity keys for secure aggregation.", no_args_is_help=True)
_list_app = typer.Typer(help="The list of known clients, which the operator keeps.", no_args_is_help=True)
identity_app.add_typer(_list_app, name="list")

KeyFile = Annotated[Path, typer.Argument(help="File of a private key.")]
ListFile = Annotated[Path, typer.Argument(help="File of the list of known clients.")]
Name = Annotated[str, typer.Argument(help="Name of a client: the same for all its keys.")]


@identity_app.command("new")
def create_key(path: KeyFile) -> None:
    """Make a key in a new file that only its owner can read, and print the public key."""
    from fl_privquant.secagg.signed.identities import create_identity

    typer.echo(create_identity(path).hex())


@identity_app.command("show")
def show_key(path: KeyFile) -> None:
    """Print the public key of a file."""
    from fl_privquant.secagg.signed.identities import read_public_key_hex

    typer.echo(read_public_key_hex(path))


@_list_app.command("add")
def add_client_key(
    path: ListFile,
    name: Name,
    public_key: Annotated[str, typer.Argument(help="What 'identity new' or 'identity show' printed.")],
    expires: Annotated[
        datetime.datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="Last day of the key (UTC), as 2027-01-31. Without: no end."),
    ] = None,
) -> None:
    """Add a key for a client, and make the list if there is none; an old key stays until it is removed."""
    from fl_privquant.secagg.signed.identities import IdentityKey, KnownClients, read_known_clients

    today = datetime.datetime.now(datetime.UTC).date()
    known = read_known_clients(path) if path.exists() else KnownClients({}, today)
    last = None if expires is None else expires.date()
    if last is not None and last < today:
        raise InvalidSpecError("--expires", str(last), "has passed", f"give a day from {today} on")
    _write_list(path, known.with_key(name, IdentityKey(_parse_public_key(public_key), today, last)))


@_list_app.command("remove")
def remove_client(
    path: ListFile,
    name: Name,
    key: Annotated[str | None, typer.Option(help="Remove this public key only.")] = None,
) -> None:
    """Remove a client, or one of its keys."""
    from fl_privquant.secagg.signed.identities import read_known_clients

    _write_list(path, read_known_clients(path).without(name, None if key is None else _parse_public_key(key)))


@_list_app.command("show")
def show_list(
    path: ListFile,
    operator: Annotated[str | None, typer.Option(help="Public key that must have signed the list.")] = None,
) -> None:
    """Print who is on the list, with which keys and until when."""
    from fl_privquant.secagg.signed.identities import read_known_clients

    known = read_known_clients(path, None if operator is None else _parse_public_key(operator))
    for name, keys in known.clients.items():
        for key in keys:
            until = "no end" if key.expires is None else f"until {key.expires}"
            expired = "" if key.expires is None or key.expires >= known.today else ", expired"
            typer.echo(f"{name}  {key.key.hex()}  from {key.added}, {until}{expired}")


@_list_app.command("sign")
def sign_list(
    path: ListFile, operator: Annotated[Path, typer.Argument(help="File of the operator's private key.")]
) -> None:
    """Sign the list, for nodes that have ``privquant-operator`` in their configuration."""
    from fl_privquant.secagg.signed.identities import read_identity, read_public_key_hex, sign_known_clients

    file = sign_known_clients(path, read_identity(operator))
    typer.echo(f"signed in {file}; nodes: privquant-operator={read_public_key_hex(operator)!r}")


def _write_list(path: Path, known: KnownClients) -> None:
    from fl_privquant.secagg.signed.identities import write_known_clients

    write_known_clients(path, known)
    keys = sum(map(len, known.clients.values()))
    sizes = f"{pluralize(len(known.clients), 'client')}, {pluralize(keys, 'key')}"
    typer.echo(f"{path}: {sizes}; a signed list must be signed anew")


def _parse_public_key(text: str) -> bytes:
    from fl_privquant.secagg.signed.identities import IdentityKey

    try:
        key = bytes.fromhex(text)
    except ValueError:
        raise InvalidSpecError("public key", text, "is not hex", "'identity show' prints it") from None
    return IdentityKey(key, datetime.date.min).key
