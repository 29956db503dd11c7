"""Lines of the log and of privacy statements: what figures do not cover, and which clients failed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from fl_privquant.codec.metrics import MetricRange
from fl_privquant.errors import one_line
from fl_privquant.flower._messages.clear_replies import FURTHER_METRICS

# An L2 clip that is so many times as large or as small as the usual norm is worth a remark.
_FAR_FACTOR = 10.0
# How many nodes a line names one by one.
_MAX_NAMED_NODES = 5
# How many metrics a line names, and how many characters of each.
_MAX_NAMED_METRICS, _MAX_NAME_CHARACTERS = 10, 60


def failure_lines(nodes_by_reason: Mapping[str, Sequence[int]]) -> list[str]:
    """Which nodes failed in a round, with one line for each reason.

    >>> failure_lines({"replied with error 6": [4], "sent 0 bytes": [1, 2, 3, 5, 7, 8]})
    ['node 4: replied with error 6', '6 nodes (1, 2, 3, 5, 7, ...): sent 0 bytes']
    """
    lines = []
    for reason, nodes in nodes_by_reason.items():
        nodes_named = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} nodes ({_list_nodes(nodes)})"
        lines.append(f"{nodes_named}: {reason}")
    return lines


def _list_nodes(nodes: Sequence[int]) -> str:
    """The first few of some nodes."""
    return ", ".join(map(str, nodes[:_MAX_NAMED_NODES])) + (", ..." if len(nodes) > _MAX_NAMED_NODES else "")


def describe_keep(keep: int | float | None) -> str:
    """How much of an update is sent, in words."""
    if keep is None:
        return "all"
    amount = f"a share of {keep:g}" if isinstance(keep, float) else str(keep)
    return f"{amount}, a new random subset each round"


def advise_clip(norm_to_clip: float | None, l2_clip: float | None) -> str:
    """What to change if the usual norm of updates is far from the L2 clip; empty if it is not, or not known.

    >>> advise_clip(2000.0, 0.001)
    'the usual update has an L2 norm of 2, 2e+03 times the L2 clip of 0.001, and is cut to it; set l2_clip=2'
    >>> advise_clip(0.5, 1.0), advise_clip(None, 1.0)
    ('', '')
    """
    if norm_to_clip is None or l2_clip is None or not math.isfinite(norm_to_clip):
        return ""
    usual = f"the usual update has an L2 norm of {norm_to_clip * l2_clip:.2g}"
    advice = f"; set l2_clip={norm_to_clip * l2_clip:.2g}" if norm_to_clip else ", so that nothing is learned"
    if norm_to_clip > _FAR_FACTOR:
        return f"{usual}, {norm_to_clip:.3g} times the L2 clip of {l2_clip:g}, and is cut to it{advice}"
    if norm_to_clip < 1.0 / _FAR_FACTOR:
        return f"{usual}, far below the L2 clip of {l2_clip:g}, which the noise is made for{advice}"
    return ""


def metric_lines(private: Iterable[MetricRange], uncounted: Collection[str]) -> list[str]:
    """Which metrics of clients are counted among the coordinates, and what is not counted at all."""
    ranges = ", ".join(f"{metric.name!r} in [{metric.low:g}, {metric.high:g}]" for metric in private)
    lines = []
    if ranges:
        lines.append(f"among the coordinates are metrics of the client, clipped to a range: {ranges}")
    if uncounted:
        lines.append(
            f"not counted in any figure: clients send or may send {list_names(uncounted)} without "
            f"protection; put PrivQuantMod into ClientApp(mods=[...]), without metrics and report_clipping, "
            f"and ask for private metrics instead"
        )
    return lines


def list_names(uncounted: Collection[str]) -> str:
    """The first few of what clients send in clear, because one client can send any number of long names."""
    names = ", ".join(one_line(name, _MAX_NAME_CHARACTERS) for name in sorted(uncounted)[:_MAX_NAMED_METRICS])
    if (more := len(uncounted) - _MAX_NAMED_METRICS) <= 0:
        return names
    return f"{names} and {'at least ' if FURTHER_METRICS in uncounted else ''}{more} more metrics"


def randomness_lines(simulated: bool, nodes: Collection[int]) -> list[str]:
    """A line if randomness is seeded, so that privacy is simulated: of all clients, or of these nodes."""
    if simulated:
        return ["privacy is simulated: clients draw from seeded streams, and the seed tells all of the noise"]
    if not nodes:
        return []
    named = _list_nodes(sorted(nodes))
    return [
        f"clients that report seeded randomness: {len(nodes)} (node {named}); their privacy is simulated, "
        f"and in a sum they must be counted as corrupt"
    ]
