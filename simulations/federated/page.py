"""The page of the studies: every number in it is read from a committed table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl_privquant.errors import PrivQuantError
from simulations.federated.collect import read_table
from simulations.federated.studies import study

__all__ = ["ALLOWED_LOSS", "PAGE", "chosen_clip", "page"]

PAGE = Path(__file__).parent / "README.md"
"""The committed page."""

ALLOWED_LOSS = 0.01
"""What a clip may cost in accuracy, against the widest that was tried."""

Tables = Callable[[str], pd.DataFrame]


def page(tables: Tables = read_table) -> str:
    """The page as Markdown."""
    parts = (_head, _clips, _mechanisms, _epsilon, _bits, _settings, _secagg, _budget, _limits)
    return "\n\n".join(part(tables).strip() for part in parts) + "\n"


def chosen_clip(table: pd.DataFrame, column: str) -> float:
    """The smallest clip that loses at most :data:`ALLOWED_LOSS` of accuracy against the widest."""
    ordered = table.sort_values(column)
    least = ordered.accuracy.iloc[-1] - ALLOWED_LOSS
    return float(ordered[ordered.accuracy >= least][column].iloc[0])


def _head(tables: Tables) -> str:
    return """
# Mechanisms side by side in federated learning

What do private quantizers cost in accuracy, when the whole update of a client is protected? Slices through
one setting, one thing varied at a time: 100 clients, all in each of 15 rounds, uniform weights; digits
(scikit-learn, 1438 examples, 5 local epochs) and MNIST (its first 20 000 examples, 200 a client, one local
epoch); softmax regression (650 and 7850 coordinates) unless said. Means over 5 seeds, which deal the data,
order the batches and draw the codes, with 95 % intervals (Student t). Each slice is one file in
`conf/experiment`, one table in `tables/`, one command; `python -m simulations.federated --mnist DIRECTORY`
runs all (DIRECTORY holds MNIST's IDX files), goes on where it was interrupted, and writes this page.
An ε is for one client's update replaced by any other. Randomness is seeded: privacy here is simulated.
"""


def _clips(tables: Tables) -> str:
    rows = []
    for name, column, label in (
        ("clip-digits", "clip", "digits, softmax: coordinate clip"),
        ("clip-mnist", "clip", "MNIST, softmax: coordinate clip"),
        ("clip-digits-cnn", "clip", "digits, CNN: coordinate clip"),
        ("clip-mnist-cnn", "clip", "MNIST, CNN: coordinate clip"),
        ("norm-digits", "l2_clip", "digits, softmax: L2 clip"),
        ("norm-mnist", "l2_clip", "MNIST, softmax: L2 clip"),
    ):
        table = tables(name).sort_values(column)
        chosen = chosen_clip(table, column)
        cells = [
            f"{'**' if value == chosen else ''}{value:g}: {accuracy:.3f}{'**' if value == chosen else ''}"
            for value, accuracy in zip(table[column], table.accuracy, strict=True)
        ]
        rows.append([label, ", ".join(cells)])
    return f"""
## The clips

Chosen without any private run, on seeds of their own: the smallest that loses at most one point of accuracy
against the widest, with 8-bit rounding or none at all and no noise. The test set is the one that accuracy is
measured on, so all mechanisms share whatever this flatters.

{_table(["", "clip: accuracy (chosen in bold)"], rows)}
"""


def _mechanisms(tables: Tables) -> str:
    table = tables("mechanisms-digits")
    none, optm, worst = (
        _one(table, mechanism=name) for name in ("none", "optm", _most(table, "mean_squared_error"))
    )
    private = table[np.isfinite(table.epsilon) & (table.unit == "coordinate release")]
    return f"""
## Every mechanism, ε = 1 a coordinate and release, local view

![Accuracy and error of every mechanism on digits](figures/mechanisms.png)

Without privacy digits reach {_accuracy(none)}; `optm` with 2 bits reaches {_accuracy(optm)}. The errors of
the mean differ by a factor {private.mean_squared_error.max() / private.mean_squared_error.min():.0f} between
mechanisms for coordinates, accuracies by {_points(private.accuracy.max() - private.accuracy.min())} points:
100 clients average the noise away, until it is that of `{worst.mechanism}` ({_accuracy(worst)}). This is no
sign of strong privacy. A client's 15 rounds cost ε = {optm.epsilon_total_local:,.0f} in the local view with
`optm`, δ = 1e-5. Not shown: mechanisms for whole updates have another unit (the ε of one round) and the L2
clip, so they are beside the others, not against them. `{study("mechanisms-digits").command}`, `{
        study("vectors-digits").command
    }`
"""


def _epsilon(tables: Tables) -> str:
    table = tables("epsilon-mnist")
    none = _one(table, mechanism="none")
    rows = []
    for epsilon in sorted(set(table[np.isfinite(table.epsilon)].epsilon.round(3))):
        here = table[np.isclose(table.epsilon, epsilon, rtol=1e-3)]
        optm = _one(here, mechanism="optm")
        cells = [_accuracy(_one(here, mechanism=name)) for name in ("optm", "rqm", "pbm", "one_bit")]
        total = f"{optm.epsilon_total_local:,.0f} / {optm.epsilon_total_aggregate:,.1f}"
        rows.append([f"{epsilon:g}", *cells, total])
    head = ["ε a coordinate", "optm", "rqm", "pbm", "one_bit", "optm, a client's total: local / sum of 100"]
    return f"""
## Accuracy and error against ε

![Accuracy and error against ε on MNIST](figures/epsilon.png)

{_table(head, rows)}

2 bits, MNIST; without privacy {_accuracy(none)}. The last column is the ε of all 15 rounds, δ = 1e-5. From
ε = 0.5 on the price in accuracy is small and the order of mechanisms is that of their errors; at 0.1 `pbm`
falls behind. Not shown: what the same accuracies would be with fewer clients. `{study("epsilon-mnist").command}`
"""


def _bits(tables: Tables) -> str:
    table = tables("bits-mnist").sort_values("bits_per_coordinate")
    errors = table.mean_squared_error.to_numpy()
    return f"""
## What bits buy

![Accuracy and error against bits on MNIST](figures/bits.png)

At ε = 4 a coordinate, where bits matter most, `optm` goes from {errors[0]:.2g} at one bit to {errors[1]:.2g},
{errors[2]:.2g} and {errors[3]:.2g} at two, three and four; the accuracy does not notice
({table.accuracy.min():.3f} to {table.accuracy.max():.3f}). Not shown: the wider codes of a secure sum,
{_integers(table.bits_in_secure_sum)} bits for 100 clients. `{study("bits-mnist").command}`
"""


def _settings(tables: Tables) -> str:
    rows = []
    for label, name, epsilon in (
        ("digits, softmax, IID", "mechanisms-digits", 1.0),
        ("digits, softmax, Dirichlet 0.3", "partition-digits", 1.0),
        ("digits, CNN, IID", "cnn-digits", 1.0),
        ("MNIST, softmax, IID", "epsilon-mnist", 2.0),
        ("MNIST, softmax, Dirichlet 0.3", "partition-mnist", 2.0),
        ("MNIST, CNN, IID", "cnn-mnist", 2.0),
    ):
        table = tables(name)
        none = _one(table, mechanism="none")
        optm = _one(table[np.isclose(table.epsilon, epsilon, rtol=1e-3)], mechanism="optm")
        lost = 100.0 * (none.accuracy - optm.accuracy)
        rows.append(
            [label, f"{optm.dimension:.0f}", f"{epsilon:g}", _accuracy(none), _accuracy(optm), f"{lost:.1f}"]
        )
    head = ["", "coordinates", "ε a coordinate", "none", "optm, 2 bits", "points lost"]
    commands = ", ".join(
        f"`{study(name).command}`"
        for name in ("partition-digits", "partition-mnist", "cnn-digits", "cnn-mnist")
    )
    return f"""
## Unlike clients, another model

![Accuracy by task, model and partition](figures/settings.png)

{_table(head, rows)}

What is lost is lost to the clip and the noise together. The CNN (8 filters) on MNIST has 50 examples a client.
Not shown: longer training, where the gap to no privacy grows, as noise does not shrink with the updates.
{commands}
"""


def _secagg(tables: Tables) -> str:
    table = tables("secagg-mnist")
    rows = []
    for name in ("optm", "pbm"):
        off = _one(table, mechanism=name, secure_aggregation=False)
        on = _one(table, mechanism=name, secure_aggregation=True)
        if off.model_sha256 != on.model_sha256:
            raise PrivQuantError(f"{name}: another model with secure aggregation than without")
        rows.append(
            [
                name,
                f"{off.accuracy:.4f} / {on.accuracy:.4f}",
                f"`{off.model_sha256[:12]}` both",
                f"{off.bits_per_coordinate:.1f} / {on.bits_per_coordinate:.1f}",
                f"{off.epsilon_total_local:,.0f} / {on.epsilon_total_aggregate:,.0f}",
            ]
        )
    head = ["", "accuracy", "SHA-256 of the model", "bits a coordinate on the wire", "ε of a client's total"]
    return f"""
## With and without secure aggregation

{_table(head, rows)}

Without / with. The model is the same to the last bit, so one seed suffices, and no other slice uses it: what
changes is who sees what (local view / sum of 100 honest clients, δ = 1e-5), and the bits. Not shown: the
keys and shares, and time. `{study("secagg-mnist").command}`
"""


def _budget(tables: Tables) -> str:
    rows = []
    for task, label in (("digits", "digits"), ("mnist", "MNIST")):
        table = tables(f"equal-budget-{task}")
        for epsilon in sorted(set(table.run_epsilon)):
            here = table[table.run_epsilon == epsilon]
            central = _one(here, mechanism="central_gaussian")
            for row in here.itertuples():
                bits = "" if row.mechanism == "central_gaussian" else f"{row.bits_per_coordinate:.0f}"
                wide = "" if np.isnan(row.bits_in_secure_sum) else f"{row.bits_in_secure_sum:.0f}"
                rows.append(
                    [
                        f"{label}, {epsilon:g}",
                        row.mechanism,
                        f"{row.epsilon_total_aggregate:.2f}",
                        _accuracy(row),
                        f"{row.mean_squared_error / central.mean_squared_error:.2f}",
                        f"{bits} / {wide}" if bits else "32, trusted server",
                    ]
                )
    head = [
        "task, budget ε",
        "mechanism",
        "ε stated",
        "accuracy",
        "error over central",
        "bits: codes / secure sum",
    ]
    return f"""
## At an equal budget for the whole run

![Accuracy and error at an equal budget for the whole run](figures/equal-budget.png)

{_table(head, rows)}

The budget is ε of a client's total, all 15 rounds, in the sum over 100 honest clients, δ = 1e-5; each mechanism
is designed to meet it. Updates are clipped to the L2 norm above and rotated, coordinates clipped at 2 standard
deviations of a rotated coordinate. `central_gaussian` trusts the server, which adds noise once: the reference.
`skellam` and `optm_aggregate` are counted by the norm, `optm` and `pbm`, laws for a coordinate, by coordinates,
which is why they lose. Errors are measured, clipping included. Not shown: corrupt and dropped clients, for
which each design would need more noise, and 1000 clients. `{study("equal-budget-digits").command}`,
`{study("equal-budget-mnist").command}`
"""


def _limits(tables: Tables) -> str:
    return """
## What this does not show

One learning rate and one number of rounds for each task and model, not tuned for each mechanism; small models;
clients that all take part in every round and are honest. Intervals are over 5 seeds: differences within them
say nothing. Statements in the local view and those not designed for are upper bounds by quick composition.
"""


def _one(table: pd.DataFrame, **where: Any) -> Any:
    found = table
    for column, value in where.items():
        found = found[found[column] == value]
    if len(found) != 1:
        raise PrivQuantError(f"{len(found)} rows with {where}, expected 1")
    return next(found.itertuples())


def _most(table: pd.DataFrame, column: str) -> str:
    return str(table.loc[table[column].idxmax(), "mechanism"])


def _accuracy(row: Any) -> str:
    half = 0.5 * (row.accuracy_high - row.accuracy_low)
    return f"{row.accuracy:.3f}" if np.isnan(half) else f"{row.accuracy:.3f} ± {half:.3f}"


def _points(share: float) -> str:
    return f"{100.0 * share:.1f}"


def _integers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(each) + " |" for each in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)
