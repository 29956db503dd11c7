"""The paper's scalar experiments: tables 1 and 2, the error against the input, and a distribution.

For its example of a distribution the paper prints neither bins nor gamma. Its text says that B_3 to B_6 lie
inside [-1, 1]; uniform bins with a margin of 0.75 do that, and gamma = 2 makes every jump visible. Beside it
is shown the free design on the same bins and at the same epsilon, whose distribution has no jumps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

import fl_privquant as pq
from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.input_density import Density, as_density
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms.base import TableMechanism
from simulations.studies._pages import Compute, compute_rows
from simulations.studies.paper.authors import design_as_authors, design_symmetric_as_authors

GRID = np.linspace(-1.0, 1.0, 51)
"""The inputs over which the paper averages: its tables are means over this grid, not integrals."""

OPTM_BINS = {
    0.5: (-6.0, -0.4, 0.4, 6.0),
    1.0: (-3.0, -0.5, 0.5, 3.0),
    1.5: (-3.0, -0.5, 0.5, 3.0),
}
RQM: dict[float, dict[str, Any]] = {1.0: {"margin": 1.7, "keep": 0.22}, 1.5: {"margin": 1.6, "keep": 0.498}}
ERM: dict[float, dict[str, Any]] = {
    1.0: {"gamma": 0.026, "bins": (-5.1, -0.1, 0.1, 5.1)},
    1.5: {"gamma": 0.043, "bins": (-2.7, -0.4, 0.4, 2.7)},
}
PRINTED_1 = {
    "OPTM": {0.5: 3.904, 1.0: 1.882, 1.5: 1.179},
    "MVU": {0.5: 3.959, 1.0: 1.930, 1.5: 1.254},
    "RQM": {1.0: 1.993, 1.5: 1.310},
    "ERM": {1.0: 2.216, 1.5: 1.304},
}
PRINTED_2 = {
    "OPTM": {0.1: 1.778, 0.2: 1.836, 0.3: 1.972},
    "MVU": {0.1: 2.053, 0.2: 2.052, 0.3: 2.002},
    "RQM": {0.1: 2.028, 0.2: 2.010, 0.3: 2.000},
}
GAUSSIAN_BINS = {0.1: (-4.0, 0.2, 0.6, 4.0), 0.2: (-4.0, 0.2, 0.6, 4.0), 0.3: (-4.0, -0.2, 0.6, 4.0)}
# A solver may overshoot epsilon by its tolerance, which the certificate of the table would refuse.
_SOLVER_ROOM = 1e-7
_CURVE_POINTS = 201
_JUMP = 1e-9


def _row(
    setting: dict[str, float],
    label: str,
    mechanism: TableMechanism | None,
    printed: float | None = None,
    density: Density | None = None,
) -> dict[str, object]:
    """A mechanism at one setting: what the paper prints for it, if it does, and what it does exactly."""
    exact: dict[str, object] = dict.fromkeys(("grid_mae", "mae", "mse", "certified_epsilon"))
    if mechanism is not None:
        distribution = mechanism.distribution
        exact = {
            "grid_mae": float(distribution.error_at(GRID).mean()) if density is None else None,
            "mae": distribution.mae(density),
            "mse": distribution.mse(density),
            "certified_epsilon": mechanism.epsilon,
        }
    return {**setting, "mechanism": label, "printed": printed, **exact}


def table1(epsilon: float) -> list[dict[str, object]]:
    """Rows of table 1 at an ε: uniform inputs, four levels, the paper's parameters and ours."""
    return list(_rows_of_table1(epsilon))


def _rows_of_table1(epsilon: float) -> Iterator[dict[str, object]]:
    at, bins = {"epsilon": epsilon}, OPTM_BINS[epsilon]
    common: dict[str, Any] = {"epsilon": epsilon, "objective": "mae", "bins": bins}
    yield _row(at, "OPTM", optm_as_printed(bins, epsilon), PRINTED_1["OPTM"][epsilon])
    yield _row(at, "MVU", mvu_as_printed(epsilon), PRINTED_1["MVU"][epsilon])
    for name, parameters in (("rqm", RQM.get(epsilon)), ("erm", ERM.get(epsilon))):
        mechanism = design_table(name, **parameters) if parameters else None
        yield _row(at, name.upper(), mechanism, PRINTED_1[name.upper()].get(epsilon))
    for family in ("independent", "paired", "free"):
        yield _row(at, f"ours: {family}, paper's bins", design_table("optm", family=family, **common))
    for name in ("rqm", "erm"):
        yield _row(at, f"ours: {name.upper()} tuned by MAE", _tune(name, epsilon))
    yield _row(at, "one bit", design_table("one_bit", epsilon=epsilon))
    for objective in ("mae", "mse"):
        yield _row(at, f"ours: free, best for {objective.upper()}", best_design(epsilon, objective))


def table2(sigma: float) -> list[dict[str, object]]:
    """Rows of table 2 at a σ: inputs from N(0.5, σ), four levels, ε = 1."""
    return list(_rows_of_table2(sigma))


