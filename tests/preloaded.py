"""Python programs as children of one process that has imported what they need, which takes seconds each time.

    with Preloaded(folder, ["torch"], {"fl-privquant": "fl_privquant.cli.main:main"}) as programs:
        subprocess.run([programs.python, "-m", "simulations.run", ...])

``python`` and the scripts in the folder ``programs.path`` are used as those of the environment. They have a
process forked that runs the module, or the text after ``-c``, from its first line, with their arguments,
folder, environment and files, and they end with its exit code. The rest is left to the environment's Python.
Whoever kills such a program only ends the wait for it: tests that kill start processes of their own.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Preloaded"]

ROOT = Path(__file__).parents[1]

# Where modules are found besides the folder of the process and what PYTHONPATH names.
_NAMED = {str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
_INSTALLED = [each for each in sys.path if each not in _NAMED]

# Imports as little as it can: this is what starts anew for every command.
_PROGRAM = """#!{python} -SE
import array, json, os, socket, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "python" and arguments[:1] not in (["-m"], ["-c"]):
    os.execv({python!r}, [{python!r}, *arguments])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = {{"program": sys.argv[0], "arguments": arguments}}
asked |= {{"folder": os.getcwd(), "environment": dict(os.environ)}}
data = json.dumps(asked).encode()
files = array.array("i", [0, 1, 2])
server.sendmsg([len(data).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
server.sendall(data)
ended = server.recv(1)
sys.exit(ended[0] if ended else "the process ended without an exit code")
"""


class Preloaded:
    """A process that forks others, as long as the ``with`` block lasts.

    Parameters
    ----------
    folder
        Holds the programs, and the socket by which they ask; its path must be short.
    modules
        What is imported. It must not contain what ``python -m`` is to run, which begins with its first line.
    scripts
        Other programs than ``python``, by name: the function that each calls, as ``"module:function"``.
    environment
        Variables that are read where modules are imported; programs have those of who starts them.
    compared
        Packages among the modules that may lie elsewhere too, as in the folder of a Flower app. A program has
        what was imported only if it would itself import the package from the same files.
    """

    def __init__(
        self,
        folder: Path,
        modules: Iterable[str],
        scripts: Mapping[str, str],
        environment: Mapping[str, str] = os.environ,
        compared: Iterable[str] = (),
    ) -> None:
        self.path = folder
        self.python = str(folder / "python")
        self._asked = json.dumps([list(modules), dict(scripts), list(compared)])
        self._names = ("python", *scripts)
        self._environment = environment

    def __enter__(self) -> Preloaded:
        address = str(self.path / "socket")
        for name in self._names:
            (self.path / name).write_text(_PROGRAM.format(python=sys.executable, address=address))
            (self.path / name).chmod(0o755)
        with (self.path / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.preloaded", address, self._asked],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        with self._process.stdout as said:
            assert said.readline(), (self.path / "log").read_text()
        return self

    def __exit__(self, *_: object) -> None:
        # It ends when nobody holds the other side of its input.
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class _Compared(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a package that was imported before to whoever would import it from the same file."""

    def __init__(self, package: str) -> None:
        names = [name for name in sys.modules if name.partition(".")[0] == package]
        self._package = package
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._spec = self._modules[package].__spec__

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._package:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or self._spec is None or spec.origin != self._spec.origin:
            return None
        spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        sys.modules.update(self._modules)
        return self._modules[self._package]

    def exec_module(self, module: ModuleType) -> None:
        # Nothing is left to do, but that the import system has noted who found it here.
        module.__spec__ = self._spec


def _serve(address: str, modules: list[str], scripts: dict[str, str], compared: list[str]) -> None:
    """Fork a child for everyone who asks, until the input is closed, which ends those that are left."""
    for name in modules:
        importlib.import_module(name)
    sys.meta_path[:0] = map(_Compared, compared)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    # A collection of garbage in a child would touch, and so copy, all that was loaded here.
    gc.collect()
    gc.freeze()
    os.write(1, b"ready\n")
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([listening, 0], [], [])
        children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
        if 0 in ready:
            break
        asking, _ = listening.accept()
        child = os.fork()
        if child == 0:
            listening.close()
            _answer(asking, scripts)
        asking.close()
        children.add(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(asking: socket.socket, scripts: dict[str, str]) -> None:
    """Become the process that was asked for; it ends as an interpreter does, and says its exit code."""
    files = array.array("i")
    size, ancillary, _, _ = asking.recvmsg(8, socket.CMSG_LEN(3 * files.itemsize))
    files.frombytes(ancillary[0][2])
    with asking.makefile("rb") as stream:
        asked = json.loads(stream.read(int.from_bytes(size, "big")))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    code = _run(asked["program"], asked["arguments"], scripts.get(Path(asked["program"]).name))
    for end in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore[attr-defined]
        with contextlib.suppress(BrokenPipeError):
            end()
    asking.sendall(bytes([code]))
    os._exit(code)


def _run(program: str, arguments: list[str], script: str | None) -> int:
    """The exit code of a module, or of the function of a script."""
    # As Python has it: first the folder that a module was asked for in, or that a script lies in.
    text = script is None and arguments[0] == "-c"
    first = "" if text else str(Path.cwd() if script is None else Path(program).parent)
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [first, *filter(None, named), *_INSTALLED]
    try:
        if text:
            sys.argv = ["-c", *arguments[2:]]
            sys.modules["__main__"] = main = ModuleType("__main__")
            exec(compile(arguments[1], "<string>", "exec"), vars(main))
        elif script is None:
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [program, *arguments]
            module, _, function = script.partition(":")
            return _exit_code(getattr(importlib.import_module(module), function)())
    except SystemExit as end:
        return _exit_code(end.code)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _exit_code(said: Any) -> int:
    """What a process ends with: nothing is 0, a number itself, and a text is printed."""
    if said is None or isinstance(said, int):
        return (said or 0) & 0xFF
    sys.stderr.write(f"{said}\n")
    return 1


if __name__ == "__main__":
    _serve(sys.argv[1], *json.loads(sys.argv[2]))
