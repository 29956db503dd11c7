"""The page about all studies, written from their tables and from nothing else."""

from __future__ import annotations

from pathlib import Path

from simulations.paper.page.markdown import table
from simulations.paper.page.sections import SECTIONS
from simulations.paper.studies import STUDIES
from simulations.paper.study import MNIST_VARIABLE, Store

__all__ = ["page_text", "write_page"]

_INTRODUCTION = """# The experiments of the paper

Every table and figure of Cai, Zhang, Khalili, "Privacy-Aware Randomized Quantization via Linear Programming"
(UAI 2024), by one command each, beside our best design at the same ε and with as many output values m.

```sh
python -m simulations.paper all                       # everything: tables, figures, this page
python -m simulations.paper all --only table1         # one of it, and this page
python -m simulations.paper all --quick               # a small version, under outputs/paper/quick
python -m simulations.paper corrections               # the checks at the end of this page
```

MNIST is read from IDX files: `--mnist DIRECTORY`, or the environment variable `{variable}`; without
either that row is skipped. An interrupted run goes on where it stopped; `--fresh` computes anew. Seeds are
fixed. Every figure on this page comes from a table in [tables](tables), which the command beside it writes.

All of it takes {minutes:.1f} minutes of one core. Designs are kept on disk: the first study that needs one
pays for it.

## At a glance

An ε is *certified* on the integer table that is sampled from, in exact arithmetic and rounded up. Unless
said, it is for one coordinate and one release, in the local view, which is what the paper's ε is. The paper
prints no numbers for its figures: *(ref)* marks values that were measured elsewhere with its procedure.
m = 4 unless said.
"""

_OUTLINE = (
    "figure or table",
    "paper",
    "reproduced",
    "ours",
    "certified ε",
    "command `python -m simulations.paper …`",
    "s",
)


def write_page(store: Store) -> Path:
    """Write the page from the tables in a store."""
    store.page.parent.mkdir(parents=True, exist_ok=True)
    store.page.write_text(page_text(store), encoding="utf-8")
    return store.page


def page_text(store: Store) -> str:
    """The page, in Markdown; a study whose tables are missing is said to be missing."""
    seconds = store.seconds()
    total = sum(seconds.values())
    glance, sections = [], []
    for study in STUDIES:
        tables = store.read(study)
        words = SECTIONS[study.name]
        taken = f"{seconds[study.name]:.0f}" if study.name in seconds else ""
        if tables is None:
            body = f"Not run: `{study.command}` writes it."
            glance.append([study.title, "", "not run", "", "", f"`{study.name}`", ""])
        else:
            body = words.body(tables)
            for line in words.glance(tables):
                glance.append(
                    [
                        line.what,
                        line.paper,
                        line.reproduced,
                        line.ours,
                        line.epsilon,
                        f"`{study.name}`",
                        taken,
                    ]
                )
        heading = f"## {study.title}\n\n`{study.command}` → {_files(study.tables)}\n"
        picture = f"\n![{study.title}](figures/{study.figure})\n" if study.draw and tables is not None else ""
        sections.append(f"{heading}{picture}\n{body}")
    introduction = _INTRODUCTION.format(variable=MNIST_VARIABLE, minutes=total / 60.0)
    return (
        "\n".join([introduction, table(_OUTLINE, glance), *("\n" + section for section in sections)]).rstrip()
        + "\n"
    )


def _files(names: tuple[str, ...]) -> str:
    return ", ".join(f"[{name}.csv](tables/{name}.csv)" for name in names)
