"""Every command and code block of the README and the guides runs as it stands, in its page's order.

Each page runs in an empty folder, in an environment with nothing but the wheel and its dependencies
(:mod:`tests.e2e.fresh_environment`). Only ports are others than on the page, as tests run side by side.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e import fresh_environment
from tests.ports import find_free_ports

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "simulations" / "examples" / "template"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "pages").glob("*.md")), TEMPLATE / "README.md"]
NOT_RUN = "<!-- not run in tests: "
_FENCE = re.compile(
    r"^(?P<why><!-- not run in tests: .+? -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
# The SuperLink's port on the pages, and the first of those of its SuperNodes.
_SUPERLINK, _SUPERNODES, _NODES = "8000", "9094", 4


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and why it is not run (empty if it is)."""

    language: str
    text: str
    why_not: str

    @property
    def runs(self) -> bool:
        return not self.why_not and self.language in ("python", "sh")


def blocks(text: str) -> list[Block]:
    return [
        Block(
            match["language"],
            match["text"],
            (match["why"] or "").removeprefix(NOT_RUN).removesuffix(" -->\n"),
        )
        for match in _FENCE.finditer(text)
    ]


def runnable(page: Path) -> bool:
    """Whether a page has blocks to run."""
    return any(block.runs for block in blocks(page.read_text(encoding="utf-8")))


def as_script(block: Block, ports: dict[str, str]) -> str:
    """Shell lines as they stand, but for ports; and make only says what it would do, such as these tests."""
    text = re.sub(r"^make ", f"make -n -C '{ROOT}' ", block.text, flags=re.M)
    return re.sub(r"\b\d{4}\b", lambda match: ports.get(match[0], match[0]), text)


@contextlib.contextmanager
def environment(folder: Path, programs: Path) -> Iterator[dict[str, str]]:
    """The environment of a page. What Flower starts by itself, and leaves running, is stopped at the end."""
    home = folder / "home"
    home.mkdir()
    values = fresh_environment.variables(programs) | {
        "HOME": str(home),
        "FLWR_HOME": str(home / ".flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(find_free_ports()[0]),
    }
    try:
        yield values
    finally:
        # Its SuperLink for simulations: no other has its log in this folder.
        shown = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True).stdout
        for line in shown.splitlines():
            if "flower-superlink" in line and str(home) in line:
                os.kill(int(line.split()[0]), signal.SIGTERM)


def run(page: list[Block], folder: Path, programs: Path) -> str:
    """Run the blocks of a page: Python blocks share names, shell blocks a folder. Returns what they print."""
    ports = {_SUPERLINK: str(find_free_ports()[0]), _SUPERNODES: str(find_free_ports(_NODES)[0])}
    scripts = [
        (block.language, block.text if block.language == "python" else as_script(block, ports))
        for block in page
        if block.runs
    ]
    work = folder / "work"
    work.mkdir(exist_ok=True)
    with environment(folder, programs) as values:
        runner = (Path(__file__).parent / "page_blocks.py").read_text()
        process = subprocess.Popen(
            [programs / "python", "-c", runner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=work,
            env=values,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(json.dumps(scripts), timeout=900)
        finally:
            # Whatever the page has started, and not stopped.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    logs = "\n".join(f"--- {log}\n{log.read_text()[-2000:]}" for log in sorted(work.glob("*.log")))
    assert process.returncode == 0, f"{printed[-5000:]}\n{logs}"
    return f"{printed}\n{logs}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [*filter(runnable, PAGES[:-1])], ids=lambda page: page.stem)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path, fresh: Path) -> None:
    printed = run(blocks(page.read_text(encoding="utf-8")), tmp_path, fresh)
    if page.stem == "deployment":
        assert f"PrivQuant: round 1, {_NODES} usable updates, 0 failed" in printed, printed


@pytest.mark.slow
def test_what_the_template_shows_runs_in_a_copy_of_it(tmp_path: Path, fresh: Path) -> None:
    shutil.copytree(TEMPLATE, tmp_path / "work", ignore=shutil.ignore_patterns("__pycache__"))
    printed = run(blocks((TEMPLATE / "README.md").read_text(encoding="utf-8")), tmp_path, fresh)
    assert "PrivQuant: round 5, 20 usable updates, 0 failed" in printed
    # A project of its own needs the package and nothing else of this repository.
    assert not any("simulations" in path.read_text() for path in TEMPLATE.rglob("*.py"))


@pytest.mark.slow
def test_flwr_run_works_in_the_top_folder_of_the_repository(tmp_path: Path, fresh: Path) -> None:
    """With fewer clients and rounds; tests/e2e/test_examples.py runs the app as it is, inline."""
    # Flower looks at every file below the folder of an app, and an environment has tens of thousands.
    not_tracked = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "outputs")
    repository = shutil.copytree(ROOT, tmp_path / "work", ignore=not_tracked)
    privacy = repository / "simulations" / "examples" / "pytorch" / "privacy.py"
    planned, text = "rounds=10, num_clients=50", privacy.read_text()
    assert planned in text
    privacy.write_text(text.replace(planned, "rounds=1, num_clients=4"))
    command = next(
        line
        for block in blocks((ROOT / "docs" / "pages" / "flower.md").read_text(encoding="utf-8"))
        for line in block.text.splitlines()
        if "flwr run ." in line
    )
    assert "num-supernodes=50" in command
    printed = run([Block("sh", command.replace("=50", "=4"), "")], tmp_path, fresh)
    assert "PrivQuant: round 1, 4 usable updates, 0 failed" in printed


def test_every_block_has_a_language_that_is_run() -> None:
    languages = {block.language for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))}
    # The others are what files hold and what programs print.
    assert languages == {"python", "sh", "toml", "diff", "text"}


def test_blocks_of_toml_can_be_read() -> None:
    texts = [
        block.text
        for page in PAGES
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.language == "toml"
    ]
    assert texts
    assert all(tomllib.loads(text) for text in texts)


def test_blocks_that_are_not_run_are_shell_that_can_be_read() -> None:
    left_out = [
        block for page in PAGES for block in blocks(page.read_text(encoding="utf-8")) if block.why_not
    ]
    assert left_out
    for block in left_out:
        subprocess.run(["bash", "-n", "-c", block.text], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["```sh\nfl-privquant no-such-command\n```\n", "```python\nassert False\n```\n"]
)
def test_a_block_that_fails_is_noticed(text: str, tmp_path: Path, fresh: Path) -> None:
    with pytest.raises(AssertionError, match="says"):
        run(blocks(text), tmp_path, fresh)


@pytest.mark.parametrize(("page", "most"), [("README.md", 700), ("docs/pages/concepts.md", 900)])
def test_the_first_pages_are_short(page: str, most: int) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    # What stands between cells of tables is no word.
    assert len([word for word in text.split() if any(map(str.isalnum, word))]) <= most
