"""What stands below the figures of a privacy statement: what they do not cover, and what clients say."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fl_privquant.codec.metric_range import MetricRange

__all__ = ["metric_lines", "randomness_lines"]

# Nodes that a privacy statement names one by one.
_NAMED_NODES = 5


def metric_lines(private: Iterable[MetricRange], uncounted: Collection[str]) -> list[str]:
    """The metrics that are among the coordinates, and those that go around all accounting."""
    ranges = ", ".join(f"{metric.name!r} in [{metric.low:g}, {metric.high:g}]" for metric in private)
    lines = []
    if ranges:
        lines.append(f"among the coordinates are metrics of the client, clipped to a range: {ranges}")
    if uncounted:
        names = ", ".join(repr(name) for name in sorted(uncounted))
        lines.append(
            f"not counted in any figure: clients also send {names} without protection; remove them from "
            f"PrivQuantMod's metrics and report_clipping, or ask for private_metrics"
        )
    return lines


def randomness_lines(simulated: bool, nodes: Collection[int]) -> list[str]:
    """That privacy is simulated, if the operator says so; else which clients say so of themselves."""
    if simulated:
        return ["privacy is simulated: clients draw from seeded streams, whoever knows the seed knows all"]
    if not nodes:
        return []
    named = ", ".join(map(str, sorted(nodes)[:_NAMED_NODES]))
    more = ", ..." if len(nodes) > _NAMED_NODES else ""
    return [
        f"clients that say of themselves that they draw from seeded streams: {len(nodes)} (node "
        f"{named}{more}); for these, privacy is simulated, and in sums count them among the corrupt ones"
    ]