def _rows_of_table2(sigma: float) -> Iterator[dict[str, object]]:
    at, bins = {"sigma": sigma}, GAUSSIAN_BINS[sigma]
    clipped, truncated = make_gaussians(sigma)
    authors = certify(design_as_authors(np.array(bins), 1.0 - _SOLVER_ROOM, clipped), bins, 1.0)
    yield _row(at, "OPTM, clipped", authors, PRINTED_2["OPTM"][sigma], clipped)
    yield _row(at, "MVU, clipped", mvu_as_printed(1.0), PRINTED_2["MVU"][sigma], clipped)
    yield _row(at, "RQM, clipped", design_table("rqm", **RQM[1.0]), PRINTED_2["RQM"][sigma], clipped)
    for shape, density in (("clipped", clipped), ("truncated", truncated)):
        common: dict[str, Any] = {"epsilon": 1.0, "objective": "mae", "density": density}
        for family in ("independent", "free"):
            ours = design_table("optm", family=family, bins=bins, **common)
            yield _row(at, f"ours: {family}, paper's bins, {shape}", ours, None, density)
        free = design_table("optm", levels=4, lattice=False, **common)
        yield _row(at, f"ours: free, best for MAE, {shape}", free, None, density)


def design_table(name: str, **parameters: Any) -> TableMechanism:
    """The design of a mechanism that is sampled from a table, as all of the paper's are."""
    mechanism = pq.design(name, **parameters)
    assert isinstance(mechanism, TableMechanism)
    return mechanism


def best_design(epsilon: float, objective: str) -> TableMechanism:
    """Our best design on four values, for uniform inputs."""
    return design_table("optm", epsilon=epsilon, levels=4, objective=objective, lattice=False)


def optm_as_printed(bins: tuple[float, ...], epsilon: float) -> TableMechanism:
    """OPTM on symmetric bins by the authors' program."""
    return certify(design_symmetric_as_authors(np.array(bins), epsilon - _SOLVER_ROOM), bins, epsilon)


def mvu_as_printed(epsilon: float) -> TableMechanism:
    """MVU with two input bits and four values, whose alphabets are those that the paper prints."""
    return design_table("mvu", epsilon=epsilon, levels=4, input_bits=2)


def certify(distribution: OutputDistribution, bins: tuple[float, ...], epsilon: float) -> TableMechanism:
    """A distribution of the authors' as a mechanism, with its epsilon certified."""
    return TableMechanism(
        "optm", CertifiedTable.from_distribution(distribution, Codebook.from_values(bins), epsilon), epsilon
    )


def make_gaussians(sigma: float) -> tuple[Density, Density]:
    """N(0.5, σ) clipped to [-1, 1], whose tails are at the ends, and truncated, without its tails."""
    clipped = as_density(stats.norm(0.5, sigma))
    return clipped, as_density(stats.truncnorm(-1.5 / sigma, 0.5 / sigma, 0.5, sigma))


def figure_mechanisms(epsilon: float) -> dict[str, TableMechanism]:
    """The mechanisms of the figure at one epsilon, by label."""
    return {
        "OPTM": optm_as_printed(OPTM_BINS[epsilon], epsilon),
        "MVU": mvu_as_printed(epsilon),
        **({"RQM": design_table("rqm", **RQM[epsilon])} if epsilon in RQM else {}),
        **({"ERM": design_table("erm", **ERM[epsilon])} if epsilon in ERM else {}),
        "one bit": design_table("one_bit", epsilon=epsilon),
        "OPTM free (ours)": best_design(epsilon, "mae"),
    }


def error_curves() -> pd.DataFrame:
    """The expected absolute error at each input, on both sides of a jump."""
    parts = []
    for epsilon in OPTM_BINS:
        for label, mechanism in figure_mechanisms(epsilon).items():
            ends = mechanism.distribution.ends
            x = np.unique(np.concatenate([np.linspace(-1.0, 1.0, _CURVE_POINTS), ends, ends - _JUMP]))
            errors = mechanism.distribution.error_at(x)
            parts.append(pd.DataFrame({"epsilon": epsilon, "mechanism": label, "x": x, "error": errors}))
    return pd.concat(parts, ignore_index=True)


def _tune(name: str, epsilon: float) -> TableMechanism | None:
    try:
        return design_table(name, epsilon=epsilon, levels=4, objective="mae")
    except InfeasibleDesignError:
        return None


EXAMPLE_BINS = tuple(np.linspace(-1.75, 1.75, 8).tolist())
EXAMPLE_GAMMA = 2.0


def example_mechanisms() -> dict[str, TableMechanism]:
    """ERM, and the design with the least absolute error on the same bins at the same epsilon."""
    erm = design_table("erm", gamma=EXAMPLE_GAMMA, bins=EXAMPLE_BINS)
    free = design_table("optm", epsilon=erm.epsilon, bins=EXAMPLE_BINS, objective="mae")
    return {"ERM": erm, "OPTM free (ours)": free}


def distribution_pieces() -> pd.DataFrame:
    """Every piece of both distributions: its ends, and the probability of outputs 1 to 8 at either end."""
    parts = []
    for label, mechanism in example_mechanisms().items():
        distribution = mechanism.distribution
        ends = {
            "mechanism": label,
            "certified_epsilon": mechanism.epsilon,
            "mae": distribution.mae(),
            "mse": distribution.mse(),
        }
        frame = pd.DataFrame({**ends, "start": distribution.starts, "end": distribution.ends})
        for i in range(distribution.num_levels):
            frame[f"start_{i + 1}"] = distribution.start_rows[:, i]
            frame[f"end_{i + 1}"] = distribution.end_rows[:, i]
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


PARTS: dict[str, Compute] = {
    "table1": lambda: compute_rows(table1, [(epsilon,) for epsilon in OPTM_BINS]),
    "table2": lambda: compute_rows(table2, [(sigma,) for sigma in GAUSSIAN_BINS]),
    "figure-scalar-error": error_curves,
    "figure-distribution": distribution_pieces,
}
"""By name, the functions that compute the tables."""
