"""The documentation builds without a warning, and says something about every public name."""

from __future__ import annotations

import html
import importlib
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import fl_privquant
from fl_privquant.cli.main import app
from fl_privquant.mechanisms.registry import default_mechanisms

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fl_privquant"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
MODULES = sorted(each.name for each in pkgutil.walk_packages(fl_privquant.__path__, "fl_privquant."))


def undocumented(module_name: str) -> list[str]:
    """Public names of a module, and public members of its classes, that nothing is said about."""
    module = importlib.import_module(module_name)
    missing = [] if module.__doc__ else [module_name]
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module_name:
            continue
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if not value.__doc__:
            missing.append(name)
        if inspect.isclass(value):
            members = [key for key in vars(value) if not key.startswith("_")]
            missing += [f"{name}.{key}" for key in members if not _described(value, key)]
    return missing


def _described(owner: type, name: str) -> bool:
    """Whether a method or property has a docstring, here or in a base; other attributes do not need one."""
    found = [vars(base)[name] for base in owner.__mro__ if name in vars(base)]
    plain = [each.__func__ if isinstance(each, classmethod | staticmethod) else each for each in found]
    if not (inspect.isfunction(plain[0]) or isinstance(plain[0], property)):
        return True
    return any(each.__doc__ for each in plain)


@pytest.mark.parametrize("module_name", MODULES)
def test_every_public_name_is_documented(module_name: str) -> None:
    assert undocumented(module_name) == []


def test_a_method_without_a_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fl_privquant.OutputDistribution.pmf, "__doc__", None)
    assert undocumented("fl_privquant.distributions.output_distribution") == ["OutputDistribution.pmf"]


def missing_files(text: str) -> list[str]:
    """Files and folders of this repository that a page names in code quotes, and that are not there."""
    named = re.findall(r"`([\w/]+(?:\.py|\.yaml|/))`", text)
    simulations = ROOT / "simulations"
    folders = (ROOT, PACKAGE, simulations, simulations / "runner", simulations / "report")
    return [name for name in named if not any((folder / name).exists() for folder in folders)]


