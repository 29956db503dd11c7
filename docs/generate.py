"""Writes the pages that mkdocs does not find: one a module, the tutorial with its outputs, and the index."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

import mkdocs_gen_files
import nbformat
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fl_privquant"
TUTORIAL = ROOT / "simulations" / "tutorial.ipynb"
# The tests build every page, but a fifth of the time goes into the words of the reference for the search.
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
REFERENCE_HEAD = UNSEARCHED if os.environ.get("FL_PRIVQUANT_DOCS_SEARCH") == "guides" else ""


def write_modules() -> list[str]:
    """Lines of the navigation, after a page for each public module was written."""
    navigation = mkdocs_gen_files.Nav()
    for path in sorted(PACKAGE.rglob("*.py"), key=lambda each: (each.parent, each.name)):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
            page = posixpath.join("reference", *parts, "index.md")
        else:
            page = posixpath.join("reference", *parts) + ".md"
        navigation[parts] = page
        with mkdocs_gen_files.open(page, "w") as file:
            file.write(f"{REFERENCE_HEAD}# {parts[-1]}\n\n::: {'.'.join(parts)}\n")
    return list(navigation.build_literate_nav())


def write_tutorial() -> None:
    """The executed notebook as a page."""
    exporter = MarkdownExporter()
    text, resources = exporter.from_notebook_node(nbformat.read(TUTORIAL, as_version=4))
    with mkdocs_gen_files.open("tutorial.md", "w") as file:
        file.write(text)
    for name, picture in resources["outputs"].items():
        with mkdocs_gen_files.open(name, "wb") as file:
            file.write(picture)


write_tutorial()
with mkdocs_gen_files.open("SUMMARY.md", "w") as summary:
    pages = {
        "fl_privquant": "index.md",
        "Concepts": "concepts.md",
        "Glossary": "glossary.md",
        "Tutorial": "tutorial.md",
        "Plug into Flower": "flower.md",
        "Coming from Flower's DP wrappers": "from_flower.md",
        "Choose parameters": "plan.md",
        "Clients or records": "records.md",
        "Simulate, sweep, report": "sweep.md",
        "Deployment": "deployment.md",
        "Threat model": "threat_model.md",
        "Audit a run": "audit.md",
        "What the guarantees rest on": "proofs.md",
        "Mechanisms and studies": "studies.md",
        "Results": "results.md",
        "Bring your own task": "own.md",
        "Extend": "extending.md",
        "A walk through one round": "walk.md",
    }
    summary.writelines([*(f"* [{title}]({page})\n" for title, page in pages.items()), *write_modules()])
