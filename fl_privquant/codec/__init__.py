"""From model updates to integer payloads and back."""

from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.array_selection import ArrayChoice
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.metrics import MetricRange
from fl_privquant.codec.record_sampling import RecordSampling, RecordSum
from fl_privquant.codec.update import EncodedUpdate, UpdateCodec

__all__ = [
    "ArrayChoice",
    "EncodedUpdate",
    "Encoding",
    "Layout",
    "MetricRange",
    "RecordSampling",
    "RecordSum",
    "UpdateCodec",
]
