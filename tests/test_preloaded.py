"""Programs of a process that has everything loaded do what those of the environment do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.preloaded import Preloaded

# Says what a program can know of how it was started, and ends with a code of its own.
PROGRAM = """
import json, os, sys
print(json.dumps([sys.argv, os.getcwd(), sys.path[0], os.environ["ASKED"], sys.stdin.read(), __name__]))
print("to the other file", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize(
    "arguments",
    [["-m", "asked", "one", "two words"], ["-c", PROGRAM, "one"], ["-m", "none"], ["asked.py", "one"]],
)
def test_a_program_is_as_if_started_anew(arguments: list[str], tmp_path: Path, preloaded: Preloaded) -> None:
    (tmp_path / "asked.py").write_text(PROGRAM)
    ended = [
        subprocess.run(
            [python, *arguments],
            cwd=tmp_path,
            env=os.environ | {"ASKED": "yes"},
            input="typed",
            capture_output=True,
            text=True,
            check=False,
        )
        for python in (sys.executable, preloaded.python)
    ]
    assert ended[0].stdout == ended[1].stdout
    assert ended[0].returncode == ended[1].returncode
    if arguments[1] != "none":
        assert ended[1].returncode == 7
        assert ended[0].stderr == ended[1].stderr == "to the other file\n"
        assert json.loads(ended[1].stdout)[3:] == ["yes", "typed", "__main__"]


def test_what_programs_import_is_there_already(preloaded: Preloaded, tmp_path: Path) -> None:
    (tmp_path / "loaded.py").write_text(
        "import sys; print('torch' in sys.modules, 'simulations.run' in sys.modules)"
    )
    command = [preloaded.python, "-m", "loaded"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout == "True False\n"


def test_a_started_module_can_be_killed(preloaded: Preloaded, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\nwhile True:\n    time.sleep(100)\n")
    waiting, pid = preloaded.start("endless", folder=tmp_path)
    assert waiting.poll() is None
    os.kill(pid, signal.SIGKILL)
    assert waiting.wait(20) == 1


def test_a_file_that_is_named_is_a_function(tmp_path: Path) -> None:
    (tmp_path / "called.py").write_text("import sys\ndef main():\n    print(__name__, sys.argv)\n")
    (tmp_path / "file.py").write_text("print('as a file')")
    said = []
    with (
        tempfile.TemporaryDirectory(prefix="pq") as folder,
        Preloaded(Path(folder), [], {"file.py": "called:main"}) as programs,
    ):
        assert not (programs.path / "file.py").exists()
        for python in (programs.python, sys.executable):
            command = [python, str(tmp_path / "file.py"), "one"]
            said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert said == [f"called ['{tmp_path / 'file.py'}', 'one']\n", "as a file\n"]


def test_a_shared_process_ends_when_all_have_left(tmp_path: Path) -> None:
    note = tmp_path / "note"

    def number(programs: Preloaded) -> int:
        command = [programs.python, "-c", "import os; print(os.getppid())"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    with Preloaded.shared(note, [], {}) as first:
        pid = number(first)
        with Preloaded.shared(note, [], {}) as second:
            assert number(second) == pid
        assert number(first) == pid
    deadline = time.monotonic() + 20
    while first.path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with Preloaded.shared(note, [], {}) as third:
        assert number(third) != pid
        # One that is started by another ends its own programs, and not the other.
        with (
            tempfile.TemporaryDirectory(prefix="pq") as folder,
            Preloaded(Path(folder), [], {}, within=third) as inner,
        ):
            command = [inner.python, "-c", "import time; time.sleep(100)"]
            waiting = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            assert number(inner) != number(third)
        assert waiting.wait(20) == 1
        number(third)


def test_a_package_that_lies_elsewhere_is_imported_from_there(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    for place in ("here", "there"):
        (tmp_path / place / "brought").mkdir(parents=True)
        text = f"with open({str(noted)!r}, 'a') as file:\n    file.write('{place} ')\n"
        (tmp_path / place / "brought" / "__init__.py").write_text("from brought import part\n")
        (tmp_path / place / "brought" / "part.py").write_text(text)
    shutil.copytree(tmp_path / "here", tmp_path / "copy")
    (tmp_path / "copy" / "brought" / "py.typed").touch()
    found = []
    with (
        # Short, as the names of sockets must be.
        tempfile.TemporaryDirectory(prefix="pq") as folder,
        Preloaded(
            Path(folder),
            ["brought"],
            {},
            os.environ | {"PYTHONPATH": str(tmp_path / "here")},
            compared=["brought"],
        ) as programs,
    ):
        for place in ("here", "there", "copy"):
            done = subprocess.run(
                [programs.python, "-c", "import brought, sys; print(sys.modules['brought.part'].__file__)"],
                env=os.environ | {"PYTHONPATH": str(tmp_path / place)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            found.append(Path(done.stdout.strip()).parts[-3])
    assert found == ["here", "there", "here"]
    # By the process that loads everything, and by the program that has another one; a copy is not imported.
    assert noted.read_text().split() == ["here", "there"]
