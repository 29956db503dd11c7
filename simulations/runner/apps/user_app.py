"""A Flower app of a user: it is found by its folder, imported, and refused where it cannot work.

An app is a folder with a ``pyproject.toml`` that has ``[tool.flwr.app.components]``, as ``flwr run`` takes
it. Apps may have modules of the same names, so each run of an app is a process of its own.
"""

from __future__ import annotations

import hashlib
import importlib
import multiprocessing
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fl_privquant._validation import suggest_nearest
from fl_privquant.errors import MISSING, InvalidSpecError, one_line

if TYPE_CHECKING:
    # Importing Flower takes a second, which reading a configuration need not.
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

ROUND_KEYS = ("num-server-rounds", "num-rounds")
"""Keys under which apps have their number of rounds."""

_MAX_CHARACTERS = 300
# Folders of installed packages: users may have their environment in the folder of their app.
_INSTALLED = {"site-packages", "dist-packages"}
_LEGACY = "is of Flower's legacy API ({kind}), whose messages hold no arrays of a model; port it to {instead}"

_App = TypeVar("_App")
_Result = TypeVar("_Result")


@dataclass(eq=False)
class UserApp:
    """A Flower app in a folder.

    Parameters
    ----------
    folder
        Where its ``pyproject.toml`` is.
    name
        Its name.
    digest
        Hash of its files: what its results depend on.
    components
        Where its parts are: ``serverapp`` and ``clientapp``.
    config
        Its own run config, with dotted keys.
    """

    folder: Path
    name: str
    digest: str
    components: Mapping[str, str]
    config: Mapping[str, Any]

    def server(self) -> ServerApp:
        """The server app; raises InvalidSpecError if it cannot be imported, or is of the legacy API."""
        from flwr.serverapp import ServerApp

        app = self._component("serverapp", ServerApp)
        if app._main is None:
            kind = "server_fn, or a strategy of flwr.server"
            raise InvalidSpecError(
                "app", MISSING, f"serverapp {_LEGACY.format(kind=kind, instead='@app.main() with a grid')}"
            )
        return app

    def client(self) -> ClientApp:
        """The client app; raises InvalidSpecError if it cannot be imported, or is of the legacy API."""
        from flwr.clientapp import ClientApp

        app = self._component("clientapp", ClientApp)
        if app._call is not None:
            kind = "client_fn with a Client or NumPyClient"
            raise InvalidSpecError(
                "app",
                MISSING,
                f"clientapp {_LEGACY.format(kind=kind, instead='@app.train() and @app.evaluate()')}",
            )
        return app

    def _component(self, part: str, kind: type[_App]) -> _App:
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        path = self.components[part]
        module_name, _, attribute = path.partition(":")
        try:
            component: Any = importlib.import_module(module_name)
            for name in attribute.split("."):
                component = getattr(component, name)
        except Exception as error:  # a module of the user's may fail in any way
            reason = one_line(f"{type(error).__name__}: {error}", _MAX_CHARACTERS)
            raise InvalidSpecError("app", MISSING, f"{part} {path} cannot be imported ({reason})") from error
        if not isinstance(component, kind):
            raise InvalidSpecError(
                "app", MISSING, f"{part} {path} is a {type(component).__name__}, expected a {kind.__name__}"
            )
        return component


def call_in_own_process(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """What a function returns in a process of its own, in which it may import the modules of an app.

    Raises
    ------
    InvalidSpecError
        The process was killed.
    """
    # Ray's threads hold locks that a copy of this process would wait for without end.
    context = multiprocessing.get_context("spawn" if "ray" in sys.modules else None)
    with ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise InvalidSpecError("app", MISSING, "the process that ran it was killed") from None


def user_app(path: str) -> UserApp:
    """The app in a folder; one object as long as its files do not change.

    Raises
    ------
    InvalidSpecError
        There is no such folder, or it is no Flower app.
    """
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise InvalidSpecError(
            "app", MISSING, f"there is no folder {path}", "give that of the app's pyproject.toml"
        )
    if not (folder / "pyproject.toml").is_file():
        raise InvalidSpecError("app", path, "has no pyproject.toml", "give the folder that flwr run takes")
    return _read(folder, _digest(folder))


def fuse_app_config(app: UserApp, given: Mapping[str, Any]) -> dict[str, Any]:
    """The app's run config with other values for some keys; unknown keys and other types are refused."""
    config = dict(app.config)
    for key, value in _flat(given):
        if key not in config:
            raise InvalidSpecError(
                f"app_config.{key}",
                MISSING,
                f"not in the app's [tool.flwr.app.config]{suggest_nearest(key, config)}",
            )
        kind = type(config[key])
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise InvalidSpecError(f"app_config.{key}", value, f"is not {kind.__name__}, as the app's own is")
        config[key] = value
    return config


def _digest(folder: Path) -> str:
    """Hash of an app's program and settings; data that it keeps beside them are not read."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.suffix not in (".py", ".toml") or _INSTALLED & set(parts) or _is_hidden(parts):
            continue
        if path.is_file():
            state.update(f"{path.relative_to(folder)} {path.stat().st_size} ".encode() + path.read_bytes())
    return state.hexdigest()[:16]


def _is_hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") for part in parts)


@lru_cache(maxsize=32)
def _read(folder: Path, digest: str) -> UserApp:
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InvalidSpecError("app", file, f"cannot be read ({one_line(error)})") from error
    app = project.get("tool", {}).get("flwr", {}).get("app")
    if not isinstance(app, dict):
        raise InvalidSpecError("app", file, "has no [tool.flwr.app], so this is no Flower app")
    components = app.get("components", {})
    for part in ("serverapp", "clientapp"):
        path = components.get(part)
        if not isinstance(path, str) or ":" not in path:
            raise InvalidSpecError(
                "app",
                file,
                f"says {part} = {path!r} in [tool.flwr.app.components], expected 'package.module:attribute'",
            )
    name = str(project.get("project", {}).get("name") or folder.name)
    return UserApp(folder, name, digest, components, dict(_flat(app.get("config", {}))))


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables by dotted keys, as Flower gives them to apps."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
