"""The designs that meet a budget of a whole run, and their exact errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fl_privquant.accounting import Norms, Wish, plan
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.optm_aggregate import usual_norm_ratio
from simulations.aggregate.settings import PEERS, Settings
from simulations.central import noise_of_sum
from simulations.config import CENTRAL

__all__ = ["Design", "design_for", "error_rows"]


@dataclass(frozen=True)
class Design:
    """A mechanism that meets the budget, with the least error among its bit-widths."""

    mechanism: Mechanism
    epsilon: float
    method: str
    mean_squared_error: float
    bits_in_sum: int


@lru_cache(maxsize=256)
def design_for(
    name: str, bits: int, clients: int, dimension: int, rounds: int, epsilon: float, delta: float
) -> Design | None:
    """The design of a mechanism with so many bits that meets the budget; None if there is none.

    Updates are clipped to an L2 norm and rotated; the coordinate clip is three standard deviations of a
    coordinate. Errors are in units of its square, for one coordinate of the mean update.
    """
    wish = Wish(
        num_clients=clients,
        dimension=dimension,
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
        bits=bits,
        norms=Norms(l2=usual_norm_ratio(dimension)),
    )
    found = plan(wish, [name]).designs
    if not found:
        return None
    best = found[0]
    width = best.mechanism.sum_bits(clients)
    return Design(
        best.mechanism, best.statement.epsilon, best.statement.method, best.mean_squared_error, width
    )


def error_rows(settings: Settings) -> list[dict[str, object]]:
    """One row for each mechanism, bit-width, number of clients and budget."""
    rows: list[dict[str, object]] = []
    ratio = usual_norm_ratio(settings.dimension)
    for clients in settings.clients:
        for epsilon in settings.epsilons:
            deviation = noise_of_sum(ratio, settings.rounds, epsilon, settings.delta)
            central = (deviation / clients) ** 2
            common = {
                "settings": settings.errors_key,
                "clients": clients,
                "run_epsilon": epsilon,
                "run_delta": settings.delta,
            }
            rows.append(
                {
                    **common,
                    "mechanism": CENTRAL,
                    "epsilon_reached": epsilon,
                    "mean_squared_error": central,
                    "ratio_to_central": 1.0,
                    "counted_by": "exact",
                }
            )
            for name in PEERS:
                for bits in settings.bits:
                    found = design_for(
                        name, bits, clients, settings.dimension, settings.rounds, epsilon, settings.delta
                    )
                    if found is None:
                        continue
                    rows.append(
                        {
                            **common,
                            "mechanism": name,
                            "bits": bits,
                            "bits_in_sum": found.bits_in_sum,
                            "epsilon_reached": found.epsilon,
                            "mean_squared_error": found.mean_squared_error,
                            "ratio_to_central": found.mean_squared_error / central,
                            "counted_by": found.method,
                        }
                    )
    return rows
