"""Every command and code block of the README and documentation runs as it stands, in its page's order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.preloaded import Preloaded

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "pages").glob("*.md"))]
NOT_RUN = "<!-- not run in tests: "
_FENCE = re.compile(
    r"^(?P<why><!-- not run in tests: .+? -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and why it is not run (empty if it is)."""

    language: str
    text: str
    why_not: str


def blocks(text: str) -> list[Block]:
    return [
        Block(
            match["language"],
            match["text"],
            (match["why"] or "").removeprefix(NOT_RUN).removesuffix(" -->\n"),
        )
        for match in _FENCE.finditer(text)
    ]


def as_script(block: Block) -> str:
    """Shell lines as they stand, but that make only says what it would do: it would run these tests again."""
    return re.sub(r"^make ", f"make -n -C '{ROOT}' ", block.text, flags=re.M)


def environment(programs: Preloaded) -> dict[str, str]:
    folders = [str(programs.path), str(Path(sys.executable).parent), os.environ["PATH"]]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PATH": os.pathsep.join(folders), "PYTHONPATH": os.pathsep.join(paths)}


def run(page: list[Block], folder: Path, programs: Preloaded) -> None:
    """Python blocks of a page share their names, shell blocks their folder."""
    scripts = [
        (block.language, block.text if block.language == "python" else as_script(block))
        for block in page
        if not block.why_not
    ]
    if not scripts:
        return
    done = subprocess.run(
        [programs.python, "-m", "tests.e2e.page_blocks"],
        input=json.dumps(scripts),
        cwd=folder,
        env=environment(programs),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path, preloaded: Preloaded) -> None:
    run(blocks(page.read_text(encoding="utf-8")), tmp_path, preloaded)


def test_every_block_has_a_language_that_is_run() -> None:
    languages = {block.language for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))}
    assert languages == {"python", "sh"}


def test_blocks_that_are_not_run_are_shell_that_can_be_read() -> None:
    left_out = [
        block for page in PAGES for block in blocks(page.read_text(encoding="utf-8")) if block.why_not
    ]
    assert left_out
    for block in left_out:
        subprocess.run(["bash", "-n", "-c", block.text], check=True)


def test_a_block_that_fails_is_noticed(tmp_path: Path, preloaded: Preloaded) -> None:
    for text in ("```sh\nfl-privquant no-such-command\n```\n", "```python\nassert False\n```\n"):
        with pytest.raises(AssertionError, match="says"):
            run(blocks(text), tmp_path, preloaded)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 800
