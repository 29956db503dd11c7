"""Requests: read as they were written, refused where they are forged, and what masks depend on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

import fl_privquant as pq
from fl_privquant.codec.array_selection import ArrayChoice
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.metrics import MetricRange
from fl_privquant.errors import InvalidSpecError, PrivQuantError
from fl_privquant.flower._messages.protocol import Request
from tests.flower.apps import digest_of

MECHANISM = pq.design("one_bit", epsilon=1.0)
LOSS = MetricRange("loss", 0.0, 6.0)
CHOICES = (
    ArrayChoice(include=["head.*"], exclude=["*.bias"]),
    ArrayChoice(include=["body.*"], exclude=["*.bias"]),
    ArrayChoice(clip_scales=[("head.*", 1.0), ("*", 0.5)]),
    ArrayChoice(clip_scales=[("head.*", 1.0), ("*", 0.25)]),
)
KEPT = [Encoding(MECHANISM, 0.1, 1.0, rotate=True, keep=keep) for keep in (None, 1, 40, 41, 0.25, 1.0)]
REQUESTS = [
    *(Request(1, encoding, rotation_seed=5) for encoding in KEPT),
    *(Request(1, Encoding(MECHANISM, 0.1), arrays=arrays) for arrays in CHOICES),
    Request(1, Encoding(MECHANISM, 0.1), private_metrics=(LOSS,)),
    Request(1, Encoding(MECHANISM, 0.1), private_metrics=(LOSS, MetricRange("secret", -2.0, 2.0))),
]


def written(request: Request) -> ConfigRecord:
    """A config into which another request was written before."""
    config = ConfigRecord()
    for each in (*REQUESTS, request):
        each.write(config)
    return config


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_is_read_as_it_was_written(request_: Request) -> None:
    read = Request.read(written(request_))
    assert read == request_
    # As numbers, 1 coordinate and 1.0, all of them, are equal.
    assert repr(read.encoding.keep) == repr(request_.encoding.keep)


def test_masks_depend_on_all_that_a_request_asks_for() -> None:
    """Clients that are asked for different things have masks that do not cancel."""
    assert len({digest_of(request) for request in REQUESTS}) == len(REQUESTS)


METRICS = "privquant-private-metrics"
RANGES = "privquant-private-metric-ranges"
PATTERNS, SCALES = "privquant-clip-scale-patterns", "privquant-clip-scales"


@pytest.mark.parametrize(
    ("forged", "named"),
    [
        *(({"privquant-keep": keep}, "keep") for keep in (0, -3, 2.5, math.nan, True, "all", b"1", [1])),
        ({"privquant-include": "head"}, "include"),
        ({"privquant-include": ["x" * 300]}, "include"),
        ({"privquant-exclude": [1.0]}, "exclude"),
        *(({PATTERNS: ["*"], SCALES: [scale]}, "clip_scales") for scale in (0.0, -1.0, math.nan, math.inf)),
        ({PATTERNS: ["*", "x"], SCALES: [1.0]}, "clip-scales"),
        ({PATTERNS: ["*"], SCALES: 1.0}, "clip-scales"),
        ({PATTERNS: ["*", "*"], SCALES: [1.0, 1.0]}, "clip_scales"),
        ({PATTERNS: ["x" * 300], SCALES: [1.0]}, "clip_scales"),
        ({METRICS: ["a"]}, "private-metrics"),
        ({RANGES: [0.0, 1.0]}, "private-metrics"),
        ({METRICS: ["a"], RANGES: [0.0]}, "privat"),
        ({METRICS: ["a", "a"], RANGES: [0.0, 1.0, 0.0, 1.0]}, "privat"),
        ({METRICS: [1], RANGES: [0.0, 1.0]}, "privat"),
        ({METRICS: ["a"], RANGES: [0, 1]}, "privat"),
        ({METRICS: ["a"], RANGES: [1.0, 0.0]}, "privat"),
        ({METRICS: "a", RANGES: [0.0, 1.0]}, "privat"),
        ({METRICS: ["a"], RANGES: 1.0}, "privat"),
    ],
)
def test_a_forged_field_is_refused_by_name(forged: dict[str, Any], named: str) -> None:
    request = Request(1, Encoding(MECHANISM, 0.1, 1.0, rotate=True), rotation_seed=5)
    with pytest.raises(PrivQuantError, match=named):
        Request.read(ConfigRecord({**written(request), **forged}))


@pytest.mark.parametrize("scale", [1e-36, 1e36])
def test_scales_that_floats_would_not_hold_are_refused_before_anything_is_trained(scale: float) -> None:
    model = {"head": np.zeros(3, np.float32), "body": np.zeros(5, np.float32)}
    asked = Request(
        1, Encoding(MECHANISM, 0.1), arrays=ArrayChoice(clip_scales=[("head", 1.0), ("*", scale)])
    )
    with pytest.raises(InvalidSpecError, match=r"clip: .* is outside"):
        asked.codec(asked.layout(model))


def test_what_is_kept_of_an_update_is_what_is_counted_and_scales_are_no_part_of_it() -> None:
    model = {"head.w": np.zeros(300, np.float32), "body.w": np.zeros(100, np.float32)}
    whole, part = (Request(1, encoding) for encoding in (KEPT[0], KEPT[4]))
    all_of_it, quarter = (each.release(each.layout(model)) for each in (whole, part))
    assert (all_of_it.dimension, quarter.dimension) == (400, 100)
    # Half the norm of all, and a little less, as the norm of what is kept varies.
    assert quarter.norms.l2 == pytest.approx(all_of_it.norms.l2 / 2.0 / (1.0 + 2.0 / math.sqrt(200.0)))
    scaled = Request(1, KEPT[0], arrays=CHOICES[2])
    assert scaled.release(scaled.layout(model)) == all_of_it
