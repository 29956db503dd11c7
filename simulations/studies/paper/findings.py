"""What a check of the paper's text finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Whether a check confirms the correction of the text, and the figures behind that."""

    confirmed: bool
    measured: Mapping[str, float]
