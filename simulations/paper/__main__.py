"""``python -m simulations.paper`` with the name of a table or figure, or ``all``; ``--help`` lists them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fl_privquant.errors import PrivQuantError
from simulations.paper.page import write_page
from simulations.paper.studies import STUDIES
from simulations.paper.study import HOME, MNIST_VARIABLE, Outcome, Scale, Store, Study, print_frame, progress

QUICK = Scale(
    trials=400, vector_trials=10, cancer_runs=30, mnist_runs=2, mnist_examples=3_200, configurations=40
)

app = typer.Typer(
    help="The experiments of the paper, one command each.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Output = Annotated[
    Path | None,
    typer.Option(
        help="Directory for tables and figures; by default those of the repository.", show_default=False
    ),
]
Mnist = Annotated[
    Path | None,
    typer.Option(help=f"Directory of MNIST's IDX files; or set {MNIST_VARIABLE}.", show_default=False),
]
Quick = Annotated[bool, typer.Option("--quick", help="A small version, written under outputs/paper/quick.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Compute anew what is kept from before.")]


def _store(output: Path | None, quick: bool) -> Store:
    # A small version must never take the place of the tables that the page is about.
    return Store(output or (Path("outputs") / "paper" / "quick" if quick else HOME))


def _scale(mnist: Path | None, quick: bool) -> Scale:
    return dataclasses.replace(QUICK if quick else Scale(), mnist=mnist)


def _show(study: Study, outcome: Outcome, written: list[Path]) -> None:
    first = study.tables[0]
    if study.name == "corrections":
        for row in outcome.tables[first].itertuples():
            print(f"{row.where}: {row.claim}\n  finds:   {row.finding}\n  verdict: {row.verdict}")
            print(f"  {'confirmed' if row.confirmed else 'NOT CONFIRMED by this run'}\n")
    elif len(outcome.tables[first]) <= 100:
        frame = outcome.tables[first]
        print_frame(frame[list(study.shown)] if study.shown else frame, f"{study.title}\n{study.note}")
    print(f"{study.name}: {outcome.seconds:.1f} s of one core")
    for path in written:
        print(f"  {path}")


def _confirmed(outcome: Outcome) -> bool:
    return bool(outcome.tables["corrections"]["confirmed"].all()) if "corrections" in outcome.tables else True


def _command(study: Study) -> Callable[..., None]:
    def run(output: Output = None, mnist: Mnist = None, quick: Quick = False, fresh: Fresh = False) -> None:
        store = _store(output, quick)
        display, line = progress(1)
        try:
            with display:
                outcome = store.fetch(study, _scale(mnist, quick), line(study.name), fresh)
        except PrivQuantError as error:
            raise SystemExit(f"{study.name}: {error}") from None
        _show(study, outcome, store.write(study, outcome))
        if not _confirmed(outcome):
            raise SystemExit(1)

    run.__doc__ = study.title
    return run


for _study in STUDIES:
    app.command(_study.name)(_command(_study))


@app.command("all")
def run_all(
    only: Annotated[list[str] | None, typer.Option(help="Only this study; may be repeated.")] = None,
    output: Output = None,
    mnist: Mnist = None,
    quick: Quick = False,
    fresh: Fresh = False,
) -> None:
    """Every study, and the page about them."""
    names = [study.name for study in STUDIES]
    for name in only or []:
        if name not in names:
            raise SystemExit(f"--only: {name!r} is not one of {', '.join(names)}")
    chosen = [study for study in STUDIES if not only or study.name in only]
    store, scale = _store(output, quick), _scale(mnist, quick)
    confirmed = True
    done: list[str] = []
    display, line = progress(len(chosen))
    with display:
        for study in chosen:
            tell = line(study.name)
            if study.needs_mnist:
                try:
                    _ = scale.mnist_root
                except PrivQuantError as error:
                    done.append(f"{study.name}: skipped ({error}); tables written before are kept")
                    continue
            outcome = store.fetch(study, scale, tell, fresh)
            store.write(study, outcome)
            confirmed &= _confirmed(outcome)
            done.append(f"{study.name}: {outcome.seconds:.1f} s of one core")
            tell(1.0, "done")
    print("\n".join(done))
    print(f"page: {write_page(store)}")
    if not confirmed:
        raise SystemExit("corrections: a check did not confirm; see the page")


@app.command()
def page(output: Output = None, quick: Quick = False) -> None:
    """The page alone, from the tables that are there."""
    print(write_page(_store(output, quick)))


if __name__ == "__main__":
    app()
