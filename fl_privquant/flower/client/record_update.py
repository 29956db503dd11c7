"""Updates that are made from single records, and the mark by which a client's mod knows them.

What an ordinary app returns, a trained model, may tell any record. So where a plan protects records, the app
hands over an update that one of these functions made: :func:`linear_record_update` here, for linear models in
numpy, and :func:`fl_privquant.torch.record_update`. They draw the records, clip the gradient of each, and add
the gradients up. A mod refuses every other update. It cannot know whether the records are what the app says,
so the app is trusted to hand over one person's data as one record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from scipy.special import expit, softmax

from fl_privquant._array_types import Array, Floats, Ints
from fl_privquant.codec.record_sampling import RecordSampling, RecordSum
from fl_privquant.errors import MISSING, InvalidSpecError, InvalidUpdateError, pluralize
from fl_privquant.flower._flower_internals import log
from fl_privquant.flower._messages.arrays import DecodedArray
from fl_privquant.flower.client.request import ClientRequest
from fl_privquant.sampling.stream import RandomStream


class NotFromRecordsError(InvalidUpdateError):
    """The plan protects records, but the app's update was not made from clipped gradients of records."""


class UnfitForRecordsError(InvalidSpecError):
    """The message, or the app's model, allows no update from single records, whatever the records are.

    As it tells of no record, a client refuses with its text. Of any other error the server hears nothing.
    """


class RecordUpdate(ArrayRecord):
    """The arrays of the received model as they came, and an update that was made from records beside them.

    Put it into the reply as the only ArrayRecord. The update is an attribute, in double precision, which the
    mod of the same process takes and which is never serialized: an app that lacks the mod sends nothing but
    the model that it got. Only :class:`RecordWork` makes one.
    """

    record_sum: RecordSum | None
    """The update, until it is released."""

    def __init__(self, received: Mapping[str, Array], record_sum: RecordSum) -> None:
        super().__init__({name: DecodedArray.of(array) for name, array in received.items()})
        self.__dict__["record_sum"] = record_sum


def read_record_sum(record: ArrayRecord, asked: RecordSampling, simulated: bool) -> RecordSum:
    """The update in a record that was made as asked; raises NotFromRecordsError for any other.

    It is taken out of the record: records have to be drawn anew for each release, so that no update serves
    two. ``simulated`` says whether the client's noise is from a seed, so that the draw may be, too.
    """
    if type(record) is not RecordUpdate:
        raise NotFromRecordsError(
            "update: it was not made from single records, which this plan protects; return what "
            "fl_privquant.torch.record_update or fl_privquant.flower.linear_record_update makes as the "
            "reply's ArrayRecord"
        )
    record_sum: RecordSum | None = record.__dict__["record_sum"]
    if record_sum is None:
        raise NotFromRecordsError(
            "update: it was released before, and records must be drawn anew for each message; make it from "
            "the message that is answered"
        )
    if record_sum.simulated and not simulated:
        raise NotFromRecordsError(
            "update: its records were drawn from a seed, which protects them in simulations only; leave rng "
            "out"
        )
    if record_sum.sampling != asked:
        raise NotFromRecordsError(
            "update: it was made for another clip, rate or divisor than this message asks for; make it from "
            "the message that is answered"
        )
    record.__dict__["record_sum"] = None
    return record_sum


class RecordWork:
    """What a message asks of a client's records: which are drawn, and how their gradients are clipped."""

    def __init__(self, message: Message) -> None:
        client_request = ClientRequest.read(message)
        sampling = client_request.request.encoding.records
        if sampling is None:
            raise UnfitForRecordsError(
                "message",
                MISSING,
                problem="is not from a run that protects records",
                remedy="plan it with pq.Target(unit='record', ...), or train as usual",
            )
        self.sampling = sampling
        self.arrays = client_request.arrays
        self.sent = client_request.codec.layout.names
        self.simulated = self.warned = False

    def draw(self, number: int, rng: RandomStream) -> Ints:
        """The indices of drawn records."""
        self.simulated |= rng.simulated
        return self.sampling.draw(number, rng)

    def clip_factors(self, norms: Floats) -> Floats:
        """What gradients of these norms are multiplied by; one that is not finite counts as nothing."""
        factors = self.sampling.clip_factors(norms)
        if not self.warned and not np.isfinite(norms).all():
            # An error would tell the server of these records, as the client's other records would be missing.
            # How many were drawn is a secret, which logs must not have either: they may be collected.
            log(
                WARNING,
                "record update: some records have gradients that are not finite, and count as nothing; check "
                "the records, and whether training diverged",
            )
            self.warned = True
        return factors

    def make_update(self, sums: Mapping[str, Array]) -> RecordUpdate:
        """The update along the negative sums of clipped gradients; arrays without a sum stay as they are."""
        steps = {
            name: -np.asarray(sums[name], dtype=np.float64) / self.sampling.divisor
            if name in sums
            else np.zeros(self.arrays[name].shape)
            for name in self.sent
        }
        return RecordUpdate(self.arrays, RecordSum(steps, self.sampling, self.simulated))


