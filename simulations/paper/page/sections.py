"""What the page says of each study: its lines at a glance, and its section."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from simulations.paper.dpsgd import BUDGET, DELTA
from simulations.paper.example_law import BINS, GAMMA
from simulations.paper.page.markdown import number, rounded_up, table
from simulations.paper.study import Tables

__all__ = ["SECTIONS", "Glance", "Section"]

_OURS = "OPTM free (ours)"


@dataclass(frozen=True)
class Glance:
    """One line of the first table."""

    what: str
    paper: str
    reproduced: str
    ours: str
    epsilon: str


@dataclass(frozen=True)
class Section:
    """What is said of a study, from its tables."""

    glance: Callable[[Tables], list[Glance]]
    body: Callable[[Tables], str]


def _of(frame: pd.DataFrame, **columns: object) -> pd.Series:
    """The one row that has these values."""
    for name, value in columns.items():
        frame = frame[frame[name] == value]
    return frame.iloc[0]


def _table1_glance(tables: Tables) -> list[Glance]:
    frame = tables["table1"]
    lines = []
    for epsilon in frame["epsilon"].unique():
        optm = _of(frame, epsilon=epsilon, mechanism="OPTM")
        ours = _of(frame, epsilon=epsilon, mechanism="ours: free, best for MAE")
        lines.append(
            Glance(
                f"Table 1, OPTM, MAE at ε = {epsilon:g}",
                number(optm["printed"]),
                f"{number(optm['grid_mae'], 4)} (exact {number(optm['mae'], 4)})",
                f"{number(ours['grid_mae'], 4)} (exact {number(ours['mae'], 4)})",
                rounded_up(ours["certified_epsilon"]),
            )
        )
    return lines


def _table1(tables: Tables) -> str:
    rows = [
        [
            f"{row.epsilon:g}",
            row.mechanism,
            "N/A" if pd.isna(row.printed) and row.mechanism in ("RQM", "ERM") else number(row.printed),
            number(row.grid_mae, 4),
            number(row.mae, 4),
            number(row.mse, 3),
            rounded_up(row.certified_epsilon, 6),
        ]
        for row in tables["table1"].itertuples()
    ]
    headings = (
        "ε",
        "mechanism",
        "paper",
        "51-point mean",
        "exact MAE",
        "exact MSE",
        "certified ε (coordinate release, local view)",
    )
    return (
        table(headings, rows)
        + "\nOPTM is solved by the authors' own program, with their bins. *Ours* are on the same four "
        "values, or on the best "
        "four. N/A: the paper found no parameters; there are some (see the corrections).\n\n"
        "**What it does not show.** MAE is what the paper optimises, and its optimum pays with rare, "
        "far outputs: see the MSE "
        "column. Averages over clients are governed by the MSE, by which OPTM loses to one bit at every "
        "ε. The best "
        "MAE depends on how far out a value may lie (here 4 times the least outer value). Inputs are "
        "uniform.\n"
    )


def _table2_glance(tables: Tables) -> list[Glance]:
    frame = tables["table2"]
    lines = []
    for sigma in frame["sigma"].unique():
        optm = _of(frame, sigma=sigma, mechanism="OPTM, clipped")
        ours = _of(frame, sigma=sigma, mechanism="ours: free, best for MAE, clipped")
        lines.append(
            Glance(
                f"Table 2, OPTM, MAE at σ = {sigma:g}",
                number(optm["printed"]),
                number(optm["mae"], 4),
                number(ours["mae"], 4),
                rounded_up(ours["certified_epsilon"]),
            )
        )
    return lines


def _table2(tables: Tables) -> str:
    rows = [
        [
            f"{row.sigma:g}",
            row.mechanism,
            number(row.printed),
            number(row.mae, 4),
            number(row.mse, 3),
            rounded_up(row.certified_epsilon, 6),
        ]
        for row in tables["table2"].itertuples()
    ]
    headings = (
        "σ",
        "mechanism",
        "paper",
        "exact MAE",
        "exact MSE",
        "certified ε (coordinate release, local view)",
    )
    return (
        table(headings, rows)
        + "\nThe printed figures are means over 1000 samples; ours are integrals. OPTM is solved by the "
        "authors' program for "
        "asymmetric bins. Figures of the paper are for *clipped* inputs, though it says truncated.\n\n"
        "**What it does not show.** The density is taken as known, and a density that was estimated "
        "from clients' data costs "
        "privacy of its own, which neither the paper nor this table counts. No row is designed "
        "for the MSE.\n"
    )


def _curve_value(frame: pd.DataFrame, epsilon: float, mechanism: str, x: float) -> float:
    line = frame[(frame["epsilon"] == epsilon) & (frame["mechanism"] == mechanism)]
    return float(line.loc[(line["x"] - x).abs().idxmin(), "error"])


def _scalar_glance(tables: Tables) -> list[Glance]:
    frame = tables["figure-scalar-error"]
    values = {
        name: ", ".join(number(_curve_value(frame, 1.0, name, x)) for x in (0.0, 0.75, 1.0))
        for name in ("OPTM", _OURS)
    }
    what = "Scalar figure, OPTM, error at x = 0, 0.75, 1; ε = 1"
    return [Glance(what, "curve", values["OPTM"], values[_OURS], "1.0000")]


def _scalar(tables: Tables) -> str:
    return (
        "E|M(x) - x| of every mechanism of table 1 with the paper's parameters (RQM and ERM have none "
        "at ε = 0.5), of one bit, "
        "and of the design with the least MAE on four values.\n\n"
        "**What it does not show.** Squared errors, by which the order is another one (table 1). The "
        "curve of our design "
        "assumes uniform inputs: it gives up the edges for the middle.\n"
    )


def _law_glance(tables: Tables) -> list[Glance]:
    frame = tables["figure-law"]
    erm = frame[frame["mechanism"] == "ERM"]
    jump = (
        f"p(x, 3) jumps at B_3 from {number(erm['end_3'].iloc[0])} to {number(erm['start_3'].iloc[1])}; MAE "
    )
    ours = _of(frame, mechanism=_OURS)
    epsilon = rounded_up(ours["certified_epsilon"])
    return [
        Glance(
            "Law figure, ERM, m = 8",
            "curve",
            jump + number(erm["mae"].iloc[0]),
            f"no jump; MAE {number(ours['mae'])}",
            epsilon,
        )
    ]


def _law(tables: Tables) -> str:
    bins = ", ".join(f"{value:g}" for value in BINS)
    return (
        f"p(x, 3) and p(x, 6) of ERM on the bins [{bins}] with γ = {GAMMA:g}, and of the free design "
        "with the least MAE on the "
        "same bins at the same ε. As the paper's example says: p(x, 3) falls away from B_3 between bins "
        "and jumps at them, "
        "and the two are mirror images.\n\n"
        "**What it does not show.** The paper prints neither bins nor γ for its picture: ours are "
        "chosen to have B_3 to B_6 "
        "inside [-1, 1], so that shapes can be compared, not values.\n"
    )


_CUBE_TEXT = (
    "**What it shows.** Our design and MVU are close, and both well ahead of OPTM and RQM: an Euclidean "
    "error is "
    "governed by the MSE, which OPTM is not designed for."
)
_BALL_TEXT = (
    "**What it shows.** Coordinates of such vectors are near 0. Our design is made for their density, "
    "which is "
    "known without any data (a Beta law); those of the paper assume uniform coordinates, and would gain "
    "from it "
    "too. Quantizing coordinates one by one is the wrong tool here: at the same total, mechanisms that "
    "encode the "
    "whole vector err several times less."
)


def _vector_glance(name: str, what: str) -> Callable[[Tables], list[Glance]]:
    def glance(tables: Tables) -> list[Glance]:
        frame = tables[name]
        lines = []
        for epsilon in frame["epsilon"].unique():
            optm = _of(frame, epsilon=epsilon, mechanism="OPTM")
            ours = _of(frame, epsilon=epsilon, mechanism=_OURS)
            whole = rounded_up(ours["vector_epsilon"], 2)
            lines.append(
                Glance(
                    f"{what}, OPTM, error at ε = {epsilon:g}",
                    f"{optm['reference']:g} (ref)",
                    f"{number(optm['mean'], 2)} ± {number(optm['deviation'], 2)}",
                    f"{number(ours['mean'], 2)} ± {number(ours['deviation'], 2)}",
                    f"{epsilon:.4f}; vector: {whole}",
                )
            )
        return lines

    return glance


def _vector(name: str, text: str) -> Callable[[Tables], str]:
    def body(tables: Tables) -> str:
        rows = [
            [
                f"{row.epsilon:g}",
                row.mechanism,
                "" if pd.isna(row.reference) else f"{row.reference:g}",
                number(row.mean, 2),
                number(row.deviation, 2),
                str(row.trials),
                f"{row.bits:.0f}",
                rounded_up(row.vector_epsilon, 2),
            ]
            for row in tables[name].itertuples()
        ]
        headings = (
            "ε of a coordinate",
            "mechanism",
            "reference",
            "mean error",
            "std",
            "trials",
            "bits of a vector",
        )
        return (
            table((*headings, "certified ε of a vector (one release, local view, pure)"), rows)
            + "\nThe ε of the first column is the paper's: one coordinate, one release, local view. "
            "Mechanisms "
            "that encode a whole vector at once are shown at the same total as the others add up to. "
            "OPTM uses "
            "the bins [-3, -.5, .5, 3].\n\n"
            + text
            + "\n\n**What it does not show.** Error is per vector; what matters in federated learning is the "
            "mean over many clients. Totals are sums of ε, which is pure; at δ > 0 they compose to less "
            "(see the "
            "corrections).\n"
        )

    return body


def _training_glance(name: str, what: str) -> Callable[[Tables], list[Glance]]:
    def glance(tables: Tables) -> list[Glance]:
        frame = tables[name]
        lines = []
        for procedure, label in (("logits", "the paper's procedure"), ("whole", "whole gradients")):
            optm = _of(frame, procedure=procedure, mechanism="OPTM")
            ours = _of(frame, procedure=procedure, mechanism=_OURS)
            paper = f"{optm['reference']:g} (ref)" if procedure == "logits" else "not in it"
            protected = (
                "features of an example: ∞"
                if procedure == "logits"
                else f"example: {rounded_up(ours['epsilon_example'], 1)}, δ = {DELTA:g}"
            )
            lines.append(
                Glance(
                    f"{what}, {label}, accuracy",
                    paper,
                    f"{number(optm['mean'])} ± {number(optm['standard_error'])}",
                    f"{number(ours['mean'])} ± {number(ours['standard_error'])}",
                    f"{rounded_up(ours['epsilon_coordinate'])}; {protected}",
                )
            )
        budget = frame[frame["procedure"] == "budget"].iloc[0]
        lines.append(
            Glance(
                f"{what}, whole gradients, example ε = {BUDGET:g}",
                "not in it",
                "",
                f"{number(budget['mean'])} ± {number(budget['standard_error'])} (one bit)",
                f"{rounded_up(budget['epsilon_coordinate'])}; example: "
                f"{rounded_up(budget['epsilon_example'], 1)}, δ = {DELTA:g}",
            )
        )
        return lines

    return glance


def _training(name: str, text: Callable[[pd.DataFrame], str]) -> Callable[[Tables], str]:
    def body(tables: Tables) -> str:
        frame = tables[name]
        rows = []
        for row in frame.itertuples():
            example = (
                "∞ (features in clear)" if row.procedure == "logits" else rounded_up(row.epsilon_example, 1)
            )
            in_sum = "∞" if row.procedure == "logits" else rounded_up(row.epsilon_example_in_sum, 1)
            ahead = (
                ""
                if row.mechanism == "OPTM"
                else f"{row.ahead_of_optm:+.3f} ± {row.ahead_standard_error:.3f}"
            )
            rows.append(
                [
                    row.procedure,
                    row.mechanism,
                    number(row.reference),
                    f"{number(row.paper_runs_mean)} ± {number(row.paper_runs_deviation)}",
                    f"{number(row.mean)} ± {number(row.standard_error)}",
                    ahead,
                    number(row.held_out),
                    rounded_up(row.epsilon_coordinate),
                    "∞" if row.mechanism == "clip only" else example,
                    in_sum,
                ]
            )
        first = frame.iloc[0]
        headings = (
            "procedure",
            "mechanism",
            "reference",
            f"{first['paper_runs']} runs (± std)",
            f"{first['runs']} runs (± s.e.)",
            "ahead of OPTM, paired (± s.e.)",
            "held-out accuracy",
            "certified ε: coordinate release, local",
            f"ε: example, its one release, local, δ = {DELTA:g}",
            "the same, seeing only a batch's sum",
        )
        return table(headings, rows) + "\n" + text(frame)

    return body


def _procedures(frame: pd.DataFrame) -> str:
    logits = _of(frame, procedure="logits", mechanism="OPTM")["epsilon_logits"]
    return (
        "*logits* is the paper's procedure: per-sample gradients by the logits are clipped and "
        "quantized, then "
        "multiplied by the raw features; Adam (1e-3), one epoch; accuracy is the running one over the epoch, "
        "each example predicted before it is learnt from. If features were public, an example's logits would "
        f"cost it ε = {rounded_up(logits, 1)} (one release, local view, δ = {DELTA:g}); they are not, "
        "and are "
        "not protected. *whole* quantizes every coordinate of an example's gradient, features included, "
        "at the "
        "same ε a coordinate. *budget* does so with one bit, at an ε a coordinate that composes to "
        f"{BUDGET:g} for the whole example at δ = {DELTA:g}: a version that really protects whoever holds an "
        "example, without trust in the server. (At so small an ε more values than two gain next to "
        "nothing.)\n\n"
    )


def _means(frame: pd.DataFrame) -> dict[str, str]:
    """Accuracies that the text quotes."""
    rows = {"clip": ("logits", "clip only"), "logits": ("logits", _OURS), "whole": ("whole", _OURS)}
    found = {key: _of(frame, procedure=how, mechanism=label)["mean"] for key, (how, label) in rows.items()}
    found["budget"] = frame.loc[frame["procedure"] == "budget", "mean"].iloc[0]
    return {key: number(value) for key, value in found.items()}


def _cancer_text(frame: pd.DataFrame) -> str:
    means = _means(frame)
    lead = _of(frame, procedure="logits", mechanism=_OURS)
    return (
        _procedures(frame)
        + "In each run 70 % of the 569 examples are learnt from (398), the rest is held out, as in the "
        "code that "
        "the paper links to. Runs of the same number start alike and see the same batches, hence paired "
        "differences.\n\n"
        "**What it shows.** Most of the scatter is the random start: 30 runs cannot tell these "
        "mechanisms apart "
        "(the band). Paired runs put our design ahead of OPTM by "
        f"{lead['ahead_of_optm']:.3f} ± {lead['ahead_standard_error']:.3f}, and all of them far below "
        "clipping "
        f"only ({means['clip']}). Protecting features too takes our design from {means['logits']} to "
        f"{means['whole']}, at an ε a coordinate whose total for an example means nothing any more; a "
        "total that "
        f"does mean something leaves {means['budget']} after this one epoch, little above guessing.\n\n"
        "**What it does not show.** A trained model: one epoch of 50 steps is the paper's, and more "
        "would help "
        "all. Clients with several examples: `python -m simulations.run -m experiment=paper-cancer` "
        "quantizes "
        "whole updates of such clients. Standardisation by the training examples' mean and deviation is not "
        "private and not counted, in any procedure.\n"
    )


def _mnist_text(frame: pd.DataFrame) -> str:
    means = _means(frame)
    return (
        _procedures(frame)
        + "Learnt from are all 60,000 examples, in an order of its own in each run; held out are the other "
        "10,000.\n\n"
        "**What it shows.** In the paper's procedure an example spends ε on 10 logits, and its 784 "
        "pixels are "
        "used in clear. With all 7850 coordinates quantized at the same ε a coordinate our design goes from "
        f"{means['logits']} to {means['whole']} (clip only {means['clip']}), and the total says how "
        "little such "
        f"an ε means. At a total that does mean something accuracy is {means['budget']}: one epoch over "
        "single "
        "examples teaches next to nothing then. That is what secure aggregation over many clients is "
        "for.\n\n"
        "**What it does not show.** 5 runs, as in the paper: differences below some 0.005 are luck. "
        "Clients with "
        "many examples: `python -m simulations.run -m experiment=paper-mnist task.data_root=DIRECTORY`.\n"
    )


def _corrections_glance(tables: Tables) -> list[Glance]:
    frame = tables["corrections"]
    return [
        Glance("Corrections", "", f"{int(frame['confirmed'].sum())} of {len(frame)} checks confirm", "", "")
    ]


def _corrections(tables: Tables) -> str:
    rows = [
        [
            row.where,
            row.claim,
            row.finding,
            row.verdict + ("" if row.confirmed else " **(not confirmed by this run)**"),
        ]
        for row in tables["corrections"].itertuples()
    ]
    return (
        "Each line is a check that runs: the command prints all of them, and ends with an error if one "
        "does not confirm.\n\n"
        + table(("where", "the text says", "the check finds", "so"), rows)
        + "\n**What it does not show.** Random configurations show that a statement is false, never "
        "that one is true: where a "
        "corrected bound held in all of them, that is evidence. The package relies on none of these "
        "theorems; every ε is "
        "computed from the law.\n"
    )


SECTIONS = {
    "table1": Section(_table1_glance, _table1),
    "table2": Section(_table2_glance, _table2),
    "figure-scalar-error": Section(_scalar_glance, _scalar),
    "figure-law": Section(_law_glance, _law),
    "figure-vector-linf": Section(
        _vector_glance("figure-vector-linf", "Vector figure a"), _vector("figure-vector-linf", _CUBE_TEXT)
    ),
    "figure-vector-l2": Section(
        _vector_glance("figure-vector-l2", "Vector figure b"), _vector("figure-vector-l2", _BALL_TEXT)
    ),
    "dpsgd-cancer": Section(
        _training_glance("dpsgd-cancer", "Breast cancer"), _training("dpsgd-cancer", _cancer_text)
    ),
    "dpsgd-mnist": Section(_training_glance("dpsgd-mnist", "MNIST"), _training("dpsgd-mnist", _mnist_text)),
    "corrections": Section(_corrections_glance, _corrections),
}
