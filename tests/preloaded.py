"""Python programs as children of one process that has imported what they need, which takes seconds each time.

    with Preloaded(folder, ["torch"], {"fl-privquant": "fl_privquant.cli.main:main"}) as programs:
        subprocess.run([programs.python, "-m", "simulations.run", ...])

``python`` and the scripts in the folder ``programs.path`` are used as those of the environment. They have a
process forked that runs the module, or the text after ``-c``, from its first line, with their arguments,
folder, environment and files, and they end with its exit code. The rest is left to the environment's Python.
Whoever kills such a program only ends the wait for it: :meth:`Preloaded.start` says which process to kill.

:meth:`Preloaded.shared` is one such process for all workers of a run of the tests. Another :class:`Preloaded`
can be started ``within`` it: it has loaded the same at once, and ends its own programs.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import IO, Any

__all__ = ["ROOT", "Preloaded", "set_path"]

ROOT = Path(__file__).parents[1]

# Where modules are found besides the folder of the process and what PYTHONPATH names.
_NAMED = os.environ.get("PYTHONPATH", "").split(os.pathsep)
_INSTALLED = [each for each in sys.path[1:] if each not in _NAMED]
# Held until the process ends: what is thrown away while it runs is warned of.
_SHARED: list[subprocess.Popen[bytes]] = []

# Imports as little as it can: this is what starts anew for every command.
_PROGRAM = """#!{python} -SE
import array, json, os, socket, sys
program, *arguments = sys.argv
if os.path.basename(program) == "python" and arguments[:1] not in (["-m"], ["-c"]):
    if not arguments or os.path.basename(arguments[0]) not in {files!r}:
        os.execv({python!r}, [{python!r}, *arguments])
    program, *arguments = arguments
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = {{"program": program, "arguments": arguments}}
asked |= {{"folder": os.getcwd(), "environment": dict(os.environ)}}
data = json.dumps(asked).encode()
files = array.array("i", [0, 1, 2])
server.sendmsg([len(data).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
server.sendall(data)
ended = server.recv(1)
sys.exit(ended[0] if ended else "the process ended without an exit code")
"""


# Says which process it is, and becomes a module without output.
_MODULE = """
import os, runpy, sys
print(os.getpid(), flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
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
        Other programs than ``python``, by name: the function that each calls, as ``"module:function"``. One
        whose name ends with ``.py`` is what ``python`` calls when it is to run a file of that name.
    environment
        Variables that are read where modules are imported; programs have those of who starts them.
    compared
        Packages among the modules that may lie elsewhere too, as in the folder of a Flower app; each may
        import those before it. A program has what was imported only if it would itself import the package,
        and those before it, from the same files or from copies of them.
    within
        Forks the process, which then has loaded the same; if it is shared, it lasts as long.
    """

    def __init__(
        self,
        folder: Path,
        modules: Iterable[str],
        scripts: Mapping[str, str],
        environment: Mapping[str, str] = os.environ,
        compared: Iterable[str] = (),
        within: Preloaded | None = None,
    ) -> None:
        self.path = folder
        self.python = str(folder / "python")
        self._asked = [list(modules), dict(scripts), list(compared)]
        self._files = [name for name in scripts if name.endswith(".py")]
        self._names = ["python", *(name for name in scripts if name not in self._files)]
        self._environment = environment
        self._within = within

    def __enter__(self) -> Preloaded:
        self._process = self._start(subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        # It ends when nobody holds the other side of its input.
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def start(self, module: str, *arguments: str, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
        """Start a module whose output nobody reads: what waits for its end, and its id, for signals."""
        command = [self.python, "-c", _MODULE, module, *arguments]
        waiting = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert waiting.stdout is not None
        with waiting.stdout as said:
            return waiting, int(said.readline())

    @classmethod
    @contextlib.contextmanager
    def shared(cls, note: Path, *arguments: Any, **options: Any) -> Iterator[Preloaded]:
        """The process of all who name the same file: the first starts it, and it ends when all have left.

        Parameters
        ----------
        note
            Says where it is.
        *arguments, **options
            As for one that is not shared, but for the folder.
        """
        with _locked(note):
            programs, input_ = cls._joined(note, arguments, options) or cls._begun(note, arguments, options)
        try:
            yield programs
        finally:
            os.close(input_)

    @classmethod
    def _joined(cls, note: Path, arguments: Any, options: Any) -> tuple[Preloaded, int] | None:
        """What runs, and the side of its input that keeps it; None if nothing runs."""
        try:
            folder = Path(note.read_text())
            return cls(folder, *arguments, **options), os.open(folder / "input", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            # Nobody has started it, or it has ended, and with it the other side.
            return None

    @classmethod
    def _begun(cls, note: Path, arguments: Any, options: Any) -> tuple[Preloaded, int]:
        # Short, as the names of sockets must be.
        folder = Path(tempfile.mkdtemp(prefix="pq"))
        os.mkfifo(folder / "input")
        # Its reader first: there is no writing side of what nobody reads.
        with os.fdopen(os.open(folder / "input", os.O_RDONLY | os.O_NONBLOCK), "rb") as read:
            input_ = os.open(folder / "input", os.O_WRONLY)
            programs = cls(folder, *arguments, **options)
            _SHARED.append(programs._start(read, note))
        note.write_text(str(folder))
        return programs, input_

    def _start(self, input_: int | IO[bytes], note: Path | None = None) -> subprocess.Popen[bytes]:
        address = str(self.path / "socket")
        text = _PROGRAM.format(python=sys.executable, address=address, files=self._files)
        for name in self._names:
            (self.path / name).write_text(text)
            (self.path / name).chmod(0o755)
        noted = None if note is None else str(note)
        python = sys.executable if self._within is None else self._within.python
        held = None if self._within is None else str(self._within.path / "input")
        with (self.path / "log").open("wb") as log:
            process = subprocess.Popen(
                [python, "-m", "tests.preloaded", address, json.dumps([*self._asked, noted, held])],
                cwd=ROOT,
                env=self._environment,
                stdin=input_,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        with process.stdout as said:
            assert said.readline(), (self.path / "log").read_text()
        return process


@contextlib.contextmanager
def _locked(note: Path) -> Iterator[None]:
    with note.with_name(f"{note.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Compared(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives packages that were imported before to whoever would import the same ones."""

    def __init__(self, packages: list[str]) -> None:
        self._packages = packages
        self._specs = {package: sys.modules[package].__spec__ for package in packages}
        names = [name for name in sys.modules if name.partition(".")[0] in packages]
        self._modules = {name: sys.modules.pop(name) for name in names}

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._packages:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or not all(map(self._same, self._packages[: self._packages.index(name) + 1])):
            return None
        spec.loader = self
        return spec

    def _same(self, package: str) -> bool:
        """Whether a package would be imported from the same files as before, or from copies of them."""
        before, now = self._specs[package], importlib.machinery.PathFinder.find_spec(package)
        if before is None or now is None or before.origin is None or now.origin is None:
            return False
        return before.origin == now.origin or _contents(before.origin) == _contents(now.origin)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        parts = {name: each for name, each in self._modules.items() if name.partition(".")[0] == spec.name}
        sys.modules.update(parts)
        return parts[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        # Nothing is left to do, but that the import system has noted who found it here.
        module.__spec__ = self._specs[module.__name__]


def _contents(origin: str) -> dict[Path, bytes]:
    """All files of the package whose first file this is, but for what says that it has types."""
    folder = Path(origin).parent
    files = (each for each in folder.rglob("*") if each.is_file() and each.parent.name != "__pycache__")
    return {each.relative_to(folder): each.read_bytes() for each in files if each.name != "py.typed"}


def _serve(
    address: str,
    modules: list[str],
    scripts: dict[str, str],
    compared: list[str],
    note: str | None,
    held: str | None,
) -> None:
    """Fork a child for everyone who asks, until the input is closed, which ends those that are left."""
    # Whoever has forked this process would end it; children are not to hold what only this one needs.
    holds = [os.open(held, os.O_WRONLY)] if held is not None and Path(held).exists() else []
    for name in modules:
        importlib.import_module(name)
    sys.meta_path.insert(0, _Compared(compared))
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    # A collection of garbage in a child would touch, and so copy, all that was loaded here.
    gc.collect()
    gc.freeze()
    # So would the finalizers of what was made here when a child ends: torch has thousands of them.
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    os.write(1, b"ready\n")
    children: set[int] = set()
    with contextlib.ExitStack() as locks:
        while True:
            ready, _, _ = select.select([listening, 0], [], [])
            children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
            if 0 in ready and _is_left(note, locks):
                break
            if listening not in ready:
                continue
            asking, _ = listening.accept()
            child = os.fork()
            if child == 0:
                listening.close()
                for file in holds:
                    os.close(file)
                _answer(asking, scripts)
            asking.close()
            children.add(child)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if note is not None:
            shutil.rmtree(Path(address).parent)


def _is_left(note: str | None, locks: contextlib.ExitStack) -> bool:
    """Whether nobody holds the other side of the input; then nobody can join until the locks are given up."""
    if note is None:
        return True
    with contextlib.ExitStack() as tried:
        # Where the folder of the tests is gone, nobody can join.
        with contextlib.suppress(FileNotFoundError):
            tried.enter_context(_locked(Path(note)))
        if not select.select([0], [], [], 0)[0]:
            return False
        locks.push(tried.pop_all())
    return True


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
    set_path("" if text else str(Path.cwd() if script is None else Path(program).parent))
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


# CPython 3.11 keeps the frames of functions in chunks of 16 kB, and returns a chunk to the system as soon as
# no function is in it. A loop whose calls happen to cross the end of one asks for memory each time: that took
# a tenth of the time of all tests. A frame that says it is large has a chunk of a megabyte.
_run.__code__ = _run.__code__.replace(co_stacksize=1 << 16)


def set_path(first: str) -> None:
    """Look for modules in a folder, in those that PYTHONPATH names, and among what is installed."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [first, *filter(None, named), *_INSTALLED]


def _exit_code(said: Any) -> int:
    """What a process ends with: nothing is 0, a number itself, and a text is printed."""
    if said is None or isinstance(said, int):
        return (said or 0) & 0xFF
    sys.stderr.write(f"{said}\n")
    return 1


if __name__ == "__main__":
    _serve(sys.argv[1], *json.loads(sys.argv[2]))