def linear_record_update(
    message: Message,
    inputs: Array,
    labels: Array,
    *,
    rng: RandomStream | None = None,
) -> RecordUpdate:
    """The update of a logistic regression, such as scikit-learn's, made from single records.

    The model has two arrays, in this order: coefficients (classes, features) and intercepts (classes,); with
    one row, the two classes are 0 and 1. A step of the server has the learning rate of its strategy
    (``FedAvgM(server_learning_rate=...)``); with ``FedAvg`` it is 1.

    Parameters
    ----------
    message
        The train message, which holds the model and says how records are drawn and clipped.
    inputs, labels
        (n, features) and (n,): the client's records, one row for each person. Labels count from 0.
    rng
        A seeded stream, for simulations; by default secure randomness, which keeps the draw a secret.

    Returns
    -------
    RecordUpdate
        What the app replies with as its ArrayRecord.

    Raises
    ------
    UnfitForRecordsError
        The message or the model is another one, or inputs have other columns than the model has features.
    InvalidSpecError
        Inputs and labels do not belong together.
    """
    work = RecordWork(message)
    (names, (coefficients, intercepts)) = _linear_model(work.arrays)
    inputs, labels = _read_numbers(inputs), _read_numbers(labels)
    if inputs.ndim == 2 and inputs.shape[1] != coefficients.shape[1]:
        raise UnfitForRecordsError(
            "inputs",
            MISSING,
            problem=f"have {pluralize(inputs.shape[1], 'column')}, but the model has coefficients for "
            f"{coefficients.shape[1]}",
            remedy="use the same features in all silos, fixed before the run",
        )
    if inputs.ndim != 2 or labels.shape != inputs.shape[:1]:
        raise InvalidSpecError(
            "inputs, labels",
            MISSING,
            problem=f"have shapes {inputs.shape} and {labels.shape}",
            remedy=f"give (n, {coefficients.shape[1]}) and (n,): a row and a label for each record",
        )
    drawn = work.draw(len(labels), RandomStream.secure() if rng is None else rng)
    features, targets = inputs[drawn], labels[drawn]
    with np.errstate(all="ignore"):
        scores = features @ coefficients.T + intercepts
        if len(intercepts) == 1:
            errors = expit(scores) - targets[:, None]
        else:
            errors = softmax(scores, axis=1) - (targets[:, None] == np.arange(len(intercepts)))
        # The gradient of a record is the product of its error and its features, so that its norm is known.
        norms = np.linalg.norm(errors, axis=1) * np.sqrt(1.0 + np.square(features).sum(axis=1))
        factors = work.clip_factors(norms)
    kept = factors > 0.0
    weighted = errors[kept] * factors[kept, None]
    return work.make_update({names[0]: weighted.T @ features[kept], names[1]: weighted.sum(axis=0)})


def _read_numbers(values: Array) -> Floats:
    """The values as floats; what is no number becomes NaN, so that only its own record counts as nothing."""
    values = np.asarray(values)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    return np.reshape([_read_number(value) for value in values.ravel()], values.shape)


def _read_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _linear_model(arrays: Mapping[str, Array]) -> tuple[list[str], list[Floats]]:
    """The names and values of coefficients and intercepts."""
    shapes = [array.shape for array in arrays.values()]
    if len(shapes) != 2 or len(shapes[0]) != 2 or shapes[1] != shapes[0][:1]:
        raise UnfitForRecordsError(
            "model",
            MISSING,
            problem=f"has arrays of shapes {shapes}",
            remedy="expected coefficients (classes, features) and intercepts (classes,)",
        )
    return list(arrays), [np.asarray(array, dtype=np.float64) for array in arrays.values()]