@pytest.mark.parametrize("page", ["walk.md", "extending.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / "docs" / "pages" / page).read_text()
    # NAME stands for what the reader adds.
    assert [file for file in missing_files(text) if "NAME" not in file] == []
    assert "flower/no_such_module.py" in missing_files(text + " `flower/no_such_module.py`")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built without a warning."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    quiet = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    # Whether there are warnings does not depend on how many pages a search looks through, nor on where
    # signatures are broken into lines.
    quiet |= {"FL_PRIVQUANT_DOCS_SEARCH": "guides", "FL_PRIVQUANT_DOCS_LINE_LENGTH": "1000"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "-f",
            "docs/mkdocs.yml",
            "-d",
            folder,
        ],
        cwd=ROOT,
        env=os.environ | quiet,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_documentation_links_and_searches_what_it_should(site: Path) -> None:
    page = (site / "reference" / "fl_privquant" / "secagg" / "index.html").read_text()
    # Roles became links, and what is re-exported is described where it is imported from.
    assert ":class:" not in page
    assert "ClientRound" in page
    assert (site / "tutorial.html").stat().st_size > 10_000
    searched = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert any(each["location"].startswith("concepts.html") for each in searched)
    assert not any(each["location"].startswith("reference") for each in searched)


# Frames as wide as a phone or a screen; what is found in them, because it would have to be moved sideways.
FRAMES = """
<body>{frames}
<script>
const wider = box => box.clientWidth > 0 && box.scrollWidth > box.clientWidth + 1
  && ['auto', 'scroll'].includes(getComputedStyle(box).overflowX);
addEventListener('load', () => setTimeout(() => {{
  const seen = [...document.querySelectorAll('iframe')].map(frame => {{
    const page = frame.contentDocument;
    const cut = [...page.querySelectorAll('*')].filter(wider).map(box => box.innerText.slice(0, 60));
    const whole = page.documentElement.scrollWidth <= frame.clientWidth;
    return [frame.getAttribute('src'), page.querySelectorAll('h1').length, whole, cut];
  }});
  document.body.textContent = 'SEEN' + JSON.stringify(seen) + 'END';
}}, 1000));
</script>
"""


def look_at(site: Path, names: list[str], width: int) -> list[tuple[str, int, bool, list[str]]]:
    """For each page its name, how many titles it has, whether it fits, and what in it is cut off."""
    frame = "<iframe style='border: 0; width: {}px; height: 800px' src='{}'></iframe>"
    (site / "frames.html").write_text(
        FRAMES.format(frames="".join(frame.format(width, name) for name in names))
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
    flags += ["--allow-file-access-from-files", "--virtual-time-budget=60000"]
    command = [str(CHROMIUM), *flags, f"--user-data-dir={site / 'profile'}", (site / "frames.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.search("SEEN(.*)END", shown)
    assert found is not None
    return [tuple(page) for page in json.loads(html.unescape(found[1]))]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open pages in: apt-get install chromium")
@pytest.mark.parametrize("width", [360, 1280])
def test_no_guide_is_cut_off(site: Path, width: int) -> None:
    names = sorted(path.with_suffix(".html").name for path in (ROOT / "docs" / "pages").glob("*.md"))
    names.append("tutorial.html")
    assert look_at(site, names, width) == [(name, 1, True, []) for name in names]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open pages in: apt-get install chromium")
def test_a_line_that_is_cut_off_is_noticed(site: Path) -> None:
    """Negative control."""
    page = (site / "sweep.html").read_text()
    unbroken = "<style>pre > code { white-space: pre !important }</style></head>"
    (site / "unbroken.html").write_text(page.replace("</head>", unbroken))
    ((_, _, _, cut),) = look_at(site, ["unbroken.html"], 360)
    assert any("simulations.run" in text for text in cut)


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table after a heading of a page, without emphasis."""
    _, _, text = (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    table = re.search(r"^\|[-|]+\|\n((?:\|.*\n)+)", text, re.M)
    assert table is not None
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def test_errors_of_one_coordinate_are_those_that_the_commands_print() -> None:
    tables = ROOT / "simulations" / "studies" / "paper" / "tables"
    table = pd.read_csv(tables / "table1.csv").query("epsilon == 1").set_index("mechanism")
    optm = fl_privquant.design("optm", epsilon=1.0, bits=2)
    printed = {
        "`optm paper`: as printed (independent, on the paper's values)": "ours: independent, paper's bins",
        "paired, on the same values": "ours: paired, paper's bins",
        "free, on the same values": "ours: free, paper's bins",
        "free, on the best values for MAE": "ours: free, best for MAE",
        "free, on the best values for MSE": "ours: free, best for MSE",
        "one bit": "one bit",
    }
    errors = {label: (table["mae"][name], table["mse"][name]) for label, name in printed.items()}
    errors["`optm`: the same, on a lattice"] = optm.mae(), optm.mse()
    rows = rows_of("docs/pages/studies.md", "One coordinate")
    assert {label: (mae, mse) for label, mae, mse in rows} == {
        label: (f"{mae:.3f}", f"{mse:.3f}") for label, (mae, mse) in errors.items()
    }


def test_what_an_epsilon_means_is_what_the_command_prints() -> None:
    done = CliRunner().invoke(app, ["statement", "--bits", "2", "--clients", "20"], env={"COLUMNS": "120"})
    printed = [" ".join(line.split()) for line in done.stdout.splitlines()]
    rows = rows_of("docs/pages/concepts.md", "What ε means")
    assert len(rows) == 5
    for row in rows:
        assert " ".join(row) in printed


def test_bits_that_travel_are_those_of_the_study() -> None:
    tables = ROOT / "simulations" / "studies" / "sum_grid" / "tables"
    table = pd.concat([pd.read_csv(tables / f"sums-7850-{clients}.csv") for clients in (100, 1000)])
    default = table[table["mechanism"] == default_mechanisms(in_sum=True)[0]]
    ends = default.groupby("num_clients")["bits_in_sum"].agg(["min", "max"])
    (few, some), (many, most) = ends.itertuples(index=False, name=None)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    concepts = " ".join((ROOT / "docs" / "pages" / "concepts.md").read_text(encoding="utf-8").split())
    assert f"adds the integers up, at {few} to {most} bits" in readme
    assert f"1 to 8, in secure sums {few} to {most}" in readme
    assert f"{in_words(few, some)} bits for 100 clients and {in_words(many, most)} for 1000" in concepts


def in_words(least: int, most: int) -> str:
    """A span of whole numbers: 8, 7 or 8, 9 to 11."""
    if least == most:
        return f"{least}"
    return f"{least} or {most}" if most == least + 1 else f"{least} to {most}"
